"""The command ``paceline sim``: experiments in virtual time."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from paceline.base.errors import ConfigError
from paceline.base.files import write_file

if TYPE_CHECKING:
    from paceline_experiments.stragglers.experiments import PlannedRun, Preset
    from paceline_experiments.stragglers.results import CallCosts, Results

Modes = Annotated[
    list[str] | None,
    typer.Option(help="bsp, asp or allreduce (families); again for more. Default: bsp."),
]
Sizes = Annotated[
    list[int] | None,
    typer.Option(help="Workers of each job (families); again for more. Default: 20."),
]
Families = Annotated[
    list[str] | None,
    typer.Option(help="Names of families (families); again for more. Default: all."),
]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run jobs in virtual time, with the solutions of real ones.",
)


@app.command()
def stragglers(
    preset: Annotated[str, typer.Argument(help="See --list.")] = "table3",
    *,
    list_: Annotated[bool, typer.Option("--list", help="Name the presets and leave.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="First seed. Default: the preset's.", show_default=False, min=0),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(help="Seeds from there on. Default: the preset's.", show_default=False, min=1),
    ] = None,
    solution: Annotated[
        list[str] | None,
        typer.Option(
            help="What to run: a method's label, or any solution; again for more. Default: all "
            "methods of the preset."
        ),
    ] = None,
    mode: Modes = None,
    workers: Sizes = None,
    family: Families = None,
    data: Annotated[
        Path | None, typer.Option(help="Directory of measured batch times (preset pai).")
    ] = None,
    ledger_call_us: Annotated[
        float | None,
        typer.Option(help="Measured cost of a ledger call (fig18).", show_default=False, min=0.0),
    ] = None,
    action_ms: Annotated[
        float | None,
        typer.Option(
            help="Measured wait at a switching step (fig18), beside --ledger-call-us.",
            show_default=False,
            min=0.0,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(help="Processes to run in. Default: one per CPU.", show_default=False, min=1),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the results here, as they come in.")
    ] = None,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Run only what the file of --json lacks.")
    ] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Draw the figures into this directory.")
    ] = None,
) -> None:
    """Simulate the paper's experiments on stragglers.

    A Markdown table comes to stdout.
    Nothing is computed and nothing waits: times are virtual.
    """
    from paceline_experiments.outputs import check_outputs
    from paceline_experiments.stragglers.catalogue import presets

    if list_:
        for each in presets(data or Path()).values():
            print(f"{each.name:12} {each.about}")
        return
    chosen = _preset(preset, data, _Jobs(mode or (), workers or (), family or ()))
    costs = _costs(preset, ledger_call_us, action_ms)
    check_outputs(json, plots)
    first = chosen.first_seed if seed is None else seed
    seeds = range(first, first + (repeat or chosen.repeat))
    results = _begin(chosen, json, costs, continue_=continue_)
    planned = chosen.runs(seeds, frozenset(solution or ()))
    _run(results, planned, seeds.start, processes or os.cpu_count() or 1, json)
    _show(results, json, plots)


@app.command()
def failslow(
    suite: Annotated[
        str, typer.Argument(help="prevalence, harder, quiet, tcpd, or all of them.")
    ] = "all",
    *,
    seed: Annotated[
        int, typer.Option(help="First seed. 0 to 999 are those of development.", min=0)
    ] = 1000,
    repeat: Annotated[int, typer.Option(help="Seeds from there on.", min=1)] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of it.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory of the Turing Change Point Dataset (tcpd)."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None,
) -> None:
    """Measure how well slow jobs are found from their steps' times.

    Markdown comes to stdout.
    """
    from paceline_experiments.failslow.suite_command import run_suites
    from paceline_experiments.outputs import check_outputs

    check_outputs(json, None)
    run_suites(suite, range(seed, seed + repeat), data=data, quick=quick, json=json)


class _Jobs(NamedTuple):
    """Choice of the families of patterns, and of the jobs to run them on; empty: the default."""

    modes: Sequence[str]
    workers: Sequence[int]
    families: Sequence[str]


def _preset(name: str, data: Path | None, jobs: _Jobs) -> "Preset":
    """The preset that was asked for.

    Raises:
        ConfigError: there is none, or its jobs cannot be chosen, or not so.
    """
    from paceline_experiments.stragglers.catalogue import families_preset, preset_of

    if not any(jobs):
        return preset_of(name, data)
    if name != "families":
        raise ConfigError(
            f"--mode, --workers and --family are for preset families, and {name} was given; "
            "leave them out, or run families"
        )
    return families_preset(jobs.modes or ("bsp",), jobs.workers or (20,), jobs.families)


def _costs(
    preset: str, ledger_call_us: float | None, action_ms: float | None
) -> "CallCosts | None":
    """Return what was measured of management; None: nothing.

    Raises:
        ConfigError: only half of it is given, or the preset does not ask what management takes.
    """
    from paceline_experiments.stragglers.results import CallCosts

    if preset != "fig18" and (ledger_call_us, action_ms) != (None, None):
        raise ConfigError(
            f"--ledger-call-us and --action-ms are for preset fig18, and {preset} was given; "
            "leave them out, or run fig18"
        )
    if ledger_call_us is None:
        if action_ms is not None:
            raise ConfigError(
                f"--action-ms {action_ms:g} does nothing alone; give --ledger-call-us, too"
            )
        return None
    return CallCosts(ledger_call_s=ledger_call_us / 1e6, action_s=(action_ms or 0.0) / 1e3)


def _begin(
    preset: "Preset", json: Path | None, costs: "CallCosts | None", *, continue_: bool
) -> "Results":
    """Results without any run, or those that an earlier command has left.

    Raises:
        ConfigError: the earlier command was another one, or of another version.
    """
    from paceline_experiments.outputs import circumstances
    from paceline_experiments.stragglers.command import kept
    from paceline_experiments.stragglers.results import Results

    fresh = Results(
        clock="virtual",
        preset=preset.name,
        notes=preset.notes,
        **circumstances(),
        call_costs=costs,
    )
    if not continue_:
        return fresh
    if json is None:
        raise ConfigError("--continue goes on with the file of --json; give --json, too")
    return kept(json, fresh)


def _run(
    results: "Results",
    planned: "Sequence[PlannedRun]",
    first_seed: int,
    processes: int,
    json: Path | None,
) -> None:
    """Run what the results lack; a row that is there is written at once."""
    from paceline_experiments.stragglers.experiments import run_all
    from paceline_experiments.stragglers.progress import ProgressLine
    from paceline_experiments.stragglers.results import encode

    done = {(run.scenario, run.mode, run.seed, run.method) for run in results.runs}
    lacking = [one for one in planned if (*_job(one), one.method.label) not in done]
    with ProgressLine(len(lacking)) as watch:
        for one, scenario, run in run_all(lacking, first_seed, processes):
            results.methods[one.method.label] = one.method
            results.scenarios.setdefault(scenario.name, scenario)
            results.runs.append(run)
            watch.ran(run)
            if json is not None:
                write_file(json, encode(results))


def _job(planned: "PlannedRun") -> tuple[str, str, int]:
    scenario = planned.experiment.draw(planned.seed)
    return scenario.name, scenario.mode, planned.seed


def _show(results: "Results", json: Path | None, plots: Path | None) -> None:
    from paceline_experiments.stragglers.best_other import markdown_best
    from paceline_experiments.stragglers.command import draw_into
    from paceline_experiments.stragglers.goals import goals_of, markdown_goals
    from paceline_experiments.stragglers.results import encode
    from paceline_experiments.stragglers.tables import markdown

    print(markdown(results))
    print(markdown_best(results))
    print(markdown_goals(goals_of(results)))
    if json is not None:
        write_file(json, encode(results))
    draw_into(plots, results)
