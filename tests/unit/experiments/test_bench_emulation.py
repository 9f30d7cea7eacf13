"""What a process of an emulated job knows of itself, and the presets made smaller."""

from pathlib import Path

import msgspec
import pytest
from paceline_experiments.sim.outcome import SimOutcome
from paceline_experiments.sim.patterns import Persistent
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.beside import goals_beside, markdown_beside
from paceline_experiments.stragglers.emulation import Emulated, EmulatedLife, diaries, started_s
from paceline_experiments.stragglers.emulations import Beside, Calibration, Emulations
from paceline_experiments.stragglers.methods import AUTO, ND, lengths_of
from paceline_experiments.stragglers.paper import JCT_S
from paceline_experiments.stragglers.presets import ScaleFactors, worker_stragglers
from paceline_experiments.stragglers.results import Run
from paceline_experiments.stragglers.scaled import SAMPLES, Size, preset_of, presets, scaled
from paceline_experiments.stragglers.tables import published
from typer.testing import CliRunner

from paceline.base.errors import ConfigError
from paceline.cli.main import app
from tests.simulated import SMALL

ALL = SMALL.workers


def begin(directory: Path, *patterns: Persistent, **changes: object) -> Scenario:
    scenario = msgspec.structs.replace(SMALL, patterns=patterns, **changes)
    Emulated(scenario=scenario, seed=3).write(directory)
    return scenario


def lives(directory: Path) -> list[EmulatedLife]:
    """Of all workers, ready to train."""
    found = [EmulatedLife(f"worker-{i}", directory) for i in range(ALL)]
    for life in found:
        life.note(100.0 + life.place.index, 100.0, 0)
    return found


def test_the_job_starts_when_its_last_worker_is_ready(tmp_path: Path) -> None:
    begin(tmp_path)
    assert started_s(tmp_path, ALL) is None
    first = EmulatedLife("worker-0", tmp_path)
    assert first.started_s() is None  # and it dies before it is ready
    lives(tmp_path)
    assert started_s(tmp_path, ALL) == 100.0 + ALL - 1 == first.started_s()


def test_nobody_is_disturbed_before_the_start(tmp_path: Path) -> None:
    begin(tmp_path, Persistent(role="server", nodes=(0,), delay_s=2.0))
    server = EmulatedLife("server-0", tmp_path)
    assert server.delay_s(0) == 0.0
    lives(tmp_path)
    assert server.delay_s(0) == 2.0
    assert EmulatedLife("server-1", tmp_path).delay_s(0) == 0.0


def test_the_next_life_is_in_another_place(tmp_path: Path) -> None:
    begin(tmp_path, Persistent(nodes=(1,), delay_s=2.0))
    _, slow, *_ = lives(tmp_path)
    assert slow.batch_s(100, 0) == pytest.approx(1.0 + 2.0)
    again = EmulatedLife("worker-1", tmp_path)
    assert again.place.life == 1
    assert again.batch_s(100, 0) == pytest.approx(1.0)


def test_a_fresh_server_under_another_name_is_in_another_place(tmp_path: Path) -> None:
    begin(tmp_path, Persistent(role="server", nodes=(1,), delay_s=2.0))
    lives(tmp_path)
    assert EmulatedLife(f"server-{SMALL.servers}", tmp_path).delay_s(0) == 0.0


def test_a_slowdown_multiplies_the_computation_and_iterations_are_counted(tmp_path: Path) -> None:
    begin(tmp_path, Persistent(nodes=(1,), slowdown=3.0, clock="iterations", start=2.0, stop=4.0))
    _, slow, *_ = lives(tmp_path)
    assert [slow.batch_s(100, i) for i in range(6)] == pytest.approx([1, 1, 3, 3, 1, 1])


def test_a_torn_entry_of_a_diary_is_passed_over(tmp_path: Path) -> None:
    begin(tmp_path)
    life = EmulatedLife("worker-0", tmp_path)
    life.note(1.0, 2.0, 7)
    with (tmp_path / "worker-0.0").open("ab") as file:
        file.write(b"\0" * 11)
    (entries,) = diaries(tmp_path, "worker-0")
    assert entries.tolist() == [[1.0, 2.0, 7.0]]


