"""Status of a job as people see it: pure views of the state machines."""

from collections import Counter
from collections.abc import Sequence

from paceline.base.numbering import NO_INC
from paceline.base.samples import num_samples
from paceline.master.ending import Ending, ScriptsWork, Stage
from paceline.master.monitor import Monitor, NodeTotals
from paceline.protocol.nodes.lives import Fate
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import Node
from paceline.protocol.training import MasterState
from paceline.wire.client import JobStatus, NodeStatus
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.feeds import Feed, feed_of, is_in_epochs


def count_committed(state: MasterState) -> int:
    """Samples of training feeds that are in the model."""
    feeds = state.ledger.feeds
    return sum(
        len(found)
        for line, found in state.ledger.done.lines.items()
        if (feed := feeds.get(feed_of(line))) is not None and feed.purpose == "train"
    )


def count_kept(state: MasterState) -> int:
    """Samples of training feeds that are in the newest cut on disk."""
    stored = [cut for cut in state.cuts.valid if not cut.cut.in_memory]
    return num_samples(stored[-1].committed) if stored else 0


def work_of(state: MasterState, members: Membership) -> ScriptsWork:
    """Return what the scripts have done so far."""
    ledger, safe = state.ledger, state.cuts.safe
    loops = [feed.feed for feed in ledger.feeds.values() if feed.purpose == "train"]
    # Members prove a step as they enter the next one. After a `break` on the last batch there is
    # none, and only the last cut, made when the scripts had returned, shows that all is done.
    stored = state.cuts.on_disk
    kept = stored[-1].committed if stored else ()
    unfinished = [feed for feed in loops if feed not in safe and not ledger.is_complete(feed, kept)]
    return ScriptsWork(
        is_known=not members.runs_by_itself,
        num_loops=len(loops),
        num_unfinished=len(unfinished),
    )


def count_total(state: MasterState) -> int | None:
    """Samples of all opened training feeds, all epochs; None: no feed, or no end is known."""
    feeds = [feed for feed in state.ledger.feeds.values() if feed.purpose == "train"]
    totals = [state.ledger.total(feed.feed) for feed in feeds]
    known = [total for total in totals if total is not None]
    return sum(known) if known and len(known) == len(totals) else None


def known_total(state: MasterState, *, finished: bool) -> int | None:
    """Samples that the job will have trained; None: its script may open more loops than it has.

    That is so once a script has opened a second loop over batches, but for those of a loop over
    ``job.epochs``: there each epoch is expected to be like the one before it.
    """
    feeds = [feed for feed in state.ledger.feeds.values() if feed.purpose == "train"]
    if finished or (len(feeds) == 1 and not is_in_epochs(feeds[0].place)):
        return count_total(state)
    return _total_of_epochs(state, feeds)


def _total_of_epochs(state: MasterState, feeds: Sequence[Feed]) -> int | None:
    """Samples of all epochs of the one loop over ``job.epochs``; None: there is more, or less."""
    loops, num_epochs = {feed.place[:1] for feed in feeds}, {feed.of_epochs for feed in feeds}
    if len(loops) != 1 or not all(is_in_epochs(feed.place) for feed in feeds):
        return None
    totals: Counter[int] = Counter()
    for feed in feeds:
        total = state.ledger.total(feed.feed)
        if total is None:
            return None
        totals[feed.place[1]] += total
    last, count = max(totals), max(num_epochs)
    # The epoch in hand may not have opened all of its loops yet.
    each = max(totals[last], totals[last - 1])
    return totals.total() - totals[last] + each * (count - last) if count > last else None


def job_state(state: MasterState, members: Membership, ending: Ending | None) -> str:
    """Return one word for where the job is."""
    if ending is not None:
        return ending.state if ending.stage >= Stage.LEAVE else "stopping"
    if members.runs_by_itself:
        workers = members.roster.of_role("worker")
        up = all(node.life.up or node.fate is Fate.FINISHED for node in workers)
        return "running" if up else "starting"
    return state.phase


def describe(
    job_id: str,
    state: MasterState,
    members: Membership,
    monitor: Monitor,
    *,
    master_pid: int,
    started_s: float,
    num_events: int,
    ending: Ending | None,
) -> JobStatus:
    """The whole job."""
    finished = ending is not None and ending.state == "finished"
    committed, total = count_committed(state), known_total(state, finished=finished)
    speed = monitor.samples_per_s
    eta_s = (total - committed) / speed if total is not None and speed > 0 else None
    return JobStatus(
        job_id=job_id,
        state=job_state(state, members, ending),
        master_pid=master_pid,
        epoch_no=state.epoch_no,
        step=state.step,
        committed=committed,
        total=total,
        samples_per_s=speed if monitor.knows_speed else None,
        eta_s=eta_s,
        started_s=started_s,
        valid_cuts=tuple(cut.cut.cut_no for cut in state.cuts.valid),
        nodes=tuple(_node(node, monitor) for node in members.roster.nodes.values()),
        num_events=num_events,
        error=ending.error if ending else "",
        short_steps=state.holder.short_steps,
        waits_for=state.holder.waits_for if ending is None else "",
    )


def _node(node: Node, monitor: Monitor) -> NodeStatus:
    totals = monitor.nodes.get(node.name, _NOTHING)
    facts, hardware = totals.facts, monitor.hardware_of(node.name)
    return NodeStatus(
        node=node.name,
        role=node.role,
        state=node.word,
        inc=node.life.inc,
        pid=node.life.up.pid if node.life.up else 0,
        agent_pid=node.agent.pid,
        restarts=node.past.restarts,
        step=facts.step,
        samples=totals.samples,
        bpt_s=facts.bpt_s,
        compute_s=facts.compute_s,
        server_s=facts.server_s,
        message_s=facts.message_s,
        data_s=facts.data_s,
        rss_bytes=facts.rss_bytes,
        cpu_s=totals.cpu_s,
        cores=hardware.cores,
        limit_bytes=hardware.memory_bytes,
        note=node.place.why or node.refusals.why or node.life.note,
    )


_NOTHING = NodeTotals(NodeFacts(inc=NO_INC))
