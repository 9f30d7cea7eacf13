"""How large a job was over time: its nodes, and the cores that they were granted."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from paceline.base.jobdir import role_of
from paceline.jobs.history import MetricsPoint


class SizePoint(NamedTuple):
    """The nodes of a job at one measurement."""

    t: float
    """Unix time."""
    workers: int
    servers: int
    cores: float
    """Granted to all of them; no number: not known, or one of them has no quota."""


def has_changed_quota(points: Sequence[MetricsPoint]) -> bool:
    """Whether a node had another quota than before."""
    quotas: dict[str, float] = {}
    seen = (one for point in points for one in point.nodes.items())
    return any(
        quotas.setdefault(name, node.cores) != node.cores
        for name, node in seen
        if node.cores is not None
    )


def size_curve(points: Sequence[MetricsPoint]) -> list[SizePoint]:
    """How large the job was at each measurement."""
    return [_size_at(point) for point in points]


def _size_at(point: MetricsPoint) -> SizePoint:
    roles = [role_of(name) for name in point.nodes]
    cores = [math.nan if node.cores is None else node.cores for node in point.nodes.values()]
    granted = sum(cores) if cores else math.nan
    return SizePoint(point.t, roles.count("worker"), roles.count("server"), granted)
