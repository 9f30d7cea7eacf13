"""Control groups: cpu quota and memory limit of a node, and the kernel's evidence about them.

One group ``paceline/<job_id>/<node>`` below the caller's own group, so that limits set from
outside stay in force; version 1 (a tree per controller) or 2 (one tree), whichever the machine
has. Where making groups is not permitted the caller gets a note instead, and the job goes on
without limits. Beside the nodes' groups there is one of processes that come after all nodes of the
job (`come_last`). All functions take ``mounts`` and ``own`` for the tests; nothing here is cached.
"""

import contextlib
import os
from pathlib import Path

import msgspec

from paceline.base.files import read_at_once

MOUNTS = Path("/proc/self/mounts")
OWN = Path("/proc/self/cgroup")

PERIOD_US, MIN_QUOTA_US, MAX_PERIOD_US = 10_000, 1_000, 1_000_000
"""Period of the cpu quota, by which a node of 0.25 core computes 2.5 ms of each 10. At the kernel's
own default, 100 ms, it would stand still for 75 ms at a time, longer than many a step. The others
are the kernel's bounds: for less than 0.1 core the period is longer."""


CUT = 0.9
"""Part of the quota set here: a lower quota is somebody else's, a nearer one may be rounded."""
LAST = "last"
"""The group of a job's processes that give way to its nodes."""
NO_LIMIT = 1 << 60
"""Bytes from which a limit counts as none: cgroup version 1 shows such a number without one."""


class Hierarchy(msgspec.Struct, frozen=True):
    """Where groups of one controller may be made; ``version`` 2: the tree of all controllers."""

    version: int
    base: Path


def find_trees(mounts: Path = MOUNTS, own: Path = OWN) -> dict[str, Hierarchy]:
    """The caller's own group per controller (``cpu``, ``memory``), as far as they exist."""
    own_paths = _own_paths(own)
    trees: dict[str, Hierarchy] = {}
    for line in mounts.read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup2":
            base = _below(Path(point), own_paths.get("", "/"))
            offered = base / "cgroup.controllers"
            names = offered.read_text().split() if offered.exists() else []
            for name in {"cpu", "memory"}.intersection(names):
                trees.setdefault(name, Hierarchy(2, base))
        elif kind == "cgroup":
            for name in {"cpu", "memory"}.intersection(options.split(",")):
                trees[name] = Hierarchy(1, _below(Path(point), own_paths.get(name, "/")))
    return trees


def _own_paths(own: Path) -> dict[str, str]:
    """Lines ``7:cpu,cpuacct:/a/b`` (version 1) and ``0::/a/b`` (version 2) by controller."""
    paths = {}
    for line in own.read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    return paths


def _below(mount: Path, path: str) -> Path:
    """Return the path below the mount; the mount if the path is the host's, as in a container."""
    inside = mount / path.lstrip("/")
    return inside if inside.is_dir() else mount


