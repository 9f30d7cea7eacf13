"""The simulator runs what production runs: it has no ledger, monitor or solution of its own."""

import ast
import inspect
from pathlib import Path

import paceline_experiments.sim
from paceline_experiments.sim import job, leader
from paceline_experiments.sim.steering import Steering

from paceline.features.stragglers.policy.controller import Controller
from paceline.features.stragglers.policy.registry import BUILT_IN, solution
from paceline.features.stragglers.policy.solution import Solution
from paceline.master.monitor import Monitor
from paceline.policy import actions, observation
from paceline.policy.stats.history import Lengths
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.plans import Plans
from paceline.runtime.holding.servers import works
from paceline.runtime.server import server
from tests.simulated import SMALL, Scripted, job_of

ROLES = (
    "action",
    "change",
    "controller",
    "decision",
    "detector",
    "history",
    "ledger",
    "monitor",
    "observation",
    "policy",
    "regime",
    "shard",
    "solution",
    "window",
)
FOLDER = Path(paceline_experiments.sim.__file__).parent


def classes() -> list[tuple[Path, ast.ClassDef]]:
    found = [
        (path, node)
        for path in sorted(FOLDER.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(found) > 20
    return found


def test_no_class_of_the_simulator_is_named_for_a_role_of_the_master_or_of_a_policy() -> None:
    named = [
        f"{path.name}: {node.name}"
        for path, node in classes()
        for role in ROLES
        if role in node.name.lower()
    ]
    assert not named


def test_no_class_of_the_simulator_derives_from_what_decides_or_is_decided() -> None:
    production = {Solution.__name__, Ledger.__name__, Monitor.__name__, Controller.__name__}
    for module in (actions, observation):
        production |= {name for name, _ in inspect.getmembers(module, inspect.isclass)}
    production |= {kind.__name__ for kind in BUILT_IN.values()}
    derived = [
        f"{path.name}: {node.name}({ast.unparse(base)})"
        for path, node in classes()
        for base in node.bases
        if ast.unparse(base).rpartition(".")[2] in production - {"Struct"}
    ]
    assert not derived


def test_a_simulated_job_asks_and_tells_as_often_as_a_real_one() -> None:
    # Constants of modules that need torch, which the simulator must not import.
    for name in ("FEW_STEPS", "AHEAD_S", "MAX_STEPS_AHEAD"):
        assert getattr(job, name) == getattr(works, name)
    for name in ("REPORT_S", "REPORT_ANYWAY_S"):
        assert getattr(leader, name) == getattr(server, name)


def test_a_simulated_job_holds_the_masters_own_machines() -> None:
    assert type(job_of(SMALL, Scripted()).ledger) is Ledger
    assert type(job_of(SMALL, Scripted()).plans) is Plans
    steering = Steering(SMALL, solution("auto"), Lengths())
    machines = {type(value) for value in vars(steering).values()}
    assert {Monitor, Controller, BUILT_IN["auto"]} <= machines
