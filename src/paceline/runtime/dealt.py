"""DataLoaders that a script gives to ``job.prepare``: each pass over one is dealt out."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from paceline.base.errors import ConfigError
from paceline.runtime.wrapped import unwrapped


class DealtLoader:
    """In place of a DataLoader: ``for batch in loader`` is ``for batch in job.batches(loader)``.

    Everything else is the DataLoader's. So is a pass while every prepared model is in eval mode:
    scripts measure on the data that they train on, and each worker then reads all of it.

    Args:
        loader: says what is read, and how.
        read: makes the loop over the batches that this worker computes.
        training: whether a prepared model is in training mode.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        read: Callable[[DataLoader[Any]], Iterator[Any]],
        training: Callable[[], bool],
    ) -> None:
        self.loader = loader
        self._read, self._training = read, training

    def __iter__(self) -> Iterator[Any]:
        return self._read(self.loader) if self._training() else iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.loader, name)


def as_prepared(given: Any, deal: Callable[[DataLoader[Any]], DealtLoader]) -> Any:
    """What ``job.prepare`` returns: see `unwrapped`; of a DataLoader what is dealt out."""
    return _dealt(unwrapped(given), deal)


def without_loaders(objects: Iterable[Any], accumulate: int) -> list[Any]:
    """All but the loaders.

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
