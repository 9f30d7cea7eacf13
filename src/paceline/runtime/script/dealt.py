"""DataLoaders that a script gives to ``job.prepare``: each pass over one is dealt out."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from paceline.base.errors import ConfigError
from paceline.runtime.script.wrapped import unwrapped
from paceline.runtime.variables.frames import Place, frames_of, is_scripts, place_of

if TYPE_CHECKING:
    from paceline.runtime.script.batch_loop import BatchLoop


class DealtLoader:
    """A stand-in for a DataLoader: ``for batch in loader`` reads ``job.batches(loader)``.

    Everything else is the DataLoader's. So is a pass while every prepared model is in eval mode:
    scripts measure on the data that they train on, and each worker then reads all of it. But one
    that begins where a pass of training has begun before trains, too: its loop calls
    ``model.train()`` for each batch, as ignite's does.

    Args:
        loader: says what is read, and how.
        read: makes the loop over the batches that this worker computes.
        training: whether a prepared model is in training mode.
        waits: whether no optimizer has stepped on the batch in hand.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        read: Callable[[DataLoader[Any]], "BatchLoop"],
        training: Callable[[], bool],
        waits: Callable[[], bool],
    ) -> None:
        self.loader = loader
        self._read, self._training, self._waits = read, training, waits
        self.most: int | None = None
        """Batches that a pass has at most, where a rehearsal shortens it."""
        #: Lines of the script from which passes of training have begun.
        self._begun = set[tuple[Place, ...]]()

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass."""
        chain = frames_of(sys._getframe(1))
        here = tuple(place_of(one) for one in chain if is_scripts(one.f_code.co_filename))
        trains = self._training()
        if not trains and here not in self._begun:
            return iter(self.loader)
        loop = self._read(self.loader)
        self._begun.add(here)
        return loop if trains else self._checked(loop)

    def _checked(self, loop: "BatchLoop") -> Iterator[Any]:
        """Go through a pass that began in eval mode.

        Raises:
            ConfigError: the script does not train on it.
        """
        with closing(loop):
            for batch in loop:
                yield batch
                if self._waits() and not self._training():
                    raise ConfigError(
                        "a loop over a DataLoader that job.prepare has returned trained before, "
                        "and now leaves a batch without optimizer.step() while every prepared "
                        "model is in eval mode; its samples would never count: call model.train() "
                        "before the loop trains, and evaluate in another loop, or over another "
                        "DataLoader"
                    )

    def __len__(self) -> int:
        count = len(self.loader)
        return count if self.most is None else min(count, self.most)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.loader, name)


def as_prepared(given: Any, deal: Callable[[DataLoader[Any]], DealtLoader]) -> Any:
    """Return what ``job.prepare`` does: see `unwrapped`; of a DataLoader what is dealt out."""
    return _dealt(unwrapped(given), deal)


def without_loaders(objects: Iterable[Any], accumulate: int) -> list[Any]:
    """Return all objects but the loaders.

    Raises:
        ConfigError: ``accumulate`` is of loaders, and there is none.
    """
    objects = list(objects)
    others = [one for one in objects if not isinstance(one, DealtLoader)]
    if accumulate != 1 and len(others) == len(objects):
        raise ConfigError(
            f"job.prepare: accumulate={accumulate!r} is for a DataLoader that is given to it, and "
            "there is none; give it one, or say job.batches(..., accumulate=...)"
        )
    return others


def _dealt(given: Any, deal: Callable[[DataLoader[Any]], DealtLoader]) -> Any:
    if isinstance(given, list | tuple):
        parts = [_dealt(one, deal) for one in given]
        changed = any(new is not old for new, old in zip(parts, given, strict=True))
        make = getattr(given, "_make", type(given))  # of a namedtuple
        return make(parts) if changed else given
    if isinstance(given, DealtLoader):  # of the training before
        return deal(given.loader)
    return deal(given) if isinstance(given, DataLoader) else given
