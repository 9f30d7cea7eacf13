"""Presets, their fit to the paper's BSP column, steering, and what is shown of results."""

import gzip
import importlib.metadata
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from paceline_experiments.sim.costs import Traffic
from paceline_experiments.sim.outcome import SimOutcome
from paceline_experiments.sim.patterns import Ladder
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.sim.steering import Steering
from paceline_experiments.stragglers import families, pai, paper, production, scaled
from paceline_experiments.stragglers.catalogue import (
    OF_FAMILIES,
    always,
    families_preset,
    preset_of,
    presets,
)
from paceline_experiments.stragglers.clairvoyant import clairvoyant_s
from paceline_experiments.stragglers.experiments import Experiment, Preset, run_all, simulate
from paceline_experiments.stragglers.figures import draw
from paceline_experiments.stragglers.methods import (
    AUTO,
    BLIND,
    BSP,
    DD,
    DDP,
    LB_BSP,
    ND,
    ND_OWN,
    OVER_TIME,
    lengths_of,
    solution_of,
)
from paceline_experiments.stragglers.presets import (
    INTENSITIES,
    MOBILENET_REDUCE,
    RESNET_REDUCE,
    ScaleFactors,
    dedicated,
    server_straggler,
    worker_stragglers,
)
from paceline_experiments.stragglers.results import Method, Results, decode, encode
from paceline_experiments.stragglers.tables import markdown
from typer.testing import CliRunner

from paceline.base.errors import ConfigError
from paceline.cli.main import app
from paceline.features.stragglers.policy import registry
from paceline.features.stragglers.policy.registry import solution
from paceline.features.stragglers.policy.solution import Solution
from paceline.policy.actions import AnyAction, KillRestart
from paceline.policy.observation import Observation
from paceline.policy.stats.history import PAPER, Lengths
from tests.simulated import NOISY, changed

SCALED = ScaleFactors(time=0.1, steps=0.1)


# ------------------------------------------------------------------------- the paper's jobs


@pytest.mark.soak
@pytest.mark.parametrize("intensity", INTENSITIES)
@pytest.mark.parametrize("kind", [worker_stragglers, server_straggler])
def test_bsp_is_within_15_percent_of_table_3(kind: object, intensity: float) -> None:
    scenario = changed(kind(intensity, "bsp"), report_every=10)
    jcts_s = [simulate(scenario, BSP, seed).outcome.jct_s for seed in range(2)]
    assert np.mean(jcts_s) == pytest.approx(paper.JCT_S[scenario.name, "BSP"], rel=0.15)


@pytest.mark.soak
def test_a_scaled_job_is_the_papers_with_a_hundredth_of_its_time() -> None:
    full, small = (worker_stragglers(0.5, "bsp", scale) for scale in (ScaleFactors(), SCALED))
    assert (full.num_steps, small.num_steps) == (1_650, 165)
    assert small.recovery.worker.start_s == pytest.approx(full.recovery.worker.start_s / 100)
    full_s, small_s = (simulate(each, BSP, 1).outcome.jct_s for each in (full, small))
    assert small_s == pytest.approx(full_s / 100, rel=0.02)


def test_windows_and_periods_of_the_paper_follow_the_scale() -> None:
    scenario = worker_stragglers(0.5, "bsp", SCALED)
    assert lengths_of(ND, worker_stragglers(0.5, "bsp")) == PAPER
    assert lengths_of(ND, scenario).long_s == pytest.approx(6.0)
    assert solution_of(ND, scenario).every_s == pytest.approx(3.0)
    assert lengths_of(ND_OWN, scenario).long_iterations == Lengths().long_iterations


@pytest.mark.soak
def test_the_homepage_job_takes_27_8_hours_under_bsp() -> None:
    # A hundredth of its length; a day's transient stragglers average out.
    jcts_s = [
        simulate(production.homepage("bsp", 0.01), BSP, seed).outcome.jct_s for seed in range(3)
    ]
    assert 100 * np.mean(jcts_s) / 3600 == pytest.approx(27.8, rel=0.05)


def test_the_stated_share_of_the_fleet_straggles() -> None:
    jobs = [production.fleet("bsp", seed) for seed in range(300)]
    share = np.mean([bool(job.patterns) for job in jobs])
    assert share == pytest.approx(production.STRAGGLING, abs=0.07)
    assert len({job.workers for job in jobs}) > 2


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_family_is_drawn_by_its_seed(family: str) -> None:
    drawn = [families.draw(family, "bsp", 20, seed) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] or family == "undisturbed"


