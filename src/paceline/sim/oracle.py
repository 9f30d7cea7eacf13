"""How fast a job could have been: a clairvoyant scheduler on the true costs.

It knows every delay, slowdown and noise before it happens, pays nothing for looking or switching,
and splits samples as if they were a fluid. In synchronous jobs it fills each step to the level at
which all workers are done at once (a delay is paid by whoever takes part); in asynchronous ones all
workers work all the time, and the last samples are spread over them. It restarts nodes when that
pays: workers at the best moment of each life, servers in advance, so that a fresh one takes over as
the trouble begins.

The restarts are chosen greedily, so the time is that of a schedule that could have been followed by
somebody who knows the future, and not proven to be the least of those. Without them it is a bound:
a short step is no way around it, since the level is concave in the samples of a step.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from paceline.sim.agenda import Agenda, Event
from paceline.sim.costs import Floats
from paceline.sim.nodes import Servers, Workers
from paceline.sim.patterns import Place, Role, spells_of
from paceline.sim.scenarios import Scenario

ROUNDS = 3
"""Restarts are chosen for the steps of the round before."""

LEAST_GAIN = 1e-3
"""Of what a node is worth in the whole job: less is no reason to restart it."""
GRID_S = 1.0
"""Asynchronous jobs have no steps: restarts are chosen, and servers followed, at this distance."""

Plan = dict[int, list[float]]
"""When each node is restarted; of a server: replaced."""
Worth = Callable[[int], Floats]


def oracle_s(scenario: Scenario, seed: int) -> float:
    """JCT of the clairvoyant scheduler, s."""
    kind = _Synchronous if scenario.mode in {"bsp", "allreduce"} else _Asynchronous
    return kind(scenario, seed).jct_s()


def level_s(delay_s: Floats, per_sample_s: Floats, samples: float, saturation: int = 0) -> float:
    """When all are done at once, if worker i takes delay + samples * per_sample for its part.

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
    """What a function of the time looked at says once that is enough."""
    until_s = 1.2 * guess_s
    while (found_s := when_s(until_s)) == math.inf:
        until_s *= 2.0
    return found_s


def _event(act: Callable[[int], None], row: int) -> Event:
    return lambda _: act(row)


