"""Which modules ``python -m`` finds, and what is said of the others."""

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError
from paceline.jobs.joining import check_script
from paceline.jobs.modules import module_fault
from paceline.jobs.spec_file import resolve
from paceline.wire.spec import JobSpec

RUNS = (
    "plain",
    "not-a-name",
    "pkg",
    "pkg.train",
    "pkg.sub.deep",
    "space.inner",
    "own.anything",
    "timeit",
)
DOES_NOT = ("absent", "pkg.absent", "flat.inner", "pkg.sub", "space", "pkg/train.py", "pkg..train")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *(
            "plain.py",
            "not-a-name.py",
            "flat.py",
            "pkg/__init__.py",
            "pkg/__main__.py",
            "pkg/train.py",
            "space/inner.py",
        ),
        *("pkg/sub/__init__.py", "pkg/sub/deep.py", "elsewhere/anything.py"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        is_parent = "__init__" in name or name == "flat.py"
        (tmp_path / name).write_text("" if is_parent else "raise SystemExit(7)")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text(f"__path__ = ['{tmp_path / 'elsewhere'}']")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [*RUNS, *DOES_NOT])
def test_what_python_runs_is_found_and_nothing_else(name: str, tmp_path: Path) -> None:
    assert bool(module_fault(name, str(tmp_path))) == (name in DOES_NOT)
    assert "own" not in sys.modules
    if name != "timeit":
        command = [sys.executable, "-m", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=60)
        assert (done.returncode == 7) == (name in RUNS)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pkg.trian", "script: got 'pkg.trian', no such module, expected a module that Python"),
        ("pkg/train.py", "got 'train.py', no name of a module, which is like pkg.train"),
        ("pkg.sub", "got 'pkg.sub', a package without __main__.py"),
    ],
)
def test_a_module_that_is_not_there_is_refused_before_a_job_starts(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve(name, {"run_as": "module", "strategy": "allreduce"})


def test_only_scripts_by_themselves_are_any_program() -> None:
    with pytest.raises(ConfigError, match="got 'program' with strategy allreduce"):
        resolve("bash", {"run_as": "program", "strategy": "allreduce"})


def test_a_machine_that_lacks_the_module_is_told_where_it_belongs(tmp_path: Path) -> None:
    check_script(JobSpec(script="pkg.train", run_as="module", cwd=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"the job.s module pkg\.train is not found from / on"):
        check_script(JobSpec(script="pkg.train", run_as="module", cwd=None))
