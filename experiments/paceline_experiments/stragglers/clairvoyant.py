"""Speed that a job could have had: a clairvoyant scheduler on the true costs.

It knows every delay, slowdown and noise before it happens, pays nothing for looking or for another
division, and splits samples as if they were a fluid. In synchronous jobs it fills each step to the
level at which all workers are done at once (all that take part pay a delay). In asynchronous ones
all workers work all the time, the last samples are spread over them, and the time is theirs or
that of a server that is never idle, whichever is longer. It restarts nodes when that pays: workers
at the best moment of each life, servers in advance, so that a fresh one takes over as the trouble
begins, and no sooner than another could be had.

Each node's restarts are the best ones if the job runs otherwise as it last did; others are chosen
as long as that makes it faster. So its time is that of a good schedule and no lower bound: where
several nodes are best restarted one after the other, the rounds may not find that. Without
restarts, and where all patterns are dated in seconds, short steps are no way around it: the level
is concave in the samples of a step, and running steps nearly empty does not make time go by. Where
patterns are dated in iterations it does: a bad iteration is over as soon as a step is, however
little was done in it, and the samples come back in a better one. There it also runs those steps
nearly empty that cost more than a usual one, which is a good schedule and not the best. In
asynchronous jobs, lives with patterns of both kinds are valued as if they had begun with the job.
The noise, which is dated in iterations, too, it takes as it comes.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from paceline_experiments.sim.agenda import Agenda, Event
from paceline_experiments.sim.costs import Floats
from paceline_experiments.sim.nodes import Servers, Workers
from paceline_experiments.sim.patterns import Placement, Role, spells_of
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.best_restarts import best_restarts

ROUNDS = 3
"""Rounds in which restarts are chosen for the job as it ran in the round before."""
LEAST_GAIN = 1e-3
"""Least gain that is a reason to restart a node, as a part of the job or of an even share of it."""
GRID_S = 1.0
"""Asynchronous jobs have no steps; their workers are restarted at moments so far apart."""
NUM_MOMENTS = 400
"""Number of moments at which nodes may be restarted where lives have iterations of their own."""

Plan = dict[int, list[float]]
"""Times at which each node is restarted; of a server: replaced."""


def clairvoyant_s(scenario: Scenario, seed: int) -> float:
    """JCT of the clairvoyant scheduler, s."""
    kind = _Synchronous if scenario.mode in {"bsp", "allreduce"} else _Asynchronous
    return kind(scenario, seed).jct_s()


def level_s(delay_s: Floats, per_sample_s: Floats, samples: float, saturation: int = 0) -> float:
    """Return when all are done at once, if worker i takes delay + samples * per_sample for a part.

    Args:
        delay_s: paid by workers that get a part.
        per_sample_s: infinite: the worker gets none.
        samples: to be split, as a fluid.
        saturation: smaller parts take as long as one of this size.
    """
    from_s = delay_s + saturation * np.where(np.isfinite(per_sample_s), per_sample_s, 0.0)
    order = np.argsort(np.where(np.isfinite(per_sample_s), from_s, math.inf), kind="stable")
    speed = 1.0 / per_sample_s[order]
    with np.errstate(invalid="ignore", divide="ignore"):
        levels_s = (samples + np.cumsum(delay_s[order] * speed)) / np.cumsum(speed)
    # With the first k workers: not before the k-th could have any of it.
    return float(np.nanmin(np.maximum(levels_s, from_s[order])))


def _grid(until_s: float) -> Floats:
    return np.append(np.arange(0.0, until_s, GRID_S), until_s)


def _first_finite(when_s: Callable[[float], float], guess_s: float) -> float:
    """Return what a function of the time looked at says once that is enough."""
    until_s = 1.2 * guess_s
    while (found_s := when_s(until_s)) == math.inf:
        until_s *= 2.0
    return found_s


def _event(act: Callable[[int], None], row: int) -> Event:
    return lambda _: act(row)


class _Clairvoyant:
    """Common part of both kinds of jobs."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.seed = scenario, seed
        self.away_s = scenario.recovery.worker.latency_s
        self.workers_plan: Plan = {}
        self.servers_plan: Plan = {}

    def jct_s(self) -> float:
        """The best of some rounds, before the first of which nobody is restarted."""
        best_s = self.run()
        for _ in range(ROUNDS):
            plans = self.workers_plan, self.servers_plan
            self.choose()
            jct_s = self.run()
            if jct_s >= best_s:
                self.workers_plan, self.servers_plan = plans
                break
            best_s = jct_s
        return best_s

    def run(self) -> float:
        """JCT with the chosen restarts."""
        raise NotImplementedError

    def choose(self) -> None:
        """Choose restarts for the job as it just ran."""
        workers, servers = range(self.scenario.workers), range(self.scenario.servers)
        self.workers_plan = {worker: self.worker_restarts(worker) for worker in workers}
        self.servers_plan = {server: self.server_restarts(server) for server in servers}

    def worker_restarts(self, worker: int) -> list[float]:
        """Return when a worker is best restarted."""
        raise NotImplementedError

    def server_restarts(self, server: int) -> list[float]:
        """Return when a server is best replaced."""
        raise NotImplementedError

    def disturbed(
        self, place: Placement, at_s: Floats, iterations: Floats
    ) -> tuple[Floats, Floats]:
        """Delay and slowdown of a place at ascending moments, in these iterations."""
        delay_s, slowdown = np.zeros(len(at_s)), np.ones(len(at_s))
        patterns, role = self.scenario.patterns, place.role
        for number, pattern in enumerate(patterns):
            if pattern.role != role:
                continue
            clock = at_s if pattern.clock == "seconds" else iterations
            for spell in spells_of(patterns, number, place, self.seed):
                low, high = np.searchsorted(clock, (spell.start, spell.stop))
                if low == len(clock):
                    break
                delay_s[low:high] += spell.delay_s
                slowdown[low:high] *= spell.slowdown
        return delay_s, slowdown


