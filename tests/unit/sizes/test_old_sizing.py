"""The log of a real job, written before there was one frame for decisions, is replayed by it."""

from pathlib import Path

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
from paceline.policy.decisions.past import Decider, replay

RECORDED = Path(__file__).parent / "recorded" / "sizing.jsonl"


def run(path: Path, *args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", str(path), *args])
    return result.exit_code, result.output


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
    lines = read_sizing(RECORDED)
    log = [(Decider(line.policy, line.args), line) for line in lines]
    again = replay(log, lambda by: RESOURCES.make(*by))
    assert [[*map(brief, one.acts)] for one in again] == [[*map(brief, one.acts)] for one in lines]
    assert sum(isinstance(act, ApplyPlan) for one in again for act in one.acts) == 2
    code, output = run(RECORDED, "--solution", "none")
    assert "none: plans in 0 of 7 steps" in output
    assert code in (0, 1) and "rm: " in output


def test_the_steps_of_a_size_are_told() -> None:
    told = [text.partition(":")[0] for _, text in sentences(read_sizing(RECORDED))]
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
