"""Flags of the curves are listed under the feature's name."""

import re

from tests.unit.cli.test_run_help import told


def test_help_all_lists_flags_of_a_feature_under_its_name() -> None:
    _, text = told("--help-all")
    (panel,) = re.findall(r"─ Feature curves ─(.*?)╰", text, re.DOTALL)
    assert re.findall(r"--[a-z]+", panel) == ["--tensorboard", "--wandb", "--mlflow"]
