"""The backend of docs/howto/write-a-backend.md, installed as a package of somebody else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.base import backends
from tests.integration.running import install, running

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "write-a-backend.md"


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    ((group, line),) = re.findall(r'entry-points\."(.*)"\]\n(.*)\n', page)
    site = install(tmp_path / "site", "benches", code, group, line.replace('"', ""))
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def run(backend: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "paceline", "run", "train.py", "--backend", backend, "--dry-run"]
    return subprocess.run(call, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("_installed")
def test_a_job_trains_on_a_backend_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    few = ("--num-samples", "1024")
    with running(tmp_path / "out", *few, mode="bsp", backend="benches") as job:
        job.until_committed(1)
        job.check_finished()
        counted = (job.job.path / "benches").read_text().split()
    assert {"server-0", "worker-0", "worker-1"} <= {*counted}
    assert "backend = benches" in run("benches").stdout


@pytest.mark.usefixtures("_installed")
def test_a_name_that_is_not_installed_is_refused_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    done = run("slurm")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "got 'slurm', expected benches (processes that are counted), local (processes" in said
    assert "or ray (actors of a Ray cluster" in said


def test_a_backend_that_lacks_a_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = backends.installed()["ray"]._replace(needs="no_such_module")
    assert kind.lacks == "run `pip install 'paceline[ray]'`"
    monkeypatch.setattr(backends, "_loaded", lambda: {"ray": kind})
    with pytest.raises(backends.ConfigError, match="got ray, which is not installed here; run"):
        backends.part_of("ray", "opened")
