"""A share as it was at one position, copied by a thread while updates go on.

An update changes few rows of a table: what they held is noted before, and put into the copy when
all of it is made, so that it does not matter when the copying thread came by. Dense parameters are
changed as a whole: an update of them waits until they are copied (docs/decisions/0018).

    aside = store.set_aside()          # in the thread that updates, at that position
    aside.pack(aside.saved, image)     # in another one
    aside.end()                        # whatever became of it
"""

import threading
from collections.abc import Mapping
from typing import Any

from paceline.runtime.checkpoint import cutfile
from paceline.runtime.state.arrays import Array, Int64s

LOG_BYTES = 64 << 20
"""Bytes that may be noted; updates wait for the rest of the copy when it is more."""


class Aside:
    """Notes between the thread that updates (``before_*``) and the one that copies (`pack`)."""

    def __init__(self, saved: Mapping[str, Array]) -> None:
        """``saved``: `Store.save`, as it is now."""
        self.saved = saved
        self._dense_copied, self._over = threading.Event(), threading.Event()
        #: Rows and what they held, by the names of their arrays, before each update.
        self._log: list[tuple[Int64s, dict[str, Array]]] = []
        self._log_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing has to be told any more."""
        return self._over.is_set()

    def before_dense(self) -> None:
        """Dense parameters are about to change; blocks until they are copied."""
        self._dense_copied.wait()

    def before_rows(self, table: str, rows: Int64s, arrays: Mapping[str, Array]) -> None:
        """Rows of a table are about to change; negative ones are none. May block.

        Args:
            table: its name.
            rows: distinct ones, ``[n]``.
            arrays: all that changes of the table, as it is before, ``[num_rows, ...]`` each.
        """
        if self._log_bytes > LOG_BYTES:
            self._over.wait()
        if self.is_over:
            return
        num_saved = len(self.saved[f"table.{table}.value"])
        rows = rows[(rows >= 0) & (rows < num_saved)]
        held = {f"table.{table}.{name}": array[rows] for name, array in arrays.items()}
        self._log.append((rows, held))
        self._log_bytes += sum(values.nbytes for values in held.values())

    def before_moving(self) -> None:
        """Rows are about to change places; blocks until all is copied."""
        self._over.wait()

    def pack(self, saved: Mapping[str, Array], image: Any) -> None:
        """Pack `saved` as it was when this object was made."""
        dense = {name for name in saved if not name.startswith("table.")}
        cutfile.pack(saved, image, dense)
        self._dense_copied.set()
        cutfile.pack(saved, image, saved.keys() - dense)
        packed = cutfile.unpack(image)
        # What was noted first is what a row held at the position; notes made from here on are of
        # changes that the copying has not met.
        for rows, held in reversed(self._log.copy()):
            for name, values in held.items():
                packed[name][rows] = values

    def end(self) -> None:
        """End: all is copied, or never will be."""
        self._dense_copied.set()
        self._over.set()
