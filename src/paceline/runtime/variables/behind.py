"""A script's numbers behind ``optimizer.step()`` in the body of a batch that counts for nothing.

    while trainer.step < 90:
        loss_of(next(batches)).backward()
        optimizer.step()
        trainer.step += 1

A step may take several batches of a worker, of which only the last one changes the model. What the
bodies of the others do to the script's variables is taken back where the script asks for the next
batch. By then it has counted already, and a script that trains until it has counted enough would
leave its loop in the first batch of its last step. So from such a batch's ``optimizer.step()`` on
its numbers are what they were there in the batch before that counted: the rest of the body runs
once more as it ran then, when the script did not leave.

Not what the script has set outside of that body: between two passes it counts from 0 again. So
where the script asks for a batch first after the step that counted, or finds that the loop is
through, its numbers are kept as well, and only those that are the same where it asked for the batch
in hand get older values. When the script left its loop, it decided otherwise, and none do.
"""

from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from paceline.runtime.variables import frames
from paceline.runtime.variables.mark import BodyMark
from paceline.runtime.variables.plain import ATOMS

Atoms = dict[str, Any]
"""Variables of one holder that are numbers, texts or nothing."""


class BehindStep:
    """The numbers of a script at the ``optimizer.step()`` of the newest batch that counted."""

    def __init__(self) -> None:
        #: By ids of dictionaries and frames: see `_kept`, the numbers, and those before.
        self._noted: dict[int, tuple[Any, Atoms, Atoms]] = {}
        #: By the same ids, what these have become where the script asked next; None: not so far.
        self._after: dict[int, Atoms] | None = None

    def note(self, mark: BodyMark, chain: list[FrameType]) -> None:
        """Keep the numbers: this batch counts.

        Args:
            mark: made where the script asked for the batch.
            chain: the script's frames now.
        """
        before, self._noted, self._after = self._noted, {}, None
        for holder, _, now, _ in _holders(mark, chain):
            own, former, _ = before.get(id(holder), (None, {}, {}))
            atoms = {name: one for name, one in now.items() if type(one) in ATOMS}
            self._noted[id(holder)] = _kept(holder), atoms, former if own is _kept(holder) else {}

    def asks(self, mark: BodyMark, chain: list[FrameType]) -> None:
        """The script asks for another batch; with ``mark`` made there."""
        if self._noted and self._after is None:
            self._after = {id(holder): asked for holder, asked, _, _ in _holders(mark, chain)}

    def begins_pass(self) -> None:
        """The script begins a pass: nothing is kept of one that it has left in its midst."""
        if self._after is None:
            self.forget()

    def put(self, mark: BodyMark, chain: list[FrameType]) -> None:
        """Give the numbers their noted values: this batch counts for nothing.

        Not those that its body has set. Of these only counters get them: what has grown by the
        same number in the batch before. And not those that were set outside of the bodies.
        """
        for holder, asked, now, bind in _holders(mark, chain):
            own, noted, before = self._noted.get(id(holder), (None, {}, {}))
            after = (self._after or {}).get(id(holder))
            if own is not _kept(holder) or after is None:
                continue
            values = {
                name: old
                for name, old in noted.items()
                if name in now
                and asked.get(name) is after.get(name)
                and now[name] is not old
                and (now[name] is asked.get(name) or _counts(before.get(name), old, now[name]))
            }
            if values:
                bind(values)

    def forget(self) -> None:
        """The script has left its loop, or has the variables of another worker."""
        self._noted, self._after = {}, None


Holder = dict[str, Any] | FrameType


def _holders(mark: BodyMark, chain: list[FrameType]) -> Iterator[tuple[Holder, Atoms, Atoms, Any]]:
    """Yield each holder, its variables at the ask for the batch and now, and a setter."""
    for names, asked in mark.names:
        yield names, asked, names.copy(), names.update
    for frame in chain:
        asked_there = mark.locals_of(frame)
        if asked_there is not None:
            now = frames.variables_of(frame)
            yield frame, asked_there, now, lambda values, at=frame: frames.bind(at, values)


def _kept(holder: Holder) -> dict[str, Any] | CodeType:
    """Return an object by which a holder is known again.

    Of a frame its code: a frame that is kept would keep its loop open.
    """
    return holder.f_code if isinstance(holder, FrameType) else holder


def _counts(before: Any, noted: Any, now: Any) -> bool:
    """Tell whether three values of one variable are those of a counter."""
    if not type(before) is type(noted) is type(now) is int:
        return False
    return now - noted == noted - before != 0