class _Synchronous(_Clairvoyant):
    """Fills every step to the level."""

    dear_s = math.inf
    """Steps that would take so much longer with their samples than without are run nearly empty."""

    def jct_s(self) -> float:
        """Return the time, also of rounds that run bad iterations nearly empty."""
        best_s = super().jct_s()
        patterns = self.scenario.patterns
        if any(each.role == "worker" and each.clock == "iterations" for each in patterns):
            for _ in range(ROUNDS):
                self.dear_s = best_s / self.scenario.num_steps
                jct_s = self.run()
                if jct_s >= best_s:
                    break
                best_s = jct_s
        return best_s

    def run(self) -> float:
        """Step by step."""
        scenario = self.scenario
        workers, servers = Workers(scenario, self.seed), Servers(scenario, self.seed)
        agenda = self._planned(workers, servers)
        begin_s: list[float] = []
        levels_s: list[float] = []
        now_s = 0.0
        for size, may_wait in self._slices():
            # With all workers away it waits for the next to be back.
            while agenda.next_s <= now_s or not workers.present.any():
                now_s = max(now_s, agenda.next_s)
                agenda.run_next()
            step = len(begin_s) + 1
            workers.disturbances.move(now_s, step)
            servers.disturbances.move(now_s, step)
            begin_s.append(now_s)
            levels_s.append(self._level_of(workers, step, size, may_wait=may_wait))
            part_s, update_s = servers.slowest_s(1)
            trip_s = scenario.traffic.round_trip_s(1, scenario.servers)
            now_s += levels_s[-1] + part_s + update_s + trip_s
        self._at_s, self._level_s = np.array(begin_s), np.array(levels_s)
        num_switches = sum(at_s < now_s for plan in self.servers_plan.values() for at_s in plan)
        return float(now_s) + num_switches * scenario.recovery.switch_s

    def _slices(self) -> Iterator[tuple[int, bool]]:
        """Samples of each step, and whether they may come at the end of their epoch instead."""
        scenario = self.scenario
        whole, rest = divmod(scenario.num_samples, scenario.batch_size)
        for _ in range(scenario.epochs):
            self._waiting: list[int] = []
            for size in [scenario.batch_size] * whole + [rest] * (rest > 0):
                yield size, size > 1
            for size in self._waiting:
                yield size, False

    def _level_of(self, workers: Workers, step: int, size: int, *, may_wait: bool) -> float:
        delay_s, per_sample_s = self._costs(workers, step)
        saturation = self.scenario.compute.saturation
        full_s = level_s(delay_s, per_sample_s, size, saturation)
        if not may_wait or self.dear_s == math.inf:
            return full_s
        least_s = level_s(delay_s, per_sample_s, 1, saturation)
        if full_s - least_s <= self.dear_s:
            return full_s
        self._waiting.append(size - 1)
        return least_s

    def _planned(self, workers: Workers, servers: Servers) -> Agenda:
        agenda = Agenda()
        for worker, restarts in self.workers_plan.items():
            for at_s in restarts:
                agenda.add(at_s, _event(workers.lose, worker))
                agenda.add(at_s + self.away_s, _event(workers.start, worker))
        for server, restarts in self.servers_plan.items():
            for at_s in restarts:
                agenda.add(at_s, partial(servers.replace, server))
        return agenda

    def _costs(self, workers: Workers, step: int) -> tuple[Floats, Floats]:
        """Return each worker's costs in this step: a fixed one, and one per sample."""
        compute, disturbed = self.scenario.compute, workers.disturbances
        factor = disturbed.slowdown * workers.noise.all(step)
        per_sample_s = np.where(workers.present, compute.per_sample_s / workers.speed, math.inf)
        return compute.fixed_s * factor + disturbed.delay_s, per_sample_s * factor

    def worker_restarts(self, worker: int) -> list[float]:
        """A worker is worth the samples that it takes below the level."""
        scenario, compute = self.scenario, self.scenario.compute
        speed = (scenario.speeds or (1.0,) * scenario.workers)[worker]

        def worth(life: int) -> Floats:
            delay_s, slowdown = self._disturbed(Placement("worker", worker, life))
            spare_s = self._level_s - compute.fixed_s * slowdown - delay_s
            return np.maximum(0.0, spare_s * speed / (compute.per_sample_s * slowdown))

        loss = LEAST_GAIN * scenario.num_samples * scenario.epochs / scenario.workers
        return best_restarts(worth, self._at_s, self.away_s, loss=loss)

    def server_restarts(self, server: int) -> list[float]:
        """A server is worth the less the longer its updates take."""
        recovery = self.scenario.recovery

        def worth(life: int) -> Floats:
            delay_s, slowdown = self._disturbed(Placement("server", server, life))
            return -(self.scenario.traffic.update_s * slowdown + delay_s)

        loss = LEAST_GAIN * float(self._level_s.sum()) + recovery.switch_s
        least_s = recovery.server.latency_s
        return best_restarts(worth, self._at_s, 0.0, least_s=least_s, loss=loss)

    def _disturbed(self, place: Placement) -> tuple[Floats, Floats]:
        steps = np.arange(1.0, len(self._at_s) + 1.0)
        return self.disturbed(place, self._at_s, steps)


