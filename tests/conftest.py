"""What tests of all kinds need."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-randomly choose the order of tests, and nothing that they compute."""
    config.option.randomly_reset_seed = False
    os.kill, os.killpg = _guarded(os.kill), _guarded(os.killpg)
    # Jobs of tests keep no history, which would take each of them half a second at its end.
    os.environ["PACELINE_HISTORY"] = "off"


def _guarded(kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Signals one process: a node without one has the number 0, which is the group of all tests."""

    def guarded(pid: int, number: int) -> None:
        assert pid > 1, f"got process number {pid}: wait until there is a process"
        kill(pid, number)

    return guarded


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests on Ray, the longest of all: nobody waits for them at the end."""
    items.sort(key=lambda item: "tests/ray/" not in item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin each test with the same layers, whatever the tests before it have drawn."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how to repeat the order, which pytest-randomly itself does not with ``-q``."""
    if config.getoption("randomly_reorganize", default=False):
        seed = config.getoption("randomly_seed")
        terminalreporter.write_line(f"to repeat the order: pytest --randomly-seed={seed}")


@pytest.fixture(autouse=True)
def _leaves_the_process_as_it_was() -> Iterator[None]:
    """Fail the test that changes the folder or the main module, and not those that come after it."""
    folder, main = Path.cwd(), sys.modules["__main__"]
    yield
    if (now := Path.cwd()) != folder:
        os.chdir(folder)
        pytest.fail(f"the test has left the working directory at {now}; use monkeypatch.chdir")
    if sys.modules["__main__"] is not main:
        sys.modules["__main__"] = main
        pytest.fail("the test has left another __main__, which processes that it spawns would run")
    if left := multiprocessing.active_children():
        for process in left:
            process.kill()
            process.join()
        pytest.fail(f"the test has left processes: {left}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB; `fill` fills it."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte free on a small disk; the file to remove."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast
