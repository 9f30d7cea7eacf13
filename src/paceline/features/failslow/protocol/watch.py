"""Watch over a script that trains on its own, for what is slow: a pure machine over all its ranks.

The times of one rank's steps say *that* the job is slow: all ranks of a synchronous script are slow
together. Then the calls of all ranks are asked for, and compared with those of the job's start
(`policy.suspects`). Then all ranks meet between two steps and measure themselves, each
against its own measurement from the start (`policy.validation`). Nothing of it is durable:
a master that is started again measures the job as it finds it.

Reference: FALCON (arXiv:2410.12588), section 4: tracking, profiling, validation.
Differs: calls are noted all the time, so a profile needs no further steps; a rank that does not
come to a meeting is named.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import msgspec

from paceline.features.failslow.events import (
    FollowsEvent,
    RelievedEvent,
    SlowedEvent,
    StartUnseenEvent,
    gap_words,
)
from paceline.features.failslow.policy.advice import Advice, RestartAdvice
from paceline.features.failslow.policy.detection import (
    GROUP_S,
    OFTEN,
    RECENT,
    PaceChange,
    SlowJobDetector,
    StepFact,
    StepGroups,
    UsualMarks,
)
from paceline.features.failslow.policy.diagnosis import absences, compare, diagnose
from paceline.features.failslow.policy.gaps import Gaps, NotMeasured, NotProfiled
from paceline.features.failslow.policy.profile import ProfileSummary, summarise
from paceline.features.failslow.policy.suspects import Findings, find_suspects
from paceline.features.failslow.policy.validation import (
    Measurements,
    ValidationResult,
    judge,
    plan_validation,
)
from paceline.features.failslow.protocol.answers import (
    WINDOW_STEPS,
    ProcessorWait,
    ProcessorWaits,
    measurements_of,
    unmeasured,
    window_of,
)
from paceline.features.failslow.protocol.meeting import (
    MeetingOver,
    Met,
    Rank,
    RankMeetings,
    RankPace,
    TellRank,
)
from paceline.features.failslow.wire import AtMeeting, CallsTold, RankMeasured, TellCalls
from paceline.wire.events.base import Event
from paceline.wire.messages.agent import StepsTook
from paceline.wire.step_ledger import Mark

WARM_STEPS, WARM_S = 10, 2.0
"""Unmarked steps, and their time, after which the job's start is profiled and measured."""
SHORT_S = 0.01
"""Shorter steps are profiled a few together, which take as long as a group has at least."""
ANSWER_S = 3.0
"""Seconds that agents have to tell the calls of their processes."""
GONE_STEPS, GONE_S, GONE_TIMES = 10, 5.0, 5.0
"""Another rank is followed if it has been ahead by so many steps for so long, and for so many steps
of the followed rank: that one makes none any more. Ranks in step are a few apart."""
LAG_S = 1.2
"""Seconds that a rank's newest step may be old."""
MOST_LOOKS = 5
"""Most profiles at the job's start, made until all agents have told the calls of their
processes."""
REST_S, MOST_REST_S, CALM = 20.0, 640.0, 8.0
"""Rest after a meeting about a slowness, since all ranks stand still for half a second at each: the
first, and twice as long after each further one, up to the second. It is the first again after a
time without meetings that is so many times as long as it was."""


class AskAgent(msgspec.Struct, frozen=True):
    """Send to the node's agent."""

    node: str
    message: TellCalls


FailSlowAct = AskAgent | TellRank | Event | Advice


class _Question(msgspec.Struct):
    """The calls of all ranks are asked for."""

    asked: int
    until_s: float
    each: int
    """Steps in a row that count as one."""
    told: dict[int, CallsTold] = {}
    measured: tuple[ValidationResult, Measurements] | None = None
    """Measurements that the ranks have made meanwhile: this is the second look, just before the
    verdict."""


