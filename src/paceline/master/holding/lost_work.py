"""Work that was finished beside servers and did not come into their model: it has to be redone."""

from typing import TYPE_CHECKING

from paceline.base.samples import SampleSet, Span
from paceline.master.restarts import LostWork
from paceline.wire.messages.base import Server
from paceline.wire.messages.feeds import feed_of
from paceline.wire.messages.node import FenceAnswer, Grant

if TYPE_CHECKING:
    from paceline.master.training import Training


class LostWithLives:
    """Feeds a `LostWork` with grants, restores and the ends of lives; tells `Restarts` of it."""

    def __init__(self) -> None:
        self._lost_work = LostWork()

    def granted(self, training: "Training", grant: Grant) -> None:
        """Samples are about to be granted to a worker."""
        trained = sum(len(span) for span in grant.spans if _trains(training, span))
        self._lost_work.granted(grant.inc, trained)

    def restored(
        self, training: "Training", servers: tuple[Server, ...], undone: int, now_s: float
    ) -> None:
        """Servers must load a cut, which takes so many samples out of the model."""
        monitor = training.monitor
        speed = monitor.samples_per_s
        for server in servers:
            monitor.restarts.built(server.node, now_s)
            monitor.restarts.redone(server.node, undone / speed if speed else 0.0)
        nodes = monitor.nodes.values()
        self._lost_work.epoch({node.facts.inc: node.facts.samples for node in nodes})

    def fenced(self, training: "Training", answer: FenceAnswer) -> None:
        """A worker's life is over; what it had finished beyond ``committed`` has to be redone."""
        inc, lease = answer.fenced, training.state.ledger.leases.get(answer.fenced)
        node = training.members.roster.node_of(inc)
        if node is None or training.state.samples != "exactly-once":
            return
        left = SampleSet(lease or ())
        left.subtract(answer.committed)
        returned = sum(len(span) for span in left if _trains(training, span))
        totals = training.monitor.nodes.get(node.name)
        if totals is None or totals.facts.inc != inc or not totals.facts.step_samples:
            return
        facts = totals.facts
        lost = self._lost_work.lost(inc, handed=facts.samples, returned=returned)
        training.monitor.restarts.redone(node.name, lost * facts.bpt_s / facts.step_samples)


def _trains(training: "Training", span: Span) -> bool:
    return training.state.ledger.feeds[feed_of(span.line)].purpose == "train"
