"""The suites: rates as they are defined, small runs of each, and the public series."""

import os
from pathlib import Path

import numpy as np
import pytest
from paceline_experiments.failslow.scores import SuiteRow, total
from paceline_experiments.failslow.steps import Episode, JobKind, SyntheticJob, draw_job
from paceline_experiments.failslow.suite_command import run_suites
from paceline_experiments.failslow.suites import DEVELOPMENT, run_suite
from paceline_experiments.failslow.tcpd import KNOWN, run_tcpd
from typer.testing import CliRunner

from paceline.base.errors import ConfigError
from paceline.cli.main import app

VARIABLE = "PACELINE_TCPD"


def job(episode: Episode | None = None) -> SyntheticJob:
    return SyntheticJob(np.ones(100), None, episode, 0.02)


def row() -> SuiteRow:
    return SuiteRow(suite="s", kind="k", detector="d")


def test_both_definitions_of_the_rates() -> None:
    """FALCON's table: 87 false alarms of 386 healthy jobs, 22.5 %, are published as 18.39 %."""
    counted = row()
    for number in range(386):
        counted.add(job(), [50] if number < 87 else [])
    for number in range(8):
        counted.add(job(Episode(40, 60, 1.5)), [43] if number < 6 else [])
    assert counted.fpr() == pytest.approx(87 / 386)
    assert counted.fpr(published=True) == pytest.approx(0.1839, abs=1e-4)
    assert counted.fnr() == pytest.approx(2 / 8)
    assert counted.fnr(published=True) == pytest.approx(2 / 10)
    assert counted.delay(0.5) == 3.0


def test_an_alarm_outside_its_episode_makes_a_job_wrong() -> None:
    counted = row()
    counted.add(job(Episode(40, 60, 1.5)), [20, 41])
    counted.add(job(Episode(40, 60, 1.5)), [41, 65])
    assert (counted.right, counted.false_alarms, counted.missed) == (1, 1, 0)
    assert total([counted, counted], "all").jobs == 4


def test_a_drawn_job_is_slow_in_its_episode_only_and_is_drawn_again_from_its_seed() -> None:
    kind = JobKind("variable", variation=(0.1, 0.4), amounts_known=True)
    first, again = (draw_job(kind, np.random.default_rng(3), slow=True) for _ in range(2))
    assert np.array_equal(first.times_s, again.times_s)
    assert first.episode is not None
    assert 100 <= first.episode.start < first.episode.end <= 600
    assert first.facts()[5].amount == first.amounts[5]  # type: ignore[index]


def test_a_tenth_of_the_harder_suite() -> None:
    rows = list(run_suite("harder", range(DEVELOPMENT, DEVELOPMENT + 1), quick=True))
    ours, bocd, _ = (one for one in rows if one.kind == "all")
    assert (ours.jobs, ours.events) == (36, 12)
    assert ours.right == 36
    assert ours.delay(0.5) <= 5
    assert bocd.fpr() > 0.9


@pytest.mark.soak
@pytest.mark.parametrize("suite", ["prevalence", "harder", "quiet"])
def test_a_tenth_of_every_suite_reaches_its_goals(suite: str) -> None:
    done = CliRunner().invoke(app, ["sim", "failslow", suite, "--quick"])
    assert done.exit_code == 0
    assert "| yes |" in done.output
    assert "| no |" not in done.output


def test_an_unknown_suite_is_refused_with_the_names_of_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="prevalence, harder, quiet, tcpd, all"):
        run_suites("easy", range(1), data=None, quick=True, json=None)


@pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} names no directory of the TCPD's JSON files"
)
def test_known_changes_of_public_series_are_found_and_none_in_quiet_ones() -> None:
    """All but one: quality_control_4 hides its offset under periodic parts that are larger."""
    rows = run_tcpd(Path(os.environ[VARIABLE]))
    assert [one.series for one in rows] == list(KNOWN)
    assert [one.series for one in rows if not one.right] == ["quality_control_4"]


def test_a_directory_without_the_series_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quality_control_1"):
        run_tcpd(tmp_path)
