"""``paceline cluster``: a scheduler that starts jobs on the devices of this machine."""

import os
import time
from typing import Annotated, get_args

import typer
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.jobs.flags import OF_SPEC, of_spec, with_options
from paceline.terminal.groups import EXPERTS
from paceline.terminal.options import AsJson, console, parse_settings, print_json
from paceline.terminal.run_command import RunCommand
from paceline.wire.spec import ShareClass

group = typer.Typer(
    no_args_is_help=True, help="Queue jobs of several tenants for the devices of this machine."
)
ASKED: tuple[ShareClass, ...] = get_args(ShareClass)
ClusterJobName = Annotated[str, typer.Argument(metavar="JOB", help="Id, or its beginning.")]


@group.command()
def start(
    devices: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="As cpu:0,cpu:1. Default: as before, or all cores."),
    ] = None,
    tenants: Annotated[
        list[str] | None,
        typer.Option("--tenant", metavar="NAME=QUOTA", help="Who owns how many devices."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="antman, fifo, yarn_cs, or a package's.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the policy."),
    ] = None,
) -> None:
    """Start the scheduler.

    It outlives the terminal. Jobs go on without it, and it finds them.
    """
    from paceline.features.cluster.client import start_scheduler
    from paceline.features.cluster.folder import ClusterConfig, ClusterDir
    from paceline.features.cluster.policy.facts import Tenant

    folder = ClusterDir()
    known = folder.load()
    if devices is not None:
        names = tuple(devices.split(","))
    elif known is not None:
        names = known.devices
    else:
        names = tuple(f"cpu:{core}" for core in sorted(os.sched_getaffinity(0)))
    if tenants:
        owners = tuple(Tenant(*_quota(text)) for text in tenants)
    elif known is not None:
        owners = known.tenants
    else:
        owners = (Tenant("default", len(names)),)
    is_same = known is not None and policy in (None, known.policy)
    parameters = known.parameters if known is not None and is_same and not settings else {}
    config = ClusterConfig(
        devices=names,
        tenants=owners,
        policy=policy or (known.policy if known is not None else "antman"),
        parameters=parameters | parse_settings(settings or []),
    )
    start_scheduler(folder, config)
    quotas = ", ".join(f"{one.name} owns {one.quota}" for one in owners)
    print(f"the scheduler runs with {config.policy}: {', '.join(names)}; {quotas}")


def _quota(text: str) -> tuple[str, int]:
    name, equals, quota = text.partition("=")
    if not equals or not quota.isdecimal():
        raise ConfigError(f"--tenant: got {text!r}, expected NAME=QUOTA; write e.g. vision=2")
    return name, int(quota)


@group.command()
def stop() -> None:
    """End the scheduler; jobs that run go on.

    Jobs that wait do so until it is started again.
    """
    from paceline.features.cluster.client import stop_scheduler
    from paceline.features.cluster.folder import ClusterDir

    stop_scheduler(ClusterDir())
    print("the scheduler has ended; jobs go on")


@group.command(cls=RunCommand)
@with_options(list(OF_SPEC.values()))
def submit(
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A script (.py) or a job spec (.yaml).")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script.")
    ] = None,
    *,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Whose job it is.")] = "",
    one_node: Annotated[
        bool, typer.Option("--one-node", help="All of its devices are parts of one machine.")
    ] = False,
    expected: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it will run, e.g. 20m.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of a spec.")
    ] = None,
    **given: str | bool | None,
) -> None:
    """Queue a job, with the flags of `paceline run`.

    Its workers get a device each, all at once.
    """
    from paceline.backends.fitting import fitted
    from paceline.features.cluster.client import expect
    from paceline.features.cluster.folder import ClusterDir
    from paceline.features.cluster.wire import JobAccepted, SubmitJob
    from paceline.jobs.spec_file import resolve
    from paceline.jobs.spec_values import parse_ago_s
    from paceline.jobs.wording import age

    flags = of_spec(given) | parse_settings(settings or [])
    asked = flags.pop("share", "auto")
    kind = next((one for one in ASKED if one == asked), None)
    if kind is None:
        raise ConfigError(f"--share: got {asked!r}, expected one of {', '.join(ASKED)}")
    expected_s = None if expected is None else parse_ago_s(expected)
    if expected is not None and expected_s is None:
        raise ConfigError(f"--expected: got {expected!r}, expected a time; write e.g. 20m")
    spec = resolve(target, flags, args or [])
    if not spec.is_on_one_machine:
        raise ConfigError(f"--backend: got {spec.backend}, expected local: devices are its cores")
    if spec.share.every:
        got = ", ".join(spec.share.every)
        raise ConfigError(f"--device: got {got}, expected none: a grant says it")
    if spec.share.device_memory_bytes is not None:
        raise ConfigError("--device-memory: got one, expected none: a grant is of all of a device")
    call = SubmitJob(
        job_id=JobDir.fresh(spec.name).job_id,
        tenant=tenant,
        asked=kind,
        one_node=one_node,
        expected_s=expected_s,
        spec=fitted(spec),
    )
    accepted = expect(JobAccepted, ClusterDir(), call)
    wait_s = accepted.wait_s
    wait = "" if wait_s is None else f", expected to wait {age(wait_s)} for quota"
    print(f"job {accepted.job_id} is queued{wait}; see `paceline cluster queue`")


