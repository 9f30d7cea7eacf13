"""The command ``paceline``: flags in, calls out. What a command does is imported when it runs."""

import contextlib
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from paceline.base.disk import describe, is_refusal
from paceline.base.errors import ConfigError, InternalError, PacelineError
from paceline.cli import checkpoint
from paceline.cli.arguments import Options, arrange, defined_in
from paceline.cli.torchrun import TORCHRUN_FLAGS, as_torchrun, note_ignored, of_torchrun, translate
from paceline.jobs.flags import OF_SPEC, of_spec, with_options
from paceline.jobs.leftovers import clear_leftovers
from paceline.jobs.outcome import ENDS, End, code_of
from paceline.studies import bench, sim
from paceline.studies.data import command as data

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.wire.client import Call

PIPE_WIDTH = 160


class _Group(TyperGroup):
    """Prints errors of ours as messages."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PacelineError as error:
            ours = " (a bug of paceline: please report it)" if _is_bug(error) else ""
            print(f"paceline: {error}{ours}", file=sys.stderr)
            raise typer.Exit(code_of(End.REFUSED)) from error
        except OSError as error:
            if not (is_refusal(error) or isinstance(error, PermissionError)):
                raise
            print(f"paceline: {describe(error, error.filename or 'a file')}", file=sys.stderr)
            raise typer.Exit(code_of(End.REFUSED)) from error
        finally:
            # Afterwards: a command that removes a job must not find it locked by its cleaner.
            with contextlib.suppress(OSError):
                clear_leftovers()


def _is_bug(error: PacelineError) -> bool:
    return isinstance(error, InternalError)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Elastic training of PyTorch models, every sample accounted for.",
)
app.add_typer(bench.app, name="bench")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(data.app, name="data")
app.add_typer(sim.app, name="sim")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"paceline {version('paceline')}")
        raise typer.Exit


@app.callback()
def paceline(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Elastic training of PyTorch models, every sample accounted for."""


def job_ids() -> list[str]:
    """For a shell that completes a JOB: the newest first."""
    from paceline.base.jobdir import JobDir

    return [job.job_id for job in reversed(JobDir.all())]


Job = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="Id, its beginning, or a path. Default: the newest.",
        autocompletion=job_ids,
    ),
]


class _Run(TyperCommand):
    """Gives the script its own words before the rest is read as flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Divide the words, and say what could be taken for the other's."""
        if not ctx.resilient_parsing:
            args, note = arrange(args, _options(self.get_params(ctx)), defined_in)
            if note:
                print(note, file=sys.stderr)
        return super().parse_args(ctx, args)


def _options(parameters: Iterable[Any]) -> Options:
    """What of a command's parameters are options."""
    options = [param for param in parameters if param.param_type_name == "option"]
    takes_value = {name: not option.is_flag for option in options for name in option.opts}
    return Options(takes_value, {name for flag in TORCHRUN_FLAGS for name in flag.names})


def _exit_codes() -> str:
    """The table of exit codes, for people; an empty line begins a new one."""
    rows = (f"{'own' if row.code is None else row.code}: {row.meaning}" for row in ENDS.values())
    return "\n\n".join(("Exit codes:", *rows))


