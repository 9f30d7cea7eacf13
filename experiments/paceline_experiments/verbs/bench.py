"""The command ``paceline bench``: experiments with real jobs on this machine."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.base.files import write_file

if TYPE_CHECKING:
    from paceline_experiments.stragglers.emulations import Emulations
    from paceline_experiments.stragglers.experiments import Preset
    from paceline_experiments.stragglers.results import Run

QUICK_HEALTHY_S = 10.0
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run experiments with real jobs on this machine.",
)


@app.callback()
def _end_in_order() -> None:
    # The jobs of a command that is ended are ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@app.command()
def stragglers(
    preset: Annotated[str, typer.Argument(help="See --list.")] = "worst",
    *,
    list_: Annotated[bool, typer.Option("--list", help="Name the presets and leave.")] = False,
    seed: Annotated[int, typer.Option(help="First seed.", min=0)] = 0,
    repeat: Annotated[int, typer.Option(help="Seeds from there on.", min=1)] = 1,
    solution: Annotated[
        list[str] | None,
        typer.Option(
            help="What to run: a method's label, or any solution; again for more. Default: all "
            "methods of the preset."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that train.", min=2)] = 20,
    servers: Annotated[int, typer.Option(help="Processes that hold the model.", min=1)] = 8,
    time_scale: Annotated[
        float, typer.Option(help="A second of a step of the paper's.", min=0.001, max=1.0)
    ] = 0.1,
    step_scale: Annotated[
        float, typer.Option(help="An iteration of the paper's.", min=0.01, max=1.0)
    ] = 0.1,
    json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Draw the figures into this directory.")
    ] = None,
) -> None:
    """Run the paper's experiments on stragglers as real jobs.

    Markdown tables come to stdout.
    Master, agents, workers, servers and messages are real. Computation is emulated by calibrated
    sleeps, so that many workers fit on few cores.
    """
    from paceline_experiments.outputs import check_outputs
    from paceline_experiments.stragglers.presets import ScaleFactors
    from paceline_experiments.stragglers.scaled import Size, preset_of, presets

    size = Size(
        workers=workers, servers=servers, scale=ScaleFactors(time=time_scale, steps=step_scale)
    )
    if list_:
        for each in presets(size).values():
            print(f"{each.name:10} {each.about}")
        return
    chosen = preset_of(preset, size)
    check_outputs(json, plots)
    results = _run(chosen, range(seed, seed + repeat), frozenset(solution or ()), json)
    _show(results, json, plots)


@app.command()
def failslow(
    case: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    *,
    trials: Annotated[int, typer.Option(help="Jobs of each case.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="First seed.", min=0)] = 1000,
    healthy_s: Annotated[
        float, typer.Option(help="Seconds that a healthy job is left alone.", min=0)
    ] = 1200.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="One job of each case, and no goals.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
) -> None:
    """Make ranks and links slow, and see whether the job names them.

    Eight ranks of a script for torchrun train in 2 x 2 x 2 over gloo, in network namespaces of
    their own. Ranks sleep or have a quota of processor time; links have a token bucket. Rank,
    strength and moment come from the seed; the verdict is read from the job's events.
    """
    from paceline_experiments.failslow.trial_command import (
        markdown_trial_goals,
        markdown_trials,
        run_trials,
    )
    from paceline_experiments.outputs import check_outputs

    check_outputs(json, None)
    seeds = range(seed, seed + (1 if quick else trials))
    healthy_s = min(healthy_s, QUICK_HEALTHY_S) if quick else healthy_s
    results = run_trials(case or [], seeds, healthy_s=healthy_s, json=json)
    print(markdown_trials(results))
    if not quick:
        print("", markdown_trial_goals(results), sep="\n")


def _run(preset: "Preset", seeds: range, labels: frozenset[str], json: Path | None) -> "Emulations":
    """Run all; the file has the runs so far whenever one is over."""
    from paceline_experiments.outputs import circumstances
    from paceline_experiments.stragglers.emulations import Emulations, emulate
    from paceline_experiments.stragglers.progress import ProgressLine
    from paceline_experiments.stragglers.results import encode

    planned = preset.runs(seeds, labels)
    results = Emulations(
        clock="emulated", preset=preset.name, notes=preset.notes, **circumstances()
    )
    with ProgressLine(len(planned)) as watch:

        def ran(run: "Run") -> None:
            watch.ran(run)
            if json is not None:
                write_file(json, encode(results))

        emulate(results, planned, ran)
    return results


def _show(results: "Emulations", json: Path | None, plots: Path | None) -> None:
    from paceline_experiments.stragglers.beside import goals_beside, markdown_beside
    from paceline_experiments.stragglers.command import draw_into
    from paceline_experiments.stragglers.goals import goals_of, markdown_goals
    from paceline_experiments.stragglers.results import encode
    from paceline_experiments.stragglers.tables import markdown

    print(markdown(results))
    print(markdown_beside(results))
    print(markdown_goals([*goals_of(results), *goals_beside(results)]))
    if json is not None:
        write_file(json, encode(results))
    draw_into(plots, results)
