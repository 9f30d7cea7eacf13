"""Common part of all simulated jobs: nodes, a clock, reports, and the carrying out of actions.

A job runs in virtual time. It tells its `Control` what each node has done, as agents do, asks it
when a decision is due, and does what it says. Decisions and restarts fall where they fall, also
into the middle of a step.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from paceline.base.errors import ConfigError, InternalError
from paceline.policy.actions import (
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
    Profile,
    Share,
)
from paceline.policy.observation import RestartCost
from paceline.protocol.records import Place, Plan
from paceline.protocol.samples.grant_size import plan_lead
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.plans import GlobalAction, Plans
from paceline.wire.messages.feeds import Feed
from paceline_experiments.sim.agenda import Agenda
from paceline_experiments.sim.control import Control, Situation
from paceline_experiments.sim.leader import Leader
from paceline_experiments.sim.nodes import Servers, Workers
from paceline_experiments.sim.outcome import Acted, Sight, SimOutcome
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.sim.tally import Tally

FEED = 1
FEW_STEPS, AHEAD_S, MAX_STEPS_AHEAD = 2, 3.5, 512
"""Steps and seconds of work ahead below which a worker asks for more, and the most such steps; as
in `runtime.holding.servers.works`."""


def steps_ahead(step_s: float | None) -> int:
    """A worker asks for more while it holds nothing of the step so many further on.

    Args:
        step_s: seconds of a step; None: not measured yet.
    """
    return FEW_STEPS + (min(int(AHEAD_S / step_s), MAX_STEPS_AHEAD) if step_s else 0)


class SimJob:
    """Base of the two kinds of jobs."""

    def __init__(
        self, scenario: Scenario, seed: int, control: Control, *, keep_trail: bool = False
    ) -> None:
        """``keep_trail``: keep every report, for drawing."""
        self.scenario, self.control = scenario, control
        self.now_s = 0.0
        self.agenda = Agenda()
        self.workers, self.servers = Workers(scenario, seed), Servers(scenario, seed)
        self.feed = Feed(
            feed=FEED,
            purpose="train",
            num_samples=scenario.num_samples,
            epochs=scenario.epochs,
            batch_size=scenario.batch_size,
            shard_size=0,
            shuffle=True,
            seed=seed,
        )
        self.num_committed = 0
        """Samples in the model."""
        n, m = scenario.workers, scenario.servers
        self.worker_tally = Tally(np.arange(1, n + 1))
        self.server_tally = Tally(np.arange(n + 1, n + m + 1))
        self._last_inc = n + m
        self.contributed = np.zeros(scenario.workers, dtype=np.int64)
        self.ledger = Ledger()
        self.ledger.open(self.feed)
        self.plans = Plans(self.ledger, synchronous=scenario.mode in {"bsp", "allreduce"})
        self.leader = Leader()
        self.steps = self.short_steps = self.left_out = self.redone = 0
        self.ledger_calls = self.reports = 0
        self._restarting: set[str] = set()
        self._acted: list[Acted] = []
        self._trail: list[Sight] | None = [] if keep_trail else None
        for kill in scenario.kills:
            self.agenda.add(kill.at_s, partial(self._kill, kill.node))

    def run(self) -> SimOutcome:
        """Run to the end."""
        self.work()
        return SimOutcome(
            jct_s=self.now_s,
            samples=sum(len(span) for span in self.ledger.done),
            steps=self.steps,
            short_steps=self.short_steps,
            left_out=self.left_out,
            redone=self.redone,
            restarts=sum(acted.action == "KillRestart" for acted in self._acted),
            ledger_calls=self.ledger_calls + self.leader.num_reports,
            reports=self.reports,
            decisions=self.control.num_decisions,
            shares=dict(zip(self.workers.names, self.contributed.tolist(), strict=True)),
            acted=tuple(self._acted),
            trail=tuple(self._trail or ()),
        )

    # ------------------------------------------------------------------ for the two kinds

    def work(self) -> None:
        """Go from the first sample to the last."""
        raise NotImplementedError

    def worker_lost(self, worker: int, now_s: float) -> None:
        """Give the uncommitted samples of a worker whose process is gone to others."""
        raise NotImplementedError

    def worker_back(self, worker: int, now_s: float) -> None:
        """Take back a worker that has a process again."""
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        """Let everybody wait for so many seconds."""
        raise NotImplementedError

    def restart_all(self, until_s: float) -> None:
        """Stop everybody, go back to the last checkpoints, and start again at that time."""
        raise NotImplementedError

    def iterations(self) -> float:
        """Count the iterations so far: steps, or (asynchronous) batches of the mean worker."""
        raise NotImplementedError

    def step_s(self) -> float | None:
        """Return the time of a step as the master measures it; None: not yet."""
        raise NotImplementedError

    def undecided(self) -> int:
        """Return the number of the undecided step; asynchronous: 0."""
        raise NotImplementedError

    def plan_prepared(self, since: Place) -> None:
        """Let nobody hold anything from ``since`` on, where a plan is to begin."""
        raise NotImplementedError

    def plan_changed(self) -> None:
        """Take note that a plan is committed."""
        raise NotImplementedError

    def profile(self, action: Profile) -> None:
        """Measure batches of these sizes, which are not applied."""
        raise NotImplementedError

    def steps_left(self) -> int:
        """Count the steps, or contributions, that are left."""
        raise NotImplementedError

    # ------------------------------------------------------------------ reports and decisions

    @property
    def next_event_s(self) -> float:
        """Time at which something happens that is not the training's own doing."""
        return min(self.agenda.next_s, self.control.next_s)

    def next_event(self) -> bool:
        """Let it happen; False: the controller looked, and the job is as it was."""
        if self.control.next_s >= self.agenda.next_s:
            self.agenda.run_next()
            return True
        at_s = self.control.next_s
        if not self.control.is_due(at_s, self.iterations()) or not self.workers.present.any():
            return False
        actions = self.control.decide(self.situation(at_s))
        for action in actions:
            self._act(action, at_s)
        return bool(actions)

    def report(
        self,
        tally: Tally,
        names: Sequence[str],
        every: int,
        *,
        at_once: bool = False,
        step: int | None = None,
    ) -> None:
        """Let the nodes of a role report that have done as many steps; at once: at any time.

        ``step``: the one that they report; None: the job's.
        """
        heartbeat_s = 0.0 if at_once else self.scenario.heartbeat_s
        for row in tally.due(every, self.now_s, heartbeat_s):
            facts = tally.report(row, self.steps if step is None else step, self.now_s)
            self.reports += 1
            self.control.report(names[row], facts, self.now_s)
            if self._trail is not None:
                sight = Sight(
                    at_s=self.now_s,
                    node=names[row],
                    steps=facts.steps,
                    batch_size=facts.step_samples,
                    compute_s=facts.compute_s,
                    server_s=facts.server_s,
                    bpt_s=facts.bpt_s,
                )
                self._trail.append(sight)

    def situation(self, now_s: float) -> Situation:
        """The job as the master knows it."""
        plan, nodes = self.plan_in_force, self.present
        size = self.scenario.local_batch
        shares = {node: Share(size) for node in nodes}
        if self.plans.synchronous:
            shares = {node: plan.share_of(node) or shares[node] for node in nodes}
        # Of who have come or gone since as much is left out as others had.
        is_backup = self.plans.amended(plan, BackupWorkers(count=plan.backup), nodes) == plan
        left_out = 0 if plan.backup and is_backup else plan.left_out
        return Situation(
            now_s=now_s,
            step=self.steps,
            iterations=self.iterations(),
            steps_left=self.steps_left(),
            committed=self.num_committed,
            workers=shares,
            backup=plan.backup if is_backup else 0,
            partial=Partial(
                left_out=left_out, chunks=plan.chunks, late=plan.late, grace_s=plan.grace_s
            ),
            replacing=self.replacing,
            fixed=plan.fixed,
        )

    @property
    def present(self) -> list[str]:
        """Workers that have a process."""
        return [self.workers.names[row] for row in np.flatnonzero(self.workers.present).tolist()]

    @property
    def plan_in_force(self) -> Plan:
        """The plan by which the undecided step is dealt."""
        return self.plans.at(self.plans.place(self.plans.undecided()))

    @property
    def replacing(self) -> str:
        """The server that another is about to take the place of."""
        return next((node for node in self._restarting if node in self.servers.rows), "")

    @property
    def is_restarting(self) -> bool:
        """Whether a node that was killed is not back."""
        return bool(self._restarting)

    # ------------------------------------------------------------------ actions

    def _act(self, action: AnyAction, now_s: float) -> None:
        node = action.node if isinstance(action, KillRestart) else ""
        if node in self._restarting or (node in self.servers.rows and self.replacing):
            return
        match action:
            case KillRestart():
                self._kill(node, now_s)
            case Profile():
                self.profile(action)
            case _:
                try:
                    self._change_plan(action)
                except ConfigError:
                    return  # as the master refuses it
        name = type(action).__name__
        acted = Acted(at_s=now_s, step=self.steps, action=name, node=node, reason=action.reason)
        self._acted.append(acted)

    def _change_plan(self, action: GlobalAction) -> None:
        """Prepare and commit as the master does; in virtual time at one moment."""
        plans = self.plans
        plans.prepare(action, plan_lead(self.step_s()), self.undecided(), self.present)
        if plans.preparing is None:
            return  # that is the plan already
        self.plan_prepared(plans.preparing.since)
        record = plans.committable()
        if record is None:
            raise InternalError(f"incarnations {plans.holders()} have not given back their leases")
        plans.apply(record)
        self.plan_changed()

    def _kill(self, node: str, now_s: float) -> None:
        if node in self._restarting:
            return
        self._restarting.add(node)
        recovery = self.scenario.recovery
        is_worker = node in self.workers.rows
        cost = recovery.worker if is_worker else recovery.server
        back_s = now_s + cost.latency_s
        self.agenda.add(back_s, partial(self._back, node, cost))
        if recovery.checkpoint_every_s is not None:
            self.control.killed(node, now_s)
            self.restart_all(back_s)
        elif is_worker:
            self.control.killed(node, now_s)
            row = self.workers.rows[node]
            self.workers.lose(row)
            self.worker_lost(row, now_s)

    def _back(self, node: str, cost: RestartCost, now_s: float) -> None:
        self._restarting.discard(node)
        inc = self._next_inc()
        if node in self.servers.rows:
            row = self.servers.rows[node]
            self.servers.replace(row, now_s)
            self.server_tally.begin(row, inc, now_s)
            self.pause(self.scenario.recovery.switch_s)
        else:
            row = self.workers.rows[node]
            self.workers.start(row)
            self.worker_tally.begin(row, inc, now_s)
            self.worker_back(row, now_s)
        self.control.restarted(node, inc, cost)

    def _next_inc(self) -> int:
        self._last_inc += 1
        return self._last_inc
