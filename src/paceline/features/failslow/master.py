"""Fail-slow in a master: checks of nodes before their first step, and the watch over a script."""

import time
from collections.abc import Iterable
from statistics import median
from typing import assert_never

import msgspec

from paceline.features.failslow import check_table
from paceline.features.failslow.cures import log_of
from paceline.features.failslow.policy.planned import CurePlanned
from paceline.features.failslow.protocol.answers import ProcessorWait
from paceline.features.failslow.protocol.checks import Checks
from paceline.features.failslow.protocol.meeting import Rank, TellRank
from paceline.features.failslow.protocol.watch import AskAgent, FailSlowAct, FailSlowWatch
from paceline.features.failslow.slowness import (
    ScriptPace,
    Slowness,
    relieved_parts,
    slownesses,
)
from paceline.features.failslow.wire import (
    AtMeeting,
    CallsTold,
    Checked,
    CheckKept,
    CheckNode,
    NodeChecked,
    RankMeasured,
)
from paceline.jobs.history import read_events
from paceline.master.decision_file import DecisionFile
from paceline.master.feature_port import Core, MasterPart
from paceline.wire.client import Shown, ShownFigure, ShownTable
from paceline.wire.events.base import Event
from paceline.wire.messages.agent import NodeFacts

FailSlowTakes = Checked | AtMeeting | RankMeasured
"""Messages of processes."""

_decode = msgspec.msgpack.Decoder(FailSlowTakes).decode
_decode_agent = msgspec.msgpack.Decoder(CallsTold).decode
_decode_record = msgspec.msgpack.Decoder(NodeChecked).decode


class FailSlowPart(MasterPart):
    """The edge around `Checks` and `FailSlowWatch`."""

    def __init__(self, core: Core) -> None:
        self._core, spec = core, core.spec
        self._is_script = not spec.traits.trains
        self.wants_links = spec.preflight and spec.traits.measured != "never"
        self._checks = Checks(wanted=self.wants_links)
        # A script that lives on what is left of a device has no pace to be compared with.
        share = spec.share
        watched = spec.watch and self._is_script
        self._watches = watched and (not share.every or share.kind == "guaranteed")
        self._log: DecisionFile | None = None
        self._away_s: float | None = None
        """Time since which not all ranks are up; None: all are, or were when this master began."""
        self._watch = FailSlowWatch(meets=spec.preflight, first_meeting=time.time_ns())
        self._pace = ScriptPace()
        self._ended: list[Slowness] = []

    def begin(self) -> None:
        self._checks.judge(self._workers())  # a master before this one has told what is slow
        if self._watches:
            self._ended = slownesses(read_events(self._core.job.events))  # of masters before
            self._log = DecisionFile(log_of(self._core.job), self._core.wall)

    def _workers(self) -> list[str]:
        return [one.name for one in self._core.roster.wanted_workers()]

    # ------------------------------------------------------------------ records

    def apply(self, record: msgspec.Raw) -> None:
        self._checks.apply(_decode_record(record))

    def kept(self) -> list[NodeChecked]:
        return self._checks.records()

    # ------------------------------------------------------------------ nodes

    def starts(self, node: str) -> CheckNode | None:
        return CheckNode() if self._checks.is_due(node) else None

    def heard(self, node: str, inc: int, body: msgspec.Raw) -> None:
        message: FailSlowTakes = _decode(body)
        now_s = self._core.steady()
        match message:
            case Checked():
                self._checked(node, message)
            case AtMeeting():
                self._act(self._watch.at_meeting(node, message, now_s))
            case RankMeasured():
                self._act(self._watch.has_measured(node, message, now_s))
            case _:
                assert_never(message)

    def _checked(self, node: str, message: Checked) -> None:
        """Keep what a node can do, and say which is slow, or what was not measured."""
        for one in self._checks.heard(node, message, self._workers()):
            if isinstance(one, NodeChecked):
                self._core.keep(one)
            else:
                self._core.tell(one)
        self._core.send(message.inc, CheckKept())

    def heard_agent(self, node: str, body: msgspec.Raw) -> None:
        message: CallsTold = _decode_agent(body)
        known = self._core.roster.node_of(message.inc)
        if known is not None and known.name == node and known.life.is_alive:
            self._act(self._watch.told(message, self._core.steady()))

    def reported(self, node: str, facts: NodeFacts, now_s: float) -> None:
        if self._is_script:
            wait = ProcessorWait(facts.stolen_s, facts.throttled_s)
            self._act(self._watch.took(node, facts.took, now_s, wait))

    def tick(self, now_s: float) -> None:
        """Look whether all ranks have begun (again), and which are waited for in vain."""
        if not self._watches:
            return
        workers = [*self._core.roster.of_role("worker")]
        ranks = {
            self._core.roster.rank_of(one): Rank(one.name, one.life.inc, one.agent.host)
            for one in workers
            if one.life.up
        }
        if len(ranks) < len(workers):
            self._away_s = now_s if self._away_s is None else self._away_s
        elif ranks != self._watch.ranks:
            self._watch.begin(ranks, self._away_s)
            self._away_s = None
        self._act(self._watch.tick(now_s))

    # ------------------------------------------------------------------ acts

    def _act(self, acts: Iterable[FailSlowAct]) -> None:
        for act in acts:
            match act:
                case AskAgent(node=node, message=question):
                    self._core.send_agent(node, question)
                case TellRank(inc=inc, message=order):
                    self._core.send(inc, order)
                case Event():
                    self._core.tell(act)
                case CurePlanned():
                    self._keep(act)
                case _:
                    assert_never(act)

    def _keep(self, line: CurePlanned) -> None:
        if self._log is not None:
            self._log.add(msgspec.structs.replace(line, no=self._log.next_no))
            self._log.next_no += 1
            self._log.flush()

    # ------------------------------------------------------------------ what is shown

    def happened(self, event: Event) -> None:
        if (ended := self._pace.note(event)) is not None:
            self._ended.append(ended)

    def shown(self) -> Shown:
        rows = check_table.rows_of(self._checks.speeds)
        tables = (ShownTable(check_table.COLUMNS, tuple(rows)),) if rows else ()
        if not self._is_script:
            return Shown(tables=tables)
        now = self._pace.now
        return Shown(
            tables=tables,
            slow=now.parts if now is not None else (),
            relieved=relieved_parts(self._ended),
            figures=tuple(self._figures()),
        )

    def _figures(self) -> Iterable[ShownFigure]:
        now = self._pace.now
        text = "1: its steps, or a part of it, are slow."
        yield ShownFigure(name="job_slow", about=text, value=float(now is not None))
        seen = self._core.monitor.nodes.values()
        times_s = [one.facts.bpt_s for one in seen if one.facts.bpt_s > 0.0]
        if times_s:
            step_s = median(times_s)
            text = "Time of a step in the newest reports: the median of the ranks."
            yield ShownFigure(name="job_step_seconds", about=text, value=step_s)
            text = "Time of a step over that of before it became slow; 1: it is well."
            ratio = step_s / now.healthy_s if now and now.healthy_s else 1.0
            yield ShownFigure(name="job_step_ratio", about=text, value=ratio)
        text = "Times that its steps became slow, since the master's start."
        yield ShownFigure(name="job_onsets", about=text, value=self._pace.onsets, counts=True)
        text = "Parts that were found slow (or nothing), since the master's start."
        for culprit, count in self._pace.diagnoses.items():
            yield ShownFigure(
                name="job_diagnoses",
                about=text,
                value=count,
                labels={"culprit": culprit},
                counts=True,
            )
