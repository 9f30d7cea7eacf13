"""On trees made of plain files; `tests/integration/test_node_plane.py` uses the kernel's."""

from pathlib import Path

import pytest

from paceline.base.cgroups import (
    come_last,
    cpu_quota,
    create_node_group,
    find_node_group,
    find_trees,
    give_way,
    machine_memory,
    memory_headroom,
    remove_job,
)

JOB, NODE = "job-1", "worker-0"


class Machine:
    def __init__(self, root: Path, mounts: str, own: str) -> None:
        self.root = root
        self.mounts = root / "mounts"
        self.own = root / "own"
        self.mounts.write_text(mounts.replace("ROOT", str(root)))
        self.own.write_text(own)


@pytest.fixture
def version_1(tmp_path: Path) -> Machine:
    mounts = (
        "proc /proc proc rw 0 0\n"
        "cgroup ROOT/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
        "cgroup ROOT/memory cgroup rw,memory 0 0\n"
        "cgroup2 ROOT/unified cgroup2 rw 0 0\n"
    )
    machine = Machine(tmp_path, mounts, "4:memory:/box/a\n2:cpu,cpuacct:/\n0::/\n")
    for part in ("cpu,cpuacct", "memory/box/a", "unified"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "unified/cgroup.controllers").write_text("")
    return machine


@pytest.fixture
def version_2(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, "cgroup2 ROOT/all cgroup2 rw 0 0\n", "0::/box\n")
    (tmp_path / "all/box").mkdir(parents=True)
    (tmp_path / "all/box/cgroup.controllers").write_text("cpuset cpu memory pids\n")
    return machine


def test_version_1_groups_are_made_below_ones_own(version_1: Machine) -> None:
    root, at = version_1.root, (version_1.mounts, version_1.own)
    group, note = create_node_group(JOB, NODE, 0.5, 1 << 30, *at)
    assert note == ""
    cpu = root / "cpu,cpuacct/paceline" / JOB / NODE
    memory = root / "memory/box/a/paceline" / JOB / NODE
    assert (cpu / "cpu.cfs_quota_us").read_text() == "5000"
    assert (cpu / "cpu.cfs_period_us").read_text() == "10000"
    assert (memory / "memory.limit_in_bytes").read_text() == str(1 << 30)
    assert group.join_files == (str(cpu / "cgroup.procs"), str(memory / "cgroup.procs"))
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert group.oom_kills() == 3
    assert group.memory_used() == 0, "no such files"
    (memory / "memory.usage_in_bytes").write_text("700\n")
    (memory / "memory.stat").write_text("inactive_anon 500\ninactive_file 20\nactive_file 3\n")
    assert group.memory_used() == 677
    assert group.throttled_s() == 0.0, "no such file"
    (cpu / "cpu.stat").write_text("nr_periods 9\nnr_throttled 4\nthrottled_time 2500000000\n")
    assert group.throttled_s() == 2.5
    assert not group.is_cut
    find_node_group(JOB, NODE, version_1.mounts, version_1.own).set_cpu(0.015)
    assert group.is_cut
    group.set_cpu(0.015)
    assert not group.is_cut, "as ordered"


