"""What the oracle of models accepts, and what its cases are."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.chaos import models
from tests.chaos.models import HOLD, Recipe, case_of, check_finals
from tests.chaos.moments import WHATS

SERVERS, GROUP = Recipe("ps", 2, ()), Recipe("allreduce", 2, ())


def final(path: Path, weight: float, seen: float = 2.0) -> dict[str, np.ndarray]:
    """What a life of a worker has written at its end."""
    held = {"seen": np.full(8, 2.0), "net": np.array([-3.0, 1.0])}
    held["seen"][3], held["net"][1] = seen, weight
    save_file(held, path)
    return held


@pytest.mark.parametrize(
    ("recipe", "weight", "seen", "said"),
    [
        (SERVERS, 1.0 + 1e-11, 2.0, ""),
        (SERVERS, 1.0 + 1e-9, 2.0, r"w\.1\.final is 3\.3e-10 from the undisturbed model in net"),
        (SERVERS, float("nan"), 2.0, "nan from the undisturbed model in net"),
        (SERVERS, 1.0, 1.0, r"samples \[3\] count \[1\.\] times"),
        (GROUP, 1.0, 2.0, ""),
        (GROUP, 1.0 + 1e-15, 2.0, "from the undisturbed model in net, allowed 0"),
    ],
    ids=["another order", "too far", "no number", "a sample lacks", "same bits", "other bits"],
)
def test_a_model_at_the_end(
    tmp_path: Path, recipe: Recipe, weight: float, seen: float, said: str
) -> None:
    wanted = final(tmp_path / "w.0.final", 1.0)
    final(tmp_path / "w.1.final", weight, seen)
    if not said:
        check_finals(tmp_path, recipe, wanted, "seed 0")
        return
    with pytest.raises(AssertionError, match=said):
        check_finals(tmp_path, recipe, wanted, "seed 0")


def test_a_job_without_an_end_is_none(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nobody came to the end"):
        check_finals(tmp_path, GROUP, {}, "seed 0")


def test_a_case_is_a_function_of_its_seed_and_takes_what_holds() -> None:
    cases = [case_of(seed) for seed in range(40)]
    assert cases == [case_of(seed) for seed in range(40)]
    assert {(one.recipe.strategy, one.recipe.ingredients) for one in cases} == {*HOLD.items()}
    assert case_of(1, "ps", ("schedule",)).recipe.ingredients == ("schedule",)


def test_100_seeds_kill_workers_servers_and_masters_at_every_moment() -> None:
    cases = [case_of(seed) for seed in range(100)]
    done = {
        (case.recipe.strategy, fault.role, fault.kind) for case in cases for fault in case.faults
    }
    assert {
        *((strategy, role, "kill") for strategy in HOLD for role in ("worker", "agent", "master")),
        ("ps", "server", "kill"),
        ("ps", "server", "replace"),
    } <= done
    assert {moment.what for case in cases for moment in case.moments} == {*WHATS}
    assert {*HOLD} == {*models.STRATEGIES}