@app.command(cls=_Run, context_settings={"token_normalize_func": as_torchrun}, epilog=_exit_codes())
@with_options([*OF_SPEC.values(), *TORCHRUN_FLAGS])
def run(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT",
            help="A script (.py) or a job spec (.yaml); a JOB, or a URL of cuts, to resume.",
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script.")
    ] = None,
    *,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of a spec.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and return.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a stopped or killed job.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print each setting and where it comes from.")
    ] = False,
    **given: str | bool | None,
) -> None:
    """Run a job: `paceline run train.py --workers 4 --servers 2 -- --lr 0.1`."""
    flags = of_spec(given) | parse_settings(settings or [])
    torchrun = of_torchrun(given)
    flags |= translate(torchrun, flags)
    if note := note_ignored(torchrun):
        print(note, file=sys.stderr)
    if resume:
        _resume(target, flags, bool(args), detach=detach)
    else:
        log_dir = torchrun.get("log-dir")
        _run(target, flags, args or [], detach=detach, dry_run=dry_run, log_dir=log_dir)


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Read ``--set KEY=VALUE``.

    Raises:
        ConfigError: no ``=``.
    """
    pairs = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ConfigError(f"--set: got {text!r}, expected KEY=VALUE; write e.g. --set seed=1")
        pairs[key] = value
    return pairs


def _run(
    target: str | None,
    flags: dict[str, str],
    args: list[str],
    *,
    detach: bool,
    dry_run: bool,
    log_dir: str | None = None,
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
    console = _console()
    job = running.start(spec, console, Path(log_dir) if log_dir else None)
    if detach:
        running.tell(console, f"it runs by itself; watch it with `paceline attach {job.job_id}`")
        return
    raise typer.Exit(running.watch(job, console))


def _resume(name: str | None, flags: dict[str, str], has_args: bool, *, detach: bool) -> None:
    from paceline.base.jobdir import JobDir
    from paceline.cli import run as running
    from paceline.jobs.launch import resume
    from paceline.jobs.resuming import over
    from paceline.wire.spec import JobSpec, load

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
    console = _console()
    if name is not None and is_away:
        from paceline.cli.resume_from_url import fetch_job

        def check(spec: JobSpec) -> None:
            running.read_sizes(spec, flags)

        job = fetch_job(name, check, lambda line: running.tell(console, line), script)
    else:
        job = JobDir.find(name)
    spec = load(job.spec)
    sizes = running.read_sizes(spec, flags)
    if nothing := over(job, spec):
        running.tell(console, nothing[0])
        raise typer.Exit(nothing[1])
    resume(job, sizes)
    by_itself = not spec.traits.trains
    whence = "starts its script again" if by_itself else "goes on from its newest cut"
    running.tell(console, f"job {job.job_id} {whence}")
    if not detach:
        raise typer.Exit(running.watch(job, console, from_now=True))


@app.command()
def attach(job: Job = None) -> None:
    """Watch a running job; Ctrl-C leaves it running."""
    from paceline.base.jobdir import JobDir
    from paceline.cli import run as running

    code = running.watch(JobDir.find(job), _console(), from_now=True, stops=False)
    raise typer.Exit(code)


AsJson = Annotated[bool, typer.Option("--json", help="For programs; its names stay.")]


@app.command()
def status(
    job: Job = None,
    observation: Annotated[
        bool, typer.Option("--observation", help="JSON: what a solution sees of it now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show all jobs, or one in detail."""
    from paceline.base.jobdir import JobDir
    from paceline.cli import show

    if observation:
        show.show_observation(JobDir.find(job))
    elif job is None:
        show.show_jobs(_console(), as_json=as_json)
    elif as_json:
        show.show_job_json(JobDir.find(job))
    else:
        show.show_job(JobDir.find(job), _console())


@app.command()
def jobs(as_json: AsJson = False) -> None:
    """Show all jobs, the oldest first."""
    from paceline.cli import show

    show.show_jobs(_console(), as_json=as_json)


@app.command()
def logs(
    job: Job = None,
    node: Annotated[
        str | None, typer.Option(help="worker-1, server-0, master, …; default: all.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", "-n", metavar="N", min=0, help="The last N lines of each log."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="T", help="What was printed in the last 10m, or since 2026-11-25T15:27."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object for each line: node, line.")
    ] = False,
) -> None:
    """Print what a job's processes have printed."""
    from paceline.base.jobdir import JobDir
    from paceline.cli.logs import LogFilter, parse_since, show_logs

    since_s = None if since is None else parse_since(since, time.time())
    wanted = LogFilter(node=node, tail=tail, since_s=since_s, as_json=as_json, follow=follow)
    show_logs(JobDir.find(job), wanted)


@app.command()
def rm(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", autocompletion=job_ids)],
) -> None:
    """Remove jobs that are over from this machine: logs, cuts, reports. They cannot be resumed."""
    from paceline.base.jobdir import JobDir
    from paceline.cli import removal

    found = {job.path: job for job in map(JobDir.find, jobs)}.values()
    removal.check_removable(found)
    for line in removal.remove_all([(job, "") for job in found], dry_run=False):
        print(line)


@app.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Over for so long, e.g. 7d or 12h.")
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Only what ended well: others can be resumed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
) -> None:
    """Remove jobs that are over, by age and end; never one of which a process lives."""
    from paceline.base.jobdir import JobDir
    from paceline.cli import removal
    from paceline.cli.listing import read_row
    from paceline.cli.logs import parse_ago_s

    older_than_s = None if older_than is None else parse_ago_s(older_than)
    if older_than is not None and older_than_s is None:
        raise ConfigError(f"--older-than: got {older_than!r}, expected a time; write e.g. 7d")
    if older_than is None and not finished:
        raise ConfigError("prune: expected --older-than TIME, --finished, or both")
    wanted = removal.Filter(older_than_s=older_than_s, finished=finished)
    rows = ((job, read_row(job)) for job in JobDir.all())
    going = removal.to_prune(rows, wanted, time.time())
    for line in removal.remove_all(going, dry_run=dry_run):
        print(line)


