"""The log of a real job, written before there was one frame for decisions, is replayed by it."""

from pathlib import Path

from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.features.stragglers.stories import read_log, stories

RECORDED = Path(__file__).parent / "recorded" / "decisions.jsonl"


def run(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", str(path)])
    return result.exit_code, result.output


def test_a_log_of_decisions_replays() -> None:
    assert run(RECORDED) == (0, "nd: reproduces all 4 decisions of the log\n")


def test_an_act_of_another_reason_is_named(tmp_path: Path) -> None:
    changed = tmp_path / "decisions.jsonl"
    changed.write_text(RECORDED.read_text().replace("over L_per", "beyond", 1))
    code, output = run(changed)
    assert code == 1
    assert "decision 6: was KILL_RESTART worker-1 (0.123 s beyond" in output
    assert "differs in 1 of" in output


def test_what_came_of_an_act_is_told_with_it() -> None:
    told = stories(read_log(RECORDED))
    assert [story.no for story in told] == [6, 7, 22]
    restart, refused, _ = told
    assert restart.became.startswith("in effect after") and "cured" in restart.outcome
    assert refused.became.startswith("not carried out: worker-1 is being restarted already")
