"""Processes of a job, as they are started and found."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from paceline.base.processes import (
    JOB_DIR,
    DetachedProcess,
    children_of,
    code_of_shell,
    find_job_process,
    find_job_processes,
    kill_group_quietly,
    kill_quietly,
    room_for_node,
    show_node,
    start_detached,
    start_grandchild,
)


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that a job could run: one ends with code 3, one waits."""
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    (tmp_path / "waits.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_grandchild_s_end_is_told_by_its_shell(tmp_path: Path) -> None:
    shell, _ = start_grandchild("ends", [], tmp_path, tmp_path / "log")
    assert code_of_shell(shell.wait()) == 3
    log = tmp_path / "logs" / "log"
    shell, pid = start_grandchild("waits", ["an argument"], tmp_path, log)
    while not log.read_text():
        assert psutil.pid_exists(pid)
    found = find_job_process(pid, tmp_path)
    assert found is not None
    assert found.runs("waits")
    assert found.argv[-3:] == ("-m", "waits", "an argument")
    asked = find_job_process(shell.pid, tmp_path)
    assert asked is not None
    assert not asked.runs("waits"), "it is found by its environment, and taken for no other"
    kill_quietly(pid, signal.SIGTERM)
    assert code_of_shell(shell.wait()) == -signal.SIGTERM


def test_a_grandchild_outlives_its_shell_and_prints_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    shell, pid = start_grandchild("waits", [], tmp_path, log)
    shell.kill()
    assert shell.wait() == -signal.SIGKILL
    process = psutil.Process(pid)
    try:
        while not log.read_text().endswith("\n"):  # Its two writes may be seen one by one.
            assert process.is_running()
        assert log.read_text() == "up\n"
    finally:
        process.kill()


def test_both_kinds_lead_a_session_of_their_own(tmp_path: Path) -> None:

    child = start_detached("waits", [], tmp_path, tmp_path / "log")
    shell, pid = start_grandchild("waits", [], tmp_path, tmp_path / "log")
    try:
        assert os.getsid(child.pid) == child.pid
        assert os.getsid(pid) == shell.pid
    finally:
        for one in (child.pid, pid):
            kill_quietly(one)
        child.wait()
        shell.wait()


@pytest.mark.parametrize("kill", [kill_quietly, kill_group_quietly])
@pytest.mark.parametrize("number", [-1, 0])
def test_what_is_no_process_is_not_signalled(kill: Callable[[int, int], None], number: int) -> None:
    # By 0 the caller would end with its whole group, which of a test is that of `make`.
    with pytest.raises(ValueError, match=f"got process number {number}, expected that of a proc"):
        kill(number, signal.SIGCONT)


SHOWS = r"""
import os, sys
from paceline.base.processes import show_node
assert os.environ.pop("PACELINE_NODE_ROOM")
for node in ("worker-0", "server-12"):
    if os.fork() == 0:
        show_node(node)
        os.write(1, f"{node} {os.getpid()} {os.environ.get('PACELINE_NODE')}\n".encode())
        sys.stdin.read()
        os._exit(0)
os.write(1, f"template {os.getpid()} None\n".encode())
sys.stdin.read()
"""


def test_a_fork_is_found_as_a_process_of_the_node_that_it_shows(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SHOWS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **room_for_node(), JOB_DIR: str(tmp_path)},
    ) as template:
        assert template.stdout is not None
        told = [template.stdout.readline().split() for _ in range(3)]
        nodes = {}
        for name, pid, seen in told:
            assert seen == "None", "what is shown changes nothing for the process itself"
            found = find_job_process(int(pid), tmp_path)
            assert found is not None
            nodes[name] = found.node
        assert nodes == {"worker-0": "worker-0", "server-12": "server-12", "template": ""}


OF_TWO = r"""
import os, sys
from paceline.base.processes import show_node
for node, job_dir in zip(("worker-1", "worker-2"), sys.argv[1:]):
    if os.fork() == 0:
        show_node(node, job_dir)
        os.write(1, f"{node} {os.getpid()}\n".encode())
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""


def test_a_fork_is_found_in_the_directory_of_its_own_node(tmp_path: Path) -> None:
    folders = [tmp_path / "the-longer-one", tmp_path / "other"]
    with subprocess.Popen(
        [sys.executable, "-c", OF_TWO, *map(str, folders)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **room_for_node(folders), JOB_DIR: "/nobodys"},
    ) as template:
        assert template.stdout is not None
        pids = dict(template.stdout.readline().split() for _ in folders)
        for node, folder in zip(("worker-1", "worker-2"), folders, strict=True):
            (found,) = find_job_processes(folder)
            assert (found.node, str(found.pid)) == (node, pids[node])


def test_of_processes_that_run_a_module_those_are_found_that_one_has_started() -> None:
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        assert children_of(os.getpid(), "http.server") == [child.pid]
        assert children_of(os.getpid(), "http.client") == []
        assert children_of(child.pid, "http.server") == []
        child.kill()


def test_a_process_without_room_shows_no_node() -> None:
    with pytest.raises(OSError, match=f"process {os.getpid()} has no room for worker-0"):
        show_node("worker-0")


@pytest.mark.filterwarnings("error")
def test_a_detached_process_may_be_forgotten_while_it_runs() -> None:
    child = DetachedProcess([sys.executable, "-c", "import time; time.sleep(60)"])
    pid = child.pid
    del child
    gc.collect()  # a warning would fail the test
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[0] == pid