@app.command()
def scale(
    workers: Annotated[int, typer.Option(metavar="N", help="Workers from now on.")],
    job: Job = None,
) -> None:
    """Change the number of workers of a running job."""
    from paceline.wire.client import Scale

    job_id = _order(job, Scale(workers=workers))
    print(f"job {job_id}: {workers} workers from now on")


@app.command()
def kill(
    job: Job = None,
    worker: Annotated[int | None, typer.Option(metavar="N", help="Which worker.")] = None,
    server: Annotated[int | None, typer.Option(metavar="N", help="Which server.")] = None,
) -> None:
    """Kill a node's training process, as a crash would; it is started again."""
    from paceline.wire.client import Kill

    if (worker is None) == (server is None):
        raise ConfigError("kill: expected one of --worker N and --server N")
    node = f"server-{server}" if worker is None else f"worker-{worker}"
    job_id = _order(job, Kill(node=node))
    print(f"job {job_id}: {node} is killed and will be started again")


@app.command()
def replace(
    job: Job = None,
    worker: Annotated[int | None, typer.Option(metavar="N", help="Which worker.")] = None,
    server: Annotated[int | None, typer.Option(metavar="N", help="Which server.")] = None,
) -> None:
    """Have a fresh process take a node's place while training goes on."""
    from paceline.wire.client import Replace

    if (worker is None) == (server is None):
        raise ConfigError("replace: expected one of --worker N and --server N")
    node = f"server-{server}" if worker is None else f"worker-{worker}"
    job_id = _order(job, Replace(node=node))
    print(f"job {job_id}: {node} is being replaced")


@app.command()
def stop(
    job: Job = None,
    now: Annotated[bool, typer.Option("--now", help="At once, without a last cut.")] = False,
) -> None:
    """End a job: the workers finish their step, then one more cut."""
    from paceline.base.jobdir import JobDir
    from paceline.cli import run as running
    from paceline.wire.client import StopJob

    job_id = _order(job, StopJob(now=now))
    running.await_end(JobDir.find(job_id), _console())


@app.command()
def report(
    job: Job = None,
    html: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the page there instead.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
) -> None:
    """Print what became of a job, and draw it as a page of its own (report.html)."""
    from paceline.base.jobdir import JobDir
    from paceline.cli.report.page import write_page, write_report
    from paceline.cli.report.text import show
    from paceline.jobs.facts import read_facts

    found = JobDir.find(job)
    facts = read_facts(found)
    show(facts, _console())
    if html is None:
        write_report(facts, found)
    else:
        write_page(facts, html)
    page = html or found.report
    print(f"page: {page}")
    if open_:
        typer.launch(str(page))


@app.command()
def strategies(as_json: AsJson = False) -> None:
    """Show what each strategy is like: who holds the model, and what it allows."""
    from paceline.cli.strategies import show_strategies

    show_strategies(_console(), as_json=as_json)


@app.command()
def explain(job: Job = None) -> None:
    """Tell what was decided about a job's stragglers, why, and what came of it."""
    from paceline.base.jobdir import JobDir
    from paceline.cli.explain import explain as tell

    tell(JobDir.find(job), _console())


@app.command()
def replay(
    log: Annotated[
        str | None, typer.Argument(metavar="LOG", help="A decisions.jsonl, or a JOB.")
    ] = None,
    solution: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who is to decide. Default: the log's own.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the solution."),
    ] = None,
) -> None:
    """Make a job's decisions again, offline; exit code 1 if its own solution now differs."""
    from paceline.cli.explain import run_replay

    same = run_replay(log, solution, parse_settings(settings or []), _console())
    raise typer.Exit(0 if same else 1)


@app.command()
def agent(
    join: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the master listens.")],
    secret_file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The job's secret. Default: that of the newest job."),
    ] = None,
) -> None:
    """Add this machine to a running job as one more worker, until the job ends or Ctrl-C."""
    from paceline.cli.join import join_job

    join_job(join, secret_file)


def _order(name: str | None, call: "Call") -> str:
    """Ask the master of a job for something; the job's id.

    Raises:
        ConfigError: the job has ended, or the master refuses.
        TransientError: the master does not answer.
    """
    from paceline.base.jobdir import JobDir
    from paceline.jobs.launch import ask_running
    from paceline.wire.client import Done

    job = JobDir.find(name)
    reply = ask_running(job, call)
    if isinstance(reply, Done) and reply.error:
        raise ConfigError(f"job {job.job_id}: {reply.error}")
    return job.job_id


def _console() -> "Console":
    from rich.console import Console

    # What is piped into a file or a pager is not cut at 80 columns.
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