class FailSlowWatch:
    """The machine.

    Args:
        meets: ranks may be asked to stand still and measure themselves.
        first_meeting: number of the first meeting; none before it had a larger one.
    """

    def __init__(self, *, meets: bool, first_meeting: int) -> None:
        self._meets, self._meetings = meets, RankMeetings(first_meeting)
        self._asked = 0
        self._newest: dict[int, int] = {}
        """Newest step of each rank."""
        self._followed: int | None = None
        """The rank whose times of steps count: the lowest that makes some."""
        self._gone: set[int] = set()
        """Ranks that were followed, and make no steps any more."""
        self._forget({}, None)

    def _forget(self, ranks: dict[int, Rank], begun_s: float | None) -> None:
        """Begin as of a fresh script, whatever is known of each rank's steps."""
        self.ranks, self._begun_s = ranks, begun_s
        self._meetings.begin(ranks)
        self._ahead: Counter[int] = Counter()
        """Steps of each rank since the followed rank last told one."""
        self._ahead_s = math.inf
        """Time since which one of them is ahead by `GONE_STEPS`; infinite: none is."""
        self._advice = RestartAdvice(self._rank_of, begun_s)
        self._waits = ProcessorWaits()
        self._detector = SlowJobDetector()
        self._steps = StepGroups()
        self._marks = UsualMarks()
        self._without: deque[bool] = deque(maxlen=RECENT)
        """Recent steps, oldest first: True where the amount of work is unknown."""
        self._warm = (0, 0.0)
        self._question: _Question | None = None
        self._groups: tuple[tuple[int, ...], ...] = ()
        self._findings, self._gaps = Findings(), Gaps()
        self._summary: ProfileSummary | None = None
        self.profile: ProfileSummary | None = None
        """Profile of the job's start; None: there is none yet."""
        self.measured: Measurements | None = None
        """Measurements at the job's start; None: there are none yet."""
        self._infers = False
        """Steps are taken from calls, which begin at other moments on other ranks."""
        self._is_warm = False
        self._at_start = True
        """True: the questions under way are those of the job's start. False: they diagnose a
        slowness."""
        self._is_due = False
        """A slowness has been told, and nothing was done about it yet."""
        self._onset: PaceChange | None = None
        self._onset_s = 0.0
        self._slow_from = 0
        """The first step that is profiled of a slowness."""
        self._met_s = self._rests_until_s = -math.inf
        self._rest_s = REST_S
        self._missed = False
        """The meeting of the job's start failed: the ranks' numbers of steps may differ."""
        self._looks = 0
        """Number of profiles made at the job's start."""

    @property
    def _is_busy(self) -> bool:
        return self._question is not None or self._meetings.is_open

    @property
    def _rank_of(self) -> dict[str, int]:
        return {one.node: rank for rank, one in self.ranks.items()}

    def begin(self, ranks: Mapping[int, Rank], begun_s: float | None) -> None:
        """All of the script's processes are up; ``begun_s``: when their start began, if seen."""
        self._newest, self._followed, self._gone = {}, None, set()
        self._forget(dict(ranks), begun_s)

    # ------------------------------------------------------------------ steps

    def took(
        self,
        node: str,
        took: Sequence[StepsTook],
        now_s: float,
        wait: ProcessorWait | None = None,
    ) -> list[FailSlowAct]:
        """Take in what a rank's steps took, oldest first, and waited each for a processor."""
        rank = self._rank_of.get(node)
        if rank is None or not took:
            return []
        self._newest[rank] = took[-1].last
        steps = sum(each.count for each in took)
        acts = self._follow(rank, steps, now_s)
        if wait is not None and wait.starved_s:
            self._waits.add(rank, took[-1].last, steps, wait)
        if rank != self._followed:
            return acts
        ahead_s = sum(each.count * each.mean_s for each in took)
        for each in took:
            ahead_s -= each.count * each.mean_s
            acts += self._step(each, now_s - ahead_s, now_s)
        return acts

    def _follow(self, rank: int, steps: int, now_s: float) -> list[FailSlowAct]:
        """Look whose steps count, since this rank has made some: never those of two mixed."""
        followed = self._followed
        if rank == followed:
            self._ahead.clear()
            self._ahead_s = math.inf
            return []
        if followed is None:
            self._followed = rank
            return []
        before = self.ranks[followed].node
        if rank < followed and rank not in self._gone:
            return self._begin_with(rank, f"its rank is lower than that of {before}")
        self._ahead[rank] += steps
        if self._ahead[rank] >= GONE_STEPS:
            self._ahead_s = min(self._ahead_s, now_s)
        silent_s = max(GONE_S, GONE_TIMES * self._step_s)
        if rank in self._gone or now_s - self._ahead_s < silent_s:
            return []
        self._gone.add(followed)
        return self._begin_with(rank, f"{before} has made none while it made {self._ahead[rank]:,}")

    def _begin_with(self, rank: int, reason: str) -> list[FailSlowAct]:
        """Forget what is known of other steps; say so if there was something."""
        knew, self._followed = self._is_warm, rank
        self._forget(self.ranks, self._begun_s)
        return [FollowsEvent(node=self.ranks[rank].node, reason=reason)] if knew else []

    def _step(self, took: StepsTook, end_s: float, now_s: float) -> list[FailSlowAct]:
        if took.marks & Mark.FIRST and self._warm[0]:
            assert self._followed is not None
            reason = "an optimizer makes them whose steps did not count before"
            return [*self._begin_with(self._followed, reason), *self._step(took, end_s, now_s)]
        marks = self._marks.left_out(took.marks, took.count)
        if not marks:
            steps, seconds = self._warm
            self._warm = steps + took.count, seconds + took.count * took.mean_s
        if self._may_look_at_start() and self._warm[0] >= WARM_STEPS and self._warm[1] >= WARM_S:
            self._is_warm = self._at_start = True
            return self._ask(took.last - self._warm[0] + 1, now_s)
        self._advice.made(end_s, saved=bool(took.marks & Mark.CHECKPOINT))
        self._without.append(not took.amount)
        if not took.amount and sum(self._without) <= OFTEN * len(self._without):
            return []  # it took no batch, as others do: nothing to compare it with
        acts: list[FailSlowAct] = []
        for later in reversed(range(took.count)):
            fact = StepFact(
                number=took.last - later,
                end_s=end_s - later * took.mean_s,
                took_s=took.mean_s,
                marks=marks,
                amount=took.amount or None,
            )
            grouped = self._steps.add(fact)
            if grouped is None:
                continue
            change = self._detector.update(grouped)
            if change is not None:  # which accounts for this step as well
                acts += self._changed(change, now_s)
            else:
                acts += self._advice.step(grouped, self._detector.lost_s(grouped))
        return acts

    def _may_look_at_start(self) -> bool:
        """Whether the job is as healthy as at its start, of which nothing is known yet."""
        return not self._is_warm and not self._is_busy and self._onset is None

    def _changed(self, change: PaceChange, now_s: float) -> list[FailSlowAct]:
        self._advice.changed(change)
        if change.is_relief:
            if not change.slow:
                self._onset = None
            relieved = RelievedEvent(
                step=change.since_step,
                before_s=change.before_s,
                after_s=change.after_s,
                still_slow=change.slow,
            )
            is_untold, self._is_due = self._is_due and not self._is_busy, False
            gone = self._unmeasured(NotMeasured.RESTING, now_s) if is_untold else []
            return [*gone, relieved]
        self._onset, self._onset_s = change, now_s
        slowed = SlowedEvent(
            step=change.since_step, before_s=change.before_s, after_s=change.after_s
        )
        self._is_due = True
        return [slowed, *self._ask_if_due(now_s)]

    def _ask_if_due(self, now_s: float) -> list[FailSlowAct]:
        """Begin the diagnosis of a slowness, unless something else is under way."""
        if not self._is_due or self._onset is None or self._is_busy or now_s < self._rests_until_s:
            return []
        self._is_due, self._at_start = False, False
        # The group of short steps in which it began has healthy ones, too.
        mixed = math.ceil(GROUP_S / self._onset.before_s) if self._onset.before_s < GROUP_S else 0
        self._slow_from = min(self._onset.since_step + mixed, self._onset.found_step)
        return self._ask(self._slow_from, now_s)

    # ------------------------------------------------------------------ profile

    def _ask(
        self,
        from_step: int,
        now_s: float,
        measured: tuple[ValidationResult, Measurements] | None = None,
    ) -> list[FailSlowAct]:
        self._asked += 1
        each = self._profiled_together
        self._question = _Question(
            asked=self._asked, until_s=now_s + ANSWER_S, each=each, measured=measured
        )
        assert self._followed is not None
        followed, newest = self._newest[self._followed], max(self._newest.values())
        in_step = self._are_in_step()
        first = max(from_step, (newest if in_step else followed) - 2 * WINDOW_STEPS * each)
        # Ranks that differ in their numbers of steps are asked for as many steps each.
        ahead = {rank: 0 if in_step else own - followed for rank, own in self._newest.items()}
        return [
            AskAgent(
                one.node,
                TellCalls(inc=one.inc, asked=self._asked, from_step=first + ahead.get(rank, 0)),
            )
            for rank, one in self.ranks.items()
        ]

    def told(self, message: CallsTold, now_s: float) -> list[FailSlowAct]:
        """An agent has told the calls of its process."""
        rank, question = self._rank_of.get(message.node), self._question
        if rank is None or question is None or message.asked != question.asked:
            return []
        question.told[rank] = message
        return self._profiled(now_s) if question.told.keys() == self.ranks.keys() else []

    def _profiled(self, now_s: float) -> list[FailSlowAct]:
        question, self._question = self._question, None
        assert question is not None
        for rank, each in question.told.items():
            newest = (step.step for step in each.noted.steps[-1:])
            self._newest[rank] = max(self._newest.get(rank, 0), *newest, 0)
        machines = {rank: one.machine for rank, one in self.ranks.items()}
        window = window_of(question.told, self._waits, machines, question.each)
        why = window if isinstance(window, NotProfiled) else None
        summary = None if isinstance(window, NotProfiled) else summarise(window)
        untold = self.ranks.keys() - question.told.keys()
        if question.measured is not None:
            if summary is not None and not untold:
                self._summary = summary
                self._findings = find_suspects(summary, self.profile).after(self._findings)
            return self._conclude(*question.measured, now_s)
        self._gaps = Gaps(not_profiled=why, unseen=dict.fromkeys(untold, "told none of its calls"))
        self._infers = any(each.noted.infers for each in question.told.values())
        calls = () if isinstance(window, NotProfiled) else window.calls
        self._groups = tuple({call.group for call in calls})
        baseline = None if self._at_start else self.profile
        self._summary = summary
        self._findings = find_suspects(summary, baseline) if summary else Findings()
        if self._at_start:
            self.profile, self._looks = None if untold else summary, self._looks + 1
        suspects = self._findings.suspects
        is_told = any(one.kind == "computation" for one in suspects) or (
            bool(self._findings.busy) and not suspects
        )
        if not self._at_start and not is_told and self._rests(now_s):
            # Only a measurement can tell a slow link, or that there is none.
            self._is_due, self._rests_until_s = True, self._met_s + self._rest_s
            return []
        hindrance = self._hindrance(now_s)
        if hindrance is not None:
            return self._unmeasured(hindrance, now_s)
        if not self._at_start:
            was_calm = now_s - self._met_s > CALM * self._rest_s
            self._rest_s = REST_S if was_calm else min(2 * self._rest_s, MOST_REST_S)
            self._met_s = now_s
        whole = Findings() if self._at_start else self._findings
        plan = plan_validation(whole, self._groups)
        return [*self._meetings.call(plan, self._pace, now_s)]

    # ------------------------------------------------------------------ meeting

    def _hindrance(self, now_s: float) -> NotMeasured | None:
        """Why the ranks cannot be made to stand still, so that the profile alone speaks."""
        never = self._never_meets
        if never is None and not self._at_start and self._rests(now_s):
            return NotMeasured.RESTING
        return never if never or self._are_in_step() else NotMeasured.APART

    @property
    def _never_meets(self) -> NotMeasured | None:
        if not self._meets:
            return NotMeasured.OFF
        if len(self.ranks) < 2:
            return NotMeasured.ALONE
        if self._infers:
            return NotMeasured.INFERRED
        return NotMeasured.MISSED if self._missed else None

    def _rests(self, now_s: float) -> bool:
        """Whether the last meeting was too short a time ago."""
        return self._never_meets is None and now_s - self._met_s < self._rest_s

    def _are_in_step(self) -> bool:
        """Whether all ranks make steps, and the same: else some would wait for who never comes."""
        if self._newest.keys() != self.ranks.keys():
            return False
        apart = max(self._newest.values()) - min(self._newest.values())
        return apart <= 2 + math.ceil(LAG_S / self._step_s)

    @property
    def _step_s(self) -> float:
        """Time of a step at present."""
        if self._onset is not None:
            return self._onset.after_s
        return max(self._warm[1] / max(self._warm[0], 1), 1e-3)

    @property
    def _pace(self) -> RankPace:
        return RankPace(self._newest, self._step_s)

    @property
    def _profiled_together(self) -> int:
        """Short steps that count as one, since a stall is in a few of them only."""
        healthy_s = self._step_s if self._onset is None else self._onset.before_s
        return math.ceil(GROUP_S / self._step_s) if healthy_s < SHORT_S else 1

    def at_meeting(self, node: str, message: AtMeeting, now_s: float) -> list[FailSlowAct]:
        """A rank has come; or it is late, and the meeting is put off."""
        rank = self._rank_of.get(node)
        if rank is not None and message.inc == self.ranks[rank].inc:
            self._newest[rank] = max(self._newest.get(rank, 0), message.step)
        return self._met(self._meetings.came(rank, message, self._pace, now_s), now_s)

    def has_measured(self, node: str, message: RankMeasured, now_s: float) -> list[FailSlowAct]:
        """A rank has measured itself."""
        return self._met(self._meetings.has_measured(self._rank_of.get(node), message), now_s)

    def _met(self, met: Met, now_s: float) -> list[FailSlowAct]:
        sends, over = met
        return [*sends, *self._over(over, now_s)] if over is not None else [*sends]

    def _over(self, meeting: MeetingOver, now_s: float) -> list[FailSlowAct]:
        if meeting.measured is None:
            late = dict.fromkeys(meeting.late, "went past the step at which all should meet")
            gaps = self._gaps.and_unseen(late)
            self._gaps = msgspec.structs.replace(gaps, absent=meeting.absent)
            self._missed |= self._at_start
            return self._unmeasured(NotMeasured.NOT_ALL, now_s)
        self._gaps = self._gaps.and_unseen(unmeasured(meeting.measured, self.ranks))
        measured = measurements_of(meeting.measured, self._rank_of)
        result = judge(meeting.plan, measured, None if self._at_start else self.measured)
        if self._at_start:
            return self._conclude(result, measured, now_s)
        # The first look saw few steps: some were healthy yet, or what slowed them is over.
        return self._ask(self._slow_from, now_s, (result, measured))

    def _unmeasured(self, why: NotMeasured, now_s: float) -> list[FailSlowAct]:
        self._gaps = msgspec.structs.replace(self._gaps, not_measured=why)
        return self._conclude(None, None, now_s)

    def _conclude(
        self, result: ValidationResult | None, measured: Measurements | None, now_s: float
    ) -> list[FailSlowAct]:
        """Say what is slow; at the job's start, only if something stands out."""
        at_start = self._at_start
        start = None if at_start else self.measured
        names = {rank: one.node for rank, one in self.ranks.items()}
        found = diagnose(self._findings, result, names, self._gaps, at_start=at_start)
        parts = compare(self._summary, self.profile, measured, start, names)
        if at_start and measured is not None:
            self.measured = measured
        looks_again = at_start and self.profile is None and self._looks < MOST_LOOKS
        if looks_again:
            self._is_warm, self._warm = False, (0, 0.0)
        if at_start and not (looks_again or found) and self._gaps.ranks:
            words = gap_words(*absences(self._gaps, names))
            return [StartUnseenEvent(reason=words), *self._ask_if_due(now_s)]
        took_s = 0.0 if at_start else now_s - self._onset_s
        told = [msgspec.structs.replace(one, took_s=took_s, parts=parts) for one in found]
        self._advice.diagnosed(found)
        return [*told, *self._ask_if_due(now_s)]

    # ------------------------------------------------------------------ clock

    def tick(self, now_s: float) -> list[FailSlowAct]:
        """Go on without those who do not answer or come."""
        if self._question is not None and now_s > self._question.until_s:
            return self._profiled(now_s)
        acts = self._met(self._meetings.tick(self._pace, now_s), now_s)
        return [*acts, *self._ask_if_due(now_s)]
