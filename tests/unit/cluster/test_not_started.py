"""Commands to a scheduler that was never started."""

from pathlib import Path

import pytest

from tests.unit.cli.test_one_line import paceline


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@pytest.mark.parametrize("verb", [("queue",), ("stop",), ("cancel", "x"), ("explain", "x")])
def test_a_cluster_before_its_first_start_is_asked_in_vain(verb: tuple[str, ...]) -> None:
    said = paceline("cluster", *verb)
    assert said.exit_code == 2
    assert said.stderr == (
        "paceline: the scheduler does not run; start it with `paceline cluster start`\n"
    )