def test_a_familys_draws_stay_what_they_were() -> None:
    # Measured results name their seeds: a family that is added must not move another's draws.
    (pattern,) = families.draw("ladder", "bsp", 20, 6_000).patterns
    assert isinstance(pattern, Ladder)
    assert (pattern.nodes, pattern.rungs) == ((5, 3, 13), 6)
    assert pattern.start == pytest.approx(330.6715949658341)


@pytest.mark.parametrize("mode", OF_FAMILIES)
@pytest.mark.parametrize("workers", [2, 4, 100])
def test_a_family_is_drawn_for_any_mode_and_size(mode: str, workers: int) -> None:
    assert families.names(mode)
    for family in families.names(mode):
        scenario = families.draw(family, mode, workers, 1)
        nodes = {"worker": workers, "server": scenario.servers}
        for pattern in scenario.patterns:
            slow = getattr(pattern, "nodes", ())
            assert set(slow) <= set(range(nodes[pattern.role]))
            # At any time somebody is as fast as usual; in a rolling burst all have their turn.
            assert len(slow) < workers or family == "rolling"
        assert families.family_of(scenario.name) == family
        assert scenario.local_batch == 4_096


def test_jobs_with_all_reduce_have_no_families_of_servers() -> None:
    assert set(families.names("bsp")) - set(families.names("allreduce")) == families.OF_SERVERS
    draws = [families.draw("constant", "allreduce", 20, seed) for seed in range(30)]
    assert {pattern.role for job in draws for pattern in job.patterns} == {"worker"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((("bsp",), (20,), ("lader",)), "no family 'lader'; there are constant, .*outliers"),
        ((("ssp",), (20,), ()), "no mode 'ssp'; families have bsp, asp, allreduce"),
        ((("allreduce",), (20,), ("server",)), "no servers, and so no family server; choose"),
    ],
)
def test_families_that_cannot_be_run_are_refused(
    options: tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        families_preset(*options)


def test_a_job_of_one_worker_has_no_straggler() -> None:
    with pytest.raises(ConfigError, match=r"--workers 1: .* give 2 workers or more"):
        families_preset(sizes=(1,))


# ------------------------------------------------------------------------- measured times


def write_trace(directory: Path, rows: str) -> None:
    with gzip.open(directory / "job_1_norm.csv.gz", "wt") as file:
        file.write(",worker,gpu,time,batch_time_norm\n" + rows)


def test_a_trace_is_read_as_slowdowns_of_the_fastest_worker(tmp_path: Path) -> None:
    write_trace(
        tmp_path, "0,0,25,1,200\n1,1,25,1,500\n2,0,25,11,200\n3,0,25,21,200\n4,1,25,21,700\n"
    )
    assert pai.read(tmp_path / "job_1_norm.csv.gz").tolist() == [[1, 1, 1], [2.5, 2.5, 3.5]]


def test_a_worker_that_is_seen_late_is_taken_to_have_begun_so(tmp_path: Path) -> None:
    write_trace(tmp_path, "0,0,25,1,100\n1,0,25,11,100\n2,1,25,11,300\n")
    assert pai.read(tmp_path / "job_1_norm.csv.gz")[1].tolist() == [3, 3]


def test_every_node_of_a_traced_job_is_as_slow_as_measured(tmp_path: Path) -> None:
    write_trace(tmp_path, "0,0,25,1,100\n1,1,25,1,300\n")
    scenario = pai.draw(tmp_path, 1, "bsp", seed=0)
    assert scenario.workers == 2
    outcome = simulate(scenario, BSP, 0).outcome
    assert outcome.jct_s / scenario.num_steps == pytest.approx(3 * 2.05, rel=0.05)


def test_what_is_no_trace_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job_1_norm\.csv\.gz is not there"):
        pai.read(tmp_path / "job_1_norm.csv.gz")
    path = tmp_path / "job_1_norm.csv.gz"
    write_trace(tmp_path, "0,0,25,1,100\n" * 1_000)
    whole = path.read_bytes()
    garbled = whole[:20] + bytes(byte ^ 255 for byte in whole[20:])
    write_trace(tmp_path, "")
    header = path.read_bytes()
    for content in (b"no gzip", whole[:-20], garbled, header):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"job_1_norm\.csv\.gz is no trace of mini-batch"):
            pai.read(path)