def test_version_2_groups_are_made_below_ones_own(version_2: Machine) -> None:
    root, at = version_2.root, (version_2.mounts, version_2.own)
    group, note = create_node_group(JOB, NODE, 2.0, None, *at)
    assert note == ""
    path = root / "all/box/paceline" / JOB / NODE
    assert (path / "cpu.max").read_text() == "20000 10000"
    assert (path / "memory.max").read_text() == "max"
    assert group.join_files == (str(path / "cgroup.procs"),)
    (path / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert group.oom_kills() == 1
    (path / "cpu.stat").write_text("usage_usec 7\nnr_throttled 4\nthrottled_usec 1500000\n")
    assert group.throttled_s() == 1.5
    assert not group.is_cut
    (path / "cpu.max").write_text("1000 10000")
    assert group.is_cut
    (path / "memory.current").write_text("400\n")
    assert group.memory_used() == 400


def test_a_quota_is_changed_and_lifted_at_run_time(version_1: Machine) -> None:
    at = (version_1.mounts, version_1.own)
    create_node_group(JOB, NODE, None, None, *at)
    quota = version_1.root / "cpu,cpuacct/paceline" / JOB / NODE / "cpu.cfs_quota_us"
    assert quota.read_text() == "-1"
    find_node_group(JOB, NODE, *at).set_cpu(0.1)
    assert quota.read_text() == "1000"
    find_node_group(JOB, NODE, *at).set_cpu(0.02)
    period = quota.with_name("cpu.cfs_period_us")
    assert (quota.read_text(), period.read_text()) == ("1000", "50000")
    find_node_group(JOB, NODE, *at).set_cpu(None)
    assert quota.read_text() == "-1"


def test_without_control_groups_a_note_says_which_limits_are_not_in_force(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "proc /proc proc rw 0 0\n", "0::/\n")
    at = (machine.mounts, machine.own)
    assert find_trees(*at) == {}
    group, note = create_node_group(JOB, NODE, None, 1 << 30, *at)
    assert note == (
        "worker-0 runs without limits "
        "(memory limit 1073741824: the machine has no such control group)"
    )
    assert group.join_files == ()
    assert group.oom_kills() == group.memory_used() == 0
    assert create_node_group(JOB, NODE, None, None, *at)[1] == ""
    with pytest.raises(OSError, match="no cpu control group"):
        group.set_cpu(1.0)


def test_where_making_groups_is_refused_the_note_says_why(version_1: Machine) -> None:
    base = version_1.root / "cpu,cpuacct"
    base.rmdir()
    base.write_text("not a directory")
    _, note = create_node_group(JOB, NODE, 1.0, 1 << 30, version_1.mounts, version_1.own)
    assert note.startswith("worker-0 runs without limits (cpu limit 1.0: ")
    assert "memory" not in note


def test_a_job_weighs_what_its_living_nodes_do(version_1: Machine) -> None:
    at = (version_1.mounts, version_1.own)
    parent = version_1.root / "cpu,cpuacct/paceline"
    for job, node, procs in (
        (JOB, "worker-1", "12\n"),
        ("killed", NODE, ""),
        ("other", NODE, "7\n"),
    ):
        (parent / job / node).mkdir(parents=True)
        (parent / job / node / "cgroup.procs").write_text(procs)
    for group in (parent, parent / JOB):
        (group / "cpu.shares").write_text("1024")
    create_node_group(JOB, NODE, None, None, *at)
    assert (parent / JOB / "cpu.shares").read_text() == "2048", "worker-1 and the one being made"
    assert (parent / "cpu.shares").read_text() == "3072", "what a killed job left has no weight"


def test_a_job_that_gives_way_weighs_next_to_nothing_until_it_does_not(
    version_1: Machine,
) -> None:
    at = (version_1.mounts, version_1.own)
    job = version_1.root / "cpu,cpuacct/paceline" / JOB
    (job / NODE).mkdir(parents=True)
    (job / NODE / "cgroup.procs").write_text("12\n")
    (job / "cpu.shares").write_text("1024")
    for gives, weight in ((True, "2"), (True, "2"), (False, "1024"), (False, "1024")):
        give_way(JOB, gives, *at)
        assert (job / "cpu.shares").read_text() == weight
    give_way("another", True, *at)  # it has no group


def test_in_version_2_a_job_that_gives_way_is_idle_to_the_kernel(version_2: Machine) -> None:
    at = (version_2.mounts, version_2.own)
    job = version_2.root / "all/box/paceline" / JOB
    (job / NODE).mkdir(parents=True)
    (job / NODE / "cgroup.procs").write_text("12\n")
    for name in ("cpu.idle", "cpu.weight"):
        (job / name).write_text("0")
    for gives in (True, False):
        give_way(JOB, gives, *at)
        assert (job / "cpu.idle").read_text() == str(int(gives))
    assert (job / "cpu.weight").read_text() == "100"


@pytest.mark.parametrize(
    ("rank", "least"), [("cpu.idle", "1"), ("cpu.shares", "2"), ("cpu.weight", "1")]
)
def test_a_process_comes_after_all_nodes_of_its_job(
    version_1: Machine, rank: str, least: str
) -> None:
    root, at = version_1.root, (version_1.mounts, version_1.own)
    create_node_group(JOB, NODE, None, None, *at)
    assert come_last(JOB, *at) is None, "it is in no group of a node"
    version_1.own.write_text(f"2:cpu,cpuacct:/paceline/{JOB}/{NODE}\n")
    last = root / "cpu,cpuacct/paceline" / JOB / "last"
    last.mkdir()
    (last / rank).write_text("")
    home = come_last(JOB, *at)
    assert home == root / "cpu,cpuacct/paceline" / JOB / NODE / "cgroup.procs"
    assert (last / rank).read_text() == least
    assert (last / "cgroup.procs").read_text() == "0"


def test_a_process_of_a_node_with_a_quota_stays_in_its_group(version_1: Machine) -> None:
    at = version_1.mounts, version_1.own
    create_node_group(JOB, NODE, 0.5, None, *at)
    version_1.own.write_text(f"2:cpu,cpuacct:/paceline/{JOB}/{NODE}\n")
    assert come_last(JOB, *at) is None
    assert not (version_1.root / "cpu,cpuacct/paceline" / JOB / "last").exists()


def test_removal_takes_all_groups_of_the_job_and_no_other(version_1: Machine) -> None:
    at = (version_1.mounts, version_1.own)
    parent = version_1.root / "memory/box/a/paceline"
    for path in (parent / JOB / NODE, parent / "job-2" / NODE):
        path.mkdir(parents=True)
    assert remove_job(JOB, *at)
    assert [path.name for path in parent.iterdir()] == ["job-2"]
    assert remove_job("job-2", *at)
    assert not parent.exists()


def test_a_group_that_still_has_members_is_reported(version_1: Machine) -> None:
    at = (version_1.mounts, version_1.own)
    node = version_1.root / "memory/box/a/paceline" / JOB / NODE
    (node / "not-empty").mkdir(parents=True)
    assert not remove_job(JOB, *at)


def test_headroom_counts_pages_of_files_as_free(version_1: Machine) -> None:
    at = version_1.mounts, version_1.own
    assert memory_headroom(*at) is None, "no such files: the root group"
    memory = version_1.root / "memory/box/a"
    (memory / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (memory / "memory.usage_in_bytes").write_text("700\n")
    assert memory_headroom(*at) is None
    (memory / "memory.limit_in_bytes").write_text("1000\n")
    (memory / "memory.stat").write_text("inactive_anon 500\ninactive_file 20\nactive_file 3\n")
    assert memory_headroom(*at) == 323


def test_headroom_of_a_version_2_group(version_2: Machine) -> None:
    at = version_2.mounts, version_2.own
    group = version_2.root / "all/box"
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("400\n")
    assert memory_headroom(*at) is None
    (group / "memory.max").write_text("1000\n")
    assert memory_headroom(*at) == 600


def test_the_quota_of_a_process_is_the_tightest_of_its_groups(version_1: Machine) -> None:
    at = version_1.mounts, version_1.own
    assert cpu_quota(*at) is None, "no such files: the root group"
    (group,) = (tree.base for name, tree in find_trees(*at).items() if name == "cpu")
    for path, quota in ((group, "-1"), (group.parent, "150000")):
        (path / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (path / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(*at) == 1.5
    (group / "cpu.cfs_quota_us").write_text("25000\n")
    assert cpu_quota(*at) == 0.25


def test_the_quota_of_a_version_2_group(version_2: Machine) -> None:
    at = version_2.mounts, version_2.own
    group = version_2.root / "all/box"
    (group / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(*at) is None
    (group / "cpu.max").write_text("50000 200000\n")
    assert cpu_quota(*at) == 0.25


def test_a_process_finds_the_group_that_it_is_in(version_2: Machine) -> None:
    at = (version_2.mounts, version_2.own)
    create_node_group(JOB, NODE, 0.5, None, *at)
    assert find_node_group(JOB, NODE, *at).quota == 0.5
    inside = f"box/paceline/{JOB}/{NODE}"
    (version_2.root / "all" / inside / "cgroup.controllers").write_text("cpu\n")
    version_2.own.write_text(f"0::/{inside}\n")
    assert find_node_group(JOB, NODE, *at).quota == 0.5
    assert not find_node_group(JOB, "worker-1", *at).has_cpu


def test_a_machine_has_the_memory_that_its_groups_allow(version_2: Machine) -> None:
    at = (version_2.mounts, version_2.own)
    physical = machine_memory(*at)
    assert physical > 1 << 28
    for limit, expected in (("max", physical), (str(1 << 27), 1 << 27)):
        (version_2.root / "all/box/memory.max").write_text(limit)
        assert machine_memory(*at) == expected