class NodeGroup:
    """The group of one node. Absent controllers: setting is refused, readings are 0."""

    def __init__(self, groups: dict[str, Hierarchy]) -> None:
        """``groups``: per controller the node's own directory."""
        self._groups = groups
        self._cores: float | None = None
        """The quota that was set last through this object."""

    @property
    def join_files(self) -> tuple[str, ...]:
        """Files into which a process writes ``0`` to become a member."""
        return tuple(sorted({str(group.base / "cgroup.procs") for group in self._groups.values()}))

    def set_cpu(self, cores: float | None) -> None:
        """Set the cpu quota, at any time; None: no limit.

        Raises:
            OSError: not permitted, or no cpu controller.
        """
        group = self._group("cpu")
        period_us = PERIOD_US
        if cores is not None:
            period_us = min(max(PERIOD_US, round(MIN_QUOTA_US / cores)), MAX_PERIOD_US)
        quota_us = None if cores is None else max(MIN_QUOTA_US, round(cores * period_us))
        if group.version == 2:
            quota = "max" if quota_us is None else str(quota_us)
            (group.base / "cpu.max").write_text(f"{quota} {period_us}")
        else:
            (group.base / "cpu.cfs_period_us").write_text(str(period_us))
            quota = "-1" if quota_us is None else str(quota_us)
            (group.base / "cpu.cfs_quota_us").write_text(quota)
        self._cores = cores

    @property
    def has_cpu(self) -> bool:
        """Whether the node has a group of the cpu controller, so that a quota can be in force."""
        return "cpu" in self._groups

    @property
    def quota(self) -> float | None:
        """The cores that the kernel allows the group now; None: no limit, or no such group."""
        group = self._groups.get("cpu")
        return _quota(group.version, group.base) if group is not None else None

    @property
    def is_cut(self) -> bool:
        """Whether somebody else has set a cpu quota that is clearly below the one set here."""
        quota = self.quota
        return quota is not None and (self._cores is None or quota < CUT * self._cores)

    def set_memory(self, limit_bytes: int | None) -> None:
        """Set the memory limit, at any time; None: no limit.

        Raises:
            OSError: not permitted, or no memory controller.
        """
        group = self._group("memory")
        if group.version == 2:
            limit = "max" if limit_bytes is None else str(limit_bytes)
            (group.base / "memory.max").write_text(limit)
            # Without this an over-sized node swaps for minutes instead of failing as OOM.
            _write_if_there(group.base / "memory.swap.max", "0" if limit_bytes else "max")
        else:
            limit = "-1" if limit_bytes is None else str(limit_bytes)
            (group.base / "memory.limit_in_bytes").write_text(limit)

    def set_limits(self, cpu: float | None, memory_bytes: int | None) -> dict[str, str]:
        """Set both, at any time; None: no limit. Why one could not be set, by controller."""
        failures = {}
        try:
            self.set_cpu(cpu)
        except OSError as error:
            failures["cpu"] = str(error)
        try:
            self.set_memory(memory_bytes)
        except OSError as error:
            failures["memory"] = str(error)
        return failures

    def oom_kills(self) -> int:
        """Processes of this group that the kernel killed for memory, ever."""
        group = self._groups.get("memory")
        if group is None:
            return 0
        name = "memory.events" if group.version == 2 else "memory.oom_control"
        return _counter(group.base / name, "oom_kill")

    def throttled_s(self) -> float:
        """Seconds for which its cpu quota was used up, on each processor; 0: not known."""
        group = self._groups.get("cpu")
        if group is None:
            return 0.0
        name, unit_s = ("throttled_usec", 1e-6) if group.version == 2 else ("throttled_time", 1e-9)
        return _counter(group.base / "cpu.stat", name) * unit_s

    def memory_used(self) -> int:
        """Bytes of this group but for pages of files, which the kernel takes back; 0: not known."""
        group = self._groups.get("memory")
        if group is None:
            return 0
        name = "memory.current" if group.version == 2 else "memory.usage_in_bytes"
        stat = group.base / "memory.stat"
        try:
            used = int(read_at_once(group.base / name))
        except OSError:
            return 0
        return max(0, used - _pages_of_files(stat))

    def remove(self) -> None:
        """Remove the group; a group that still has members stays (see ``remove_job``)."""
        for group in self._groups.values():
            _remove_empty(group.base)

    def _group(self, name: str) -> Hierarchy:
        if name not in self._groups:
            raise OSError(f"no {name} control group")
        return self._groups[name]


def machine_oom_kills() -> int:
    """Processes of the whole machine that the kernel killed for memory, ever; 0: not known."""
    return _counter(Path("/proc/vmstat"), "oom_kill")


