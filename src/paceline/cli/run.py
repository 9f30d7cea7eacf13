"""``paceline run`` and ``attach``: start a job, show it, say what became of it."""

import contextlib
import os
import sys
from collections.abc import Container
from pathlib import Path

from rich.console import Console

from paceline.backends.fitting import fitted
from paceline.base.errors import ConfigError
from paceline.base.features import call_parts, parts_of, say_failed
from paceline.base.jobdir import JobDir
from paceline.cli.live import LiveView
from paceline.cli.plain import PlainView
from paceline.cli.resume_from_url import check_unused
from paceline.cli.resume_sizes import read_sizes as read_sizes
from paceline.cli.watch import Interrupts, View, follow
from paceline.jobs.ended import EndedJob
from paceline.jobs.facts import UNREADABLE, read_facts
from paceline.jobs.ground import note_on_clear, note_on_memory
from paceline.jobs.in_words import paragraph
from paceline.jobs.launch import is_supervised, launch
from paceline.jobs.outcome import END_OF_SIGNAL, End, Outcome, code_of
from paceline.jobs.web import open_page
from paceline.jobs.wording import counted, seconds
from paceline.wire.spec import JobSpec


def start(spec: JobSpec, console: Console, log_dir: Path | None = None) -> JobDir:
    """Start a job and say so; ``log_dir`` gets a link to its logs, under the job's id."""
    if log_dir is not None:
        _make_folder(log_dir)
    spec, notes = prepared(spec)
    job = launch(spec)
    for note in notes:
        tell(console, note)
    if log_dir is not None:
        (log_dir / job.job_id).symlink_to(job.logs)
    sizes = counted(spec.workers.count, "worker")
    sizes += f", {counted(spec.num_servers, 'server')}" if spec.num_servers else ""
    script = Path(spec.script).name
    if spec.traits.trains:
        tell(console, f"job {job.job_id}: {script}, {_how(spec)}, {spec.samples}, {sizes}")
    else:
        how = f"restarted together at most {counted(spec.restart.budget, 'time')}"
        if spec.restart.window_s is not None:
            how += f" within {seconds(spec.restart.window_s)}"
        tell(console, f"job {job.job_id}: {script}, {sizes}, {how}")
    tell(console, f"logs and results: {job.path}")
    if spec.machines > 1:
        more = counted(spec.machines - 1, "other machine")
        how = "`paceline agent --join ticket`, with a copy of this file"
        tell(console, f"waits for {more}: run {how}: {job.ticket}")
    elif spec.is_on_one_machine and not spec.traits.rigid and job.ticket.exists():
        how = "`paceline agent --join ticket`, with a copy of this file"
        tell(console, f"other machines join by {how}: {job.ticket}")
    return job


def _how(spec: JobSpec) -> str:
    """The strategy with the reason for it, and the mode if there is a choice."""
    why = spec.sources.get("strategy", "")
    strategy = f"{spec.strategy} ({why})" if why else spec.strategy
    return f"{strategy}, {spec.mode}" if spec.traits.has_servers else strategy


def _make_folder(folder: Path) -> None:
    """The user's folder for logs.

    Raises:
        ConfigError: nothing can be put there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder to write to ({error.strerror}); name another"
        raise ConfigError(f"--log-dir: got {folder}, expected {expected}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--log-dir: got {folder}, expected a folder to write to; name another")


def tell(console: Console, text: str) -> None:
    """Print a line as it is, however long."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def open_view(job: JobDir, console: Console) -> View:
    """A picture on a terminal, lines elsewhere."""
    if console.is_terminal:
        return LiveView(job.job_id, console)
    return PlainView(
        job.launched_s(),
        lambda line: print(line, flush=True),
        lambda traceback: print(traceback, file=sys.stderr, flush=True),
    )


def watch(
    job: JobDir,
    console: Console,
    *,
    from_now: bool = False,
    stops: bool = True,
    others: tuple[View, ...] = (),
    web: bool = False,
) -> int:
    """Show the job to its end; the exit code for the shell.

    Args:
        job: the job.
        console: where to.
        from_now: leave out what happened before.
        stops: Ctrl-C stops the job; otherwise it ends the watching only.
        others: views that look on.
        web: show it in a browser, too.
    """
    if web:
        page = open_page(job)
        tell(console, f"page: {page.address}")
        with contextlib.closing(page):
            return watch(job, console, from_now=from_now, stops=stops, others=others)
    views = [open_view(job, console), *others]
    interrupts, shown = Interrupts(), set[str]()
    outcome = follow(job, views, interrupts, from_now=from_now, stops=stops, shown=shown)
    if outcome is not None:
        conclude(job, outcome, console, shown)
        return outcome.exit_code
    if is_supervised(job):  # a third signal, or one that ends the watching only
        asked = END_OF_SIGNAL.get(interrupts.first, End.INTERRUPTED)
        return code_of(asked if stops else End.LEFT_RUNNING)
    tell(
        console,
        f"all processes of job {job.job_id} died, and none could say why; see {job.logs}, "
        f"then go on from the newest cut with `paceline run --resume {job.job_id}`",
    )
    return code_of(End.LOST)


def await_end(job: JobDir, console: Console) -> None:
    """Wait for a job that was told to stop, and say what became of it."""
    views: list[View] = [PlainView(job.launched_s(), lambda _: None)]
    outcome = follow(job, views, Interrupts(), from_now=True, stops=False)
    if outcome is None:
        tell(console, f"job {job.job_id} is still about to end; see `paceline status`")
        return
    conclude(job, outcome, console)


def conclude(job: JobDir, outcome: Outcome, console: Console, shown: Container[str] = ()) -> None:
    """Say how the job ended: the user's own traceback first, unless it was ``shown``."""
    # A script that ends itself has said why: argparse prints how to call it.
    ends_itself = outcome.traceback.rstrip().rpartition("\n")[2].startswith("SystemExit")
    if outcome.traceback and not ends_itself and outcome.traceback not in shown:
        print(outcome.traceback.rstrip(), file=sys.stderr, flush=True)
    if outcome.error:
        print(f"paceline: {outcome.error}; logs: {job.logs}", file=sys.stderr, flush=True)
    # Whatever the job's files are like, its end stays what it was.
    try:
        facts = read_facts(job)
        told = paragraph(facts)
    except UNREADABLE as error:
        told = f"{outcome.how.capitalize()}; what the job wrote cannot be read: {error}"
        facts = None
    tell(console, told)
    if outcome.state == "stopped":
        tell(console, f"go on with `paceline run --resume {job.job_id}`")
    if facts is not None:
        call_parts("ended", EndedJob(job, facts, lambda line: tell(console, line)))


def prepared(spec: JobSpec) -> tuple[JobSpec, list[str]]:
    """Complete the spec of a job that is about to start.

    Returns:
        The spec, and what to say of it and of the machine.

    Raises:
        ConfigError: the platform is not there, the URL for cuts is in use, or a feature refuses.
    """
    if spec.checkpoint.url:
        check_unused(spec.checkpoint.url)
    spec = fitted(spec)
    notes = list(filter(None, [note_on_memory(spec), note_on_clear(spec)]))
    for name, prepare in parts_of("prepared", say_failed, spec):
        try:
            found, more = prepare(spec)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            say_failed(name, error)
            continue
        if isinstance(found, JobSpec):
            spec, notes = found, [*notes, *more]
        else:
            say_failed(name, TypeError(f"it prepares a spec to {found!r:.100}"))
    return spec, notes
