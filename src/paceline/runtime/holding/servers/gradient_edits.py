"""Detection of scripts that change gradients between backward and ``optimizer.step()``.

In a step that several workers share, servers sum the gradients of all: what a worker does to its
own (clipping above all) is not what torch does to the sum.

And whether all optimizers of a batch step on gradients of the same values. torch changes an
optimizer's parameters when it steps, servers change all when the batch is over. So a backward that
comes between two steps, as in a GAN, would see other values than with torch.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from paceline.base.errors import ConfigError

_OUTSIDE = -1
"""torch's number of a backward where none runs."""


class GradientEdits:
    """Looks at the first steps of a process: a script that clips does so in each."""

    def __init__(self, params: Iterable[nn.Parameter], steps: int) -> None:
        self._left = steps
        #: By the id of a parameter: its gradient as backward left it, torch's count of changes, and
        #: the sum of its bits: torch does not count changes of ``grad.data``.
        self._seen: dict[int, tuple[Tensor, int, int | None]] = {}
        self._hooks: list[RemovableHandle] = [
            param.register_post_accumulate_grad_hook(self._note)
            for param in params
            if param.requires_grad
        ]

    def _note(self, param: Tensor) -> None:
        if param.grad is not None:
            self._seen[id(param)] = param.grad, param.grad._version, _bits(param.grad)

    def check(self, params: Sequence[nn.Parameter]) -> None:
        """The gradients of these parameters, an optimizer's, are about to be taken.

        Raises:
            ConfigError: one is not as backward left it.
        """
        if not self._hooks:
            return
        for param in params:
            grad, version, bits = self._seen.get(id(param), (None, 0, None))
            if grad is None or param.grad is None:
                continue
            is_same = param.grad is grad and grad._version == version
            if not is_same or bits != _bits(grad):
                raise ConfigError(
                    f"the gradient of a parameter of shape {tuple(param.shape)} was changed "
                    "between loss.backward() and optimizer.step() (clipped, scaled, …): in mode "
                    "bsp a step is the sum of all workers' gradients, which no worker sees; run "
                    "the job with --mode asp or --mode ssp, or with --strategy allreduce"
                )

    def stepped(self) -> None:
        """A batch is over."""
        self._seen.clear()
        self._left -= 1
        if self._left <= 0:
            self.end()

    def end(self) -> None:
        """Look no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(grad: Tensor) -> int | None:
    """A sum by which a change of values shows; None: of a gradient that is not dense."""
    if grad.layout != torch.strided:
        return None
    plain = grad.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return int(plain.view(_INTEGERS[plain.element_size()]).sum())


class Turns:
    """Notices backwards between the steps of two optimizers.

    Args:
        params: of all optimizers, each with its optimizer's number.
    """

    def __init__(self, params: Iterable[tuple[Tensor, int]]) -> None:
        self._stepped: set[int] = set()
        self._backward, self._is_torn = _OUTSIDE, False
        self._hooks: list[RemovableHandle] = []
        for param, optimizer in params:
            self._watch(param, optimizer)

    def _watch(self, param: Tensor, optimizer: int) -> None:
        def note(_param: Tensor) -> None:
            if self._stepped and optimizer not in self._stepped:
                # Optimizers that step in the course of one backward have it in common.
                self._is_torn |= torch._C._current_graph_task_id() != self._backward

        self._hooks.append(param.register_post_accumulate_grad_hook(note))

    def step(self, optimizer: int) -> None:
        """An optimizer steps.

        Raises:
            ConfigError: a backward has come since another one stepped on the same batch.
        """
        if self._is_torn:
            raise ConfigError(
                "gradients were computed after another optimizer had stepped on this batch, and "
                "parameter servers change the values for both at once, when the batch is over; "
                "call loss.backward() for all optimizers before the first of them steps, or train "
                "a model that needs the alternation (a GAN) without servers, as python train.py"
            )
        if not self._stepped:
            self._backward = torch._C._current_graph_task_id()
        self._stepped.add(optimizer)

    def end_batch(self) -> None:
        """End the batch: all have stepped, or it is given up."""
        self._stepped.clear()
        self._is_torn = False

    def end(self) -> None:
        """The loop is left."""
        while self._hooks:
            self._hooks.pop().remove()
