"""The nodes of a simulated job: lives, places, and how long their work takes now."""

from collections import deque

import numpy as np

from paceline_experiments.sim.costs import Floats, Ints
from paceline_experiments.sim.patterns import Disturbances
from paceline_experiments.sim.scenarios import Scenario

LEAST_PART_S = 1e-9
"""Least seconds of a handler, whatever the scenario says: of no time nothing is known."""
_BLOCK = 256
_NOISE = 1 << 20
"""Keeps the noise's draws apart from those of the patterns."""


def worker_names(count: int) -> list[str]:
    """Names of the workers, in the order of their rows."""
    return [f"worker-{i}" for i in range(count)]


def server_names(count: int) -> list[str]:
    """Names of the servers, in the order of their rows."""
    return [f"server-{i}" for i in range(count)]


class Noise:
    """A factor on each worker's computation in each iteration, the same under every solution."""

    def __init__(self, sigma: float, num_workers: int, seed: int) -> None:
        """``sigma``: of the factor's logarithm; the factor's mean is 1."""
        self._sigma, self._seed = sigma, seed
        self._number = np.full(num_workers, -1, dtype=np.int64)
        self._block = np.ones((num_workers, _BLOCK))

    def all(self, iteration: int) -> Floats:
        """Return the factor on every worker's computation in this iteration."""
        for i in np.flatnonzero(self._number != iteration // _BLOCK):
            self._draw(int(i), iteration // _BLOCK)
        return self._block[:, iteration % _BLOCK]

    def of(self, worker: int, iteration: int) -> float:
        """Return the factor on one worker's computation in this iteration."""
        if self._number[worker] != iteration // _BLOCK:
            self._draw(worker, iteration // _BLOCK)
        return float(self._block[worker, iteration % _BLOCK])

    def _draw(self, worker: int, number: int) -> None:
        self._number[worker] = number
        if self._sigma:
            rng = np.random.default_rng((self._seed, _NOISE, worker, number))
            log_mean = -0.5 * self._sigma**2
            self._block[worker] = rng.lognormal(log_mean, self._sigma, _BLOCK)


class Workers:
    """Workers by row; ``present``: those that have a process."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        n = scenario.workers
        self.names = worker_names(n)
        self.rows = {name: i for i, name in enumerate(self.names)}
        self.life = np.zeros(n, dtype=np.int64)
        self.present = np.ones(n, dtype=np.bool_)
        self.speed: Floats = np.array(scenario.speeds or (1.0,) * n)
        self.noise = Noise(scenario.compute.noise, n, seed)
        self.disturbances = Disturbances(scenario.patterns, "worker", n, seed)
        self._compute = scenario.compute

    def batch_s(self, batch_size: Ints | Floats, iteration: int) -> Floats:
        """T^w of a batch of every worker that starts now; 0 for an empty one."""
        disturbed = self.disturbances
        busy_s = self._compute.batch_s(batch_size, self.speed)
        busy_s = busy_s * disturbed.slowdown * self.noise.all(iteration) + disturbed.delay_s
        return np.where(np.asarray(batch_size) > 0, busy_s, 0.0)

    def one_batch_s(self, worker: int, batch_size: int, iteration: int) -> float:
        """T^w of a batch of one worker that starts now."""
        disturbed, compute = self.disturbances, self._compute
        samples = max(batch_size, compute.saturation)
        busy_s = compute.fixed_s + samples * compute.per_sample_s / float(self.speed[worker])
        slowdown, delay_s = disturbed.slowdown[worker], disturbed.delay_s[worker]
        return float(busy_s * slowdown * self.noise.of(worker, iteration) + delay_s)

    def lose(self, worker: int) -> None:
        """Note that the worker's process is gone."""
        self.present[worker] = False

    def start(self, worker: int) -> None:
        """Begin a worker's next life, in another place."""
        self.life[worker] += 1
        self.present[worker] = True
        self.disturbances.renew(worker, int(self.life[worker]))


class Handling:
    """Times at which all servers handle one contribution, and for how long; servers are rows."""

    __slots__ = ("arrival_s", "begin_s", "end_s", "part_s", "update_s")

    def __init__(self, arrival_s: float, num_servers: int) -> None:
        self.arrival_s = arrival_s
        self.begin_s: Floats = np.zeros(num_servers)
        self.end_s: Floats = np.zeros(num_servers)
        self.part_s: Floats = np.zeros(num_servers)
        """Seconds of the worker's part and pull, by server; 0 of a server that has been replaced
        meanwhile."""
        self.update_s: Floats = np.zeros(num_servers)
        """Seconds of applying the update, by server; 0 of a server that has been replaced
        meanwhile."""

    @property
    def over_s(self) -> float:
        """Time at which the last server is done with it."""
        return float(self.end_s.max(initial=self.arrival_s))


class Servers:
    """Servers by row."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        n = scenario.servers
        self.names = server_names(n)
        self.rows = {name: i for i, name in enumerate(self.names)}
        self.life = np.zeros(n, dtype=np.int64)
        self.disturbances = Disturbances(scenario.patterns, "server", n, seed)
        self._under_way: deque[Handling] = deque()
        """Contributions in the order of their arrival, perhaps also some that are over
        (asynchronous)."""
        self._free_s: Floats = np.zeros(n)
        """Times at which each is done with all that has come so far (asynchronous)."""
        self._num_planned: Ints = np.zeros(n, dtype=np.int64)
        """Contributions of each one's present life (asynchronous)."""
        self._traffic = scenario.traffic

    def part_s(self) -> Floats:
        """Time of each server for a worker's part and pull."""
        return max(self._traffic.part_s, LEAST_PART_S) * self.disturbances.slowdown

    def slowest_s(self, num_parts: int) -> tuple[float, float]:
        """Return the times for a part and an update of the slowest server, given ``num_parts``."""
        part_s, update_s = self.part_s(), self.update_s()
        if not len(part_s):
            return 0.0, self._traffic.reduce_s
        slowest = int(np.argmax(num_parts * part_s + update_s))
        return float(part_s[slowest]), float(update_s[slowest])

    def update_s(self) -> Floats:
        """Time of each server for applying an update."""
        disturbed = self.disturbances
        return self._traffic.update_s * disturbed.slowdown + disturbed.delay_s

    def handle(self, arrival_s: float) -> Handling:
        """Plan one more contribution, which is an update, behind those that came before.

        What disturbs a server when it comes to the contribution counts, not what did on arrival.
        """
        while self._under_way and self._under_way[0].over_s <= arrival_s:
            self._under_way.popleft()
        one = Handling(arrival_s, len(self.names))
        self._under_way.append(one)
        for server in range(len(self.names)):
            self._plan(server, one)
        return one

    def _plan(self, server: int, one: Handling) -> None:
        begin_s = max(float(self._free_s[server]), one.arrival_s)
        self.disturbances.move_one(server, begin_s, int(self._num_planned[server]))
        part_s, update_s = float(self.part_s()[server]), float(self.update_s()[server])
        end_s = begin_s + part_s + update_s
        one.begin_s[server], one.end_s[server] = begin_s, end_s
        one.part_s[server], one.update_s[server] = part_s, update_s
        self._num_planned[server] += 1
        self._free_s[server] = end_s

    def replace(self, server: int, now_s: float) -> None:
        """A fresh one, in another place, has taken over; it handles what this one has not begun."""
        self.life[server] += 1
        self.disturbances.renew(server, int(self.life[server]))
        self._num_planned[server], self._free_s[server] = 0, now_s
        for one in self._under_way:
            if one.begin_s[server] < now_s:
                one.part_s[server] = one.update_s[server] = 0.0
                self._free_s[server] = max(now_s, one.end_s[server])
            else:
                self._plan(server, one)

    def pause(self, now_s: float, seconds: float) -> None:
        """Have them begin nothing for so long (asynchronous)."""
        for one in self._under_way:
            later_s = np.where(one.begin_s >= now_s, seconds, 0.0)
            one.begin_s += later_s
            one.end_s += later_s
        self._free_s = np.maximum(self._free_s, now_s) + seconds