def test_every_trace_is_read_before_the_first_job(tmp_path: Path) -> None:
    write_trace(tmp_path, "0,0,25,1,100\n")
    with pytest.raises(ConfigError, match=r"job_2_norm\.csv\.gz is not there; --data names"):
        preset_of("pai", tmp_path)


# ------------------------------------------------------------------------- steering


def restarted(outcome: SimOutcome) -> list[str]:
    return [each.node for each in outcome.acted if each.action == "KillRestart"]


def test_solutions_find_and_cure_a_simulated_straggler() -> None:
    scenario = server_straggler(0.8, "bsp", SCALED)
    plain = simulate(scenario, BSP, 0).outcome
    cured = simulate(scenario, AUTO, 0).outcome
    # Shares may be evened out by some percent besides.
    assert restarted(cured) == ["server-3"]
    assert cured.jct_s < 0.55 * plain.jct_s


@pytest.mark.soak
@pytest.mark.parametrize("method", [ND_OWN, AUTO])
def test_a_slow_server_is_replaced_where_the_others_take_no_time(method: Method) -> None:
    scenario = server_straggler(0.8, "bsp", SCALED)
    scenario = changed(scenario, traffic=Traffic(message_s=0.005))
    # The default windows count iterations: 100 and 200 of them.
    scenario = changed(scenario, num_samples=10 * scenario.num_samples, time_scale=1.0)
    assert restarted(simulate(scenario, method, 0).outcome) == ["server-3"]


def test_without_a_straggler_nobody_is_restarted() -> None:
    scenario = changed(NOISY, num_samples=80_000)
    for method in (ND_OWN, AUTO):
        assert simulate(scenario, method, 0).outcome.restarts == 0


@pytest.mark.parametrize("name", sorted(BLIND))
def test_reports_change_nothing_for_a_solution_that_does_not_look_at_them(name: str) -> None:
    scenario = worker_stragglers(0.8, "bsp", SCALED)
    method = Method(label=name, solution=name)
    blind, seen = (
        simulate(scenario, method, 0, keep_trail=trail).outcome for trail in (False, True)
    )
    assert blind.reports < seen.reports
    assert (blind.jct_s, blind.steps) == (seen.jct_s, seen.steps)


def test_a_solution_is_asked_at_its_own_pace() -> None:
    scenario = worker_stragglers(0.1, "bsp", SCALED)
    slow = Method(label="slow", solution="none", parameters={"every_steps": 50, "every_s": 0.0})
    assert simulate(scenario, slow, 0).outcome.decisions == 3


def test_the_master_learns_what_restarts_cost() -> None:
    scenario = worker_stragglers(0.8, "bsp", SCALED)
    steering = Steering(scenario, solution("none"), Lengths())
    assert steering._monitor.restarts.cost("worker").total_s == pytest.approx(1.2)
    cost = changed(scenario.recovery.worker, pending_s=7.0)
    steering.restarted("worker-1", 99, cost)
    assert steering._monitor.restarts.cost("worker").pending_s == 7.0


# ------------------------------------------------------------------------- presets


def each(scenario: Scenario) -> Experiment:
    methods = (BSP, LB_BSP, ND, AUTO)
    return Experiment(draw=lambda _: scenario, methods=methods, trails=OVER_TIME)


def results_of(*experiments: Experiment, seeds: range = range(2)) -> Results:
    preset = Preset(name="test", about="", experiments=experiments)
    results = Results(
        clock="virtual", preset="test", version="0", commit="c", command="x", started="now"
    )
    for one, scenario, run in run_all(preset.runs(seeds), seeds.start):
        results.methods[one.method.label] = one.method
        results.scenarios.setdefault(scenario.name, scenario)
        results.runs.append(run)
    return results


def test_every_preset_draws_its_scenarios(tmp_path: Path) -> None:
    for job in pai.JOBS:
        with gzip.open(tmp_path / f"job_{job}_norm.csv.gz", "wt") as file:
            file.write("worker,time,batch_time_norm\n0,1,100\n1,1,100\n")
    for preset in presets(tmp_path).values():
        runs = list(preset.runs(range(preset.first_seed, preset.first_seed + 2)))
        assert runs
        for planned in runs:
            scenario = planned.experiment.draw(planned.seed)
            assert scenario.num_steps > (10 if scenario.name == "short" else 100)
            solution_of(planned.method, scenario)


