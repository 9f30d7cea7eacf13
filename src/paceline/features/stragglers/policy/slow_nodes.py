"""Which nodes of a job are slow now. What people read does not depend on the solution.

A worker is slow if it takes a tenth more than is usual for its share, and more than chance
explains (`paceline.features.stragglers.policy.fleet`); a server, than the median of all servers.
"""

from typing import NamedTuple

from paceline.features.stragglers.policy import chance, restarts
from paceline.features.stragglers.policy.fleet import Fleet
from paceline.policy.observation import Observation

SLOW = 1.1


class SlowSeen(NamedTuple):
    """A node that is slow."""

    node: str
    ratio: float
    """Ratio of the node's time to the usual one."""
    age_s: float
    """Seconds since the node's last change point."""


def slow_nodes(seen: Observation) -> list[SlowSeen]:
    """Name the nodes that are slow, workers in the order of their ranks, then servers."""
    return [*_workers(seen), *_servers(seen)]


def _workers(seen: Observation) -> list[SlowSeen]:
    regimes = [worker.regime for worker in seen.workers if worker.regime is not None]
    if len(regimes) < 2:
        return []
    fleet = Fleet.of(seen.workers, chance.scatter(regimes))
    usual_s = fleet.usual_delays_s + fleet.usual_slopes_s * fleet.shares
    ratios = (fleet.times_s(fleet.shares) / usual_s).tolist()
    return [
        SlowSeen(worker.node, ratio, seen.now_s - worker.regime.since_s)
        for worker, ratio in zip(seen.workers, ratios, strict=True)
        if worker.regime is not None and ratio >= SLOW
    ]


def _servers(seen: Observation) -> list[SlowSeen]:
    times_s, usual_s = restarts.server_times_s(seen)
    if len(times_s) < 2:
        return []
    return [
        SlowSeen(server.node, times_s[server.node] / usual_s, seen.now_s - server.regime.since_s)
        for server in seen.servers
        if server.regime is not None
        and restarts.is_slow_server(server.regime, times_s[server.node], usual_s, SLOW)
    ]
