"""Mistakes in a spec about checks of nodes."""

import pytest

from tests.unit.jobs.test_spec_mistakes import here, mistakes  # noqa: F401 - here is a fixture

WRONG_FILES = [
    (
        "script: train.py\nstrategy: script\npreflight: true\n",
        (
            "job.yaml:3: preflight: got true with strategy script, whose nodes are measured later, "
            "expected it with strategy ps, allreduce or fsdp only; remove it"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES)
def test_a_wrong_spec_file_gets_exactly_this_message(text: str, message: str) -> None:
    assert mistakes(text, {}) == message
