"""A job in bsp in a few lines, for closed loops: observations in, actions out, in virtual time."""

from collections.abc import Callable, Sequence

import numpy as np

from paceline.features.stragglers.policy import solvers
from paceline.features.stragglers.policy.solution import Solution
from paceline.policy.actions import (
    AdjustBatch,
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
)
from paceline.policy.observation import (
    Observation,
    RestartCost,
    ServerSeen,
    WorkerSeen,
)
from paceline.policy.stats.history import Lengths, NodeHistory, WindowMeans

Delays = Callable[[float], np.ndarray]

RESTART = RestartCost(start_s=20.0, rebuild_s=20.0, restore_s=10.0, redo_s=2.0, stall_s=1.0)
REPORT_EVERY = 10
EVEN = 1000
SLOPE_S = 0.002


class World:
    """Workers that take delay + slope * samples, servers that take a time per step.

    ``delays_s``: per worker, by time; ``cures``: whether a restart ends them. A global action takes
    effect two steps later.
    """

    def __init__(
        self,
        solution: Solution,
        *,
        workers: int = 8,
        servers: int = 2,
        delays_s: Delays | None = None,
        server_delays_s: Sequence[float] | None = None,
        slowness: Delays | None = None,
        noise: float = 0.01,
        cures: bool = True,
        pending_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.solution = solution
        self.delays_s = delays_s or (lambda _: np.zeros(workers))
        self.slowness = slowness or (lambda _: np.ones(workers))
        self.server_s = 0.05 + np.array(server_delays_s or [0.0] * servers)
        self.noise, self.cures, self.pending_s = noise, cures, pending_s
        self.rng = np.random.default_rng(seed)
        self.nodes = [NodeHistory(Lengths()) for _ in range(workers)]
        self.server_nodes = [NodeHistory(Lengths()) for _ in self.server_s]
        self.shares = np.full(workers, EVEN)
        self.total = EVEN * workers
        self.backup, self.partial = 0, Partial(left_out=0)
        self.t_s, self.step, self.owed = 0.0, 0, 0
        self.asked_step, self.asked_s = 0, 0.0
        self.gone: dict[int, float] = {}
        self.restarts = np.zeros(workers, np.int64)
        self.server_restarts = np.zeros(len(self.server_s), np.int64)
        self.ordered: tuple[int, list[AnyAction]] | None = None
        self.rows: list[list[tuple[float, float]]] = [[] for _ in range(workers)]
        self.bpt_s: list[float] = []
        self.log: list[tuple[Observation, list[AnyAction]]] = []

    def run(self, steps: int) -> float:
        """JCT, s; samples that steps went without are computed at the end."""
        while self.step < steps + self.owed // self.total:
            self._advance()
            if self.step % REPORT_EVERY == 0:
                self._report()
                due = self.step - self.asked_step >= self.solution.every_steps
                if due and self.t_s - self.asked_s >= self.solution.every_s:
                    self._decide(steps)
        return self.t_s

    def actions(self, kind: type) -> list[AnyAction]:
        return [action for _, actions in self.log for action in actions if isinstance(action, kind)]

    def _times_s(self, shares: np.ndarray) -> np.ndarray:
        delays_s = self.delays_s(self.t_s)
        if self.cures:
            delays_s = np.where(self.restarts > 0, 0.0, delays_s)
        return delays_s + SLOPE_S * self.slowness(self.t_s) * shares

    def _advance(self) -> None:
        alive = np.array([index not in self.gone for index in range(len(self.nodes))])
        # The others do a gone worker's share.
        shares = np.where(alive, self.shares, 0) * self.total / max(self.shares[alive].sum(), 1)
        times_s = self._times_s(shares) * self.rng.normal(1.0, self.noise, len(shares))
        order = np.argsort(-np.where(alive, times_s, -1.0))
        missing = np.cumsum(shares[order])
        at_once = max(self.backup, int((missing <= self.partial.left_out).sum()))
        in_grace = max(at_once, int((missing <= self.partial.late).sum()))
        grace_over_s = float(times_s[order[in_grace]]) + self.partial.grace_s
        waited_s = min(float(times_s[order[at_once]]), grace_over_s)
        self.owed += int(shares[times_s > waited_s].sum())
        step_s = waited_s + float(self.server_s.max())
        self.t_s += step_s
        self.step += 1
        self.bpt_s.append(step_s)
        for index in np.flatnonzero(alive).tolist():
            self.rows[index].append((float(shares[index]), float(times_s[index])))
        if self.ordered and self.step >= self.ordered[0]:
            for action in self.ordered[1]:
                self._apply(action)
            self.ordered = None
        self.gone = {index: end_s for index, end_s in self.gone.items() if end_s > self.t_s}

    def _apply(self, action: AnyAction) -> None:
        match action:
            case AdjustBatch(shares=shares):
                given = [shares.get(f"w{index:03}") for index in range(len(self.nodes))]
                self.shares = np.array([share.batch_size if share else 0 for share in given])
                assert self.shares.sum() == self.total
            case BackupWorkers(count=count):
                self.backup, self.partial = count, Partial(left_out=0)
            case Partial():
                self.backup, self.partial = 0, action

    def _report(self) -> None:
        bpt_s = sum(self.bpt_s) / len(self.bpt_s)
        for node, rows in zip(self.nodes, self.rows, strict=True):
            if rows:
                sizes, times_s = zip(*rows, strict=True)
                node.report(
                    WindowMeans(
                        t_s=self.t_s,
                        iterations=len(rows),
                        samples=sum(sizes) / len(rows),
                        compute_s=sum(times_s) / len(rows),
                        compute_max_s=max(times_s),
                        server_s=float(self.server_s.max()),
                        bpt_s=bpt_s,
                    )
                )
                rows.clear()
        for node, server_s in zip(self.server_nodes, self.server_s.tolist(), strict=True):
            node.report(
                WindowMeans(t_s=self.t_s, iterations=REPORT_EVERY, server_s=server_s, bpt_s=bpt_s)
            )
        self.bpt_s.clear()

    def _observe(self, steps: int) -> Observation:
        workers = tuple(
            WorkerSeen(
                node=f"w{index:03}",
                batch_size=int(self.shares[index]),
                short=node.short(self.t_s),
                long=node.long(self.t_s),
                regime=node.regime(self.t_s),
                restarts=int(self.restarts[index]),
            )
            for index, node in enumerate(self.nodes)
            if index not in self.gone
        )
        servers = tuple(
            ServerSeen(
                node=f"s{index}",
                short=node.short(self.t_s),
                long=node.long(self.t_s),
                regime=node.regime(self.t_s),
                restarts=int(self.server_restarts[index]),
            )
            for index, node in enumerate(self.server_nodes)
        )
        return Observation(
            now_s=self.t_s,
            step=self.step,
            mode="bsp",
            global_batch=self.total,
            steps_left=steps - self.step,
            workers=workers,
            servers=servers,
            backup=self.backup,
            left_out=self.partial.left_out,
            chunks=self.partial.chunks,
            late=self.partial.late,
            grace_s=self.partial.grace_s,
            absent=len(self.gone),
            pending_s=self.pending_s,
            worker_restart=RESTART,
            server_restart=RESTART,
        )

    def _decide(self, steps: int) -> None:
        if self.ordered:
            return
        self.asked_step, self.asked_s = self.step, self.t_s
        seen = self._observe(steps)
        actions = self.solution.decide(seen)
        self.log.append((seen, actions))
        of_all = [action for action in actions if not isinstance(action, KillRestart)]
        if of_all:
            self.ordered = (self.step + 2, of_all)
        for action in actions:
            if isinstance(action, KillRestart):
                self._kill(action.node)

    def _kill(self, node: str) -> None:
        index = int(node[1:])
        if node[0] == "s":
            self.server_restarts[index] += 1
            self.server_s[index] = 0.05
            self.server_nodes[index].restart()
            self.t_s += RESTART.stall_s or 0.0
        else:
            self.restarts[index] += 1
            self.gone[index] = self.t_s + self.pending_s + RESTART.total_s - RESTART.redo_s
            self.nodes[index].restart()
            self.rows[index].clear()


def clairvoyant_s(world: World, steps: int) -> float:
    """JCT of the best division at every step, by one who knows the costs; without restarts."""
    t_s, known = 0.0, {}
    for _ in range(steps):
        delays_s = world.delays_s(t_s)
        slopes_s = SLOPE_S * world.slowness(t_s)
        key = (delays_s.tobytes(), slopes_s.tobytes())
        if key not in known:
            shares = solvers.level(delays_s, slopes_s, world.total, lower=0)
            known[key] = float((delays_s + slopes_s * shares)[shares > 0].max())
        t_s += known[key] + 0.05
    return t_s
