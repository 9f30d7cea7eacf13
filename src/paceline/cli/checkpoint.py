"""``paceline checkpoint``: the cuts that jobs write, listed, looked into, verified."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.base.errors import ConfigError, PermanentError
from paceline.terminal.options import CutNumber, job_ids

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.base.samples import Span
    from paceline.jobs.cuts import FoundCut, FoundCuts
    from paceline.runtime.checkpoint.contents import Contents

EXIT_BAD = 1
"""Exit code where a cut is damaged."""
MAX_RANGES = 4
"""Ranges of a line's samples that are shown; the rest is counted."""

MAX_WIDTH = 1_000

app = typer.Typer(no_args_is_help=True, help="List, inspect, verify and export a job's cuts.")

Job = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="Id, its beginning, or a path: of a job, of a folder of cuts, or of one cut; or the "
        "URL of a job's cuts. "
        "Default: the newest job.",
        autocompletion=job_ids,
    ),
]


# ---------------------------------------------------------------------------- ls


@app.command("ls")
def ls_command(job: Job = None) -> None:
    """List a job's cuts, the newest first."""
    from paceline.jobs.cuts import find_cuts

    found = find_cuts(job)
    if not found.cuts:
        print(f"{found.where} has no cut yet{found.looked}")
        return
    total, now_s = _total(found), time.time()
    right = ("cut", "step", "epoch no.", "size", "age", "files")
    names = ("cut", "step", "epoch no.", "samples in the model", "size", "age", "files")
    table = _table((*names, "where", "manifest"), right)
    for cut in found.cuts:
        table.add_row(*_cut_row(cut, total, now_s))
    _print(table)


def _cut_row(cut: "FoundCut", total: int | None, now_s: float) -> tuple[str, ...]:
    from paceline.jobs.wording import lasting, progress, size

    manifest = cut.manifest
    where = "memory" if cut.in_memory else "URL" if cut.url else "disk"
    age = lasting(now_s - cut.written_s)
    if manifest is None:
        state = "damaged" if cut.sealed else "none: unfinished, or lost"
        return (str(cut.number), "-", "-", "-", "-", age, "-", where, state)
    return (
        str(manifest.cut_no),
        f"{manifest.step:,}",
        str(manifest.epoch_no),
        progress(sum(map(len, manifest.committed)), total).removesuffix(" samples"),
        size(manifest.num_bytes),
        age,
        str(len(manifest.files)),
        where,
        "readable",
    )


def _total(found: "FoundCuts") -> int | None:
    """Samples of the whole job, where that is known."""
    from paceline.jobs.listing import current_status
    from paceline.jobs.outcome import read_outcome

    if found.job is None:
        return None
    if outcome := read_outcome(found.job.outcome):
        return outcome.total
    status = current_status(found.job)
    return status.total if status else None


# ---------------------------------------------------------------------------- show


@app.command("show")
def show_command(job: Job = None, number: CutNumber = None) -> None:
    """Show what is in one cut; `verify` compares its checksums."""
    from paceline.jobs.cuts import find_cuts
    from paceline.jobs.wording import counted, size
    from paceline.runtime.checkpoint.contents import read_contents

    found = find_cuts(job)
    cut = found.fetched(found.one(number))
    manifest = cut.readable()
    contents = read_contents(manifest, *cut.places)
    print(f"cut {manifest.cut_no} of {found.where}")
    print(f"  strategy {contents.strategy}, step {manifest.step:,}, epoch no. {manifest.epoch_no}")
    print(f"  {counted(len(manifest.files), 'file')}, {size(manifest.num_bytes)}")
    for line in committed_lines(manifest.committed):
        print(f"  {line}")
    _show_contents(contents)


def committed_lines(spans: Iterable["Span"]) -> Iterator[str]:
    """The samples in the model, a line of text per line of positions."""
    from paceline.jobs.wording import counted

    lines: dict[int, list[Span]] = {}
    for span in sorted(spans):
        lines.setdefault(span.line, []).append(span)
    if not lines:
        yield "no sample is in the model"
    for line, ranges in lines.items():
        shown = ", ".join(f"{one.start:,} to {one.stop:,}" for one in ranges[:MAX_RANGES])
        more = f" and {len(ranges) - MAX_RANGES:,} more" if len(ranges) > MAX_RANGES else ""
        count = counted(sum(map(len, ranges)), "sample")
        yield f"line {line}: {count} in {counted(len(ranges), 'range')} ({shown}{more})"