@pytest.mark.parametrize("name", sorted(presets(Size())))
def test_presets_keep_times_and_stragglers_at_every_size(name: str) -> None:
    size = Size(workers=4, servers=2, scale=ScaleFactors(time=0.2, steps=0.1))
    experiments = presets(size)[name].experiments
    assert experiments
    for experiment in experiments:
        scenario = experiment.draw(0)
        assert scenario.num_steps == 165
        assert scenario.local_batch == SAMPLES
        assert float(scenario.compute.batch_s(SAMPLES)) == pytest.approx(2.0 * 0.2)
        counts = {"worker": 4, "server": 2}
        persistent = [p for p in scenario.patterns if isinstance(p, Persistent)]
        assert persistent
        assert all(node < counts[p.role] for p in persistent for node in p.nodes)


def test_the_papers_column_is_at_the_scale_that_the_note_says() -> None:
    preset = presets(Size(scale=ScaleFactors(time=0.2, steps=0.1)))["worst"]
    scenario = preset.experiments[0].draw(0)
    results = Emulations(
        clock="emulated", preset="p", version="", commit="", command="", started=""
    )
    results.scenarios[scenario.name] = scenario
    theirs_s = published(results, scenario.name, "bsp", "BSP")
    assert theirs_s == pytest.approx(JCT_S["worker 0.8", "BSP"] * 0.2 * 0.1)
    (note,) = preset.notes
    assert "time x 0.2, iterations x 0.1; the paper's times, " in note
    assert "are multiplied by both" in note


def test_periods_shrink_with_the_job() -> None:
    scenario = worker_stragglers(0.8, "bsp", ScaleFactors(time=0.1, steps=0.1))
    paper = scaled(ND, scenario, 0.1)
    assert paper.parameters["every_s"] == pytest.approx(3.0)
    assert lengths_of(paper, scenario).long_s == pytest.approx(6.0)
    assert scaled(AUTO, scenario, 0.1).parameters["every_steps"] == 1


def ran(method: str, jct_s: float) -> Run:
    outcome = SimOutcome(jct_s=jct_s, samples=1, steps=1)
    return Run(scenario="a", mode="bsp", method=method, seed=0, outcome=outcome, clairvoyant_s=1.0)


def test_real_runs_stand_beside_simulated_ones_with_both_ranks() -> None:
    results = Emulations(
        clock="emulated", preset="p", version="", commit="", command="", started=""
    )
    results.calibrations["bsp"] = Calibration(step_s=0.2, message_s=0.05)
    results.beside = [
        Beside(real=ran("BSP", 90.0), simulated=ran("BSP", 100.0), refused=0),
        Beside(real=ran("ND", 50.0), simulated=ran("ND", 40.0), refused=2),
        Beside(real=ran("auto", 45.0), simulated=ran("auto", 45.0), refused=0),
    ]
    text = markdown_beside(results)
    assert "| a, bsp | BSP | 90.0 | 100.0 | 0.900 | 3 / 3 | 0 |" in text
    assert "| a, bsp | ND | 50.0 | 40.0 | 1.250 | 2 / 1 | 2 |" in text
    assert "| a, bsp | auto | 45.0 | 45.0 | 1.000 | 1 / 2 | 0 |" in text
    assert "50 ms, 25%, of an undisturbed bsp step of 200 ms: too much, raise --time-scale" in text


def test_the_simulator_is_to_foresee_ranks_and_times() -> None:
    results = Emulations(
        clock="emulated", preset="p", version="", commit="", command="", started=""
    )
    results.beside = [
        Beside(real=ran("BSP", 90.0), simulated=ran("BSP", 100.0), refused=0),
        Beside(real=ran("ND", 50.0), simulated=ran("ND", 40.0), refused=0),
        Beside(real=ran("auto", 45.0), simulated=ran("auto", 45.0), refused=0),
    ]
    found = {goal.what: (pytest.approx(goal.measured), goal.met) for goal in goals_beside(results)}
    assert found == {
        "a, bsp: methods in the same rank as simulated, share": (1 / 3, False),
        "a, bsp, BSP: real / simulated": (0.9, True),
        "a, bsp, ND: real / simulated": (1.25, False),
        "a, bsp, auto: real / simulated": (1.0, True),
    }
    results.beside[1] = Beside(real=ran("ND", 50.0), simulated=ran("ND", 50.0), refused=0)
    assert [goal.met for goal in goals_beside(results)] == [True] * 4


def test_the_command_names_its_presets_and_refuses_others() -> None:
    shown = CliRunner().invoke(app, ["bench", "stragglers", "--list"])
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == list(presets(Size()))
    with pytest.raises(ConfigError, match="no preset 'none'; there are table3"):
        preset_of("none", Size())
