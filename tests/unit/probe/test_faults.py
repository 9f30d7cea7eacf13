"""Whose an error is that comes up within the probe."""

from pathlib import Path

import pytest

from paceline.base.files import write_file
from paceline.runtime.probe.faults import is_of_script


def test_a_file_that_cannot_be_written_is_our_own_trouble(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    with pytest.raises(OSError) as caught:
        write_file(tmp_path / "calls", b"")
    assert not is_of_script(caught.value)


def test_what_other_code_raises_is_not() -> None:
    with pytest.raises(ValueError) as caught:
        raise ValueError("as the handler of a signal")
    assert is_of_script(caught.value)
