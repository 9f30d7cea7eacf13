"""One row says what a strategy is like; people and programs read the same."""

import json
from importlib import import_module
from typing import get_args

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.wire.spec import JobSpec
from paceline.wire.strategies import STRATEGIES, Mode, Strategy, those


def test_every_strategy_of_the_spec_has_a_row_and_every_row_is_one() -> None:
    assert set(STRATEGIES) == set(get_args(Strategy))
    for name, row in STRATEGIES.items():
        assert JobSpec(script="train.py", strategy=name).traits is row  # type: ignore[arg-type]
        assert set(row.modes) | set(row.deterministic) <= set(get_args(Mode))
        assert set(row.deterministic) <= set(row.modes)


@pytest.mark.parametrize("name", [name for name, row in STRATEGIES.items() if row.trains])
def test_a_strategy_that_trains_begins_where_its_row_says(name: str) -> None:
    assert callable(import_module(STRATEGIES[name].module).begin)


def test_messages_name_the_strategies_that_can() -> None:
    assert those(lambda row: row.has_servers) == "ps"
    assert those(lambda row: row.trains) == "ps, allreduce or fsdp"
    assert those(lambda row: row.lives == "in_rounds") == "fsdp or script"


def test_people_and_programs_see_the_same_rows() -> None:
    shown = CliRunner().invoke(app, ["strategies"]).output
    rows = json.loads(CliRunner().invoke(app, ["strategies", "--json"]).output)
    assert set(rows) == set(STRATEGIES)
    assert all(name in shown for name in STRATEGIES)
    assert rows["fsdp"]["lives"] == "in_rounds"
