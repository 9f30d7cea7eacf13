"""Module buffers that forward passes change (BatchNorm's statistics), as sums over blocks.

Each block of a step begins with the buffers as the step found them. What its forward pass adds to
them is summed as gradients are: a buffer becomes the mean over all samples of what each block made
of it, the same in all members. Of whole numbers (counters) the first block's change is taken.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.base.errors import ConfigError


class Buffers:
    """The buffers of these modules that are state: persistent ones.

    Attributes:
        kept: what they are in the step at hand; ``grad`` of each is what was added to it.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._places: list[tuple[str, nn.Module, str]] = []
        known: set[int] = set()
        for root in modules:
            for path, module in root.named_modules():
                for name, buffer in module.named_buffers(recurse=False):
                    if name in module._non_persistent_buffers_set or id(buffer) in known:
                        continue
                    if any(not step for step in buffer.stride()):  # expanded: it cannot be restored
                        module._buffers[name] = buffer.contiguous()
                    known.update((id(buffer), id(module._buffers[name])))
                    self._places.append((f"{path}.{name}".lstrip("."), module, name))
        self.kept = [_plain(self._at(place)).clone() for place in self._places]

    def _at(self, place: tuple[str, nn.Module, str]) -> Tensor:
        _, module, name = place
        buffer = module._buffers[name]
        assert buffer is not None
        return buffer

    def named(self) -> dict[str, Tensor]:
        """Return the buffers as they are, by their names."""
        return {place[0]: self._at(place) for place in self._places}

    def begin(self) -> None:
        """A step begins: what they are now is what each of its blocks begins with."""
        for place, kept in zip(self._places, self.kept, strict=True):
            buffer = _plain(self._at(place))
            if buffer.shape != kept.shape or buffer.dtype != kept.dtype:
                raise ConfigError(
                    f"buffer {place[0]} has become {buffer.dtype} of {tuple(buffer.shape)}; with "
                    "deterministic: true buffers keep their form (register it with "
                    "persistent=False if it is no state)"
                )
            kept.copy_(buffer)

    def restore(self) -> None:
        """Write back what the step found in the buffers, or what it has made of them."""
        for place, kept in zip(self._places, self.kept, strict=True):
            _plain(self._at(place)).copy_(kept)

    def note(self, *, is_first: bool) -> None:
        """A block was computed: note what it has added; ``is_first``: of the whole step."""
        for place, kept in zip(self._places, self.kept, strict=True):
            buffer = _plain(self._at(place))
            counts = is_first or buffer.is_floating_point() or buffer.is_complex()
            kept.grad = buffer - kept if counts and not _is_same(buffer, kept) else None

    def update(self) -> None:
        """Add what all blocks have added, by now in ``grad``."""
        for kept in self.kept:
            if kept.grad is not None:
                kept.add_(kept.grad)
                kept.grad = None
        self.restore()


def _plain(buffer: Tensor) -> Tensor:
    """Detach a buffer; view what cannot be added as numbers that can, and wrap around."""
    buffer = buffer.detach()
    bits = buffer.dtype == torch.bool or (buffer.is_floating_point() and buffer.itemsize == 1)
    return buffer.view(torch.uint8) if bits else buffer


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two values are equal, also where both are not a number."""
    return bool(torch.eq(one, other).logical_or_(one.isnan().logical_and_(other.isnan())).all())
