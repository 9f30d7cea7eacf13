"""The job at one moment, beside what the nodes measure: members, plan in force, progress.

Pure views of the state machines, from which the monitor makes what a solution sees.
"""

import msgspec

from paceline.policy.actions import BackupWorkers, Share
from paceline.protocol.nodes.roster import Roster
from paceline.protocol.records import Plan
from paceline.protocol.samples.plans import part_sizes
from paceline.protocol.training import MasterState
from paceline.wire.messages.feeds import Feed


class JobNow(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an `Observation` that the master's machines know; fields have its meaning."""

    step: int
    mode: str
    global_batch: int
    steps_left: int | None
    shares: dict[str, Share]
    """Shares of the living workers, in the order of their ranks."""
    servers: tuple[str, ...]
    replacing: str = ""
    restarts: dict[str, int]
    """Number of restarts by KILL_RESTART, by node; a node that is absent had none."""
    fixed: bool = False
    by_staleness: bool = False
    short_steps: bool = True
    backup: int = 0
    """0 also when workers have come or gone since: ``left_out`` is what others had."""
    left_out: int = 0
    chunks: int = 1
    late: int = 0
    grace_s: float = 0.0
    batch_per_worker: int = 0
    absent: int = 0
    pending_s: float | None = 0.0
    since_action_s: float | None = None


def job_now(
    state: MasterState,
    roster: Roster,
    *,
    committed: int,
    total: int | None,
    pending_s: float | None,
    since_action_s: float | None,
) -> JobNow | None:
    """The job as its machines know it.

    Args:
        state: of the training.
        roster: of the job.
        committed: samples of training feeds in the model.
        total: of all opened training feeds; None: not known.
        pending_s: see `paceline.master.ports.Backend.pending_s`.
        since_action_s: since the last action took effect.

    Returns:
        None: nobody trains now.
    """
    feed = _feed(state)
    workers = state.training_workers()
    if feed is None or not workers or not state.is_training:
        return None
    nodes = [roster.node_of(inc) for inc in sorted(workers)]
    synchronous = state.mode == "bsp"
    batch_size = feed.global_batch(len(workers)) if synchronous else contribution(feed, roster)
    names = [node.name if node is not None else "" for node in nodes]
    sizes = part_sizes(Plan(), names, batch_size) if synchronous else [batch_size] * len(nodes)
    steps_left = None if total is None else -(-(total - committed) // batch_size)
    if synchronous and steps_left is not None and not feed.per_worker:
        # Slices are not all whole; and what short steps leave out makes more of them.
        steps_left = max(steps_left, feed.last_step - state.step)
    present = [(node, size) for node, size in zip(nodes, sizes, strict=True) if node]
    present.sort(key=lambda one: one[0].rank)
    shares = {node.name: Share(size) for node, size in present}
    plan = state.plan_in_force().plan
    if synchronous and plan.shares.keys() & shares.keys():
        shares = {name: plan.share_of(name) or shares[name] for name in shares}
    is_backup = plan.backup > 0 and state.holds(BackupWorkers(count=plan.backup))
    return JobNow(
        mode=state.holder.pace,
        step=steps_done(state, roster, committed),
        global_batch=batch_size,
        batch_per_worker=feed.batch_size if synchronous and feed.per_worker else 0,
        steps_left=steps_left,
        shares=shares,
        servers=state.holder.sharers,
        replacing=roster.being_replaced,
        absent=sum(node.name not in shares for node in roster.wanted_workers()),
        restarts={
            node.name: node.past.decided for node in roster.nodes.values() if node.past.decided
        },
        pending_s=pending_s,
        since_action_s=since_action_s,
        fixed=plan.fixed,
        by_staleness=plan.by_staleness,
        short_steps=synchronous and not state.plans.whole,
        backup=plan.backup if is_backup else 0,
        left_out=0 if is_backup else plan.left_out,
        chunks=plan.chunks,
        late=plan.late,
        grace_s=plan.grace_s,
    )


def steps_done(state: MasterState, roster: Roster, committed: int) -> int:
    """Synchronous: decided steps; asynchronous: contributions that so many samples make."""
    feed = _feed(state)
    if state.mode == "bsp" or feed is None:
        return state.step
    return committed // contribution(feed, roster)


def contribution(feed: Feed, roster: Roster) -> int:
    """Samples of one contribution, in the asynchronous modes.

    Of all workers that there should be: one that is being restarted changes no batch.
    """
    return max(1, feed.batch_size // max(1, roster.num_workers))


def _feed(state: MasterState) -> Feed | None:
    """The one that is trained on: the newest, unless it is complete."""
    feeds = [feed for feed in state.ledger.feeds.values() if feed.purpose == "train"]
    return feeds[-1] if feeds and feeds[-1].feed not in state.complete else None
