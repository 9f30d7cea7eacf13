"""A plain installation, without any extra: jobs run to their end, features name what they need."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.base.optional import EXTRAS
from paceline.base.processes import SAFE_PATH

ROOT = Path(__file__).parents[2]
BLOCKED = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""Makes optional libraries absent, in each process that the command starts."""


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """Environment of commands that see no optional library."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BLOCKED)
    around = {name: value for name, value in os.environ.items() if name != "PACELINE_HISTORY"}
    return {**around, "PYTHONPATH": str(site), "PACELINE_HOME": str(tmp_path / "home")}


def command(plain: dict[str, str], *args: str, timeout_s: float = 110.0) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *SAFE_PATH, *args],
        check=False,
        env=plain,
        cwd=plain["PACELINE_HOME"].removesuffix("/home"),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    return done.returncode, done.stdout + done.stderr


def paceline(plain: dict[str, str], *args: str) -> tuple[int, str]:
    return command(plain, "-m", "paceline", *args)


def test_the_libraries_are_absent(plain: dict[str, str]) -> None:
    for library in EXTRAS:
        code, said = command(plain, "-c", f"import {library}")
        assert code == 1
        assert "ModuleNotFoundError" in said


@pytest.mark.soak  # CI has a job
def test_a_script_alone_runs_to_its_end(plain: dict[str, str]) -> None:
    code, said = command(plain, str(ROOT / "examples/01_minimal.py"))
    assert (code, "largest error" in said) == (0, True), said


def test_a_job_runs_to_its_end_and_has_a_report(plain: dict[str, str]) -> None:
    script = str(ROOT / "examples/01_minimal.py")
    code, said = paceline(plain, "run", script, "--workers", "2")
    assert code == 0, said
    assert "largest error" in said
    assert said.count("paceline[sql]") == 1  # once, not by each who would read the history
    (job,) = (Path(plain["PACELINE_HOME"]) / "jobs").iterdir()
    assert "<h2>" in (job / "report.html").read_text()
    assert "Traceback" not in said
    code, said = paceline(plain, "report", job.name)
    assert code == 0, said
    assert "finished" in said
    code, said = paceline(plain, "report", job.name, "--json")
    assert code == 0, said


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["run", "t.py", "--servers", "1"], r"a model on servers needs numba.*\[servers\]"),
        (["run", "t.py", "--auto"], r"--auto needs scipy.*\[sizing\]"),
        (["history"], r"the history of jobs needs sqlalchemy.*\[sql\]"),
        (["run", "t.py", "--set", "history=sqlite:////x/h.db"], r"needs sqlalchemy.*\[sql\]"),
        (
            ["data", "make-ctr", "--rows", "9", "--out", "x"],
            r"this command needs pyarrow.*\[parquet\]",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_feature_names_its_extra_in_one_line(
    plain: dict[str, str], tmp_path: Path, args: list[str], line: str
) -> None:
    (tmp_path / "t.py").write_text("import paceline as pl\n")
    code, said = paceline(plain, *args)
    assert code == 2, said
    assert "Traceback" not in said
    assert re.search(line, said), said
    assert sum("which is not installed" in each for each in said.splitlines()) == 1


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("pl.ParquetRows('a.parquet')", "`pl.ParquetRows` needs pyarrow"),
        ("pl.CsvRows('a.csv', {'a': 'int64'})", "`pl.CsvRows` needs pyarrow"),
        ("pl.GrowingFiles('.', '*.parquet')", "a stream of Parquet files needs pyarrow"),
        ("pl.SqlTable('sqlite:///a.db', 't', 'k', {'a': 'int64'})", "`pl.SqlTable` needs"),
        (
            "import torch; m = torch.nn.Embedding(9, 2, sparse=True); job = pl.init(); "
            "job.prepare(m, torch.optim.SGD(m.parameters(), lr=0.1))",
            "a model on servers or with sparse tables needs",
        ),
    ],
)
def test_a_script_that_uses_a_feature_is_told_its_extra(
    plain: dict[str, str], code: str, line: str
) -> None:
    status, said = command(plain, "-c", f"import paceline as pl; {code}")
    assert status == 1
    last = said.splitlines()[-1]
    assert last.startswith(f"paceline.base.errors.ConfigError: {line}")
    assert "which is not installed; run `pip install 'paceline[" in last


def test_streams_of_lines_and_text_need_no_extra(plain: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    made = "pl.GrowingFiles('.').partitions(), pl.TextLines('a.jsonl').first_rows(1)"
    code, said = command(plain, "-c", f"import paceline as pl; print({made})")
    assert code == 0, said
