"""Whose an error is that comes up within the probe."""

from pathlib import Path

import pytest

from paceline.base.numbering import Inc
from paceline.features.failslow.call_ring import CallGroup, CallRingWriter
from paceline.runtime.probe.faults import is_of_script


def test_a_file_that_cannot_be_written_is_our_own_trouble(tmp_path: Path) -> None:
    ring = CallRingWriter(tmp_path / "calls", Inc(1))
    (tmp_path / "calls.groups").mkdir()
    with pytest.raises(OSError) as caught:
        ring.add_group(CallGroup("0", (0, 1)))
    assert not is_of_script(caught.value)


def test_what_other_code_raises_is_not() -> None:
    with pytest.raises(ValueError) as caught:
        raise ValueError("as the handler of a signal")
    assert is_of_script(caught.value)
