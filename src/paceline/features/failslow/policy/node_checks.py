"""The check of nodes and links before a job's first step: which of them are slow.

Every node is held against the others of its job, which run the same script: no table of what
hardware should do. Pure.

Reference: FALCON (arXiv:2410.12588), validation by matrix products and transfers between pairs;
DLRover's node check, which pairs nodes again for a second round.
Differs: of all nodes, before the first step; pairs by the circle method, so many that slow links
and slow nodes can be told apart; the time of threads that wait for a core is kept apart.
"""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from statistics import median
from typing import Literal, assert_never

import msgspec

from paceline.base.jobdir import role_of
from paceline.features.failslow.events import SlowLinkEvent, SlowNodeEvent, SlowResource, SlowWay
from paceline.features.failslow.wire import NodeSpeed

SLOW = 0.7
"""A node below this part of the others' median is slow. Nodes of one kind differ by less."""
STARVED = 0.45
"""A node whose threads ran for less than this part of the others' median is slow. A node that
happens to share a core with one other still has half of it."""
RTT_NOISE_S = 0.01
"""A round trip that is no longer than this above the median says nothing: who shares cores with
others waits for its turn."""


class Slow(msgspec.Struct, frozen=True):
    """A node, or the link between two, that is slower than those of the others."""

    nodes: tuple[str, ...]
    what: SlowResource | SlowWay
    ratio: float
    """Ratio to the median of the others; for a round trip: of its time to the usual one."""


def find_slow(speeds: Mapping[str, NodeSpeed]) -> list[Slow]:
    """Find the slow nodes and links among all that were measured; a single node is never slow."""
    if len(speeds) < 2:
        return []
    cpu = _short_of_cpu(speeds)
    matmul = {name: one.matmul_flops for name, one in speeds.items()}
    memory = {name: one.copy_bytes_per_s for name, one in speeds.items()}
    # A node that waits for a core is slow to send as well: that says nothing about the network.
    fed = {name: one for name, one in speeds.items() if one.cpu_share >= SLOW}
    return [*cpu, *_below("matmul", matmul), *_below("memory", memory), *_slow_links(fed)]


def _below(what: SlowResource, values: Mapping[str, float], limit: float = SLOW) -> list[Slow]:
    middle = median(values.values())
    return [
        Slow((name,), what, value / middle)
        for name, value in sorted(values.items())
        if value < limit * middle
    ]


def _short_of_cpu(speeds: Mapping[str, NodeSpeed]) -> list[Slow]:
    """Find nodes that are short of cpu: by quota, which is certain, else by what threads got."""
    allowed = {name: _allowed(one) for name, one in speeds.items()}
    limited = _below("cpu quota", allowed)
    known = {name for one in limited for name in one.nodes}
    got = _below("cpu", {name: one.cpu_share for name, one in speeds.items()}, STARVED)
    return [*limited, *(one for one in got if known.isdisjoint(one.nodes))]


def _allowed(one: NodeSpeed) -> float:
    """Part of the time that all its threads may run."""
    return 1.0 if one.cpu_quota is None else min(1.0, one.cpu_quota / one.threads)


def links_of(speeds: Mapping[str, NodeSpeed]) -> dict[tuple[str, str], tuple[float, float]]:
    """Bytes per second and round trip of each link of these, as the slower end has seen it.

    Servers are ends of links, too, though nothing else of them is measured.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for name, one in speeds.items():
        for link in one.links:
            if link.node not in speeds and role_of(link.node) != "server":
                continue
            ends = (min(name, link.node), max(name, link.node))
            rate, rtt_s = found.get(ends, (math.inf, 0.0))
            found[ends] = min(rate, link.bytes_per_s), max(rtt_s, link.rtt_s)
    return found


def _slow_links(speeds: Mapping[str, NodeSpeed]) -> list[Slow]:
    """A node whose best link is slow is slow itself; else the link is, or a node's only link.

    The best of each node's links is what nodes are compared by: one slow node makes most links of
    a small job slow, but hardly those of the others' best.
    """
    links = links_of(speeds)
    names = sorted(set(chain.from_iterable(links)))
    if len(names) < 3:
        return []
    best = {name: max(rate for ends, (rate, _) in links.items() if name in ends) for name in names}
    degree = Counter(chain.from_iterable(links))
    slow = [one for one in _below("links", best) if degree[one.nodes[0]] > 1]
    blamed = {name for one in slow for name in one.nodes}
    middle = median(best.values())
    usual_s = median(rtt_s for _, rtt_s in links.values())
    for ends, (rate, rtt_s) in sorted(links.items()):
        if blamed.intersection(ends):
            continue
        if rate < SLOW * middle:
            slow.append(Slow(ends, "link", rate / middle))
        if rtt_s > usual_s / SLOW + RTT_NOISE_S:
            slow.append(Slow(ends, "round trip", rtt_s / usual_s))
    return slow


def found_slow(slow: Slow, speeds: Mapping[str, NodeSpeed]) -> SlowNodeEvent | SlowLinkEvent:
    """Make what was found an event, with the value that is slow."""
    match slow.what:
        case "link" | "round trip" as way:
            ends = (slow.nodes[0], slow.nodes[1])
            rate, rtt_s = links_of(speeds)[ends]
            value = rate if way == "link" else rtt_s
            return SlowLinkEvent(ends=ends, what=way, value=value, ratio=slow.ratio)
        case part:
            (node,) = slow.nodes
            rates = [rate for ends, (rate, _) in links_of(speeds).items() if node in ends]
            one = speeds.get(node)
            return SlowNodeEvent(
                node=node,
                what=part,
                value=max(rates) if part == "links" or one is None else _value(part, one),
                ratio=slow.ratio,
                threads=one.threads if one is not None else 0,
            )


def _value(what: Literal["cpu quota", "cpu", "matmul", "memory"], one: NodeSpeed) -> float:
    """Return a node's rate of this kind."""
    match what:
        case "cpu quota":
            return one.cpu_quota or 0.0
        case "cpu":
            return one.cpu_share
        case "matmul":
            return one.matmul_flops
        case "memory":
            return one.copy_bytes_per_s
        case _:
            assert_never(what)
