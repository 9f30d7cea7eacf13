"""How a job of one process is held."""

import pytest


@pytest.fixture(params=["torch", "tables"])
def held_both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch, as a script without sparse tables is, and as one that has some."""
    if request.param == "tables":
        monkeypatch.setattr("paceline.runtime.job.is_table", lambda _: True)
