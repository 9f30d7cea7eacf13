"""Decisions of a log, made again: by the policies that made them, or by others.

A decision is a pure function of what its line holds, so the log's own policy must act as it did;
where it does not, it is another version of it, or it remembers something.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Decision(Protocol):
    """A line of a log that holds what was done, and all that this followed from."""

    @property
    def acts(self) -> tuple[Any, ...]:
        """What was done."""
        ...

    def acts_now(self, policy: Any, /) -> tuple[Any, ...]:
        """What a policy would do today."""
        ...


Line = TypeVar("Line", bound=Decision)


class Decider(NamedTuple):
    """Name and parameters of the policy that was asked for a decision."""

    name: str
    args: Mapping[str, Any]


class Again(msgspec.Struct, Generic[Line], frozen=True):
    """One decision, then and now."""

    line: Line
    acts: tuple[Any, ...]
    """Acts of the policy that was asked now."""

    @property
    def same(self) -> bool:
        """Whether every field of every act is equal, reasons and estimates included."""
        return self.acts == self.line.acts


def replay(
    log: Iterable[tuple[Decider, Line]], make: Callable[[Decider], object]
) -> list[Again[Line]]:
    """Ask again for every decision of a log.

    Args:
        log: its decisions, each with the policy that was asked then.
        make: the policy that is to be asked now, by that of then.
    """
    before: Decider | None = None
    policy: object = None
    found = []
    for asked, line in log:
        if asked != before:
            before, policy = asked, make(asked)
        found.append(Again(line, line.acts_now(policy)))
    return found


# --------------------------------------------------------------------------- lines of a log


class _Numbered(msgspec.Struct):
    no: int = 0


_number_of = msgspec.json.Decoder(_Numbered).decode


def last_number(lines: Iterable[bytes]) -> int:
    """The number of the last decision in a log; 0: there is none."""
    last = 0
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):  # torn
            last = max(last, _number_of(line).no)
    return last


def decoded(lines: Iterable[bytes], decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    """Lines of a log; a line that was torn by its writer's death is passed over.

    Raises:
        ValueError: a line of another version; the message has its number.
    """
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield decoder.decode(line)
        except msgspec.ValidationError as error:
            raise ValueError(f"line {number}: {error}") from error
        except msgspec.DecodeError:
            continue
