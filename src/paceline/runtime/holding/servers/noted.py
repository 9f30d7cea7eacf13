"""Detection of changes by a script to values that servers hold, where torch counts none.

torch counts changes of a parameter, but none by way of ``.data``. In some batches all values are
compared with what was pulled, in all others some of each parameter: an edit of a whole parameter
shows in the batch in which it is made.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

PROBES = 64
"""Values of a parameter that are compared in every batch, spread evenly over it."""

_INTEGERS = {4: torch.int32, 8: torch.int64}


class Noted:
    """The values of flat vectors at one moment.

    Args:
        flat: the vectors, by dtype; written into in place.
        pieces: the parameters in each: where they begin, and how many values they have.
    """

    def __init__(
        self, flat: Mapping[str, Tensor], pieces: Mapping[str, Iterable[tuple[int, int]]]
    ) -> None:
        # As integers: what is no number is not equal to itself.
        self._flat = {dtype: one.view(_INTEGERS[one.element_size()]) for dtype, one in flat.items()}
        self._probes = {
            dtype: torch.cat([start + _spread(size) for start, size in pieces[dtype]]).to(
                one.device
            )
            for dtype, one in self._flat.items()
        }
        self._whole = False
        self._values: dict[str, Tensor] = {}
        self.note(whole=False)

    def note(self, *, whole: bool | None = None) -> None:
        """Note the values: from here on changes show.

        Args:
            whole: whether any does, or (cheaper) those that touch many values of a parameter; None:
                as before.
        """
        self._whole = self._whole if whole is None else whole
        self._values = {
            dtype: one.clone() if self._whole else one[self._probes[dtype]]
            for dtype, one in self._flat.items()
        }

    def changed(self) -> tuple[str, int] | None:
        """The first value that is not as it was: the dtype of its vector, and its place there."""
        for dtype, values in self._values.items():
            now = self._flat[dtype]
            differ = values != (now if self._whole else now[self._probes[dtype]])
            if differ.any():
                place = int(differ.nonzero()[0])
                return dtype, place if self._whole else int(self._probes[dtype][place])
        return None


def _spread(size: int) -> Tensor:
    """Choose up to `PROBES` places of so many, the first and the last among them."""
    if size <= PROBES:
        return torch.arange(size)
    return torch.linspace(0, size - 1, PROBES, dtype=torch.float64).long()
