"""The job at one moment, beside what the nodes measure: members, plan in force, progress.

Pure views of the state machines, from which the monitor makes what a solution sees.
"""

import msgspec

from paceline.master.members import Node
from paceline.master.membership import Membership
from paceline.master.state import MasterState
from paceline.policy.straggler.actions import Share
from paceline.wire.messages import Feed


class JobNow(msgspec.Struct, frozen=True, kw_only=True):
    """See `paceline.policy.straggler.observation.Observation`, field by field."""

    step: int
    mode: str
    global_batch: int
    steps_left: int | None
    shares: dict[str, Share]
    """Of the living workers, in the order of their ranks."""
    servers: tuple[str, ...]
    restarts: dict[str, int]
    """By KILL_RESTART; of who had none, 0."""
    absent: int = 0
    pending_s: float | None = 0.0
    since_action_s: float | None = None


def job_now(
    state: MasterState,
    members: Membership,
    *,
    committed: int,
    total: int | None,
    pending_s: float | None,
    since_action_s: float | None,
) -> JobNow | None:
    """The job as its machines know it.

    Args:
        state: of the training.
        members: of the job.
        committed: samples of training feeds in the model.
        total: of all opened training feeds; None: not known.
        pending_s: see `paceline.master.ports.Backend.pending_s`.
        since_action_s: since the last action took effect.

    Returns:
        None: nobody trains now.
    """
    feed = _feed(state)
    if feed is None or state.map is None or state.restoring or not state.workers:
        return None
    nodes = [members.node_of(inc) for inc in sorted(state.workers)]
    steps_left: int | None
    if state.mode == "bsp":
        batch_size, steps_left = feed.batch_size, feed.last_step - state.step
        sizes = _equal_parts(batch_size, len(nodes))
    else:
        batch_size = _contribution(feed, members)
        steps_left = None if total is None else -(-(total - committed) // batch_size)
        sizes = [batch_size] * len(nodes)
    present = [(node, size) for node, size in zip(nodes, sizes, strict=True) if node]
    present.sort(key=lambda one: one[0].rank)
    shares = {node.name: Share(size) for node, size in present}
    planned = state.plan_in_force().plan.shares
    if state.mode == "bsp" and planned.keys() & shares.keys():
        shares = {name: planned.get(name, Share(0)) for name in shares}
    wanted = [node.name for node in members.of_role("worker") if _is_wanted(node)]
    return JobNow(
        mode=state.mode,
        step=steps_done(state, members, committed),
        global_batch=batch_size,
        steps_left=steps_left,
        shares=shares,
        servers=tuple(s.node for s in state.map.servers if s.inc in state.map.sharers),
        absent=sum(name not in shares for name in wanted),
        restarts={node.name: node.decided for node in members.nodes.values() if node.decided},
        pending_s=pending_s,
        since_action_s=since_action_s,
    )


def _is_wanted(worker: Node) -> bool:
    return not worker.leaving and worker.state not in ("finished", "failed")


def steps_done(state: MasterState, members: Membership, committed: int) -> int:
    """Synchronous: decided steps; asynchronous: contributions that so many samples make."""
    feed = _feed(state)
    if state.mode == "bsp" or feed is None:
        return state.step
    return committed // _contribution(feed, members)


def _contribution(feed: Feed, members: Membership) -> int:
    """Samples of one, in the asynchronous modes."""
    return max(1, feed.batch_size // max(1, members.num_workers))


def _feed(state: MasterState) -> Feed | None:
    """The one that is trained on: the newest, unless it is complete."""
    feeds = [feed for feed in state.ledger.feeds.values() if feed.purpose == "train"]
    return feeds[-1] if feeds and feeds[-1].feed not in state.complete else None


def _equal_parts(size: int, count: int) -> list[int]:
    """As `Ledger.pick_steps` cuts a slice."""
    return [size * (i + 1) // count - size * i // count for i in range(count)]
