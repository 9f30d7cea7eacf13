"""Mistakes in a spec about solutions of packages."""

import importlib.metadata

import pytest

from paceline.features.stragglers.policy import registry
from paceline.features.stragglers.policy.solution import Solution
from tests.unit.jobs.test_spec_mistakes import here, mistakes  # noqa: F401 - here is a fixture


class Steady(Solution, frozen=True):
    """A solution of a user, for jobs in step."""

    modes = ("bsp",)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that declare solutions; the module of one is not there."""
    values = {"steady": f"{__name__}:Steady", "gone": "no_such_package:Solution"}
    entries = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, value, registry.GROUP) for name, value in values.items()
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", entries.select)


@pytest.mark.usefixtures("installed")
def test_a_solution_that_cannot_be_loaded_is_one_mistake_of_several() -> None:
    told = mistakes("script: train.py\nsolution: gone\nmode: bps\n", {}).splitlines()
    assert len(told) == 2
    assert told[1].startswith(
        "job.yaml:2: solution: solution gone: no_such_package:Solution cannot"
    )


@pytest.mark.usefixtures("installed")
def test_a_solution_says_in_which_modes_it_is_of_use() -> None:
    assert mistakes("script: train.py\n", {"solution": "steady", "mode": "asp"}) == (
        "--solution: got steady, which is made for jobs in mode bsp, in mode asp, expected another "
        "one; write e.g. --solution auto"
    )
