"""A slice of the seeded chaos runs; ``make chaos`` runs 200."""

import pytest

from tests.chaos.run import case_of, run

SLICE = range(10)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def test_the_slice_covers_every_mode_and_role() -> None:
    cases = [case_of(seed) for seed in SLICE]
    assert {case.mode for case in cases} == {"bsp", "ssp", "asp"}
    assert {case.samples for case in cases} == {"exactly-once", "at-least-once", "at-most-once"}
    roles = {fault.role for case in cases for fault in case.faults}
    assert roles == {"worker", "server", "agent", "master", "supervisor"}


@pytest.mark.parametrize("seed", SLICE)
def test_planted_counts_hold_whatever_dies(seed: int) -> None:
    run(case_of(seed))
