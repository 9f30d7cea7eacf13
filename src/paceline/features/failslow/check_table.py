"""What a job's check of its nodes found, as a table: of a job that runs, or has ended."""

from collections.abc import Iterable, Mapping
from statistics import median

from paceline.features.failslow.events import CheckedEvent, read
from paceline.features.failslow.policy.node_checks import Slow, find_slow
from paceline.features.failslow.wire import NodeSpeed
from paceline.jobs.wording import percent
from paceline.wire.events.base import Event

COLUMNS = ("node", "matmul", "memory", "ran", "quota", "links", "round trip", "slow")


def rows(events: Iterable[Event]) -> list[tuple[str, ...]]:
    """List the nodes that were checked, each by its newest check."""
    checked = (one for one in read(events) if isinstance(one, CheckedEvent))
    return rows_of({one.node: one.speed for one in checked})


def rows_of(speeds: Mapping[str, NodeSpeed]) -> list[tuple[str, ...]]:
    """List nodes by what their checks measured."""
    slow = find_slow(speeds)
    return [
        _row(name, one, [found for found in slow if name in found.nodes])
        for name, one in sorted(speeds.items())
    ]


def _row(name: str, one: NodeSpeed, slow: list[Slow]) -> tuple[str, ...]:
    rates = [link.bytes_per_s / 1e9 for link in one.links]
    links = f"{min(rates):.2f} to {max(rates):.2f} GB/s" if rates else "-"
    rtt = f"{median(link.rtt_s for link in one.links) * 1e3:.2f} ms" if rates else "-"
    return (
        name,
        f"{one.matmul_flops / 1e9:,.1f} GFLOP/s",
        f"{one.copy_bytes_per_s / 1e9:.1f} GB/s",
        percent(one.cpu_share, 1.0),
        f"{one.cpu_quota:g} cores" if one.cpu_quota is not None else "-",
        links,
        rtt,
        ", ".join(f"{found.what} {found.ratio:.2f}" for found in slow),
    )
