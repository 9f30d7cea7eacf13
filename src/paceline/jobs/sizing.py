"""The size that a job may have, and the one that it begins with, from its spec."""

import contextlib
import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from paceline.base.cgroups import machine_memory
from paceline.base.errors import ConfigError
from paceline.jobs.history import Tail
from paceline.jobs.wording import counted, size
from paceline.policy.job_size import JobSize, ResourcePrices, size_of
from paceline.policy.resources.observation import ResourceBounds
from paceline.policy.resources.steering import SteeringLine
from paceline.policy.resources.steering_state import Verdict
from paceline.wire.spec import JobSpec

VERDICT_WORDS: dict[Verdict, str] = {
    "better": "faster",
    "as_before": "no faster and no slower than the noise",
    "worse": "slower",
    "open": "neither for sure",
}
"""Words for what a change has made of a job."""
LEAST_CORES = 0.02
"""Least cores of a node: with less, importing torch takes minutes."""
NODE_CORES = 1.0
"""Cores of a node whose spec names none, as far as the bound has room."""


def bounds_of(spec: JobSpec) -> ResourceBounds:
    """Return what a job may have; without a number in the spec, the cores of this machine."""
    asked = spec.resources
    has_servers = spec.num_servers > 0
    cores = asked.cores if asked.cores is not None else float(len(os.sched_getaffinity(0)))
    least = max(min(cores / 20, 0.1), LEAST_CORES)
    begun_with = max(spec.workers.memory_bytes or 0, spec.servers.memory_bytes or 0)
    return ResourceBounds(
        cores=cores,
        memory_bytes=asked.memory_bytes,
        cost=asked.cost,
        min_workers=spec.min_workers,
        max_workers=asked.workers if asked.workers is not None else spec.max_workers,
        min_servers=1 if has_servers else 0,
        max_servers=asked.servers if has_servers else 0,
        min_node_cores=least,
        # A limit above the machine's memory bounds nothing, but is no error of this bound.
        max_node_bytes=asked.node_memory_bytes or max(machine_memory(), begun_with),
        max_server_bytes=spec.servers.max_memory_bytes if has_servers else None,
        has_other_machines=spec.backend != "local",
        core_step=least,
    )


def sized(spec: JobSpec) -> JobSpec:
    """Give the nodes of a job that finds its size the quotas that it begins with.

    Raises:
        ConfigError: not even these are within the bounds.
    """
    if spec.resources.policy == "none":
        return spec
    _check_memory(spec)
    bounds, count = bounds_of(spec), spec.workers.count + spec.num_servers
    assert bounds.cores is not None
    named = sum(
        (nodes.cpu_of(number) or 0.0)
        for nodes, total in ((spec.workers, spec.workers.count), (spec.servers, spec.num_servers))
        for number in range(total)
    )
    unnamed = spec.workers.count * (spec.workers.cpu is None)
    unnamed += spec.num_servers * (spec.servers.cpu is None)
    each = min(NODE_CORES, (bounds.cores - named) / unnamed) if unnamed else 0.0
    if unnamed and each < bounds.min_node_cores:
        raise ConfigError(
            f"resources.cores: got {bounds.cores:g}, expected at least "
            f"{bounds.min_node_cores:g} for each of {count} nodes; raise it, or begin with fewer "
            "workers and servers"
        )
    if spec.workers.cpu is None:
        spec = replace(spec, workers=replace(spec.workers, cpu=(each,)))
    if spec.num_servers and spec.servers.cpu is None:
        spec = replace(spec, servers=replace(spec.servers, cpu=(each,)))
    if excess := bounds.excess(size_of(spec), ResourcePrices()):
        raise ConfigError(
            f"resources: the job begins with {excess}; raise the bound, or begin smaller"
        )
    return spec


def _check_memory(spec: JobSpec) -> None:
    """Refuse a bound on memory where nothing bounds what a node uses, or where nodes have more."""
    of_all, of_one = spec.resources.memory_bytes, spec.resources.node_memory_bytes
    roles = {"workers": spec.workers, **({"servers": spec.servers} if spec.num_servers else {})}
    for name, nodes in roles.items():
        for key, bound in (("memory", of_all), ("node_memory", of_one)):
            if bound is not None and nodes.memory_bytes is None:
                raise ConfigError(
                    f"resources.{key}: got {size(bound)}, but {name}.memory is not set, so nothing "
                    f"bounds what one of the {name} uses; set it, e.g. --set {name}.memory=2GiB, "
                    f"or leave resources.{key} out"
                )
        if of_one is not None and (nodes.memory_bytes or 0) > of_one:
            raise ConfigError(
                f"resources.node_memory: got {size(of_one)}, expected at least the "
                f"{size(nodes.memory_bytes or 0)} of {name}.memory; raise it, or lower "
                f"{name}.memory"
            )


def read_sizing(path: Path) -> list[SteeringLine]:
    """Read what was planned, and what it brought, in order; other lines are left out."""
    found = []
    for line in Tail(path).lines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=SteeringLine))
    return found


def size_words(size: JobSize) -> str:
    """Write a size in words: ``3 workers of 0.5 cores, 1 server of 1 core``."""
    parts = [_nodes(size.workers, "worker", size.worker_cpu)]
    if size.servers:
        parts.append(_nodes(size.servers, "server", size.server_cpu))
    return ", ".join(parts)


def _nodes(count: int, role: str, cores: float) -> str:
    own = f" of {cores:g} cores" if cores else ""
    return f"{counted(count, role)}{own}"