@group.command()
def queue(as_json: AsJson = False) -> None:
    """Show the jobs that wait and run, and the newest that are over."""
    from paceline.features.cluster.client import expect
    from paceline.features.cluster.folder import ClusterDir
    from paceline.features.cluster.wire import GetQueue, QueueRows
    from paceline.jobs.wording import age

    rows = expect(QueueRows, ClusterDir(), GetQueue()).rows
    if as_json:
        print_json(rows)
        return
    titles = ("job", "tenant", "class", "state", "since", "devices", "waits yet", "why")
    table = _table(titles)
    now_s = time.time()
    for row in rows:
        kind = row.asked if row.kind in ("", row.asked) else f"{row.asked}, {row.kind} now"
        wait = "-" if row.wait_s is None else age(row.wait_s)
        devices = ", ".join(row.devices) or f"({row.size})"
        since = age(now_s - row.since_s)
        table.add_row(row.job_id, row.tenant, kind, row.state, since, devices, wait, row.why)
    console().print(table)


@group.command()
def nodes(as_json: AsJson = False) -> None:
    """Show devices with their jobs, and what tenants use of quotas."""
    from paceline.features.cluster.client import expect
    from paceline.features.cluster.folder import ClusterDir
    from paceline.features.cluster.wire import DeviceRows, GetDevices

    found = expect(DeviceRows, ClusterDir(), GetDevices())
    if as_json:
        print_json(found)
        return
    table = _table(("node", "device", "load", "guaranteed", "opportunistic", "reserved for"))
    for row in found.devices:
        jobs = (row.guaranteed or "-", ", ".join(row.opportunistic) or "-", row.reserved or "-")
        table.add_row(row.node, row.device, f"{row.load:.0%}", *jobs)
    console().print(table)
    for one in found.tenants:
        print(f"{one.tenant}: {one.used} of {one.quota} devices")


@group.command()
def cancel(job: ClusterJobName) -> None:
    """Take a job out of the queue, or stop it after a last cut."""
    from paceline.features.cluster.client import ask_scheduler
    from paceline.features.cluster.folder import ClusterDir
    from paceline.features.cluster.wire import CancelJob

    ask_scheduler(ClusterDir(), CancelJob(job=job))
    print("cancelled; a running job makes a last cut first")


@group.command()
def explain(job: ClusterJobName) -> None:
    """Tell what was decided about a job, when, and why."""
    from paceline.features.cluster.client import expect
    from paceline.features.cluster.folder import ClusterDir
    from paceline.features.cluster.wire import ExplainJob, JobExplained
    from paceline.jobs.wording import clock

    found = expect(JobExplained, ClusterDir(), ExplainJob(job=job))
    print(f"job {found.job_id}")
    for line in found.lines:
        print(f"{clock(line.t - found.lines[0].t)}  {line.text}")


def _table(titles: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title)
    return table


def add_to(app: typer.Typer) -> None:
    """Add the group ``cluster``."""
    app.add_typer(group, name="cluster", rich_help_panel=EXPERTS)
