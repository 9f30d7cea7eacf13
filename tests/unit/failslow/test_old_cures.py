"""The log of a real job, written before there was one frame for decisions, is replayed by it."""

from pathlib import Path

from typer.testing import CliRunner

from paceline.cli.main import app

RECORDED = Path(__file__).parent / "recorded" / "decisions.jsonl"


def run(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", str(path)])
    return result.exit_code, result.output


def test_a_log_of_decisions_replays() -> None:
    assert run(RECORDED) == (0, "the planner: reproduces all 8 decisions of the log\n")


def test_an_act_of_another_reason_is_named(tmp_path: Path) -> None:
    changed = tmp_path / "decisions.jsonl"
    changed.write_text(RECORDED.read_text().replace("were lost", "beyond", 1))
    code, output = run(changed)
    assert code == 1
    assert "decision 1: was MICRO_BATCHES (computation: 2 s beyond" in output
    assert "differs in 1 of" in output