@pytest.mark.parametrize("name", ["families", "pai"])
def test_auto_is_held_against_every_synchronous_method(name: str, tmp_path: Path) -> None:
    experiments = presets(tmp_path)[name].experiments
    solutions = {each.solution for e in experiments for each in e.methods}
    assert solutions == {"none", "backup_workers", "lb_bsp", "nd", "partial", "auto"}


def test_a_label_is_one_method_and_those_of_the_paper_are_run(tmp_path: Path) -> None:
    experiments = [e for preset in presets(tmp_path).values() for e in preset.experiments]
    methods = {each.label: each for e in experiments for each in e.methods}
    assert all(methods[each.label] == each for e in experiments for each in e.methods)
    rows = {
        (scenario.name, scenario.mode, each.label)
        for e in experiments
        if not isinstance(e.draw, partial) or e.draw.func is not pai.draw
        for scenario in (e.draw(0),)
        for each in e.methods
    }
    assert set(paper.TIMES_ND) <= rows


def test_an_unknown_preset_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no preset 'tabel3'; there are .*table3.*pai"):
        preset_of("tabel3")
    with pytest.raises(ConfigError, match="--data"):
        preset_of("pai")


def test_methods_are_chosen_by_label_or_solution() -> None:
    preset = preset_of("fig10")
    assert {one.method.label for one in preset.runs(range(1), frozenset({"auto", "BSP"}))} == {
        "auto",
        "BSP",
    }
    nd = {one.method.label for one in preset.runs(range(1), frozenset({"nd"}))}
    assert nd == {"ND", "ND, own windows"}


def test_a_solution_for_other_jobs_is_refused_before_any_run() -> None:
    with pytest.raises(
        ConfigError, match="preset fig10 has jobs in mode bsp only, and dd is made for"
    ):
        preset_of("fig10").runs(range(1), frozenset({"dd"}))
    paper = preset_of("paper").runs(range(1), frozenset({"dd"}))
    assert {one.experiment.draw(0).mode for one in paper} == {"allreduce"}


