"""Orders of people to a job; all checks raise ConfigError."""

from paceline.base import descriptors
from paceline.base.errors import ConfigError
from paceline.wire.messages.feeds import Feed
from paceline.wire.schema import NUM_BUCKETS
from paceline.wire.spec import JobSpec


def check_scale(spec: JobSpec, feed: Feed | None, workers: int) -> None:
    """Refuse a number of workers that the job cannot train with; ``feed``: what it trains on."""
    if spec.traits.scales == "never":
        check_elastic(spec, "scale")
    if spec.machines > 1:
        raise ConfigError(
            f"cannot scale a job of {spec.machines} machines, each of which has as many workers; "
            "stop it, and start it with other --nnodes or --nproc-per-node"
        )
    check_size(spec, "scale to", workers)
    if spec.traits.scales != "evenly":
        return
    if feed is None:
        raise ConfigError("cannot scale yet: nobody trains, so the global batch is not known")
    if feed.global_batch(workers) % workers:
        raise ConfigError(
            f"cannot scale to {workers} workers: the global batch of {feed.batch_size} samples "
            f"is not divisible by it, as strategy {spec.strategy} needs; with batch_per_worker in "
            "place of batch_size it would follow the workers"
        )


def check_scale_servers(spec: JobSpec, servers: int) -> None:
    """Refuse a number of servers that the job cannot train with."""
    if not spec.traits.has_servers:
        raise ConfigError(
            f"cannot scale the servers: strategy {spec.strategy} has none; "
            "`paceline scale --workers` sets the number of workers"
        )
    if not 1 <= servers <= NUM_BUCKETS:
        raise ConfigError(
            f"cannot scale to {servers} servers, expected 1 to {NUM_BUCKETS}: the model lies in "
            f"{NUM_BUCKETS} buckets, of which each server holds at least one"
        )


def check_elastic(spec: JobSpec, order: str) -> None:
    """Refuse an order to a job whose workers come and go together."""
    if spec.traits.rigid:
        raise ConfigError(f"no {order} with strategy {spec.strategy}, {spec.traits.rigid}")


def check_part(spec: JobSpec, workers: int) -> None:
    """Refuse a machine that wants another number of workers than the job's machines have."""
    if workers not in (0, spec.workers_of_machine):
        raise ConfigError(
            f"--workers: got {workers}, expected {spec.workers_of_machine}: each of the job's "
            f"{spec.machines} machines runs so many; leave it out"
        )


def check_replace(spec: JobSpec) -> None:
    """Refuse to replace a member of a group; ranks of a script all begin again, as after a kill."""
    if spec.traits.trains:
        check_elastic(spec, "replace")


def check_moves(spec: JobSpec, role: str) -> None:
    """Refuse to have nodes of a role go on at places of another size where they cannot."""
    check_elastic(spec, "other sizes")
    if role == "server" and spec.unmovable:
        raise ConfigError(spec.unmovable)


def check_size(spec: JobSpec, order: str, workers: int) -> None:
    """Refuse a number of workers that the spec does not allow."""
    least, most = spec.min_workers, spec.most_workers
    if not least <= workers <= most:
        raise ConfigError(
            f"cannot {order} {workers} workers, expected {least} to {most} (min_workers, "
            "max_workers, and with deterministic blocks)"
        )
    here = spec.is_on_one_machine
    if short := descriptors.complaint(workers + spec.num_servers, on_this_machine=here):
        raise ConfigError(f"cannot {order} {workers} workers: {short}")
