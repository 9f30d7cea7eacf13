"""The stragglers of a job, as `paceline status` and metrics name them."""

from paceline.base.jobdir import JobDir
from paceline.features.stragglers.policy.decision_log import Decided, decode, log_of
from paceline.features.stragglers.spells import spells_of
from paceline.jobs.history import Tail, read_events
from paceline.jobs.wording import counted
from paceline.policy.observation import Observation
from paceline.wire.client import Shown, SlowPart


def slow_parts(seen: Observation, unix_s: float) -> tuple[SlowPart, ...]:
    """List the stragglers of a job that paceline steers; ``unix_s``: time of the observation."""
    # Not at the top: with numpy, 0.15 s, which the status of a job without decisions does without.
    from paceline.features.stragglers.policy.slow_nodes import slow_nodes

    return tuple(
        SlowPart(
            culprit="computation",
            nodes=(each.node,),
            ratio=each.ratio,
            since_s=unix_s - each.age_s,
            done=_done(seen, each.node),
        )
        for each in slow_nodes(seen)
    )


def compared(seen: Observation) -> list[str]:
    """Name the nodes whose times can be compared with those of others."""
    groups = (seen.workers, seen.servers)
    timed = [[each.node for each in group if each.regime is not None] for group in groups]
    return [node for nodes in timed if len(nodes) > 1 for node in nodes]


def _done(seen: Observation, node: str) -> str:
    """What is in force about a straggler."""
    told: list[str] = []
    restarts = {each.node: each.restarts for each in seen.workers}
    restarts |= {each.node: each.restarts for each in seen.servers}
    if seen.replacing == node:
        told.append("another server replaces it")
    if restarts[node]:
        told.append(f"restarted {counted(restarts[node], 'time')}")
    shares = {each.node: each.batch_size * each.accumulation for each in seen.workers}
    if node in shares:
        even = sum(shares.values()) / len(shares)
        if shares[node] <= 0.99 * even - 1:
            own = counted(shares[node], "sample")
            told.append(f"computes {own} where an even share has {even:,.0f}")
        if seen.backup or seen.left_out or seen.late:
            told.append("steps do not wait for it")
    return "; ".join(told) or "nothing so far"


def shown(job: JobDir) -> Shown:
    """List the stragglers of a job: those at its last decision, and those that are well again."""
    spells = spells_of(read_events(job.events))
    slow = tuple(spells.since(part) for part in _last_slow(job))
    return Shown(slow=slow, relieved=spells.relieved)


def _last_slow(job: JobDir) -> tuple[SlowPart, ...]:
    """List the stragglers at the last decision; none also without a readable log."""
    for line in reversed(Tail(log_of(job)).lines()):
        try:
            (found,) = decode([line])
        except ValueError:
            continue  # torn, or of another version
        if isinstance(found, Decided):
            return slow_parts(found.observation, found.t)
    return ()
