"""The verbs ``checkpoint export`` and ``verify``: a file with a receipt out, and both in.

Exporting needs torch, which the command line does not know, so a process of its own does it.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.base.errors import ConfigError, InternalError, PermanentError
from paceline.features.formats.formats import format_for, format_of
from paceline.features.formats.receipts import SUFFIX, receipt_of
from paceline.terminal.groups import LOOK, group_of
from paceline.terminal.options import CutNumber, job_ids

if TYPE_CHECKING:
    from paceline.jobs.cuts import FoundCut, FoundCuts

EXPORTER = "paceline.features.formats.process.export"
EXIT_OURS = 2
EXIT_BAD = 1
"""Exit code of `paceline verify` where a file or its receipt was changed."""


def export_command(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] OUT",
            help="The job, as elsewhere; the file to write.",
            autocompletion=lambda ctx: [] if ctx.params.get("target") else job_ids(),
        ),
    ],
    number: CutNumber = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="safetensors, torch, or a package's. Default: by OUT's suffix.",
            show_default=False,
        ),
    ] = None,
    optimizer: Annotated[
        bool,
        typer.Option(
            "--optimizer", help="Optimizers, schedulers and scalers as well (all-reduce, torch)."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
) -> None:
    """Write a verified cut's model as one file.

    Its tensors have the names of `model.state_dict()`. Beside it goes a signed
    receipt, which `paceline verify` checks.
    """
    from paceline.jobs.cuts import find_cuts
    from paceline.jobs.wording import counted, size

    if len(target) > 2:
        raise ConfigError(f"export: got {' '.join(target)!r}, expected [JOB] OUT")
    out = Path(target[-1]).absolute()
    name = file_format or format_for(out.name, out.suffix)
    _check_target(out, name, optimizer=optimizer, force=force)
    found = find_cuts(target[0] if len(target) == 2 else None)
    cut = found.fetched(found.one(number))
    cut.readable()
    receipt_of(out).unlink(missing_ok=True)  # of the file that this one replaces
    flags = ["--optimizer"] * optimizer + ["--force"] * force
    done = _run_exporter(["--format", name, *flags, "--", str(out), *map(str, cut.places)])
    what = counted(done["num_tensors"], "tensor")
    if done["num_buffers"]:
        what += f" ({done['num_buffers']} of them buffers, of the worker that was furthest)"
    if optimizer:
        what += ", optimizers, schedulers and scalers"
    print(f"{out}: {what} of cut {done['cut_no']}, step {done['step']:,}", end="")
    print(f" of {found.where} ({size(done['num_bytes'])})")
    if done["left_out"]:
        names = ", ".join(done["left_out"])
        print(f"not in it, since they never changed: {names}; the script's model has them")
    print(_give_receipt(out, name, done, found, cut))


def _give_receipt(
    out: Path, name: str, done: dict[str, Any], found: "FoundCuts", cut: "FoundCut"
) -> str:
    """Write the signed receipt of an exported file; returns a line that says so, or why not."""
    from paceline.features.formats.signing import write_signed

    try:
        write_signed(out, name, done, found, cut)
    except PermanentError as error:
        return f"no receipt: {error}"
    return f"{receipt_of(out)}: its signed receipt, which `paceline verify` checks"


def verify_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file as it was exported.")],
    receipt: Annotated[
        Path | None,
        typer.Option(
            "--receipt", metavar="FILE", help=f"Default: FILE{SUFFIX}.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="PUBLIC",
            help="Public key, or a file with one: nobody else may have signed the receipt.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check an exported model against its signed receipt.

    Exit code 1: either was changed. Needs neither the job nor torch.
    """
    from paceline.features.formats.keys import pinned
    from paceline.features.formats.proof import check

    verdict = check(file, receipt or receipt_of(file), pinned(key) if key else "")
    for line in verdict.lines:
        print(line)
    if not verdict.proven:
        raise typer.Exit(EXIT_BAD)


def _check_target(out: Path, name: str, *, optimizer: bool, force: bool) -> None:
    if format_of(name).only_tensors and optimizer:
        raise ConfigError(
            f"--optimizer: got format {name}, which holds tensors only; write a .pt file, or "
            "give --format torch"
        )
    if not out.parent.is_dir():
        raise ConfigError(f"export: there is no folder {out.parent}; make it, or name another file")
    if out.is_dir():
        raise ConfigError(f"export: {out} is a folder; name a file in it")
    if out.exists() and not force:
        raise ConfigError(f"export: {out} is there already; name another, or give --force")


def _run_exporter(arguments: Sequence[str]) -> dict[str, Any]:
    """Raises PermanentError: the cut is damaged, or does not have what was asked for."""
    import msgspec

    from paceline.base.processes import SAFE_PATH

    command = [sys.executable, *SAFE_PATH, "-m", EXPORTER, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == EXIT_OURS:
        raise PermanentError(run.stderr.strip())
    if run.returncode:
        raise InternalError(f"the export ended with exit code {run.returncode}: {run.stderr}")
    return msgspec.json.decode(run.stdout, type=dict[str, Any])


def add_to(app: typer.Typer) -> None:
    """Add the command ``export`` to ``checkpoint``, and ``verify``."""
    group_of(app, "checkpoint").command("export")(export_command)
    app.command("verify", rich_help_panel=LOOK)(verify_command)
