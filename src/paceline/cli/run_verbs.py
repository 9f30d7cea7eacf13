"""The verbs ``run`` and ``attach``: flags in, a job out."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.jobs import kept_command
from paceline.jobs.flags import OF_SPEC, of_spec, with_options
from paceline.jobs.outcome import ENDS
from paceline.terminal.options import Job, console, job_ids, parse_settings
from paceline.terminal.run_help import show_all
from paceline.terminal.torchrun import (
    TORCHRUN_FLAGS,
    as_torchrun,
    note_ignored,
    of_torchrun,
    translate,
)

Web = Annotated[bool, typer.Option("--web", help="Show it in a browser, too. Default: off.")]
AS_TORCHRUN = {"token_normalize_func": as_torchrun}
"""Settings of ``paceline run`` by which torchrun's spellings of flags are known."""


def exit_codes() -> str:
    """List the exit codes for people; an empty line begins a new one."""
    rows = (f"{'own' if row.code is None else row.code}: {row.meaning}" for row in ENDS.values())
    return "\n\n".join(("Exit codes:", *rows))


@with_options([*OF_SPEC.values(), *TORCHRUN_FLAGS])
def run(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT",
            help="A script (.py) or a job spec (.yaml); a JOB, or a URL of cuts, to resume.",
            autocompletion=lambda ctx: job_ids() if ctx.params.get("resume") else [],
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script.")
    ] = None,
    *,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set any key of a spec. Default: none."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it and return. Default: watch it.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a stopped or killed JOB. Default: off.")
    ] = False,
    web: Web = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print each setting, and start nothing. Default: off.")
    ] = False,
    help_all: Annotated[
        bool,
        typer.Option(
            "--help-all", help="Show all flags and exit.", is_eager=True, callback=show_all
        ),
    ] = False,
    **given: str | bool | None,
) -> None:
    """Run a job: `paceline run train.py --workers 4 -- --lr 0.1`."""
    del help_all  # its callback has ended the command
    if kept_command.KEPT in os.environ:  # what a platform watches should be small
        os.execv(sys.executable, [sys.executable, "-IS", kept_command.__file__, *sys.argv[1:]])
    kept_by = os.environ.pop(kept_command.NOTE, "")  # no variable of the job
    # As Ctrl-C until the job is there and watched; by default it would end the command alone.
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGUSR1, signal.default_int_handler)
    if web and detach:
        raise ConfigError(
            "--web serves while the command runs; leave --detach out, or `paceline ui`"
        )
    flags = of_spec(given) | parse_settings(settings or [])
    torchrun = of_torchrun(given)
    flags |= translate(torchrun, flags)
    if note := note_ignored(torchrun):
        print(note, file=sys.stderr)
    if resume:
        _resume(target, flags, bool(args), detach=detach, web=web, note=kept_by)
    else:
        log_dir = torchrun.get("log-dir")
        shown = {"detach": detach, "dry_run": dry_run, "web": web}
        _run(target, flags, args or [], **shown, log_dir=log_dir, note=kept_by)


def _run(
    target: str | None,
    flags: dict[str, str],
    args: list[str],
    *,
    detach: bool,
    dry_run: bool,
    web: bool,
    log_dir: str | None = None,
    note: str = "",
) -> None:
    from paceline.cli import run as running
    from paceline.jobs.spec_file import explain, resolve

    if target is None:
        raise ConfigError("nothing to run; write e.g. paceline run train.py --workers 2")
    spec = resolve(target, flags, args)
    if dry_run:
        for line in explain(spec):
            print(line)
        return
    shown = console()
    job = running.start(spec, shown, Path(log_dir) if log_dir else None)
    _write(note, job)
    if detach:
        running.tell(shown, f"it runs in the background; `paceline attach {job.job_id}` watches it")
        return
    raise typer.Exit(running.watch(job, shown, web=web))


def _resume(
    name: str | None,
    flags: dict[str, str],
    has_args: bool,
    *,
    detach: bool,
    web: bool,
    note: str = "",
) -> None:
    from paceline.backends.fitting import fitted
    from paceline.cli import run as running
    from paceline.jobs.launch import resume
    from paceline.jobs.resuming import over
    from paceline.jobs.sent import from_kept
    from paceline.wire.spec import JobSpec, load, save

    is_away = name is not None and "://" in name
    script = flags.pop("script", None) if is_away else None
    if name is not None and name.endswith((".py", ".yaml", ".yml")):
        raise ConfigError(
            f"--resume: got the script {name}, expected a JOB (`paceline status` lists them); a "
            f"--resume of the script's own follows --: paceline run {name} -- --resume"
        )
    if has_args or flags.keys() - {"workers", "servers"}:
        raise ConfigError(
            "--resume goes on with the job's own settings; leave all flags out but "
            "--workers and --servers (and, of a job at a URL, --set script=PATH)"
        )
    shown = console()
    if name is not None and is_away:
        from paceline.cli.resume_from_url import fetch_job

        def check(spec: JobSpec) -> None:
            running.read_sizes(spec, flags)

        job = fetch_job(name, check, lambda line: running.tell(shown, line), script)
    else:
        job = JobDir.find(name)
    spec = load(job.spec)
    sizes = running.read_sizes(spec, flags, job)
    if nothing := over(job, spec):
        running.tell(shown, nothing[0])
        raise typer.Exit(nothing[1])
    if (found := fitted(from_kept(job, spec))) != spec:
        save(found, job.spec)
    resume(job, sizes)
    _write(note, job)
    by_itself = not spec.traits.trains
    whence = "starts its script again" if by_itself else "goes on from its newest cut"
    running.tell(shown, f"job {job.job_id} {whence}")
    if not detach:
        raise typer.Exit(running.watch(job, shown, from_now=True, web=web))


def _write(note: str, job: JobDir) -> None:
    """Name the job to the process that keeps this command, if there is one."""
    if note:
        with suppress(OSError):
            Path(note).write_text(str(job.path))


def attach(
    job: Job = None,
    web: Web = False,
    stops: Annotated[
        bool, typer.Option("--stops", hidden=True, help="Ctrl-C stops it, as with run.")
    ] = False,
) -> None:
    """Watch a running job; Ctrl-C leaves it running."""
    from paceline.cli import run as running

    code = running.watch(JobDir.find(job), console(), from_now=True, stops=stops, web=web)
    raise typer.Exit(code)
