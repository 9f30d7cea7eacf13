"""What nodes measure of themselves: before their first step, and in a script that becomes slow."""

import time
from collections.abc import Iterable
from typing import assert_never

import msgspec

from paceline.base.jobdir import number_of
from paceline.master.checks import Checks, NodeChecked
from paceline.master.decision_file import DecisionFile
from paceline.master.parts import MasterParts, Times
from paceline.policy.failslow.cure_lines import CurePlanned
from paceline.protocol.acts import Send
from paceline.protocol.failslow import AskAgent, FailSlowAct, FailSlowWatch
from paceline.protocol.failslow_answers import ProcessorWait
from paceline.protocol.failslow_meeting import Rank
from paceline.wire.events.base import Event
from paceline.wire.messages.agent import CallsTold, NodeFacts
from paceline.wire.messages.checks import Checked, CheckKept
from paceline.wire.messages.failslow import AtMeeting, RankMeasured

MeasuringTakes = Checked | AtMeeting | RankMeasured


def checks_of(parts: MasterParts) -> Checks:
    """The checks of a job's nodes, before they have begun."""
    spec = parts.spec
    return Checks(wanted=spec.preflight and spec.traits.measured != "never")


class Measuring:
    """The edge around `Checks` and `FailSlowWatch`; ``checks``: of the job's nodes."""

    def __init__(self, parts: MasterParts, times: Times, checks: Checks) -> None:
        self._roster, self._outbox, self._checks = parts.members.roster, parts.outbox, checks
        # A script that lives on what is left of a device has no pace to be compared with.
        share, watched = parts.spec.share, parts.spec.watch and not parts.spec.traits.trains
        self._watches = watched and (not share.every or share.kind == "guaranteed")
        self._log = DecisionFile(parts.job.decisions, times.wall) if self._watches else None
        self._away_s: float | None = None
        """Time since which not all ranks are up; None: all are, or were when this master began."""
        self.watch = FailSlowWatch(meets=parts.spec.preflight, first_meeting=time.time_ns())

    def heartbeat(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """A node's agent has reported."""
        wait = ProcessorWait(facts.stolen_s, facts.throttled_s)
        self._act(self.watch.took(node, facts.took, now_s, wait))

    def told(self, message: CallsTold, now_s: float) -> None:
        """An agent has told the calls of its process."""
        self._act(self.watch.told(message, now_s))

    def from_process(self, node: str, message: MeasuringTakes, now_s: float) -> None:
        """A node has measured itself, or has come to where it is to."""
        match message:
            case Checked():
                self._checked(node, message)
            case AtMeeting():
                self._act(self.watch.at_meeting(node, message, now_s))
            case RankMeasured():
                self._act(self.watch.has_measured(node, message, now_s))
            case _:
                assert_never(message)

    def _checked(self, node: str, message: Checked) -> None:
        """Keep what a node can do, and say who is slow, or what was not measured."""
        workers = [one.name for one in self._roster.wanted_workers()]
        for one in self._checks.heard(node, message, workers):
            if isinstance(one, NodeChecked):
                self._outbox.record(one)
            else:
                self._outbox.tell(one)
        self._outbox.to_process(message.inc, CheckKept(inc=message.inc))

    def tick(self, now_s: float) -> None:
        """Look whether all ranks have begun (again), and who is waited for in vain."""
        if not self._watches:
            return
        workers = [*self._roster.of_role("worker")]
        ranks = {
            number_of(one.name): Rank(one.name, one.life.inc, one.agent.host)
            for one in workers
            if one.life.up
        }
        if len(ranks) < len(workers):
            self._away_s = now_s if self._away_s is None else self._away_s
        elif ranks != self.watch.ranks:
            self.watch.begin(ranks, self._away_s)
            self._away_s = None
        self._act(self.watch.tick(now_s))

    def _act(self, acts: Iterable[FailSlowAct]) -> None:
        for act in acts:
            match act:
                case AskAgent(node=node, message=question):
                    self._outbox.to_agent(node, question)
                case Send(inc=inc, message=order):
                    self._outbox.to_process(inc, order)
                case Event():
                    self._outbox.tell(act)
                case CurePlanned():
                    self._keep(act)
                case _:
                    assert_never(act)

    def _keep(self, line: CurePlanned) -> None:
        if self._log is not None:
            self._log.add(msgspec.structs.replace(line, no=self._log.next_no))
            self._log.next_no += 1
            self._log.flush()