class Mine(Solution, frozen=True):
    """A solution of a user."""

    every_s: float = 40.0

    def decide(self, seen: Observation) -> list[AnyAction]:
        slow = max(seen.servers, key=lambda server: server.short.server_s if server.short else 0.0)
        return [KillRestart(node=slow.node, reason="the slowest")] if not slow.restarts else []


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that declares a solution."""
    entry = importlib.metadata.EntryPoint("mine", f"{__name__}:Mine", registry.GROUP)
    others = importlib.metadata.entry_points(group=registry.GROUP)
    entries = importlib.metadata.EntryPoints([entry, *others])
    monkeypatch.setattr(importlib.metadata, "entry_points", entries.select)


@pytest.mark.usefixtures("installed")
def test_a_solution_of_an_installed_package_is_one_more_method() -> None:
    scenario = server_straggler(0.8, "bsp", SCALED)
    preset = Preset(name="test", about="", experiments=(each(scenario),))
    planned = preset.runs(range(1), frozenset({"mine", "auto"}))
    runs = {run.method: run.outcome for _, _, run in run_all(planned, 0)}
    assert runs.keys() == {"auto", "mine"}
    assert "KillRestart" in {one.action for one in runs["mine"].acted}


@pytest.mark.usefixtures("installed")
def test_a_solution_from_outside_is_asked_as_often_as_a_scaled_job_needs() -> None:
    preset = scaled.presets(scaled.Size(scale=SCALED))["worst"]
    methods = [one.method for one in preset.runs(range(1), frozenset({"mine"}))]
    assert [each.label for each in methods] == ["mine", "mine"]
    assert [each.parameters["every_s"] for each in methods] == pytest.approx([0.4, 0.4])


@pytest.mark.soak
def test_runs_are_the_same_in_several_processes() -> None:
    experiments = tuple(
        Experiment(draw=partial(always, scenario=kind(0.8, "bsp", SCALED)), methods=(BSP, AUTO))
        for kind in (worker_stragglers, server_straggler)
    )
    planned = Preset(name="test", about="", experiments=experiments).runs(range(1))
    alone, together = (
        [(one.method, run.seed, run.outcome) for one, _, run in run_all(planned, 0, processes)]
        for processes in (1, 2)
    )
    assert len(alone) == 4
    assert together == alone


# ------------------------------------------------------------------------- results


@pytest.fixture(scope="module")
def results() -> Results:
    return results_of(
        *(each(worker_stragglers(si, "bsp", SCALED)) for si in (0.3, 0.8)),
        each(server_straggler(0.8, "bsp", SCALED)),
        seeds=range(5),
    )


@pytest.mark.soak
def test_results_come_back_from_json(results: Results) -> None:
    assert decode(encode(results)) == results


@pytest.mark.soak
def test_the_table_has_each_row_beside_the_papers_and_the_clairvoyant_schedule(
    results: Results,
) -> None:
    text = markdown(results)
    assert "Virtual time" in text
    row = re.search(r"\| worker 0.8, bsp \| BSP \|(.*)\|", text)
    assert row is not None
    cells = [cell.strip() for cell in row.group(1).split("|")]
    runs = results.of("worker 0.8", "bsp", "BSP")
    jct_s = np.mean([run.outcome.jct_s for run in runs])
    assert cells[0] == f"{jct_s:,.0f}"
    assert cells[2] == "81"
    ratio = np.mean([run.outcome.jct_s / run.clairvoyant_s for run in runs])
    assert cells[5] == f"{np.mean([run.clairvoyant_s for run in runs]):,.0f}"
    assert cells[6] == f"{ratio:.3f}"


@pytest.mark.soak
def test_margins_are_those_of_the_runs_beside_the_published_ones(results: Results) -> None:
    text = markdown(results)
    other, ours = (
        np.mean([run.outcome.jct_s for run in results.of("server 0.8", "bsp", label)])
        for label in ("LB-BSP", "auto")
    )
    row = re.search(r"\| server 0.8, bsp: LB-BSP \|(.*)\|", text)
    assert row is not None
    assert row.group(1).split("|")[0].strip() == f"{other / ours:.2f}"
    assert row.group(1).rstrip().endswith("2.04")


@pytest.mark.soak
def test_auto_is_paired_with_the_others_by_seed(results: Results) -> None:
    text = markdown(results)
    assert re.search(r"\| worker 0.8, bsp: BSP \| 5 \| 0\.\d+ \| 0\.\d+ to 0\.\d+ \|  \|", text)


@pytest.mark.soak
def test_figures_are_drawn_for_what_there_is(results: Results, tmp_path: Path) -> None:
    names = {path.stem for path in draw(results, tmp_path / "plots")}
    assert names == {
        "fig07_bpt_by_batch_size",
        "fig10_jct_bsp",
        "fig12_batch_sizes",
        "fig13_bpt_of_workers",
        "fig14_slow_server",
        "table3",
        "auto_and_others",
    }


def test_the_command_writes_table_json_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Preset(
        name="small", about="", experiments=(each(worker_stragglers(0.8, "bsp", SCALED)),)
    )
    monkeypatch.setattr(
        "paceline_experiments.stragglers.catalogue.preset_of", lambda name, data: small
    )
    json, plots = tmp_path / "out.json", tmp_path / "plots"
    command = ["sim", "stragglers", "small", "--seed", "3", "--repeat", "2", "--processes", "1"]
    options = [
        "--solution",
        "BSP",
        "--solution",
        "auto",
        "--json",
        str(json),
        "--plots",
        str(plots),
    ]
    done = CliRunner().invoke(app, [*command, *options])
    assert done.exit_code == 0, done.output
    assert "## Job completion times" in done.stdout
    written = decode(json.read_bytes())
    assert [(run.method, run.seed) for run in written.runs] == [
        ("BSP", 3),
        ("auto", 3),
        ("BSP", 4),
        ("auto", 4),
    ]
    assert written.clock == "virtual"
    assert (plots / "fig10_jct_bsp.png").stat().st_size > 1_000


SHORT = ["sim", "stragglers", "families", "--family", "short", "--workers", "4", "--seed", "1"]
"""The cheapest of all families."""


def test_a_file_of_results_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    options = ["--processes", "1", "--solution", "DDP", "--mode", "allreduce", "--json", str(path)]
    ran: list[str] = []
    monkeypatch.setattr(
        "paceline_experiments.stragglers.experiments.simulate",
        lambda scenario, method, seed, **how: (
            ran.append(f"{scenario.name}, {method.label}, {seed}")
            or simulate(scenario, method, seed, **how)
        ),
    )
    first = CliRunner().invoke(app, [*SHORT, *options, "--repeat", "1", "--continue"])
    assert first.exit_code == 0, first.output
    second = CliRunner().invoke(
        app, [*SHORT, *options, "--repeat", "2", "--continue", "--solution", "partial"]
    )
    assert second.exit_code == 0, second.output
    job = "short, 4 workers"
    assert ran == [f"{job}, DDP, 1", f"{job}, partial, 1", f"{job}, DDP, 2", f"{job}, partial, 2"]
    assert len(decode(path.read_bytes()).runs) == 4


def test_results_of_another_preset_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(encode(results_of()))
    done = CliRunner().invoke(app, [*SHORT, "--json", str(path), "--continue"])
    assert done.exit_code == 2
    assert "have preset test, and this run has families; name another file" in done.output
    path.write_text("{")
    done = CliRunner().invoke(app, [*SHORT, "--json", str(path), "--continue"])
    assert done.exit_code == 2
    assert "holds no results" in done.output


def test_options_of_families_are_refused_for_other_presets() -> None:
    done = CliRunner().invoke(app, ["sim", "stragglers", "fig10", "--workers", "4"])
    assert done.exit_code == 2
    assert "--family are for preset families, and fig10 was given" in done.output
    done = CliRunner().invoke(app, [*SHORT, "--continue"])
    assert done.exit_code == 2
    assert "give --json, too" in done.output


@pytest.mark.parametrize("command", ["sim", "bench"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--json", "missing/out.json"), r"make the directory missing first"),
        (("--json", "."), r"--json . is a directory"),
        (("--plots", "file"), r"--plots file cannot be made \(File exists\)"),
        (("--plots", "file/in"), r"--plots file/in cannot be made \(Not a directory\)"),
        (("--seed", "-1"), "'--seed'"),
    ],
)
def test_what_would_fail_at_the_end_is_refused_before_anything_runs(
    command: str,
    options: tuple[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr(
        "paceline_experiments.stragglers.experiments.Preset.runs", lambda *_: pytest.fail("it runs")
    )
    done = CliRunner().invoke(app, [command, "stragglers", "fig10", *options])
    assert done.exit_code == 2
    assert re.search(message, done.output), done.output
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_cost_that_would_be_passed_over_is_refused() -> None:
    done = CliRunner().invoke(app, ["sim", "stragglers", "fig18", "--action-ms", "2"])
    assert done.exit_code == 2
    assert "--action-ms 2 does nothing alone; give --ledger-call-us, too" in done.output
    done = CliRunner().invoke(app, ["sim", "stragglers", "dd", "--ledger-call-us", "300"])
    assert done.exit_code == 2
    assert "are for preset fig18, and dd was given" in done.output


def test_the_command_names_its_presets() -> None:
    done = CliRunner().invoke(app, ["sim", "stragglers", "--list"])
    assert done.exit_code == 0
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {"paper", "table3", "pai"}


def test_what_is_neither_a_method_nor_a_solution_is_refused_whatever_else_is_asked_for() -> None:
    options = ["--solution", "lb-bsp", "--solution", "DD"]
    done = CliRunner().invoke(app, ["sim", "stragglers", "dd", *options])
    assert done.exit_code == 2
    assert "no method 'lb-bsp'; it has DD, DDP, LB-BSP, auto; and any solution" in done.output
    assert ", lb_bsp, " in done.output


# ------------------------------------------------------------------------- dedicated clusters


def jcts_s(scenario: Scenario) -> dict[str, float]:
    methods = (DDP, LB_BSP, DD)
    return {each.label: simulate(scenario, each, 0).outcome.jct_s for each in methods}


@pytest.mark.soak
def test_dd_beats_ddp_and_lb_bsp_as_published() -> None:
    found_s = jcts_s(dedicated("ResNet-101", RESNET_REDUCE))
    for label, jct_s in found_s.items():
        assert jct_s == pytest.approx(paper.JCT_S["ResNet-101", label], rel=0.05)


@pytest.mark.soak
def test_dd_is_as_good_as_anything_for_mobilenet() -> None:
    # The paper's margins are out of reach where a V100 is three times as fast (docs/simulator.md).
    scenario = dedicated("MobileNet", MOBILENET_REDUCE)
    assert jcts_s(scenario)["DD"] <= 1.02 * clairvoyant_s(scenario, 0)


def test_a_profile_is_reported_apart_from_the_steps() -> None:
    scenario = changed(dedicated("ResNet-101", RESNET_REDUCE), num_samples=768 * 40)
    acted = simulate(scenario, DD, 0).outcome.acted
    assert [each.action for each in acted] == ["Profile"] * 5 + ["AdjustBatch"]
