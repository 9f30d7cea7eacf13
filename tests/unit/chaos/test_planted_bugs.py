"""Every planted bug of the chaos kit still meets what it replaces in production code."""

import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from types import ModuleType

import pytest

from tests.chaos.bugs.sitecustomize import PLANTS
from tests.chaos.hunt import BUGS, PLANTER, cases


def fresh(name: str) -> ModuleType:
    """A module of its own, with classes that nobody else uses."""
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def contents(module: ModuleType) -> dict[str, object]:
    """What a module and its classes define, by name."""
    found = dict(vars(module))
    for name, value in vars(module).items():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            found |= {f"{name}.{key}": one for key, one in vars(value).items()}
    return found


@pytest.mark.parametrize("plant", PLANTS)
def test_a_plant_replaces_what_is_there_and_adds_nothing(plant: str) -> None:
    where, apply = PLANTS[plant]
    module = fresh(where)
    before = contents(module)
    apply(module)
    after = contents(module)
    assert after.keys() == before.keys()
    assert any(after[name] is not before[name] for name in before)


def test_a_process_that_names_a_plant_runs_with_it() -> None:
    where, _ = PLANTS["ledger_not_rewound"]
    code = f"from {where} import Ledger; print(Ledger.restore.__module__)"
    path = os.pathsep.join([str(PLANTER), *sys.path])
    for plants, expected in (("", where), ("fence_ignored,ledger_not_rewound", "sitecustomize")):
        env = {**os.environ, "PYTHONPATH": path, "PACELINE_PLANTS": plants}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_all_plants_are_hunted() -> None:
    assert {name for bug in BUGS for name in (bug.name, *bug.uncovered_by)} == set(PLANTS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_has_its_50_cases(bug) -> None:  # type: ignore[no-untyped-def]
    seeds = [case.seed for case in cases(bug)]
    assert len(set(seeds)) == 50
