"""What a feature of another package tells of a job: in its last paragraph, at its end, of decisions."""

from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from tests.unit.cli.test_cli_commands import ended_job
from tests.unit.cli.test_cli_features import declared, paceline

THEIRS = """
from paceline.base.features import Feature
from paceline.jobs.sections import Section

FEATURE = Feature(
    name="energy",
    about="counts energy",
    ended="theirs:ended",
    sections="theirs:tell",
    explained="theirs:explain",
)

def explain(job, tell):
    tell([f"{job.job_id}: metered", "  twice"])
    tell(("it was warm", ("seen", "40 degrees"), ("rule", "[above] 35")))

def tell(facts, add):
    add(Section(
        "energy",
        "What it <cost>",
        line="all of it",
        columns=("node", "kWh"),
        rows=[("worker-0", "1.5")],
        note="as of the meter",
        html="<b>drawn</b>",
        sentence=f"It took {facts.committed} mWh.",
        numbers={"kwh": 1.5},
    ))

def ended(job):
    job.tell(f"{job.job.job_id} was metered, {job.facts.committed} samples")
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return ended_job(state="finished", exit_code=0, committed=500, total=500)


def test_a_feature_hears_of_the_end_and_says_a_sentence_of_it(job: JobDir, tmp_path: Path) -> None:
    shown = paceline(declared(tmp_path, THEIRS), "attach", job.job_id)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert "It took 500 mWh." in lines[0]
    assert "Nothing went wrong" not in lines[0]
    assert f"{job.job_id} was metered, 500 samples" in lines


def test_a_section_that_fails_is_left_out_and_named(job: JobDir, tmp_path: Path) -> None:
    site = declared(tmp_path, THEIRS.replace("    add(Section(", "    add(tuple("))
    shown = paceline(site, "attach", job.job_id)
    assert shown.returncode == 0
    assert "Nothing went wrong." in shown.stdout.splitlines()[0]
    (line,) = shown.stderr.splitlines()
    assert line.startswith("paceline: feature greeting is left out: ")


def test_what_a_feature_explains_has_headings_lines_and_parts(job: JobDir, tmp_path: Path) -> None:
    shown = paceline(declared(tmp_path, THEIRS), "explain", job.job_id)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        f"{job.job_id}: metered",
        "  twice",
        "",
        "it was warm",
        "         seen      40 degrees",
        "         rule      [above] 35",
    ]
