"""The master's side of a simulated job: its monitor, its controller, and a solution."""

from collections.abc import Sequence

import msgspec

from paceline.master.controller import Ask, CarryOut, Controller, Period, Progress
from paceline.master.jobnow import JobNow
from paceline.master.members import Tell
from paceline.master.monitor import Monitor
from paceline.master.restarts import StartMeasured
from paceline.policy.stats.history import Lengths
from paceline.policy.straggler.actions import AnyAction, KillRestart
from paceline.policy.straggler.observation import Observation, RestartCost
from paceline.policy.straggler.solution import Solution
from paceline.sim.job import Situation
from paceline.sim.nodes import server_names, worker_names
from paceline.sim.scenarios import Scenario
from paceline.wire.messages import NodeFacts

POLL_S = 1.0
"""How often the controller is asked whether a decision is due; in the master, with its ticks."""


class Steering:
    """Feeds the master's own monitor and controller, and asks the solution, in virtual time."""

    def __init__(self, scenario: Scenario, solution: Solution, lengths: Lengths) -> None:
        """``lengths``: of the monitor's windows."""
        self._scenario, self._solution = scenario, solution
        self._monitor = Monitor(lengths)
        self._monitor.num_workers = scenario.workers
        period = Period(every_s=solution.every_s, every_iterations=solution.every_steps)
        self._controller = Controller(period, lambda: self.next_s)
        self._restarts: dict[str, int] = {}
        self._progress = Progress(0.0, 0)
        self.next_s = 0.0
        recovery = scenario.recovery
        costs = {"worker-0": recovery.worker, "server-0": recovery.server}
        for node, cost in costs.items():
            first = StartMeasured(node=node, inc=0, cost=cost, first=True)
            self._monitor.restarts.apply(first)

    # ------------------------------------------------------------------ facts

    def report(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """Take in what a node did."""
        self._monitor.heartbeat(node, facts, now_s)

    def killed(self, node: str, now_s: float) -> None:
        """A node's process has ended."""
        self._monitor.note(Tell("process_exited", node), now_s)

    def restarted(self, node: str, inc: int, cost: RestartCost) -> None:
        """A node that was killed is back, as another incarnation; ``cost`` is what it took."""
        self._restarts[node] = self._restarts.get(node, 0) + 1
        measured = StartMeasured(node=node, inc=inc, cost=cost, launched=True)
        self._monitor.restarts.apply(measured)
        self._controller.works(node, cost, self._progress)

    def restart_cost(self, role: str) -> RestartCost:
        """As the monitor knows it."""
        return self._monitor.restarts.cost(role)

    # ------------------------------------------------------------------ decisions

    def is_due(self, now_s: float, iterations: float) -> bool:
        """As the controller says."""
        self.next_s = now_s + POLL_S
        return self._controller.is_due(now_s, iterations)

    def decide(self, now: Situation) -> Sequence[AnyAction]:
        """Ask the solution."""
        total = self._scenario.num_samples * self._scenario.epochs
        self._progress = Progress(now.now_s, now.committed, total)
        self._monitor.num_workers = len(now.workers)
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
        """How often the solution was asked."""
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
            restarts=self._restarts,
            pending_s=scenario.recovery.worker.pending_s,
            since_action_s=self._controller.since_action_s(now.now_s),
        )
        seen = self._monitor.observe(now.now_s, job)
        # Not in the master's view yet: what else is in force, what the hardware is, what stalls.
        kinds = dict(zip(worker_names(scenario.workers), scenario.kinds, strict=False))
        stall_s = scenario.recovery.server.stall_s
        return msgspec.structs.replace(
            seen,
            server_restart=msgspec.structs.replace(seen.server_restart, stall_s=stall_s),
            backup=now.backup,
            left_out=now.partial.left_out,
            chunks=now.partial.chunks,
            fixed=now.fixed,
            absent=scenario.workers - len(now.workers),
            workers=tuple(
                msgspec.structs.replace(
                    worker,
                    kind=kinds.get(worker.node, ""),
                    batch_limit=scenario.batch_limit,
                    lease_share=now.lease_shares.get(worker.node, 0),
                )
                for worker in seen.workers
            ),
        )
