"""Which processes have curves."""

from pathlib import Path

from paceline.features.curves.process import make
from tests.unit.runtime.test_process_parts import here_of


def test_scripts_that_train_by_themselves_have_no_curves(tmp_path: Path) -> None:
    assert make(here_of(tmp_path)) is not None
    assert make(here_of(tmp_path, "script")) is None
