"""How large an explored all-reduce job is, which classes it runs, and what is of no process."""

from typing import NamedTuple

import msgspec

from paceline.protocol.holding.group.master import GroupHolder
from paceline.protocol.holding.group.member import MemberState

FAILURES = ("member", "master", "suspect", "break", "anew", "leave")
"""A member dies; the master does; a member is taken for dead; a collective breaks by itself;
nobody gets on, and all are to meet anew; a member is asked to leave."""
DIFFER = "differ"
"""Members of a group find that one of them does not hold what the others do."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How large the explored job is and what may happen to it."""

    members: int = 2
    slices: int = 2
    """Steps of one feed."""
    slice: int = 1
    """Samples of a step."""
    per_worker: bool = False
    """A step has as many slices as members do it."""
    feeds: int = 1
    failures: int = 0
    kinds: tuple[str, ...] = FAILURES
    joiners: int = 0
    """Members that come while the others train, or in the place of a dead one."""
    distant: bool = False
    """They are on another machine, and read no cut."""
    begun: bool = True
    """Begin where the first group was just told to run."""
    forgets: bool = True
    """A restarted master does not know whom it took for dead."""
    returns: bool = False
    """Scripts end after the last feed."""
    reduce: bool = True
    """Reports of progress are heard at once; forget messages that can do nothing any more."""


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """The classes under test; a planted flaw replaces one."""

    member: type[MemberState] = MemberState
    holder: type[GroupHolder] = GroupHolder
    unjournalled: tuple[type, ...] = ()
    """Records that are not written."""


class Entry(NamedTuple):
    """A member has told its group that it is in a step."""

    group: int
    round: int
    """Steps and ends of feeds that it has entered in this group."""
    inc: int
    number: int
    content: int
    wants_out: bool


class Env(msgspec.Struct, frozen=True):
    """What belongs to no process."""

    failures: int
    joiners: int
    next_inc: int
    dead: frozenset[int] = frozenset()
    """Members that have ended; the master may not know."""
    returned: frozenset[int] = frozenset()
    """Those of them whose script had come to its end."""
    suspected: frozenset[int] = frozenset()
    """Live members that the master takes for dead."""
    entries: frozenset[Entry] = frozenset()
    differ: frozenset[tuple[int, int, int]] = frozenset()
    """(group, round, member): in that round all find that this one differs."""
