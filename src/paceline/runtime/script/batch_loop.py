"""The iterator of a loop over batches."""

import sys
from collections.abc import Generator, Iterator
from typing import Any

from paceline.runtime.process.process import Stopped
from paceline.runtime.variables.variables import Variables


class BatchLoop(Iterator[Any]):
    """The batches of one loop.

    ``len`` is the number of those that a worker gets if every share is one batch and no step comes
    again: what a progress bar shows.
    """

    def __init__(
        self, bodies: Generator[Any, None, None], count: int, variables: Variables
    ) -> None:
        """``count``: 0: it is not known. ``variables``: of the script that asks for batches."""
        self._bodies, self._count, self._variables = bodies, count, variables

    def __next__(self) -> Any:
        self._variables.waits_in(sys._getframe(1))
        try:
            return next(self._bodies)
        except Stopped:
            self._variables.stopped()
            raise
        finally:
            self._variables.goes_on()

    def __len__(self) -> int:
        if not self._count:
            raise TypeError(
                "the number of batches is not known: the dataset has no length yet, or the steps "
                "follow the number of workers (batch_per_worker)"
            )
        return self._count

    def close(self) -> None:
        """Leave the loop."""
        self._bodies.close()
