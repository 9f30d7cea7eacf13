"""Buffers that a forward pass changes and the next one goes by, as those of ``spectral_norm``.

The body of a broken step runs twice, and the first run is taken back. Running statistics of a
BatchNorm are not: training does not go by them, and there are many of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

SMALL_BYTES = 1 << 16
"""Bytes up to which a buffer is copied before it was ever seen to change."""


class ForwardBuffers:
    """The buffers of modules, as they were at a mark.

    Args:
        modules: that were prepared.
    """

    def __init__(self, modules: Sequence[nn.Module] = ()) -> None:
        parts = [one for module in modules for one in module.modules()]
        self._places = [
            (one, name)
            for one in dict.fromkeys(parts)
            if not isinstance(one, _NormBase)
            for name in one._buffers
        ]
        #: By place: the buffer, its version then, and a copy of that, if it may change.
        self._kept: dict[tuple[nn.Module, str], tuple[Tensor, int, Tensor | None]] = {}

    def keep(self) -> None:
        """Keep what they are now; those that have not changed since the last time cost nothing."""
        for place in self._places:
            module, name = place
            value, before = module._buffers.get(name), self._kept.get(place)
            if value is None:
                self._kept.pop(place, None)
                continue
            if value.is_inference():  # made by an evaluation; it has no version
                self._kept[place] = value, 0, None
                continue
            is_same = before is not None and before[0] is value
            if is_same and before is not None and before[1] == value._version:
                continue
            copies = is_same or value.nbytes <= SMALL_BYTES
            copy = value.detach().clone() if copies else None
            self._kept[place] = value, value._version, copy

    def undo(self) -> bool:
        """Put them back; whether all of them could be."""
        is_whole = True
        with torch.no_grad():
            for (module, name), (value, version, copy) in self._kept.items():
                module._buffers[name] = value
                if value.is_inference() or value._version == version:
                    continue
                if copy is None:
                    is_whole = False
                else:
                    value.copy_(copy)
        return is_whole

    def forget(self) -> None:
        """They have become another's."""
        self._kept.clear()
