"""Logs of real jobs, written before there was one frame for them, are read and replayed by it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.features.sizes.log import read_sizing, sentences
from paceline.features.sizes.policy.registry import RESOURCES
from paceline.features.sizes.policy.steering_state import (
    AnySteeringAct,
    ApplyPlan,
    JudgePlan,
    TakeBack,
)
from paceline.features.stragglers.stories import read_log, stories
from paceline.policy.decisions.past import Decider, replay

RECORDED = Path(__file__).parent / "recorded"


def run(path: Path, *args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", str(path), *args])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("stragglers", "nd: reproduces all 4 decisions of the log\n"),
        ("cures", "the planner: reproduces all 8 decisions of the log\n"),
    ],
)
def test_a_log_of_decisions_replays(name: str, told: str) -> None:
    assert run(RECORDED / f"{name}.jsonl") == (0, told)


@pytest.mark.parametrize(
    ("name", "then", "now"),
    [
        ("stragglers", "over L_per", "decision 6: was KILL_RESTART worker-1 (0.123 s beyond"),
        ("cures", "were lost", "decision 1: was MICRO_BATCHES (computation: 2 s beyond"),
    ],
)
def test_an_act_of_another_reason_is_named(tmp_path: Path, name: str, then: str, now: str) -> None:
    changed = tmp_path / "decisions.jsonl"
    changed.write_text((RECORDED / f"{name}.jsonl").read_text().replace(then, "beyond", 1))
    code, output = run(changed)
    assert code == 1
    assert now in output and "differs in 1 of" in output


def test_what_came_of_an_act_is_told_with_it() -> None:
    told = stories(read_log(RECORDED / "stragglers.jsonl"))
    assert [story.no for story in told] == [6, 7, 22]
    restart, refused, _ = told
    assert restart.became.startswith("in effect after") and "cured" in restart.outcome
    assert refused.became.startswith("not carried out: worker-1 is being restarted already")


def brief(act: AnySteeringAct) -> str:
    """An act to as many digits as people see: fits differ in the last ones from CPU to CPU."""
    match act:
        case ApplyPlan(plan=plan, origin=origin):
            return plan.describe(origin)
        case JudgePlan(verdict=verdict):
            return verdict
        case TakeBack():
            return "back"
        case _:
            return act.describe()


def test_a_log_of_sizes_replays() -> None:
    lines = read_sizing(RECORDED / "sizes.jsonl")
    log = [(Decider(line.policy, line.args), line) for line in lines]
    again = replay(log, lambda by: RESOURCES.make(*by))
    assert [[*map(brief, one.acts)] for one in again] == [[*map(brief, one.acts)] for one in lines]
    assert sum(isinstance(act, ApplyPlan) for one in again for act in one.acts) == 2
    code, output = run(RECORDED / "sizes.jsonl", "--solution", "none")
    assert "none: plans in 0 of 7 steps" in output
    assert code in (0, 1) and "rm: " in output


def test_the_steps_of_a_size_are_told() -> None:
    told = [text.partition(":")[0] for _, text in sentences(read_sizing(RECORDED / "sizes.jsonl"))]
    assert told == [
        "kept",
        "kept",
        "planned",
        "in effect",
        "kept",
        "measured",
        "planned",
        "in effect",
    ]
