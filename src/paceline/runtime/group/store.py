"""Store of what the members of one group tell each other before they can talk through it.

Torch's process groups find their peers through a store. This one is a dict: what a member sets is
sent to all its peers over the job's own authenticated channel, so that no TCPStore listens.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

from paceline.base.numbering import Inc


class GroupOver(Exception):
    """The group was dropped, or a member did not come in time."""


class PeerStore(Store):
    """The store of one group.

    Args:
        tell: sends a key and its value to all other members; called from the thread that connects.
        patience_s: how long a value is waited for.
    """

    def __init__(self, tell: Callable[[str, bytes], None], patience_s: float) -> None:
        super().__init__()
        self._tell, self._patience_s = tell, patience_s
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition(threading.RLock())
        self._over = False
        self.missing: tuple[str, ...] = ()
        """Keys that did not come in time."""
        self.left: tuple[Inc, ...] = ()
        """Members that have left the group before they were connected to all others."""

    def put(self, key: str, value: bytes) -> None:
        """Take what a peer has set."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def leave(self, member: Inc) -> None:
        """Note that a member has left: what it has not set will not come, so the group is over."""
        with self._changed:
            self.left = (*self.left, member)
            self._changed.notify_all()

    def end(self) -> None:
        """Wake all that wait: nothing will come any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def peek(self, key: str) -> bytes | None:
        """A value, where it is there."""
        with self._changed:
            return self._values.get(key)

    @property
    def _is_over(self) -> bool:
        return self._over or bool(self.left)

    # Called by torch, from C++.

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value for all members."""
        value = value.encode() if isinstance(value, str) else bytes(value)
        self.put(key, value)
        self._tell(key, value)

    def get(self, key: str) -> bytes:
        """A value, once it is there."""
        self.wait([key])
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all of these keys are there.

        Raises:
            GroupOver: they will not come.
        """
        self._wait(lambda: all(key in self._values for key in keys), keys)
        with self._changed:
            if self._is_over:
                raise GroupOver("the group was dropped")

    def wait_for_any(self, keys: Sequence[str]) -> None:
        """Wait until one of these keys is there, or the group is over; raises as `wait`.

        The first is the one that is missed if none comes.
        """
        self._wait(lambda: any(key in self._values for key in keys), keys[:1])

    def _wait(self, are_there: Callable[[], bool], keys: Sequence[str]) -> None:
        deadline_s = self.deadline_s()
        with self._changed:
            while not self._is_over and not are_there():
                self.expect(keys, deadline_s)
                self._changed.wait(deadline_s - time.monotonic())

    def deadline_s(self) -> float:
        """When what is not there will not come; a monotonic time."""
        return time.monotonic() + self._patience_s

    def expect(self, keys: Sequence[str], deadline_s: float) -> None:
        """Go on waiting for these keys, or for what their members do.

        Raises:
            GroupOver: the group is over, or the time is.
        """
        with self._changed:
            if self._is_over:
                raise GroupOver("the group was dropped")
            if time.monotonic() >= deadline_s:
                self.missing = tuple(key for key in keys if key not in self._values)
                raise GroupOver(f"no {', '.join(keys)} within {self._patience_s:.0f} s")

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all of these keys are there."""
        with self._changed:
            return all(key in self._values for key in keys)
