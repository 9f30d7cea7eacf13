"""The master's side of a simulated job: its monitor, its controller, and a solution."""

import heapq
import itertools
import math
import zlib
from collections.abc import Sequence

import msgspec

from paceline.base.numbering import NO_INC, Inc
from paceline.features.stragglers.policy.controller import (
    Ask,
    CarryOut,
    Controller,
    Period,
)
from paceline.features.stragglers.policy.solution import Solution
from paceline.master.jobnow import JobNow
from paceline.master.monitor import Monitor
from paceline.master.restarts import StartMeasured
from paceline.policy.actions import AnyAction, KillRestart
from paceline.policy.observation import JobProgress, Observation, RestartCost
from paceline.policy.stats.history import Lengths, ProfiledTimes
from paceline.wire.events.nodes import ProcessExitedEvent, Verdict
from paceline.wire.messages.agent import Hardware, NodeFacts
from paceline_experiments.sim.control import Situation
from paceline_experiments.sim.nodes import server_names, worker_names
from paceline_experiments.sim.scenarios import Scenario

POLL_S = 0.2
"""Seconds between two questions to the controller whether a decision is due: the master's tick."""


class Steering:
    """Feeds the master's own monitor and controller, and asks the solution, in virtual time."""

    def __init__(self, scenario: Scenario, solution: Solution, lengths: Lengths) -> None:
        """``lengths``: of the monitor's windows."""
        self._scenario, self._solution = scenario, solution
        self._monitor = Monitor(lengths)
        self._monitor.trains(scenario.workers)
        for name, kind in zip(worker_names(scenario.workers), scenario.kinds, strict=False):
            self._monitor.hardware(name, Hardware(kind=kind))
        period = Period(every_s=solution.every_s, every_iterations=solution.every_steps)
        self._controller = Controller(period)
        self._restarts: dict[str, int] = {}
        self._progress = JobProgress(0.0, 0)
        self.next_s = 0.0
        self._under_way: list[tuple[float, int, str, NodeFacts]] = []
        """Heartbeats by the time at which they come."""
        self._order = itertools.count()
        recovery = scenario.recovery
        costs = {"worker-0": recovery.worker, "server-0": recovery.server}
        for node, cost in costs.items():
            first = StartMeasured(node=node, inc=NO_INC, cost=cost, first=True)
            self._monitor.restarts.apply(first)

    # ------------------------------------------------------------------ facts

    def report(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """A node's agent tells of this with its next heartbeat, each at its own moments."""
        every_s = self._scenario.heartbeat_s
        phase_s = every_s * (zlib.crc32(node.encode()) / 2**32)
        due_s = phase_s + every_s * math.ceil((now_s - phase_s) / every_s)
        heapq.heappush(self._under_way, (due_s, next(self._order), node, facts))

    def profiled(self, node: str, profiled: ProfiledTimes) -> None:
        """A worker says what batches took that were not applied."""
        self._monitor.history(node).profiled(profiled)

    def _hear(self, now_s: float) -> None:
        """Take in the heartbeats up to now."""
        while self._under_way and self._under_way[0][0] <= now_s:
            due_s, _, node, facts = heapq.heappop(self._under_way)
            self._monitor.heartbeat(node, facts, due_s)

    def _silence(self, node: str) -> None:
        """Forget what its process had not told: that dies with it."""
        self._under_way = [one for one in self._under_way if one[2] != node]
        heapq.heapify(self._under_way)

    def killed(self, node: str, now_s: float) -> None:
        """A node's process has ended."""
        self._silence(node)
        self._monitor.note(ProcessExitedEvent(node=node, verdict=Verdict.STOPPED), now_s)

    def restarted(self, node: str, inc: int, cost: RestartCost) -> None:
        """A node that was killed is back, as another incarnation; ``cost`` is what it took."""
        self._silence(node)
        self._monitor.history(node).restart()  # a real server's successor has another name
        self._restarts[node] = self._restarts.get(node, 0) + 1
        measured = StartMeasured(node=node, inc=Inc(inc), cost=cost, launched=True)
        self._monitor.restarts.apply(measured)
        self._controller.works(node, cost, self._progress)

    # ------------------------------------------------------------------ decisions

    def is_due(self, now_s: float, iterations: float) -> bool:
        """Ask the controller whether a decision is due."""
        self.next_s = now_s + POLL_S
        return self._controller.is_due(now_s, iterations)

    def decide(self, now: Situation) -> Sequence[AnyAction]:
        """Ask the solution."""
        self._hear(now.now_s)
        total = self._scenario.num_samples * self._scenario.epochs
        self._progress = JobProgress(now.now_s, now.committed, total)
        self._monitor.trains(len(now.workers))
        orders: list[CarryOut] = []
        seen = self._observe(now)
        for asked in self._controller.ask(seen, now.iterations, self._progress):
            if isinstance(asked, Ask):
                actions = self._solution.decide(asked.observation)
                answers = self._controller.answered(asked.no, actions, 0.0, now.now_s)
                orders += [order for order in answers if isinstance(order, CarryOut)]
        for order in orders:
            self._controller.carried_out(order.action)
            if not isinstance(order.action, KillRestart):
                self._controller.took_effect(order.no, order.index, self._progress)
        return [order.action for order in orders]

    @property
    def num_decisions(self) -> int:
        """Number of times that the solution was asked."""
        return self._controller.num_decisions

    def _observe(self, now: Situation) -> Observation:
        scenario = self._scenario
        synchronous = scenario.mode in {"bsp", "allreduce"}
        job = JobNow(
            step=now.step,
            mode=scenario.mode,
            global_batch=scenario.batch_size if synchronous else scenario.local_batch,
            steps_left=now.steps_left,
            shares=now.workers,
            servers=tuple(server_names(scenario.servers)),
            replacing=now.replacing,
            fixed=now.fixed,
            backup=now.backup,
            left_out=now.partial.left_out,
            chunks=now.partial.chunks,
            late=now.partial.late,
            grace_s=now.partial.grace_s,
            absent=scenario.workers - len(now.workers),
            restarts=self._restarts,
            pending_s=scenario.recovery.worker.pending_s,
            since_action_s=self._controller.since_action_s(now.now_s),
        )
        seen = self._monitor.observe(now.now_s, job)
        # What the master does not know: how large a batch may be before one is tried; what stalls.
        stall_s = scenario.recovery.server.stall_s
        return msgspec.structs.replace(
            seen,
            server_restart=msgspec.structs.replace(seen.server_restart, stall_s=stall_s),
            workers=tuple(
                msgspec.structs.replace(worker, batch_limit=scenario.batch_limit)
                for worker in seen.workers
            ),
        )
