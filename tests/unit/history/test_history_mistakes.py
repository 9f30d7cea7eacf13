"""Mistakes in a spec about the history of jobs."""

import pytest

from tests.unit.jobs.test_spec_mistakes import here, mistakes  # noqa: F401 - here is a fixture

WRONG_FILES = [
    (
        "script: train.py\nhistory: postgresql://me:pw@db/past\n",
        (
            "job.yaml:2: history: got postgresql://me:***@db/past, expected it without a password, "
            "which would be written to files and beside the cuts; put it into ~/.pgpass or "
            "PGPASSWORD, or name the database in PACELINE_HISTORY, which is written nowhere"
        ),
    ),
    (
        "script: train.py\nhistory: postgresql://me@db/past?password=pw&sslmode=disable\n",
        (
            "job.yaml:2: history: got postgresql://me@db/past?password=***&sslmode=disable, "
            "expected it without a password, which would be written to files and beside the cuts; "
            "put it into ~/.pgpass or PGPASSWORD, or name the database in PACELINE_HISTORY, which "
            "is written nowhere"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES)
def test_a_wrong_spec_file_gets_exactly_this_message(text: str, message: str) -> None:
    assert mistakes(text, {}) == message