def create_node_group(
    job_id: str,
    node: str,
    cpu: float | None,
    memory_bytes: int | None,
    mounts: Path = MOUNTS,
    own: Path = OWN,
) -> tuple[NodeGroup, str]:
    """Make the group of a node and set its limits (cores; bytes; None: none).

    Returns:
        The group, and a note that is not empty where a limit asked for is not in force.
    """
    wanted = {"cpu": cpu, "memory": memory_bytes}
    trees = find_trees(mounts, own)
    groups: dict[str, Hierarchy] = {}
    failures: dict[str, str] = {}
    for name in wanted:
        if name not in trees:
            failures[name] = "the machine has no such control group"
            continue
        try:
            groups[name] = _make(trees[name], job_id, node, name)
        except OSError as error:
            failures[name] = f"{error.strerror}: {error.filename}"
    node_group = NodeGroup(groups)
    for name, failure in node_group.set_limits(cpu, memory_bytes).items():
        failures.setdefault(name, failure)
    unmet = [
        f"{name} limit {wanted[name]}: {why}" for name, why in failures.items() if wanted[name]
    ]
    note = f"{node} runs without limits ({'; '.join(unmet)})" if unmet else ""
    return node_group, note


def _make(tree: Hierarchy, job_id: str, node: str, controller: str) -> Hierarchy:
    path = tree.base
    for part in ("paceline", job_id, node):
        if tree.version == 2:
            (path / "cgroup.subtree_control").write_text(f"+{controller}")
        path = path / part
        path.mkdir(exist_ok=True)
    if controller == "cpu":
        for parent in (path.parent, path.parent.parent):
            _weigh_by_members(parent)
    return Hierarchy(tree.version, path)


def _weigh_by_members(parent: Path, num_new: int = 1) -> None:
    """Let a group of n nodes weigh as much as n processes outside of it, not as one.

    Groups without processes do not count: what killed jobs left behind would weigh on all others.
    Those that are being made have none yet.
    """
    groups = (procs for procs in parent.rglob("cgroup.procs") if procs.parent.name != LAST)
    num_nodes = num_new + sum(map(_is_populated, groups))
    _write_if_there(parent / "cpu.shares", str(min(1024 * num_nodes, 262_144)))
    _write_if_there(parent / "cpu.weight", str(min(100 * num_nodes, 10_000)))


def give_way(job_id: str, gives: bool, mounts: Path = MOUNTS, own: Path = OWN) -> None:
    """Let a job have a processor only while no other job wants it, or as its nodes weigh.

    May be called again and again: where it is so already, nothing is written.

    Raises:
        OSError: not permitted.
    """
    tree = find_trees(mounts, own).get("cpu")
    if tree is None:
        return
    job = tree.base / "paceline" / job_id
    rank = job / ("cpu.idle" if tree.version == 2 else "cpu.shares")
    least = "1" if tree.version == 2 else "2"
    with contextlib.suppress(FileNotFoundError):
        if (rank.read_text().strip() == least) == gives:
            return
        if gives:
            rank.write_text(least)
            return
        if tree.version == 2:
            rank.write_text("0")
        _weigh_by_members(job, 0)


def come_last(job_id: str, mounts: Path = MOUNTS, own: Path = OWN) -> Path | None:
    """Let this process have a processor only while no node of its job wants it.

    Its priority does not do that: it counts only within the group of its node. So the process moves
    to a group of its own. Not where its node has a cpu quota, which would no longer hold for it.

    Returns:
        Where it writes ``0`` to be as it was; None: it is.
    """
    tree = find_trees(mounts, own).get("cpu")
    if tree is None or tree.base.parent.name != job_id or _quota(tree.version, tree.base):
        return None
    group = tree.base.parent / LAST
    try:
        group.mkdir(exist_ok=True)
        files = (("cpu.idle", "1"), ("cpu.shares", "2"), ("cpu.weight", "1"))
        there = ((group / name, least) for name, least in files if (group / name).exists())
        for file, least in there:
            file.write_text(least)
            break  # the others are refused in an idle group
        (group / "cgroup.procs").write_text("0")
    except OSError:
        return None
    return tree.base / "cgroup.procs"


def _is_populated(procs: Path) -> bool:
    try:
        return bool(procs.read_text().strip())
    except OSError:  # another job has just removed it
        return False


def find_node_group(job_id: str, node: str, mounts: Path = MOUNTS, own: Path = OWN) -> NodeGroup:
    """The group that the node's agent made, if there is one; a process in it finds it, too."""
    path = Path("paceline", job_id, node)
    groups: dict[str, Hierarchy] = {}
    for name, tree in find_trees(mounts, own).items():
        is_own = tree.base.parts[-3:] == path.parts
        base = tree.base if is_own else tree.base / path
        if base.is_dir():
            groups[name] = Hierarchy(tree.version, base)
    return NodeGroup(groups)