def _show_contents(contents: "Contents") -> None:
    from paceline.jobs.wording import counted, size

    if contents.tensors:
        table = _table(("tensor", "dtype", "shape", "size"), ("size",))
        for one in contents.tensors:
            shape = "x".join(map(str, one.shape)) or "-"
            table.add_row(one.name, one.dtype, shape, size(one.num_bytes))
        _print(table, heading=True)
    if contents.tables:
        names = ("table", "in the state dict", "dtype", "rows", "width", "optimizer", "size")
        table = _table(names, ("rows", "width", "size"))
        for row in contents.tables:
            rows = f"{row.num_rows:,}" + (" (grows)" if row.grows else "")
            known, width = ", ".join(row.in_state_dict), str(row.dim)
            num_bytes = size(row.num_bytes)
            table.add_row(row.name, known, row.dtype, rows, width, row.optimizer, num_bytes)
        _print(table, heading=True)
    if contents.states:
        table = _table(("optimizer state of", "kind", "arrays", "size"), ("arrays", "size"))
        for state in contents.states:
            num_bytes = size(state.num_bytes)
            table.add_row(state.owner, state.kind, f"{state.num_arrays:,}", num_bytes)
        _print(table, heading=True)
    else:
        print("\nno optimizer state")
    if contents.num_schedulers:
        print(f"and {counted(contents.num_schedulers, 'scheduler')}")


# ---------------------------------------------------------------------------- verify


@app.command("verify")
def verify_command(
    job: Job = None,
    number: CutNumber = None,
    every: Annotated[bool, typer.Option("--all", help="All cuts, not only the newest.")] = False,
) -> None:
    """Read every byte of a cut and compare checksums.

    Exit code 1: something is damaged.
    """
    from paceline.jobs.cuts import find_cuts

    if every and number is not None:
        raise ConfigError(f"verify: got --all and --cut {number}; give one of them")
    found = find_cuts(job)
    newest = found.one(number)
    bad = 0
    for cut in found.cuts if every else (newest,):
        if not cut.sealed and _is_being_written(cut, found):
            print(f"cut {cut.number}: is being written")
            continue
        try:
            bad += not _verify(found.fetched(cut))
        except PermanentError as error:
            print(f"cut {cut.number}: bad: {error}")
            bad += 1
    if bad:
        raise typer.Exit(EXIT_BAD)


def _is_being_written(cut: "FoundCut", found: "FoundCuts") -> bool:
    """Tell whether a running job may still seal it."""
    from paceline.jobs.launch import is_supervised

    newest = max((one.number for one in found.cuts if one.sealed), default=-1)
    job = found.job
    ended = job is None or job.outcome.exists() or not is_supervised(job)
    return not ended and cut.number > newest


def _verify(cut: "FoundCut") -> bool:
    """Print what is found; whether all is well."""
    from paceline.jobs.wording import counted, size
    from paceline.runtime.checkpoint.cutfile import fault

    if cut.manifest is None:
        lost = f"no manifest.json in {cut.url or cut.places[0]}: never finished, or lost"
        print(f"cut {cut.number}: bad: {cut.error if cut.sealed else lost}")
        return False
    files = cut.manifest.files
    faults = {name: fault(name, expected, *cut.places) for name, expected in files.items()}
    wrong = {name: text for name, text in faults.items() if text is not None}
    amount = f"{counted(len(files), 'file')}, {size(cut.manifest.num_bytes)}"
    if wrong and cut.gone:
        print(f"cut {cut.number}: was removed meanwhile: the job keeps its newest cuts")
        return True
    if not wrong:
        print(f"cut {cut.number}: ok ({amount})")
        return True
    print(f"cut {cut.number}: bad: {len(wrong)} of {amount}")
    for name, text in wrong.items():
        print(f"  {cut.where}/{name}: {text}")
    return False


# ---------------------------------------------------------------------------- drawing


def _table(names: Sequence[str], right: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True, justify="right" if name in right else "left")
    return table


def _print(table: "Table", *, heading: bool = False) -> None:
    from rich.console import Console

    # Names are not cut: what is too wide for the terminal goes on in its next line.
    width = Console(width=MAX_WIDTH).measure(table).maximum
    if heading:
        print()
    Console(width=width, markup=False, highlight=False, emoji=False).print(table, soft_wrap=True)
