"""Commands about a job on another machine, as far as they differ from those about one of here."""

import msgspec
from rich.console import Console

from paceline.cli.live import worth_showing
from paceline.cli.show import NUM_EVENTS, show_running, show_running_json
from paceline.jobs.far import FarJob
from paceline.jobs.listing import row_of
from paceline.jobs.outcome import Outcome
from paceline.jobs.relaunches import count_relaunches, with_relaunches
from paceline.jobs.wording import percent, seconds
from paceline.wire.client import (
    GetStatus,
    JobFileList,
    JobFilePart,
    JobStatus,
    ListJobFiles,
    ReadJobFile,
)
from paceline.wire.events.lines import AnyEvent, decode_events

EVENTS = "events.jsonl"
MOST_EVENT_BYTES = 4 << 20
"""Most bytes of events that are fetched; of more the newest."""
WAIT_S = 10.0
"""Seconds for which a master holds its answer back while the job goes on."""


def show_far_job(job: FarJob, console: Console, *, as_json: bool = False) -> None:
    """Print a job in detail.

    Raises:
        ConfigError: the job has ended.
        TransientError: its master does not answer.
    """
    status = job.get(GetStatus(), JobStatus)
    events = _events_of(job)
    status = with_relaunches(status, count_relaunches(events))
    if as_json:
        show_running_json(row_of(job.spec, status), status, events)
    else:
        show_running(status, worth_showing(events)[-NUM_EVENTS:], console)


def _events_of(job: FarJob) -> list[AnyEvent]:
    listed = job.get(ListJobFiles(), JobFileList)
    size = next((file.size_bytes for file in listed.files if file.name == EVENTS), 0)
    first = at = max(0, size - MOST_EVENT_BYTES)
    data = b""
    while at < size:
        part = job.get(ReadJobFile(name=EVENTS, start=at, num_bytes=size - at), JobFilePart)
        if not part.data:
            break
        data, at = data + part.data, at + len(part.data)
    lines = data.split(b"\n")[:-1]
    return decode_events(lines[1:] if first else lines)


def await_far_end(job: FarJob, console: Console) -> None:
    """Wait for a job that was told to stop, and say what became of it."""
    while (news := job.follow({}, every=False, wait_s=WAIT_S)) is not None:
        if news.outcome:
            _tell(console, _said(job.job_id, news.outcome))
            return
    _tell(console, f"job {job.job_id}: its master at {job.address} does not answer any more")


def _said(job_id: str, text: str) -> str:
    """Say how a job has ended, of its ``outcome.json``."""
    try:
        outcome = msgspec.json.decode(text, type=Outcome)
    except msgspec.DecodeError:
        return f"job {job_id} has ended"
    said = f"job {job_id}: {outcome.how} after {seconds(outcome.jct_s)}, exit code "
    said += str(outcome.exit_code)
    if outcome.total:
        said += f", {percent(outcome.committed, outcome.total)} of the samples in the model"
    if outcome.error:
        said += f": {outcome.error}"
    if outcome.state != "finished":
        said += f"; `paceline run --resume {job_id}` on its machine goes on"
    return said


def _tell(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
