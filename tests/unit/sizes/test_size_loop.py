"""The loop that looks for a size asks its policy, writes what it answered, and drops what is late."""

from pathlib import Path

from paceline.features.sizes.log import read_sizing
from paceline.features.sizes.loop import LATE_S, SizeLoop
from paceline.features.sizes.policy.plan import Hold
from paceline.features.sizes.policy.steering_state import SteeringRules
from tests.unit.sizes.sizing import observation


def size_loop(log: Path) -> SizeLoop:
    return SizeLoop("none", {}, SteeringRules(), log, lambda: 1e9)


def test_a_step_of_the_size_loop_is_written_and_a_torn_log_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "sizing.jsonl"
    log.write_bytes(b'{"t":1.0,"poli')
    loop = size_loop(log)
    told = [Hold(cause="not_asked"), *[Hold(cause="asked_recently")] * 2]
    for hold in told:
        no, decide = loop.ask(observation(), 0.0)
        assert loop.answered(no, decide()) == (hold,)
    lines = read_sizing(log)
    assert [line.acts for line in lines] == [(hold,) for hold in told[:2]], "each cause once"
    assert {(line.t, line.policy) for line in lines} == {(1e9, "none")}


def test_a_plan_that_comes_late_changes_nothing(tmp_path: Path) -> None:
    loop = size_loop(tmp_path / "sizing.jsonl")
    no, decide = loop.ask(observation(), 0.0)
    assert loop.question.missed(LATE_S) == no
    state = loop.state
    assert loop.answered(no, decide()) == () and loop.state is state
    assert read_sizing(tmp_path / "sizing.jsonl") == []
    assert not loop.question.is_open
