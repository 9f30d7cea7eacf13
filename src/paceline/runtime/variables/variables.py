"""A script's own variables as part of the job's state: found, and not declared.

    total = seen = 0
    for epoch in range(12):
        for batch in loader:        # <- looked at where the script asks for a batch
            ...
            seen += len(batch)

At the first two batches of each loop the members of a group compare digests of all variables. A
variable that was equal in all of them each time, though it has changed, is *shared*: a worker that
joins takes it over where it first asks for a batch, at the line at which the others ask, and a cut
holds it. One that differed once is each member's *own*. Of these, numbers and records of them are
taken over, too, but once: a joiner's sum goes on from that of a peer, like the count that divides
it. A variable that never changed is as the script has set it. Why so:
docs/decisions/0042-variables-are-found.md.

All is done in the script's thread, while it waits for a batch, but for `Variables.ready`, which any
thread may read.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import xxhash
from torch import Tensor, nn

from paceline.base.errors import ConfigError
from paceline.runtime.process.process import Fenced
from paceline.runtime.process.seeding import draws, put_draws
from paceline.runtime.state.tree import take_apart
from paceline.runtime.variables import frames
from paceline.runtime.variables.behind import BehindStep
from paceline.runtime.variables.beside import BesideVariables
from paceline.runtime.variables.by_chance import forms_of, says_little
from paceline.runtime.variables.kinds import BY_NAME, MOST_BYTES, Kind, digest_of, encoded
from paceline.runtime.variables.large import LargeTensors
from paceline.runtime.variables.look import DATA, ScriptLook, Variable
from paceline.runtime.variables.mark import BodyMark
from paceline.runtime.variables.naming import line_of
from paceline.runtime.variables.plain import ATOMS
from paceline.runtime.variables.settings import (
    CLASS,
    COMPARED,
    HOOKS,
    NAMED,
    SETTING,
    NotAlikeError,
)
from paceline.runtime.variables.spelled import NoPlainError
from paceline.wire.messages.feeds import Feed, ScriptPlace

_log = logging.getLogger(__name__)

MOST_OF_LAST = 1 << 20
"""Bytes of a tensor that the last body of a loop has left, at most."""

ENOUGH = 2
"""Number of values, equal in all members, that show that a variable is shared."""

_NOT_ALIKE = (
    "this life goes on in the loop that the job is in, without what the script does between the "
    "loops before. There it has set what no worker can hand over: {}. Set it in the body of the "
    "loop, by the number of the epoch, or choose there among what was made before all loops"
)


class LinesMissed(ConfigError):
    """A life goes on in a loop of others, and lacks what lines before it have set there.

    All else was taken over.

    Args:
        text: says what it lacks.
        is_shared: several members had set it alike; if not, one may have set it for itself.
    """

    def __init__(self, text: str, *, is_shared: bool) -> None:
        super().__init__(text)
        self.is_shared = is_shared


NOT_MADE = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
)
"""Errors in a process that cannot give a variable the value that has arrived."""

SET_OR_COMPARED = COMPARED | {SETTING.name}

Table = list[tuple[int, int]]
"""Path and value of each variable, as digests."""


class VariableDifference(NamedTuple):
    """A variable that was shared, and is not equal any more."""

    path: str
    line: str
    """Line at which the script sets it."""

    @property
    def name(self) -> str:
        """Name by which the script calls it."""
        return self.path.rpartition(":")[2].partition(".")[2] or self.path.rpartition(":")[2]


class Variables:
    """Variables of one script.

    Args:
        found: whether they are looked for (``script_state`` in the job's spec).
    """

    def __init__(self, *, found: bool = False) -> None:  # noqa: PLR0915 - one for each attribute
        self.found = found
        self.others: set[int] = set()
        """Ids of objects whose state is kept elsewhere: what was prepared."""
        self.prepared: Sequence[nn.Module] = ()
        """Modules that were prepared, whose settings are the script's."""
        self.kept: dict[str, Any] = {}
        """Variables in ``job.state``."""
        self.place: ScriptPlace = ()
        """Place of the loop that the script is in."""
        self.opened = ""
        """Lines from which that loop was opened; see `site`."""
        self.turn = 0
        """Number of the pass over its loader."""
        self.ready: dict[str, Any] | None = None
        """The shared variables as they were when the script asked for the batch in hand."""
        self.draws: dict[str, Any] | None = None
        """States of the generators from which all workers draw alike between loops.

        None: the loop has had no batch so far, so that is what the generators are at.
        """
        self.draws_alone = False
        """Whether the script draws in its loops what it draws between them, as the only worker."""
        self._dataset: Any = None
        self._frame: FrameType | None = None
        self._is_leaving = False
        #: Once the job stops.
        self._at_stop: dict[str, Any] | None = None
        self.leaves_by_stop: Callable[[], bool] = lambda: False
        """Whether a handler of the script's may have left its loop, since the job must stop."""
        #: Places from which the script asks for its batches, innermost first.
        self._asked_from = list[frames.Place]()
        self._mark: BodyMark | None = None
        self._passed = list[tuple[Any, frames.IteratorAt]]()
        self.beside, self.became = BesideVariables(), False
        self._large = LargeTensors()
        self._behind = BehindStep()
        self._num_bodies = 0
        #: Path -> digest at the first look; at the newest comparison.
        self._first: dict[str, int] = {}
        self._digested: dict[str, int] = {}
        self._own, self._changed = set[str](), set[str]()
        #: Path -> values that were equal in all members, and not by chance: two are enough.
        self._equal = dict[str, set[int]]()
        #: At the newest look: paths of what is of the batch in hand; of what says little; texts
        #: without their figures.
        self._of_member, self._weak = set[str](), set[str]()
        self._forms = dict[str, int]()
        self._told = set[str]()
        #: Paths that no message names as the script's.
        self._of_libraries = set[str]()
        #: What a peer or a cut has handed over, and the script has not taken so far.
        self._arrived: dict[str, Any] | None = None
        self.at_end = False
        """Whether the loop that the script is in is over."""
        self.missed = False
        """Whether the script counts otherwise than a plain run: not all was taken back or over."""
        self.declined = False
        """Whether the script reads something else in the loop in which the state is."""
        self.has_left = False
        """Whether the loop was left before this life came to it."""
        self.copies_at_once = False
        """Whether bodies are taken back without a broken step: each block is computed as one."""
        self.takes_back = True
        """Whether a step that comes again is asked for where the body of the loop begins."""
        self.objects: dict[str, Any] = {}
        """Objects of a library, by names for them: they are looked into like those of the
        script."""
        self.took = False
        """Whether the script holds what a peer or a cut has handed over."""
        self._num_given = 0
        self.began_at: ScriptPlace | None = None
        """Place of the loop before which this life has run the script's lines; the loop that it
        trains in first may be a later one."""
        #: Path -> digest and kind, at the end of the last loop, of what cannot be handed over.
        #: Then paths of what was set between two loops: by several members alike; by one alone.
        self._at_end: dict[str, tuple[int, Kind]] = {}
        self._set_between = set[str]()
        self._set_alone = set[str]()

    def begin_loop(self, feed: Feed, dataset: Any = None) -> None:
        """The script begins a loop over batches of a data set."""
        self._dataset = dataset
        self._behind.begins_pass()
        self.place, self.opened, self.turn = feed.place, feed.site, feed.turn
        self.began_at = self.began_at or feed.place
        self._mark = self.ready = None
        self.beside.begin_loop()
        self.at_end, self.has_left, self._asked_from = False, False, []
        self.draws = None

    def waits_in(self, frame: FrameType) -> None:
        """The script waits for a batch, in this frame."""
        if self.found:
            self._frame = frame

    def goes_on(self) -> None:
        """The script has its batch, or the loop is over."""
        self._frame, self._is_leaving = None, False

    def stopped(self) -> None:
        """The job stops where the script asks for a batch: the last cut holds what is there."""
        try:
            self._at_stop = self.state_of()
        except RuntimeError:  # another thread of the script changes one of them
            self.missed = True

    def comes_to_loop(self, frame: FrameType, place: ScriptPlace, opened: str, turn: int) -> None:
        """The script begins a loop, at this place and from these lines; `goes_on` follows.

        If the job stops meanwhile, the last cut is of here: it is made before the script hears.
        """
        if self.found:
            self.turn = turn
            self.place, self.opened, self.at_end, self.draws = place, opened, False, None
            self._frame = frame

    def leaves_loop(self, frame: FrameType) -> bool:
        """The script leaves its loop, in this frame; `goes_on` follows.

        What it holds belongs to the end of the loop, if it does so by ``break`` or ``return``. In a
        loop by ``next`` the batches are dropped later, when the script may have changed more.

        Returns:
            Whether it belongs to that.
        """
        self._behind.forget()
        chain = frames.frames_of(frame) if self.found and self._asked_from else []
        asked = [function for _, function, _ in self._asked_from]
        here = bool(chain) and [one.f_code.co_qualname for one in chain] == asked
        if here and frames.drops_iterator(chain[0]):
            self._frame, self._is_leaving = frame, True
        return self._is_leaving or not self.found

    # ------------------------------------------------------------------ where

    @property
    def _chain(self) -> list[FrameType]:
        return frames.frames_of(self._frame) if self._frame is not None else []

    def site(self, frame: FrameType) -> str:
        """Return where a script calls from, as text: the same in all workers at one line.

        An engine of a library may begin its first loop elsewhere than the others.
        """
        if not self.found:
            return ""
        chain = frames.frames_of(frame)
        own = [one for one in chain if frames.is_scripts(one.f_code.co_filename)]
        places = [frames.place_of(one, opens=one is own[0]) for one in reversed(own)]
        return " > ".join(f"{file}:{line} {function}" for file, function, line in places)

    # ------------------------------------------------------------------ bodies

    def mark(self) -> None:
        """Keep what the variables are now, before the body of the loop."""
        if self._frame is not None and self.takes_back:
            before, large, chain = self._mark, self._large, self._chain
            try:
                large.at_once = self.copies_at_once
                self._mark = BodyMark(chain, self.kept, before, large=large, others=self.others)
                self._behind.asks(self._mark, chain)
            except RuntimeError:  # another thread of the script changes one of them
                self._mark = None
            self._passed = self._positions(chain)
            self.beside.keep(self._frame)
            self.became = False
        self._num_bodies = 0

    @staticmethod
    def _positions(chain: list[FrameType]) -> list[tuple[Any, frames.IteratorAt]]:
        """Return where the script's statements are, if it asks with ``next`` and moves them."""
        if not chain or frames.is_in_for(chain[0]):
            return []
        found = ((one, frames.reached(one)) for one in frames.positions_of(chain[0]))
        return [(one, at) for one, at in found if at is not None]

    def _passed_in(
        self, chain: list[FrameType], mark: BodyMark
    ) -> list[tuple[Any, frames.IteratorAt]]:
        """Return where the script's statements were, by their iterators now."""
        if not self._passed or mark.is_of(chain[0]):
            return self._passed
        now = [one for one in frames.positions_of(chain[0]) if frames.reached(one) is not None]
        return [(one, at) for one, (_, at) in zip(now, self._passed, strict=False)]

    def given(self) -> None:
        """The script gets a batch; what has arrived, and was not taken by now, is of the past."""
        self._arrived = None
        self._num_bodies += 1
        self._num_given += 1

    def comes_to(self, step: int) -> None:
        """The script is about to get a batch of the step after this one."""
        if step <= 0 or self._num_given or self.took or self.missed:
            return
        self.missed = True
        if not self.found or self._frame is None:
            return
        why = "the model came without it"
        if self._arrived is not None:
            here = _in_words([list(frames.place_of(one)) for one in self._chain])
            why = (
                f"it asks for its batches at {here}, and asked at "
                f"{_in_words(self._arrived['site'])} before, or reads something else there"
            )
        sys.stderr.write(
            "paceline: what the script counts and remembers does not follow to this life, since "
            f"{why}; it starts over\n"
        )

    @property
    def follows(self) -> bool:
        """Whether what the script counts is as in a plain run."""
        return self.found and not self.missed

    def unmark(self) -> None:
        """The script has left its loop: nothing of it is taken back."""
        self._mark, self._passed = None, []

    def stepped(self, *, counts: bool) -> None:
        """The script's optimizers have stepped on the batch in hand; see `BehindStep`.

        Args:
            counts: the step ends with this batch, or the script counts it; else its body will be
                taken back.
        """
        if self._mark is None:
            return
        chain = frames.frames_of(sys._getframe(1))
        try:
            if counts:
                self._behind.note(self._mark, chain)
            else:
                self._behind.put(self._mark, chain)
        except RuntimeError:  # another thread of the script changes one of them
            self._behind.forget()

    def undo(self) -> None:
        """Take back what the script has done since the mark: the step comes again."""
        if not self.takes_back:
            return
        mark, self._mark = self._mark, None
        if mark is None or self._frame is None:
            self.missed = True
            return
        chain = self._chain
        left = {id(one) for one in mark.undo(chain)}
        self.missed |= not mark.is_whole
        for iterator, at in self._passed_in(chain, mark):
            self.missed |= not frames.reach(iterator, at, back=True)
        self.missed |= not self.beside.undo(self._frame)
        if lost := self.beside.lost(self._frame):
            self.missed = True
            self._tell_lost(chain, lost)
        for count in frames.counts_of(self._frame) if not self._passed else ():
            found = frames.reached(count)
            if found is not None:
                frames.reach(count, found._replace(at=found.at - self._num_bodies))
        if left:
            self.missed = True
            look = self._look()
            paths = [path for path, leaf in look.leaves.items() if _is_among(leaf.value, left)]
            self._tell(paths, "was changed in a step that a lost worker broke, and changes twice")
        self.mark()

    # ------------------------------------------------------------------ what is shared

    def _look(self) -> ScriptLook:
        others = self.others | set(map(id, self.kept.values()))
        return ScriptLook(self._chain, others, self._dataset, self.objects, self.prepared)

    def _digests(self, look: ScriptLook) -> dict[str, int]:
        found = {}
        for path, leaf in look.leaves.items():
            try:
                found[path] = digest_of(leaf.kind.seen(leaf.value))
            except (NoPlainError, RuntimeError, ValueError):
                continue
        return found

    def table(self) -> Table:
        """The digests of all variables, by the digests of their paths, in order."""
        if self._frame is None:
            return []
        self._asked_from = [frames.place_of(one) for one in self._chain]
        look = self._look()
        self._of_libraries, self._digested = look.of_libraries, self._digests(look)
        self._of_member = look.of_batch
        self._weak = {path for path, leaf in look.leaves.items() if says_little(leaf.value)}
        forms = forms_of(look)
        self._forms = {path: digest_of(form) for path, form in forms.items()}
        found = self._digested | {_form_of(path): one for path, one in self._forms.items()}
        return sorted((_path_digest(path), value) for path, value in found.items())

    def compare(self, tables: Sequence[Table]) -> list[VariableDifference]:
        """Take in the tables of all members; return what was shared, and differs.

        Args:
            tables: ours too; those that are empty are of members that cannot say.
        """
        told = [dict(one) for one in tables if one]
        self._note_between(told)
        mine, differences = self._digested, list[VariableDifference]()
        for path, value in mine.items():
            number = _path_digest(path)
            before = self._first.setdefault(path, value)
            if all(one.get(number) == value for one in told):
                if value != before:
                    self._changed.add(path)
                seen = self._equal.setdefault(path, set())
                # What one worker alone has is equal to itself, which says nothing.
                if len(told) > 1 and path not in self._weak and len(seen) < ENOUGH:
                    seen.add(value)
                continue
            is_news = path in self._changed and path not in self._own | self._of_libraries
            if is_news and path not in self._told and self._was_shared(path, told):
                differences.append(VariableDifference(path, self._line(path)))
            self._own.add(path)
        return differences

    def loop_ends(self) -> None:
        """The script has come to the end of its loop: note what it may set before the next one."""
        if self._frame is None or not self._first:
            return
        look = self._look()
        look.leaves = {k: one for k, one in look.leaves.items() if one.kind.name in COMPARED}
        digests = self._digests(look)
        self._at_end = {path: (one, look.leaves[path].kind) for path, one in digests.items()}

    def _note_between(self, told: Sequence[dict[int, int]]) -> None:
        """Find what was set between two loops of what nobody can make, but functions by name."""
        before, self._at_end = self._at_end, {}
        for path, (value, kind) in before.items():
            now, number = self._digested.get(path), _path_digest(path)
            if now not in (None, value) and all(one.get(number) == now for one in told):
                # One member alone may have set it for itself, as a hook of the chief's.
                is_known = len(told) > 1 or kind is NAMED
                (self._set_between if is_known else self._set_alone).add(path)

    def _was_shared(self, path: str, told: Sequence[dict[int, int]]) -> bool:
        """Tell whether a variable that differs now was equal in all members, and not by chance."""
        if path in self._of_member or len(self._equal.get(path, ())) < ENOUGH:
            return False
        form = _path_digest(_form_of(path))
        return path not in self._forms or any(one.get(form) != self._forms[path] for one in told)

    def _is_shared(self, path: str, digest: int) -> bool:
        return path not in self._own and (path in self._changed or self._first.get(path) != digest)

    # ------------------------------------------------------------------ handing over

    def state_of(self, *, ended: bool = False) -> dict[str, Any] | None:
        """The shared variables as they are now, as data and tensors; None: the script is elsewhere.

        Args:
            ended: the loop is over.
        """
        if self._arrived is not None and not self.missed:
            return self._arrived  # the model is still where it was when these were handed over
        if self._frame is None or not self._first:
            return self._at_stop
        chain, look = self._chain, self._look()
        ended = ended or self.at_end
        digests, leaves = self._digests(look), dict[str, Any]()
        # The first look of this loop is yet to come where another worker joins in its first step.
        alone = self._set_alone | {
            path for path, (one, _) in self._at_end.items() if digests.get(path) not in (None, one)
        }
        set_here = self._set_between | alone
        for path, leaf in look.leaves.items():
            if path not in digests:
                continue
            is_shared = self._is_shared(path, digests[path])
            is_sum = path in self._own and self._first.get(path) != digests[path]
            is_sum = is_sum and leaf.kind.name == "plain" and _is_record(leaf.value)
            # What was made for a loop alone, and has no name, is not needed behind it.
            if not (is_shared or is_sum) or (ended and path == DATA):
                continue
            if leaf.kind.name in COMPARED and path not in set_here:
                continue  # a body binds it
            taken = self._taken(path, leaf, tells=path not in look.of_libraries)
            if taken is not None:
                leaves[path] = [leaf.kind.name, taken]
        return {
            "site": [
                list(one)
                for one in (self._asked_from if self._is_leaving else map(frames.place_of, chain))
            ],
            "iterators": [
                [_as_data(frames.reached(one)) for one in frames.positions_of(frame)]
                for frame in chain
            ],
            "place": tuple(self.place),
            "opened": self.opened,
            "turn": self.turn,
            "ended": ended,
            "left": self._is_leaving,
            "draws": self.draws or (None if self.draws_alone else draws()),
            "leaves": leaves,
            "last": self._last_of(look, leaves) if ended else {},
            "paths": sorted(map(_path_digest, look.leaves)),
            "own": sorted(self._own),
            "changed": sorted(self._changed | (set(leaves) - self._own)),
            "between": sorted(self._set_between),
            "alone": sorted(alone - self._set_between),
            "equal": {path: sorted(seen) for path, seen in self._equal.items()},
        }

    def _last_of(self, look: ScriptLook, but: Collection[str]) -> dict[str, Any]:
        """Return what else the last body has set: a script may go on with it behind the loop."""
        found = dict[str, Any]()
        for path, leaf in look.leaves.items():
            value = leaf.value
            is_tensor = isinstance(value, Tensor | np.ndarray) and value.nbytes <= MOST_OF_LAST
            if path in but or not (is_tensor or type(value) in ATOMS):
                continue
            try:
                taken = leaf.kind.taken(value)
                take_apart(taken, path)
            except (ConfigError, NoPlainError, RuntimeError, ValueError):
                continue
            found[path] = taken
        return found

    def _taken(self, path: str, leaf: Variable, *, tells: bool) -> Any:
        try:
            is_data = leaf.kind.name == "plain" and not isinstance(leaf.value, Enum)
            if is_data and len(encoded(leaf.value)) > MOST_BYTES:
                raise NoPlainError("more than 16 MiB")
            taken = leaf.kind.taken(leaf.value)
            take_apart(taken, path)
        except (ConfigError, NoPlainError, RuntimeError, ValueError) as error:
            if tells:
                self._tell([path], f"does not follow to a new life, or over a resume: {error}")
            return None
        return taken

    def prepare(self) -> None:
        """Have the shared variables ready for a worker that joins; again: nothing."""
        if self.ready is None:
            self.ready = self.state_of()

    @property
    def is_prepared(self) -> bool:
        """Whether variables are ready, or there is nothing to hand over where the script is."""
        return self.ready is not None or self._frame is None or not self._first

    def become(self, state: dict[str, Any] | None) -> None:
        """A peer, or a cut, has handed these over; see `take`."""
        self.became = True
        self.beside.buffers.forget()
        if self._mark is not None:
            self._mark.forget_settings()
        if self.found and state:
            # Others may copy what we hold before our script has taken these.
            self._arrived = self.ready = state

    @property
    def arrived_at(self) -> tuple[ScriptPlace, str, int] | None:
        """Place of a script with what has arrived, and was not taken: see `entry_in_cut`."""
        state = self._arrived
        if state is None:
            return None
        return tuple(state["place"]), state["opened"], state.get("turn", 0)

    def arrived_digest(self) -> int:
        """Return a digest of `arrived_at` and the loop's end, on which members must agree."""
        state = self._arrived
        if state is None:
            return 0
        where = (self.arrived_at, state["ended"], state.get("left"))
        return xxhash.xxh3_64_intdigest(repr(where).encode()) >> 1

    def decline(self) -> None:
        """Do without what has arrived."""
        self._arrived = self.ready = None

    def take(self, *, ended: bool = False) -> bool:
        """Give the script's variables the values that have arrived, where it waits; whether it did.

        Args:
            ended: the loop is over for this worker, and had no batch for it.

        Raises:
            Fenced: they are of another loop from the same lines: the job went there meanwhile.
        """
        state = self._arrived
        if state is None or self._frame is None:
            return False
        chain = self._chain
        if not self._is_of(state, chain):
            return False
        if tuple(state["place"]) != tuple(self.place) or (state["ended"] and not ended):
            if ended or self.declined or self._num_given or not self.takes_back:
                return False
            raise Fenced  # a life that asks again where the state is begins there
        self._arrived, self.took = None, True
        self._behind.forget()
        self._asked_from = [frames.place_of(one) for one in chain]
        self._fill(state, chain)
        return True

    def take_left(self) -> bool:
        """Take the state with which scripts have left this loop; tell whether the loop is over."""
        state = self._arrived
        self.has_left = bool(state and state.get("left")) and self.take(ended=True)
        return self.has_left

    def _fill(self, state: dict[str, Any], chain: list[FrameType]) -> None:
        look = self._look()
        if look.make_defaults(state["leaves"]):
            look = self._look()
        self._first = self._first or self._digests(look)
        differing = self._fill_values(state, look)
        if "paths" in state:  # not in a cut of an earlier release
            self._tell_alone(look, set(state["paths"]))
        for path, kind in look.opaque.items():
            self._tell([path], f"is a {kind.__qualname__}, and begins as this process has made it")
        if not state["ended"]:
            self._tell_call(chain)
        self._reach(chain, state["iterators"])
        if state["draws"] is not None:
            put_draws(state["draws"])
        for path in state["changed"]:
            self._changed.add(path)
        self._own |= set(state["own"])
        self._set_between |= set(state.get("between", ()))
        self._set_alone |= set(state.get("alone", ()))
        for path, seen in state.get("equal", {}).items():  # not in a cut of an earlier release
            self._equal[path] = set(seen)
        if differing:
            is_shared = any(path in self._set_between for path in differing)
            text = _NOT_ALIKE.format("; ".join(differing.values()))
            raise LinesMissed(text, is_shared=is_shared)

    def _fill_values(self, state: dict[str, Any], look: ScriptLook) -> dict[str, str]:
        """Give variables their values; return why some cannot have them, by their paths."""
        missing, differing = dict[str, Any](), dict[str, str]()
        for path, (kind, taken) in state["leaves"].items():
            leaf = look.leaves.get(path)
            if leaf is not None and leaf.kind.name == kind:
                if (why := self._put(path, leaf, taken)) is not None:
                    differing[path] = why
            elif leaf is None or leaf.value is None or type(leaf.value) in ATOMS:
                missing[path] = (kind, taken, leaf)
        for path, (kind, taken, leaf) in missing.items():
            self._add(look, path, kind, taken, leaf)
        for path, taken in state.get("last", {}).items():
            if path not in look.leaves:
                self._add(look, path, "plain", taken, None)
        return differing

    def _tell_alone(self, look: ScriptLook, known: set[int]) -> None:
        """Name what no other worker has: nobody can hand it over."""
        named = (path for path, one in look.leaves.items() if one.kind.name not in SET_OR_COMPARED)
        alone = (path for path in named if _path_digest(path) not in known)
        names = dict.fromkeys(filter(None, map(look.variable_of, alone)))
        self._tell([*names], "is in this worker alone, so it begins again")

    def _tell_lost(self, chain: Sequence[FrameType], lost: str) -> None:
        """Name what a zip takes beside batches and nobody can take again, once."""
        here = _in_words([frames.place_of(chain[0])])
        if here not in self._told:
            self._told.add(here)
            sys.stderr.write(
                f"paceline: the zip at {here} reads {lost} together with its batches. That does "
                "not go back when a step is done again, and a new life does not get it; write "
                "zip(batches, values), where values is a list or a range\n"
            )

    def _tell_call(self, chain: Sequence[FrameType]) -> None:
        """Name a call that goes through the loop itself: what it has added up is in it alone."""
        if self._frame is not None and (lost := frames.lost_in_zip(self._frame)):
            self._tell_lost(chain, lost)
        if not frames.asks_by_itself(chain[0]):
            here = _in_words([frames.place_of(chain[0])])
            sys.stderr.write(
                f"paceline: the loop at {here} is in a call (sum, map, a comprehension), and "
                "what that has collected so far does not follow; write a for statement\n"
            )

    def _is_of(self, state: dict[str, Any], chain: Sequence[FrameType]) -> bool:
        """Tell whether a state is of a script that asked from the lines from which ours asks."""
        here = [list(frames.place_of(one)) for one in chain]
        return state["opened"] == self.opened and here == [list(one) for one in state["site"]]

    def _put(self, path: str, leaf: Variable, taken: Any) -> str | None:
        """Give a variable what was taken; return why the script cannot go on, if so."""
        try:
            value = leaf.kind.put(leaf.value, taken)
            if value is not leaf.value:
                leaf.bind(value)
        except NotAlikeError as error:
            path = path.removesuffix(f".{CLASS.name}")
            name = path if leaf.kind is HOOKS else VariableDifference(path, "").name
            return f"`{name}`{self._at(path)}: {error}"
        except NOT_MADE as error:
            self._tell([path], f"could not be taken over, and begins again: {error}")
        return None

    def _add(
        self, look: ScriptLook, path: str, kind: str, taken: Any, leaf: Variable | None
    ) -> None:
        """Make a variable that the script has not set so far, or has set to nothing."""
        if kind in COMPARED:
            return
        if kind != "plain":
            self._tell([path], "was not there in this worker, and could not be made")
            return
        try:
            value = BY_NAME[kind].put(None, taken)
            if leaf is not None:
                leaf.bind(value)
                return
        except NOT_MADE as error:
            self._tell([path], f"was not there in this worker, and could not be made: {error}")
            return
        for mark in (".", ":"):
            holder, found, name = path.rpartition(mark)
            put = look.holders.get(holder + (":" if mark == ":" else ""))
            if found and put is not None and name.isidentifier():
                put(name, value)
                return

    def _reach(self, chain: Sequence[FrameType], wanted: Sequence[Sequence[Any]]) -> None:
        """Have the ``for`` statements go on from where a peer's are."""
        for frame, positions in zip(chain, wanted, strict=True):
            for iterator, at in zip(frames.positions_of(frame), positions, strict=False):
                if at is not None and not frames.reach(iterator, frames.IteratorAt(*at)):
                    file, function, line = frames.place_of(frame)
                    _log.warning(
                        "loop_not_reached at=%s:%d function=%s kind=%s", file, line, function, at
                    )

    # ------------------------------------------------------------------ words

    def _line(self, path: str) -> str:
        return line_of(path, frames.modules_of(self._chain))

    def _at(self, path: str) -> str:
        line = self._line(path)
        return f" ({line})" if line else ""

    def _tell(self, paths: Sequence[str], why: str) -> None:
        """Name variables, once each: on stderr, since a script may log into files of its own."""
        for path in paths:
            if path not in self._told:
                self._told.add(path)
                name = VariableDifference(path, "").name
                sys.stderr.write(f"paceline: `{name}`{self._at(path)} of the script {why}\n")


def _is_among(value: Any, ids: set[int]) -> bool:
    """Tell whether an object, or a part of a module, is one of these."""
    parts = value.modules() if isinstance(value, nn.Module) else (value,)
    return any(id(one) in ids for one in parts)


def _is_record(value: Any) -> bool:
    """Tell whether a value is a number, or a container of such: a sum, a history of losses.

    Not a single text, which may be the name of a member's own file.
    """
    if isinstance(value, Tensor):
        return value.numel() == 1
    if isinstance(value, dict | list | tuple | deque):
        parts = value.values() if isinstance(value, dict) else value
        return all(type(one) in ATOMS or _is_record(one) for one in parts)
    return type(value) in _NUMBERS or isinstance(value, np.number)


_NUMBERS = frozenset([int, float])


def _form_of(path: str) -> str:
    """A path for what `forms_of` has of a text."""
    return f"{path} but for figures"


def _path_digest(path: str) -> int:
    return xxhash.xxh3_64_intdigest(path.encode(errors="surrogatepass")) >> 1


def _in_words(site: Sequence[Sequence[Any]]) -> str:
    return " in ".join(f"{file}:{line}" for file, _, line in site) or "another line"


def _as_data(reached: frames.IteratorAt | None) -> list[Any] | None:
    return None if reached is None else [*reached]
