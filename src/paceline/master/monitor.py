"""What the nodes report, over time: speeds, step time, totals over lives, signs of progress.

Pure: facts and the clock come in. The master reads it for grant sizes and timeouts, and writes it
out as metrics.

Reference: AntDT, section V-D (application and node state).
"""

from collections import deque

import msgspec

from paceline.wire.messages import NodeFacts

WINDOW_S = 10.0
"""Speeds are means over so long."""


class Rate:
    """Growth per second of a counter over the window."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, value: int) -> bool:
        """Note the counter; whether it has grown. A smaller value starts again."""
        points = self._points
        if points and value < points[-1][1]:
            points.clear()
        grown = bool(points) and value > points[-1][1]
        if grown and points[0][1] == points[-1][1]:
            # The wait before the first growth (starting up) says nothing about the speed after it.
            for _ in range(len(points) - 1):
                points.popleft()
        points.append((now_s, value))
        # Two points stay, so that a rate is known after a long silence, too.
        while len(points) > 2 and points[1][0] < now_s - WINDOW_S:
            points.popleft()
        return grown

    def per_s(self) -> float | None:
        """None: nothing was seen to grow yet."""
        if len(self._points) < 2:
            return None
        (t0, v0), (t1, v1) = self._points[0], self._points[-1]
        return (v1 - v0) / (t1 - t0) if v1 > v0 and t1 > t0 else None


class NodeTotals(msgspec.Struct):
    """One node over all its lives."""

    facts: NodeFacts
    earlier_samples: int = 0
    """Of lives before the present one."""
    earlier_cpu_s: float = 0.0

    @property
    def samples(self) -> int:
        return self.earlier_samples + self.facts.samples

    @property
    def cpu_s(self) -> float:
        return self.earlier_cpu_s + self.facts.cpu_s


class NodeMetrics(msgspec.Struct, frozen=True):
    """One node in one line of the metrics file."""

    step: int
    samples: int
    bpt_s: float
    compute_s: float
    server_s: float
    message_s: float
    rss_bytes: int
    cpu_s: float


class Metrics(msgspec.Struct, frozen=True):
    """One line of the metrics file."""

    t: float
    """Unix time."""
    committed: int
    samples_per_s: float
    nodes: dict[str, NodeMetrics]


class Monitor:
    """Collects reports."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeTotals] = {}
        self._speeds: dict[str, Rate] = {}
        self._committed = Rate()
        self.progress_s = 0.0
        """When anything was last seen to advance."""

    def heartbeat(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """One report of a node's process."""
        totals = self.nodes.get(node)
        if totals is None:
            self.nodes[node] = NodeTotals(facts)
        else:
            if totals.facts.inc != facts.inc:
                totals.earlier_samples += totals.facts.samples
                totals.earlier_cpu_s += totals.facts.cpu_s
                self._speeds.pop(node, None)
            elif facts.steps == 0:
                # No step since the last report: the means of then are still the newest.
                facts = _with_means_of(facts, totals.facts)
            totals.facts = facts
        if self._speeds.setdefault(node, Rate()).add(now_s, facts.samples):
            self.progress_s = now_s

    def committed(self, samples: int, now_s: float) -> None:
        """How many samples are in the model."""
        if self._committed.add(now_s, samples):
            self.progress_s = now_s

    @property
    def samples_per_s(self) -> float:
        """Of the job, by what got into the model."""
        return self._committed.per_s() or 0.0

    def speed(self, node: str) -> float | None:
        """Samples per second of a worker; None: not measured."""
        rate = self._speeds.get(node)
        return rate.per_s() if rate else None

    def step_s(self) -> float | None:
        """Seconds of one step: that of the slowest worker, as others may wait for it."""
        return max((n.facts.bpt_s for n in self.nodes.values() if n.facts.bpt_s > 0), default=None)

    def metrics(self, unix_s: float, committed: int) -> Metrics:
        """A line for the metrics file."""
        nodes = {
            name: NodeMetrics(
                step=totals.facts.step,
                samples=totals.samples,
                bpt_s=totals.facts.bpt_s,
                compute_s=totals.facts.compute_s,
                server_s=totals.facts.server_s,
                message_s=totals.facts.message_s,
                rss_bytes=totals.facts.rss_bytes,
                cpu_s=totals.cpu_s,
            )
            for name, totals in self.nodes.items()
        }
        return Metrics(unix_s, committed, self.samples_per_s, nodes)


def _with_means_of(facts: NodeFacts, before: NodeFacts) -> NodeFacts:
    return msgspec.structs.replace(
        facts,
        bpt_s=before.bpt_s,
        compute_s=before.compute_s,
        server_s=before.server_s,
        message_s=before.message_s,
    )
