"""The command ``paceline sim``: experiments in virtual time."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.base.errors import ConfigError

if TYPE_CHECKING:
    from paceline.sim.experiments import Preset
    from paceline.sim.results import CallCosts, Results

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
    json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Draw the figures into this directory.")
    ] = None,
) -> None:
    """Simulate the paper's experiments on stragglers; a Markdown table comes to stdout.

    Nothing is computed and nothing waits: times are virtual.
    """
    from paceline.cli.stragglers.command import check_outputs
    from paceline.sim.catalogue import preset_of, presets

    if list_:
        for each in presets(data or Path()).values():
            print(f"{each.name:12} {each.about}")
        return
    chosen = preset_of(preset, data)
    costs = _costs(preset, ledger_call_us, action_ms)
    check_outputs(json, plots)
    first = chosen.first_seed if seed is None else seed
    seeds = range(first, first + (repeat or chosen.repeat))
    results = _run(chosen, seeds, frozenset(solution or ()), processes or os.cpu_count() or 1)
    results.call_costs = costs
    _show(results, json, plots)


def _costs(
    preset: str, ledger_call_us: float | None, action_ms: float | None
) -> "CallCosts | None":
    """What was measured of management; None: nothing.

    Raises:
        ConfigError: only half of it is given, or the preset does not ask what management takes.
    """
    from paceline.sim.results import CallCosts

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


def _run(preset: "Preset", seeds: range, labels: frozenset[str], processes: int) -> "Results":
    from paceline.cli.stragglers.command import circumstances
    from paceline.cli.stragglers.progress import Watch
    from paceline.sim.experiments import run_all
    from paceline.sim.results import Results

    planned = preset.runs(seeds, labels)
    results = Results(clock="virtual", **circumstances(preset))
    with Watch(len(planned)) as watch:
        for one, scenario, run in run_all(planned, seeds.start, processes):
            results.methods[one.method.label] = one.method
            results.scenarios.setdefault(scenario.name, scenario)
            results.runs.append(run)
            watch.ran(run)
    return results


def _show(results: "Results", json: Path | None, plots: Path | None) -> None:
    from paceline.cli.stragglers.command import draw_into
    from paceline.cli.stragglers.goals import goals_of, markdown_goals
    from paceline.cli.stragglers.tables import markdown
    from paceline.sim.results import encode

    print(markdown(results))
    print(markdown_goals(goals_of(results)))
    if json is not None:
        json.write_bytes(encode(results))
    draw_into(plots, results)