def memory_headroom(mounts: Path = MOUNTS, own: Path = OWN) -> int | None:
    """Bytes that the caller's own group may still take; None: it has no limit.

    Pages of files count as free, but for those of memory file systems.
    """
    tree = find_trees(mounts, own).get("memory")
    if tree is None:
        return None
    names = ("max", "current") if tree.version == 2 else ("limit_in_bytes", "usage_in_bytes")
    try:
        limit, used = ((tree.base / f"memory.{name}").read_text().strip() for name in names)
    except OSError:  # the root group
        return None
    if limit == "max" or int(limit) >= NO_LIMIT:
        return None
    stat = tree.base / "memory.stat"
    files = _pages_of_files(stat)
    return int(limit) - int(used) + files


def machine_memory(mounts: Path = MOUNTS, own: Path = OWN) -> int:
    """Bytes that the machine has, or that the caller's groups allow, its parents' included."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    tree = find_trees(mounts, own).get("memory")
    if tree is None:
        return physical
    name = "memory.max" if tree.version == 2 else "memory.limit_in_bytes"
    limits = [_memory_limit(path / name) for path in (tree.base, *tree.base.parents)]
    return min([physical, *(limit for limit in limits if limit is not None)])


def _memory_limit(file: Path) -> int | None:
    try:
        limit = file.read_text().strip()
    except OSError:  # the root group, or what is above it
        return None
    return None if limit == "max" else int(limit)


def cpu_quota(mounts: Path = MOUNTS, own: Path = OWN) -> float | None:
    """Cores that the caller's groups allow it, its parents' included; None: no limit."""
    tree = find_trees(mounts, own).get("cpu")
    if tree is None:
        return None
    quotas = [_quota(tree.version, path) for path in (tree.base, *tree.base.parents)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(version: int, group: Path) -> float | None:
    try:
        if version == 2:
            quota, period = read_at_once(group / "cpu.max").split()
        else:
            quota = read_at_once(group / "cpu.cfs_quota_us").strip()
            period = read_at_once(group / "cpu.cfs_period_us")
    except OSError:  # the root group, or what is above it
        return None
    return None if quota in (b"max", b"-1") else int(quota) / int(period)


def jobs_with_groups(mounts: Path = MOUNTS, own: Path = OWN) -> set[str]:
    """The ids of jobs that have groups here."""
    bases = {tree.base / "paceline" for tree in find_trees(mounts, own).values()}
    return {
        path.name for base in bases if base.is_dir() for path in base.iterdir() if path.is_dir()
    }


def remove_job(job_id: str, mounts: Path = MOUNTS, own: Path = OWN) -> bool:
    """Remove all groups of a job; False: some group still has members, call again."""
    empty = True
    for base in {tree.base for tree in find_trees(mounts, own).values()}:
        job = base / "paceline" / job_id
        if job.is_dir():
            nodes = [path for path in job.iterdir() if path.is_dir()]
            removed = [_remove_empty(path) for path in (*nodes, job)]
            empty = empty and all(removed)
        # Other jobs may be using the common parent: then it stays.
        _remove_empty(base / "paceline")
    return empty


def _remove_empty(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        try:
            os.rmdir(path)
        except OSError:
            return False
    return True


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)


def _counter(path: Path, key: str) -> int:
    """The number behind ``key`` in a file of lines ``key number``; 0 where there is none."""
    return _counters(path).get(key, 0)


def _pages_of_files(stat: Path) -> int:
    """Bytes of pages of files by a group's ``memory.stat``, which the kernel takes back."""
    counters = _counters(stat)
    return counters.get("inactive_file", 0) + counters.get("active_file", 0)


def _counters(path: Path) -> dict[str, int]:
    """The numbers in a file of lines ``key number``; none: it is not there."""
    with contextlib.suppress(OSError):
        words = read_at_once(path).decode().split()
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))
    return {}
