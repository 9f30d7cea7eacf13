"""The command ``paceline sim``: experiments in virtual time."""

import shlex
import subprocess
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from paceline.sim.experiments import Preset
    from paceline.sim.results import Results

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Jobs in virtual time, with the ledger, monitor and solutions of real ones.",
)


@app.callback()
def _sim() -> None:
    """Keep `stragglers` a subcommand while it is the only one."""


@app.command()
def stragglers(
    preset: Annotated[str, typer.Argument(help="See --list.")] = "table3",
    *,
    list_: Annotated[bool, typer.Option("--list", help="Name the presets and leave.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="First seed. Default: the preset's.", show_default=False)
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(help="Seeds from there on. Default: the preset's.", show_default=False, min=1),
    ] = None,
    solution: Annotated[
        list[str] | None,
        typer.Option(help="Methods to run, by label or solution; again for more. Default: all."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Directory of measured batch times (preset pai).")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Draw the figures into this directory.")
    ] = None,
) -> None:
    """Simulate the paper's experiments on stragglers; a Markdown table comes to stdout.

    Nothing is computed and nothing waits: times are virtual.
    """
    from paceline.sim.catalogue import preset_of, presets

    if list_:
        for each in presets(data or Path()).values():
            print(f"{each.name:10} {each.about}")
        return
    chosen = preset_of(preset, data)
    first = chosen.first_seed if seed is None else seed
    seeds = range(first, first + (repeat or chosen.repeat))
    results = _run(chosen, seeds, frozenset(solution or ()))
    _show(results, json, plots)


def _run(preset: "Preset", seeds: range, labels: frozenset[str]) -> "Results":
    from paceline.base.errors import ConfigError
    from paceline.cli.stragglers.progress import Watch
    from paceline.sim.experiments import run_all
    from paceline.sim.results import Results

    planned = preset.runs(seeds, labels)
    if not planned:
        methods = {m.label for e in preset.experiments for m in e.methods}
        raise ConfigError(
            f"preset {preset.name} has no method {', '.join(sorted(labels))}; "
            f"it has {', '.join(sorted(methods))}"
        )
    results = Results(
        clock="virtual",
        preset=preset.name,
        version=version("paceline"),
        commit=_commit(),
        command=shlex.join(["paceline", *sys.argv[1:]]),
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        notes=preset.notes,
    )
    with Watch(len(planned)) as watch:
        for one, scenario, run in run_all(planned, seeds.start):
            results.methods[one.method.label] = one.method
            results.scenarios.setdefault(scenario.name, scenario)
            results.runs.append(run)
            watch.ran(run)
    return results


def _show(results: "Results", json: Path | None, plots: Path | None) -> None:
    from paceline.cli.stragglers.figures import draw
    from paceline.cli.stragglers.tables import markdown
    from paceline.sim.results import encode

    print(markdown(results))
    if json is not None:
        json.write_bytes(encode(results))
    if plots is not None:
        for path in draw(results, plots):
            print(path, file=sys.stderr)


def _commit() -> str:
    """Of the source tree that this runs from; none: it is installed."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return "no commit"
    return done.stdout.strip() or "no commit"
