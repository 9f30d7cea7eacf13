"""Mistakes in a spec about solutions of packages."""

import importlib.metadata

import pytest

from paceline.features.stragglers.policy import registry
from paceline.features.stragglers.policy.solution import Solution
from tests.unit.jobs.test_spec_mistakes import here, mistakes  # noqa: F401 - here is a fixture

WRONG_FILES = [
    (
        "script: train.py\nsolution: best\n",
        (
            "job.yaml:2: solution: got 'best', expected one of adjust_lr, auto, backup_workers, dd, "
            "even, falcon, lb_bsp, nd, none, partial; write e.g. solution: auto"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES)
def test_a_wrong_spec_file_gets_exactly_this_message(text: str, message: str) -> None:
    assert mistakes(text, {}) == message


WRONG_FLAGS = [
    (
        {"solution": "atuo"},
        (
            "--solution: got 'atuo', expected one of adjust_lr, auto, backup_workers, dd, even, falcon, "
            "lb_bsp, nd, none, partial; did you mean auto?"
        ),
    ),
    (
        {"solution": "dd", "servers": "1"},
        (
            "--solution: got dd, which is made for all-reduce, in mode bsp, expected another one; "
            "write e.g. --solution auto"
        ),
    ),
    (
        {"solution": "nd", "solution_args.lambda": "2"},
        (
            "--set solution_args.lambda: solution nd has no parameter lambda; "
            "it has every_s, every_steps, max_pending_s, slowness"
        ),
    ),
    (
        {"solution": "none", "solution_args.slowness": "2"},
        (
            "--set solution_args.slowness: solution none has no parameter "
            "slowness; it has every_s, every_steps"
        ),
    ),
]


@pytest.mark.parametrize(("flags", "message"), WRONG_FLAGS)
def test_a_wrong_flag_gets_exactly_this_message(flags: dict[str, str], message: str) -> None:
    assert mistakes("script: train.py\n", flags) == message


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