class _Asynchronous(_Clairvoyant):
    """Lets every worker compute all the time, and servers handle without a pause."""

    def run(self) -> float:
        """The moment at which all together have done all samples."""
        scenario = self.scenario
        self._samples = float(scenario.num_samples * scenario.epochs)
        guess_s = self._samples * scenario.compute.per_sample_s / scenario.workers
        self._computed_s = _first_finite(self._compute_s, guess_s)
        self._served = [self._serve(server) for server in range(scenario.servers)]
        return max([self._computed_s, *(at_s[-1] for at_s, _ in self._served)])

    def _compute_s(self, until_s: float) -> float:
        """Return when the workers have done all; infinite: not by then."""
        workers = Workers(self.scenario, self.seed)
        at_s = _grid(until_s)
        done = np.zeros(len(at_s))
        for row in range(self.scenario.workers):
            restarts = self.workers_plan.get(row, [])
            done += np.interp(at_s, *self._curve(workers, row, until_s, restarts))
        return float(np.interp(self._samples, done, at_s, right=math.inf))

    def _serve(self, server: int) -> tuple[list[float], list[float]]:
        """Times, and the contributions that a server which is never idle has handled by then."""
        servers, traffic = Servers(self.scenario, self.seed), self.scenario.traffic
        disturbed = servers.disturbances
        replaced_s = [*self.servers_plan.get(server, []), math.inf]
        contributions = self._samples / self.scenario.local_batch
        now_s = handled = 0.0
        since = 0
        at_s, done = [0.0], [0.0]
        while handled < contributions:
            while replaced_s[0] <= now_s:
                replaced_s.pop(0)
                servers.replace(server, now_s)
                since = int(handled)
            disturbed.move_one(server, now_s, int(handled) - since)
            slowdown, delay_s = disturbed.slowdown[server], disturbed.delay_s[server]
            one_s = max(float((traffic.part_s + traffic.update_s) * slowdown + delay_s), 1e-9)
            until_s, until = disturbed.until(server)
            # All up to there are handled alike.
            next_change = min(contributions, since + float(np.ceil(until)))
            change_s = min(until_s, replaced_s[0])
            there_s = now_s + (next_change - handled) * one_s
            if there_s <= change_s:
                now_s, handled = there_s, next_change
            else:
                now_s, handled = change_s, handled + (change_s - now_s) / one_s
            at_s.append(now_s)
            done.append(handled)
        return at_s, done

    def _curve(
        self, workers: Workers, row: int, until_s: float, restarts: list[float]
    ) -> tuple[list[float], list[float]]:
        """Times, and the samples that a worker has done by then; linear in between."""
        restarts = [*restarts, math.inf]
        now_s, samples, begun = 0.0, 0.0, 0
        at_s, done = [0.0], [0.0]
        while now_s < until_s:
            workers.disturbances.move_one(row, now_s, begun)
            batch_s = workers.one_batch_s(row, self.scenario.local_batch, begun)
            begun += 1
            if now_s + batch_s <= restarts[0]:
                now_s += batch_s
                samples += self.scenario.local_batch
            else:
                now_s = max(now_s, restarts.pop(0)) + self.away_s
                workers.start(row)
                begun = 0
            at_s.append(now_s)
            done.append(samples)
        return at_s, done

    def worker_restarts(self, worker: int) -> list[float]:
        """A worker is worth the samples of the batches that it ends."""
        scenario = self.scenario
        workers = Workers(scenario, self.seed)
        by_age = self._has_iterations("worker")
        num_moments = NUM_MOMENTS if by_age else math.ceil(self._computed_s / GRID_S)
        moments_s = np.linspace(0.0, self._computed_s, num_moments + 1)

        def worth(life: int) -> Floats:
            if life:
                workers.start(worker)
            at_s, done = self._curve(workers, worker, self._computed_s, [])
            ended = np.searchsorted(at_s, moments_s, side="right") - 1
            return np.diff(np.array(done)[ended])

        loss = LEAST_GAIN * self._samples / scenario.workers
        return best_restarts(worth, moments_s[:-1], self.away_s, loss=loss, by_age=by_age)

    def server_restarts(self, server: int) -> list[float]:
        """A server is worth the less the longer it takes for each contribution."""
        traffic = self.scenario.traffic
        at_s, done = self._served[server]
        updates = np.arange(float(math.ceil(done[-1])))
        begin_s = np.interp(updates, done, at_s)
        by_age = self._has_iterations("server")
        num_moments = min(NUM_MOMENTS, len(updates)) if by_age else len(updates)
        moments = np.arange(num_moments) * len(updates) // num_moments

        def worth(life: int) -> Floats:
            delay_s, slowdown = self.disturbed(Placement("server", server, life), begin_s, updates)
            one_s = (traffic.part_s + traffic.update_s) * slowdown + delay_s
            return -np.add.reduceat(one_s, moments)

        return best_restarts(
            worth,
            begin_s[moments],
            0.0,
            least_s=self.scenario.recovery.server.latency_s,
            loss=LEAST_GAIN * self._computed_s,
            by_age=by_age,
        )

    def _has_iterations(self, role: Role) -> bool:
        """Tell whether what disturbs such a node depends on how long it has lived."""
        patterns = self.scenario.patterns
        return any(each.role == role and each.clock == "iterations" for each in patterns)
