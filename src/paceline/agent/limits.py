"""Limits on what a node's processes take of their machine: its cgroup, or why there is none."""

import logging
from typing import NamedTuple

from paceline.base.cgroups import NodeGroup, create_node_group
from paceline.base.hardware import hardware_kind
from paceline.base.jobdir import JobDir, number_of, role_of
from paceline.wire.messages.agent import Hardware
from paceline.wire.spec import JobSpec

_log = logging.getLogger(__name__)


class NodeLimits(NamedTuple):
    """The limits of one node."""

    group: NodeGroup
    note: str
    """Reason why the node has no limits; empty: it has."""
    hardware: Hardware


def limit_node(job: JobDir, node: str, spec: JobSpec) -> NodeLimits:
    """Make the cgroup of a node."""
    nodes = spec.of_role(role_of(node))
    cpu, memory_bytes = nodes.cpu_of(number_of(node)), nodes.memory_bytes
    group, note = create_node_group(job.job_id, node, cpu, memory_bytes)
    hardware = _hardware(None, None) if note else _hardware(cpu, memory_bytes)
    if note:
        _log.warning("no_limits note=%s", note)
    return NodeLimits(group, note, hardware)


def change_limits(
    limits: NodeLimits, node: str, cpu: float | None, memory_bytes: int | None
) -> tuple[NodeLimits, str]:
    """Give a node other limits while its process runs; why one of them is not in force, if so.

    The kernel refuses less memory than the node uses and cannot give back.
    """
    before = limits.hardware
    failures = limits.group.set_limits(cpu, memory_bytes)
    hardware = _hardware(
        before.cores if "cpu" in failures else cpu,
        before.memory_bytes if "memory" in failures else memory_bytes,
    )
    wanted = {"cpu": cpu, "memory": memory_bytes}
    unmet = [f"{name} limit {wanted[name]}: {why}" for name, why in failures.items()]
    note = f"{node} keeps the limits that it has ({'; '.join(unmet)})" if unmet else ""
    return limits._replace(hardware=hardware), note


def _hardware(cpu: float | None, memory_bytes: int | None) -> Hardware:
    return Hardware(kind=hardware_kind(cpu), cores=cpu, memory_bytes=memory_bytes)
