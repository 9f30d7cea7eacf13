"""What a spec says of a job's size: the bounds, the size that it begins with, and mistakes."""

import difflib
import os
from collections.abc import Iterator

from msgspec.structs import replace

from paceline.base.backends import DEFAULT
from paceline.base.cgroups import machine_memory
from paceline.base.errors import ConfigError
from paceline.base.optional import complaint
from paceline.features.sizes.policy.observation import ResourceBounds
from paceline.jobs.flags import flag_of
from paceline.jobs.spec_draft import SpecDraft, traits_of, where
from paceline.jobs.wording import size
from paceline.policy.job_size import ResourcePrices, size_of
from paceline.wire.spec import JobSpec

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
        has_other_machines=not spec.is_on_one_machine,
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


def check_resources(draft: SpecDraft) -> None:
    """Refuse a resource policy that there is not, or that this job cannot follow."""
    key, name = "resources.policy", str(draft.get("resources.policy"))
    if name == "none" or not draft.is_sound([key]):
        return
    from paceline.features.sizes.policy.registry import RESOURCES  # numpy takes 0.15 s

    if name not in RESOURCES.names():
        near = difflib.get_close_matches(name, RESOURCES.names(), 1)
        remedy = f"did you mean {near[0]}?" if near else "write rm, or --auto"
        draft.complain(key, repr(name), f"one of {', '.join(RESOURCES.names())}", remedy)
        return
    prefix = "resources_args."
    args = {k.removeprefix(prefix): v for k, v in draft.values.items() if k.startswith(prefix)}
    for arg, value in args.items():
        try:
            RESOURCES.make(name, {arg: value})
        except ConfigError as error:
            draft.complaints.append(f"{where(draft.places[prefix + arg], prefix + arg)}: {error}")
    if draft.is_sound(["strategy", "backend", "samples"]):
        _check_resizable(draft, key, name)


def _check_resizable(draft: SpecDraft, key: str, name: str) -> None:
    traits, place = traits_of(draft), draft.places.get(key, "")
    is_auto = place == flag_of(key)
    what, thing = ("it", place) if is_auto else (name, key)
    if traits.lives == "in_rounds":
        got = f"{what} with strategy {draft.get('strategy')}, whose workers come and go together"
        remedy = f"leave {thing} out: the job keeps the workers that it begins with"
        draft.complain(key, got, "strategy ps or allreduce", remedy)
    elif draft.get("backend") != DEFAULT:
        got = f"{what} with backend {draft.get('backend')}, whose nodes keep their sizes"
        draft.complain(key, got, f"backend {DEFAULT}", f"leave {thing} or the backend out")
    elif draft.get("samples") != "exactly-once":
        got = f"{what} with samples {draft.get('samples')}, whose servers cannot hand over"
        draft.complain(key, got, "samples exactly-once", f"leave {thing} or samples out")


def lacks(spec: JobSpec) -> Iterator[str]:
    """Say that a library is missing which the search for a size needs."""
    if spec.resources.policy != "none" and (
        missing := complaint(spec.place_of("resources.policy"), "scipy")
    ):
        yield missing
