"""``paceline rehearse`` and ``paceline check`` on scripts that end equal, that drift, and that are refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import until

SCRIPTS = Path(__file__).with_name("jobs") / "rehearsed"
pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 280.0


class Folder:
    """A user's folder with one script, and commands that are called in it."""

    def __init__(self, path: Path, script: str) -> None:
        self.path, self.script = path / "project", f"{script}.py"
        self.path.mkdir()
        (self.path / self.script).write_text((SCRIPTS / self.script).read_text())
        self._scratch = path / "scratch"
        self._scratch.mkdir()

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of paceline."""
        own = {"TMPDIR": str(self._scratch), "PACELINE_HOME": str(self.path.parent / "home")}
        return subprocess.Popen(
            [sys.executable, "-m", "paceline", *words],
            cwd=self.path,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, verb: str, *words: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, what it says to programs, and to people; nothing may be left."""
        command = self.start(verb, self.script, "--json", *words)
        out, err = command.communicate(timeout=PATIENCE_S)
        assert command.returncode in (0, 1), err
        self.check_untouched()
        return command.returncode, json.loads(out), err

    def check_untouched(self) -> None:
        """Nothing of the rehearsal is left, and the user's folder is as it was."""
        assert list(self._scratch.glob("paceline-rehearsal-*")) == []
        assert self.processes() == []
        assert {path.name for path in self.path.iterdir()} <= {self.script, "report.html"}
        assert not (self.path.parent / "home").exists()

    def processes(self) -> list[int]:
        """Processes that run in the scratch folder."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    words = Path(f"/proc/{name}/environ").read_bytes()
                except OSError:
                    continue
                if f"PACELINE_HOME={self._scratch}".encode() in words:
                    found.append(int(name))
        return found


def states(found: dict[str, Any]) -> dict[str, str]:
    """What became of each act."""
    return {one["act"]: one["state"] for one in found["verdicts"]}


@pytest.mark.soak
def test_a_script_that_keeps_its_state_in_the_job_is_equal_in_every_act(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "equal")
    code, found, told = folder.run("rehearse", "--html", "report.html")
    assert states(found) == {
        "alone": "runs",
        "undisturbed": "equal",
        "a kill at an epoch's end": "equal",
        "a kill in mid-epoch": "equal",
        "a kill in evaluation": "equal",
        "a kill of the master": "equal",
        "a stop and a resume": "equal",
    }, told
    assert (code, found["equal"]) == (0, True)
    assert "equal: every act ended as it should" in told
    page = (folder.path / "report.html").read_text()
    assert "a kill in mid-epoch" in page
    assert "http" not in page


@pytest.mark.soak
def test_a_counter_that_decides_the_rate_is_named_with_its_line_and_the_remedy(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path, "drifting")
    line = 1 + (folder.path / folder.script).read_text().splitlines().index("        steps += 1")
    code, found, told = folder.run("rehearse", "--set", "script_state=declared")
    assert code == 1
    seen = states(found)
    assert seen["undisturbed"] == "equal", told
    assert seen["a kill in evaluation"] == "left out"
    # All-reduce itself refuses rates that differ; a job that is resumed has them all alike.
    assert seen["a kill in mid-epoch"] in ("drifts", "refused"), told
    assert seen["a stop and a resume"] == "drifts", told
    for act in found["verdicts"]:
        if act["state"] in ("drifts", "refused"):
            named = [one for one in act["findings"] if one["what"].startswith("`steps`")]
            assert [one["where"] for one in named] == [f"drifting.py:{line}"], told
            assert "job.step" in named[0]["remedy"]
    stopped = found["verdicts"][-1]["findings"]
    assert {one["kind"] for one in stopped} >= {"variable", "printed", "weights"}


@pytest.mark.soak
def test_the_same_counter_follows_where_variables_are_found(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "drifting")
    code, _, told = folder.run("rehearse")
    assert code == 0, told


@pytest.mark.soak
def test_a_life_that_comes_in_in_a_later_epoch_is_compared_with_that_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "plain")
    code, _, told = folder.run("rehearse")
    assert code == 0, told


def test_a_script_without_backward_is_refused_and_nothing_else_is_tried(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "without_backward")
    code, found, told = folder.run("rehearse")
    assert code == 1
    assert states(found) == {"alone": "refused"}
    line = 1 + (folder.path / folder.script).read_text().splitlines().index("    optimizer.step()")
    assert f"without_backward.py:{line}: " in told
    assert "call loss.backward() before it" in told


def test_check_names_what_each_strategy_refuses(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "without_backward")
    code, found, _ = folder.run("check")
    assert (code, found["passes"]) == (1, False)
    for one in found["strategies"]:
        assert one["refused"]
        assert any("loss.backward()" in message for message in one["messages"])


ADDING = """
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
"""


@pytest.mark.soak
def test_check_finds_what_servers_refuse_after_the_training(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "drifting")
    script = folder.path / folder.script
    script.write_text(script.read_text() + ADDING)
    code, found, _ = folder.run("check", "--strategy", "ps")
    ps = next(one for one in found["strategies"] if one["strategy"] == "ps")
    assert ps["refused"]
    line = 1 + script.read_text().splitlines().index(ADDING.strip())
    assert ps["places"] == [f"drifting.py:{line}"]
    assert code == 1  # asked for
    assert folder.run("check", "--strategy", "allreduce")[0] == 0


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[tuple[Folder, subprocess.Popen[str]]]:
    folder = Folder(tmp_path, "equal")
    command = folder.start("rehearse", folder.script)
    yield folder, command
    if command.poll() is None:
        command.kill()
        command.wait()


@pytest.mark.soak
def test_an_interrupt_leaves_nothing(
    interrupted: tuple[Folder, subprocess.Popen[str]],
) -> None:
    folder, command = interrupted
    # A job's processes, beside the command and `paceline run`.
    until(lambda: len(folder.processes()) >= 4, "a job of the rehearsal", 60.0)
    time.sleep(0.5)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130, (out, err)
    until(lambda: not folder.processes(), "the end of all processes", 10.0)
    folder.check_untouched()