class _Clairvoyant:
    """What both kinds of jobs have in common."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.seed = scenario, seed
        self.away_s = scenario.recovery.worker.latency_s
        self.workers_plan: Plan = {}
        self.servers_plan: Plan = {}

    def jct_s(self) -> float:
        """The best of some rounds, the first of which restarts nobody."""
        best_s = math.inf
        for _ in range(ROUNDS):
            jct_s = self.run()
            if jct_s >= best_s:
                break
            best_s = jct_s
            self.choose()
        return best_s

    def run(self) -> float:
        """JCT with the chosen restarts."""
        raise NotImplementedError

    def choose(self) -> None:
        """Choose restarts for the job as it just ran."""
        raise NotImplementedError

    def disturbed(self, role: Role, index: int, life: int, at_s: Floats) -> tuple[Floats, Floats]:
        """Delay and slowdown of a place at ascending moments, one per iteration."""
        delay_s, slowdown = np.zeros(len(at_s)), np.ones(len(at_s))
        iterations = np.arange(len(at_s), dtype=np.float64)
        patterns, place = self.scenario.patterns, Place(role, index, life)
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


def best_restarts(
    worth: Worth, at_s: Floats, away_s: float, *, from_s: float = 0.0, loss: float = 0.0
) -> list[float]:
    """When to restart a node, life after life, each time at the best moment if there is one.

    Args:
        worth: by life: what the node is worth in each iteration.
        at_s: when the iterations begin.
        away_s: how long a restart takes, in which the node is worth nothing.
        from_s: no restart before.
        loss: what a restart costs beside that.
    """
    restarts: list[float] = []
    here, first = worth(0), int(np.searchsorted(at_s, from_s))
    back = np.searchsorted(at_s, at_s + away_s)
    while first < len(at_s):
        there = worth(len(restarts) + 1)
        before = np.concatenate(([0.0], np.cumsum(here)))
        after = np.concatenate((np.cumsum(there[::-1])[::-1], [0.0]))
        total = before[:-1] + after[back] - loss
        best = first + int(np.argmax(total[first:]))
        if total[best] <= before[-1] + LEAST_GAIN * abs(before[-1]):
            break
        restarts.append(float(at_s[best]))
        first = max(best + 1, int(back[best]))
        here = np.concatenate((here[:best], np.zeros(first - best), there[first:]))
    return restarts


class _Synchronous(_Clairvoyant):
    """Fills every step to the level."""

    def run(self) -> float:
        """Step by step."""
        scenario = self.scenario
        workers, servers = Workers(scenario, self.seed), Servers(scenario, self.seed)
        agenda = self._planned(workers, servers)
        self._at_s, self._level_s = np.zeros(scenario.num_steps), np.zeros(scenario.num_steps)
        now_s = 0.0
        feed_rest = scenario.num_samples % scenario.batch_size or scenario.batch_size
        per_epoch = scenario.num_steps // scenario.epochs
        for step in range(scenario.num_steps):
            # With all workers away it waits for the next to be back.
            while agenda.next_s <= now_s or not workers.present.any():
                now_s = max(now_s, agenda.next_s)
                agenda.run_next()
            workers.disturbances.move(now_s, step + 1)
            servers.disturbances.move(now_s, step + 1)
            samples = feed_rest if (step + 1) % per_epoch == 0 else scenario.batch_size
            delay_s, per_sample_s = self._costs(workers, step + 1)
            saturation = scenario.compute.saturation
            self._at_s[step] = now_s
            self._level_s[step] = level_s(delay_s, per_sample_s, samples, saturation)
            part_s, update_s = servers.slowest_s(1)
            trip_s = scenario.traffic.round_trip_s(1, scenario.servers)
            now_s += self._level_s[step] + part_s + update_s + trip_s
        num_switches = sum(len(restarts) for restarts in self.servers_plan.values())
        return float(now_s) + num_switches * scenario.recovery.switch_s

    def _planned(self, workers: Workers, servers: Servers) -> Agenda:
        agenda = Agenda()
        for worker, restarts in self.workers_plan.items():
            for at_s in restarts:
                agenda.add(at_s, _event(workers.lose, worker))
                agenda.add(at_s + self.away_s, _event(workers.start, worker))
        for server, restarts in self.servers_plan.items():
            for at_s in restarts:
                agenda.add(at_s, _event(servers.replace, server))
        return agenda

    def _costs(self, workers: Workers, step: int) -> tuple[Floats, Floats]:
        """Of each worker in this step: what it pays once, and per sample."""
        compute, disturbed = self.scenario.compute, workers.disturbances
        factor = disturbed.slowdown * workers.noise.all(step)
        per_sample_s = np.where(workers.present, compute.per_sample_s / workers.speed, math.inf)
        return compute.fixed_s * factor + disturbed.delay_s, per_sample_s * factor

    def choose(self) -> None:
        """A worker is worth the samples that it takes below the level."""
        scenario, compute = self.scenario, self.scenario.compute
        for worker in range(scenario.workers):
            speed = (scenario.speeds or (1.0,) * scenario.workers)[worker]

            def worth(life: int, worker: int = worker, speed: float = speed) -> Floats:
                delay_s, slowdown = self.disturbed("worker", worker, life, self._at_s)
                spare_s = self._level_s - compute.fixed_s * slowdown - delay_s
                return np.maximum(0.0, spare_s * speed / (compute.per_sample_s * slowdown))

            self.workers_plan[worker] = best_restarts(worth, self._at_s, self.away_s)
        for server in range(scenario.servers):

            def cost(life: int, server: int = server) -> Floats:
                delay_s, slowdown = self.disturbed("server", server, life, self._at_s)
                return -(scenario.traffic.update_s * slowdown + delay_s)

            self.servers_plan[server] = best_restarts(
                cost,
                self._at_s,
                0.0,
                from_s=scenario.recovery.server.latency_s,
                loss=scenario.recovery.switch_s,
            )


class _Asynchronous(_Clairvoyant):
    """Lets every worker compute all the time, and servers handle without a pause."""

    def run(self) -> float:
        """The moment at which all together have done all samples."""
        scenario = self.scenario
        self._samples = float(scenario.num_samples * scenario.epochs)
        guess_s = self._samples * scenario.compute.per_sample_s / scenario.workers
        self._computed_s = _first_finite(self._compute_s, guess_s)
        handled_s = [
            _first_finite(partial(self._handle_s, server), guess_s)
            for server in range(scenario.servers)
        ]
        return max([self._computed_s, *handled_s])

    def _compute_s(self, until_s: float) -> float:
        """When the workers have done all; infinite: not by then."""
        workers = Workers(self.scenario, self.seed)
        at_s = _grid(until_s)
        done = np.zeros(len(at_s))
        for row in range(self.scenario.workers):
            done += np.interp(at_s, *self._curve(workers, row, until_s))
        return float(np.interp(self._samples, done, at_s, right=math.inf))

    def _handle_s(self, server: int, until_s: float) -> float:
        """When a server that is never idle has handled all; infinite: not by then."""
        at_s = _grid(until_s)
        per_s = self._handles(server, 0, at_s)
        for life, from_s in enumerate(self.servers_plan.get(server, []), 1):
            per_s = np.where(at_s < from_s, per_s, self._handles(server, life, at_s))
        handled = np.cumsum(per_s[:-1] * np.diff(at_s), dtype=np.float64)
        contributions = self._samples / self.scenario.local_batch
        return float(np.interp(contributions, handled, at_s[1:], right=math.inf))

    def _curve(self, workers: Workers, row: int, until_s: float) -> tuple[list[float], list[float]]:
        """Times, and the samples that a worker has done by then; linear in between."""
        restarts = [*self.workers_plan.get(row, []), math.inf]
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

    def _handles(self, server: int, life: int, at_s: Floats) -> Floats:
        """Contributions per second."""
        delay_s, slowdown = self.disturbed("server", server, life, at_s)
        traffic = self.scenario.traffic
        per_one_s = (traffic.part_s + traffic.update_s) * slowdown + delay_s
        return 1.0 / np.maximum(per_one_s, 1e-9)

    def choose(self) -> None:
        """A worker is worth the samples that it does, a server the contributions."""
        scenario, compute = self.scenario, self.scenario.compute
        at_s = _grid(self._computed_s)
        for worker in range(scenario.workers):
            speed = (scenario.speeds or (1.0,) * scenario.workers)[worker]
            usual_s = float(compute.batch_s(scenario.local_batch, speed))

            def worth(life: int, worker: int = worker, usual_s: float = usual_s) -> Floats:
                delay_s, slowdown = self.disturbed("worker", worker, life, at_s)
                return scenario.local_batch / (usual_s * slowdown + delay_s)

            self.workers_plan[worker] = best_restarts(worth, at_s, self.away_s)
        for server in range(scenario.servers):

            def handles(life: int, server: int = server) -> Floats:
                return self._handles(server, life, at_s)

            from_s = scenario.recovery.server.latency_s
            self.servers_plan[server] = best_restarts(handles, at_s, 0.0, from_s=from_s)
