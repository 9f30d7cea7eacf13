"""What `paceline run` says at the start of a job that other machines reach."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from paceline.base.jobdir import JobDir
from paceline.cli import run as running
from paceline.wire.spec import JobSpec

ELSEWHERE = "192.0.2.7"
Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    job = JobDir(tmp_path)
    monkeypatch.setattr(running, "launch", lambda _: job)
    monkeypatch.setattr(running, "parts_of", lambda *_: [])

    def said(*, listens: bool, **fields: object) -> str:
        job.ticket.unlink(missing_ok=True)
        if listens:
            job.ticket.touch()
        out = io.StringIO()
        running.start(JobSpec(script="/train.py", **fields), Console(file=out))  # type: ignore[arg-type]
        return out.getvalue()

    return said


def test_the_file_that_other_machines_need_is_named(start: Start, tmp_path: Path) -> None:
    line = f"with a copy of this file: {tmp_path}/ticket\n"
    assert line in start(listens=True)
    assert line not in start(listens=False)
    assert line not in start(listens=True, strategy="fsdp"), "whose workers come and go together"


def test_what_gloo_sends_in_clear_is_said_before_the_job_is_named(start: Start) -> None:
    said = start(listens=True, strategy="allreduce", listen=ELSEWHERE)
    note = "in clear: sums of gradients (neither torch's gloo nor NCCL encrypts)"
    assert said.index(note) < said.index(": train.py, allreduce")
    assert note not in start(listens=True, strategy="ps", listen=ELSEWHERE)
