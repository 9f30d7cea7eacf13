"""The controller's edge: the solution's thread, the log, and what a bad solution can do."""

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.features.stragglers import master as deciding
from paceline.features.stragglers.master import (
    Deciding,
    SolutionFailedEvent,
    StragglersPart,
    checked,
    period_of,
)
from paceline.features.stragglers.policy.controller import LATE_S, Write
from paceline.features.stragglers.policy.decision_log import (
    ActionRefused,
    AnyLine,
    Begun,
    Decided,
    Failed,
    Helped,
    TookEffect,
    decode,
    log_of,
)
from paceline.features.stragglers.policy.solution import Solution
from paceline.jobs.jsonl import before
from paceline.jobs.restart_outcomes import HELPED, own_outcomes
from paceline.master import decision_file
from paceline.master.asking import Answered, ask_in_thread
from paceline.master.monitor import lengths_of
from paceline.master.restarts import StartMeasured
from paceline.policy.actions import (
    AdjustBatch,
    AnyAction,
    BackupWorkers,
    KillRestart,
    Share,
)
from paceline.policy.observation import (
    MAX_OUTCOMES,
    JobProgress,
    Observation,
    RestartCost,
    RestartOutcome,
    ServerSeen,
    WorkerSeen,
)
from paceline.policy.stats.history import Lengths
from paceline.wire.events.base import Event, PlainEvent
from paceline.wire.events.lines import decode_event
from paceline.wire.events.nodes import NotReplacedEvent, ProcessUpEvent
from paceline.wire.spec import JobSpec, WindowSpec

KILL = KillRestart(node="worker-1", reason="slow")


class Scene:
    """A job of one asking place; notes what it was told to do."""

    def __init__(self) -> None:
        self.trains = True
        self.done: list[AnyAction] = []

    def progress(self, now_s: float) -> JobProgress:
        return JobProgress(now_s, round(100 * now_s), None)

    def iterations(self, progress: JobProgress) -> float:
        return progress.t_s

    def observe(self, progress: JobProgress, since_action_s: float | None) -> Observation | None:
        return (
            Observation(
                now_s=progress.t_s,
                step=1,
                mode="asp",
                global_batch=8,
                steps_left=None,
                workers=(WorkerSeen(node="worker-1", batch_size=8),),
                servers=(ServerSeen(node="server-1"),),
                since_action_s=since_action_s,
            )
            if self.trains
            else None
        )

    def now(self, now_s: float) -> Observation | None:
        return self.observe(self.progress(now_s), None)

    def is_ending(self) -> bool:
        return False

    def carry_out(self, action: AnyAction) -> None:
        if isinstance(action, BackupWorkers):
            raise ConfigError("not in this mode")
        self.done.append(action)


class Played(Solution, frozen=True):
    """Decides what a test says."""

    def decide(self, seen: Observation) -> list[AnyAction]:
        return PLAY(seen)


PLAY: Callable[[Observation], Any] = lambda _: []  # noqa: E731


class Edge:
    """A deciding edge whose answers the test hands over."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, play: Callable[..., Any]):
        monkeypatch.setattr(deciding, "solution", lambda *_: Played())
        monkeypatch.setitem(globals(), "PLAY", play)
        self.scene, self.log = Scene(), folder / "decisions.jsonl"
        self.told: list[Event] = []
        self.answers: list[Answered] = []
        self.posted = threading.Event()
        self.now_s = 0.0
        self.begin()

    def begin(self) -> None:
        self.edge = Deciding(
            JobSpec(script="a", solution="played", decide_every_s=10.0),
            self.log,
            self.scene,  # type: ignore[arg-type]
            ask=lambda decide, take: ask_in_thread("solution", decide, take, self.post),
            tell=self.told.append,
            wall_clock=lambda: 1e9 + self.now_s,
        )
        self.edge.tick(self.now_s)

    def post(self, answer: Answered) -> None:
        self.answers.append(answer)
        self.posted.set()

    def period(self) -> None:
        """Ten seconds, and an answer if one comes."""
        self.now_s += 10.0
        self.posted.clear()
        self.edge.tick(self.now_s)
        if self.scene.trains:
            assert self.posted.wait(10.0)
            self.answers[-1].take(self.now_s)

    def lines(self) -> list[AnyLine]:
        return list(decode(self.log.read_bytes().splitlines()))


def test_a_large_log_is_begun_anew_and_its_numbers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_file, "LOG_BYTES", 1000)
    edge = Edge(tmp_path, monkeypatch, lambda _: [KILL])
    while not (aside := before(edge.log)).exists():
        edge.period()
        assert edge.log.exists()
    assert 1000 < aside.stat().st_size < 3000
    (begun,) = edge.lines()
    older = list(decode(aside.read_bytes().splitlines()))
    assert begun == older[0]
    monkeypatch.setattr(decision_file, "LOG_BYTES", 10_000)
    edge.begin()
    edge.period()
    (newest,) = [line for line in edge.lines() if isinstance(line, Decided)]
    assert newest.no == max(line.no for line in older if isinstance(line, Decided)) + 1


def test_a_decision_is_made_carried_out_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(tmp_path, monkeypatch, lambda _: [KILL])
    edge.period()
    assert edge.scene.done == [KILL]
    begun, decided = edge.lines()
    assert begun == Begun(
        t=1e9, solution="played", lengths=Lengths(), every_s=10.0, every_iterations=0
    )
    assert isinstance(decided, Decided)
    assert (decided.no, decided.actions, decided.t) == (1, (KILL,), 1e9 + 10)
    assert decided.took_s > 0
    measured = StartMeasured(node="worker-1", inc=9, cost=RestartCost(start_s=2.0))
    edge.edge.works(measured, 15.0)
    assert edge.lines()[-1] == TookEffect(t=1e9 + 10, no=1, index=0, cost=measured.cost)


def test_what_cannot_be_carried_out_is_written_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(tmp_path, monkeypatch, lambda _: [BackupWorkers(count=1), KILL])
    edge.period()
    assert edge.scene.done == [KILL]
    assert edge.lines()[-1] == ActionRefused(t=1e9 + 10, no=1, index=0, reason="not in this mode")
    assert edge.edge.controller.num_actions == {"KillRestart": 1}


def test_a_server_that_comes_back_after_a_crash_is_not_the_one_decided_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(tmp_path, monkeypatch, lambda _: [KillRestart(node="server-1")])
    edge.period()
    cost = RestartCost(start_s=2.0)
    edge.edge.works(StartMeasured(node="server-1", inc=9, cost=cost), 15.0)
    assert not any(isinstance(line, TookEffect) for line in edge.lines())
    edge.edge.works(StartMeasured(node="server-2", inc=10, cost=cost, replaces="server-1"), 20.0)
    assert edge.lines()[-1] == TookEffect(t=1e9 + 10, no=1, index=0, cost=cost)


def test_a_server_that_was_not_replaced_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(tmp_path, monkeypatch, lambda _: [KILL])
    edge.period()
    edge.edge.note(ProcessUpEvent(node=KILL.node, pid=5))
    edge.edge.note(NotReplacedEvent(node=KILL.node))
    reason = f"no other server has replaced {KILL.node}"
    assert edge.lines()[-1] == ActionRefused(t=1e9 + 10, no=1, index=0, reason=reason)


def test_nothing_is_asked_while_nobody_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(tmp_path, monkeypatch, lambda _: [KILL])
    edge.scene.trains = False
    edge.period()
    assert edge.answers == []
    edge.scene.trains = True
    edge.period()
    assert len(edge.answers) == 1


def boom(_: Observation) -> None:
    raise KeyError("worker-7")


def leave(_: Observation) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("play", "kind"),
    [
        (boom, "KeyError"),
        (leave, "SystemExit"),
        (lambda _: None, "TypeError"),
        (lambda _: ["kill"], "TypeError"),
        (lambda _: [KillRestart(node="a", gain_s=float("nan"))], "ValueError"),
        (lambda _: [AdjustBatch(shares={"worker-1": 8})], "ValidationError"),  # type: ignore[dict-item]
        (lambda _: [KillRestart(node=object())], "TypeError"),  # type: ignore[arg-type]
    ],
)
def test_a_solution_that_fails_is_told_once_and_hurts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, play: Callable[..., Any], kind: str
) -> None:
    edge = Edge(tmp_path, monkeypatch, play)
    for _ in range(3):
        edge.period()
    (failed,) = [line for line in edge.lines() if isinstance(line, Failed)]
    assert failed.kind == kind
    assert "Traceback" in failed.traceback
    assert edge.told == [SolutionFailedEvent(kind=kind, decision=1)]
    assert edge.scene.done == []


def test_numbers_of_another_library_are_numbers() -> None:
    eight: Any = np.int64(8)
    shares = {"worker-1": Share(eight)}
    (action,) = checked([AdjustBatch(shares=shares, gain_s=np.float64(1.5))])
    assert action == AdjustBatch(shares={"worker-1": Share(8)}, gain_s=1.5)
    assert isinstance(action, AdjustBatch)
    assert type(action.shares["worker-1"].batch_size) is int


def test_a_solution_that_does_not_answer_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def stuck(_: Observation) -> list[AnyAction]:
        released.wait(30.0)
        return [KILL]

    edge = Edge(tmp_path, monkeypatch, stuck)
    edge.edge.tick(10.0)
    for now_s in (11.0, 10.0 + LATE_S, 100.0, 1000.0):
        edge.edge.tick(now_s)
    assert [line.kind for line in edge.lines() if isinstance(line, Failed)] == ["late"]
    released.set()
    assert edge.posted.wait(10.0)
    edge.answers[-1].take(1001.0)
    assert edge.scene.done == []
    edge.now_s = 1010.0
    edge.period()
    assert edge.scene.done == [KILL]


@pytest.mark.parametrize("torn", [b"", b'{"type":"Decided","no":9'])
def test_a_new_master_goes_on_in_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bytes
) -> None:
    edge = Edge(tmp_path, monkeypatch, lambda _: [KILL])
    edge.period()
    with edge.log.open("ab") as file:
        file.write(torn)
    edge.begin()
    edge.period()
    kinds = [type(line) for line in edge.lines()]
    assert kinds == [Begun, Decided, Begun, Decided]
    assert [line.no for line in edge.lines() if isinstance(line, Decided)] == [1, 2]


def test_the_spec_s_period_and_windows_hold_else_the_solution_s() -> None:
    chosen = Played(every_s=7.0, every_steps=3)
    assert period_of(JobSpec(script="a"), chosen).every_s == 7.0
    assert period_of(JobSpec(script="a"), chosen).every_iterations == 3
    own = period_of(JobSpec(script="a", decide_every_s=1.5), chosen)
    assert (own.every_s, own.every_iterations) == (1.5, 0)
    assert lengths_of(WindowSpec()) == Lengths()
    short = lengths_of(WindowSpec(short_steps=5, short_s=None, long_steps=None, long_s=9.0))
    assert (short.short_iterations, short.short_s) == (5, None)
    assert (short.long_iterations, short.long_s) == (None, 9.0)


def test_actions_are_taken_as_they_are() -> None:
    assert checked([KILL]) == checked((KILL,)) == (KILL,)


def test_a_line_of_a_log_is_one_line_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(tmp_path, monkeypatch, lambda _: [KILL])
    edge.period()
    lines = edge.log.read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["Begun", "Decided"]


# --------------------------------------------------------------------------- what restarts have done


def outcome(before: float) -> RestartOutcome:
    return RestartOutcome(role="worker", before=before, after=1.0)


def line(before: float) -> bytes:
    return msgspec.json.encode(outcome(before)) + b"\n"


def test_a_full_disk_delays_what_a_restart_has_done_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job-1").mkdir()
    (tmp_path / "job-1" / "job.json").write_text("{}")
    edge = Edge(tmp_path / "job-1", monkeypatch, lambda _: [])
    opened, full = Path.open, True

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if full and path.name == HELPED:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    edge.edge._do([Write(line=Helped(t=1e9, no=1, index=0, outcome=outcome(3.0)))])
    full = False
    edge.edge.tick(1.0)
    assert own_outcomes(tmp_path / "job-1") == [outcome(3.0)]


def test_the_next_master_of_a_job_knows_what_its_restarts_did(tmp_path: Path) -> None:
    assert own_outcomes(tmp_path) == []
    lines = [line(float(number)) for number in range(MAX_OUTCOMES + 1)]
    (tmp_path / HELPED).write_bytes(b"".join([*lines, b"torn\n", line(99.0), b'{"role":"wor']))
    read = [one.before for one in own_outcomes(tmp_path)]
    assert read == [*map(float, range(2, MAX_OUTCOMES + 1)), 99.0]


def test_what_earlier_jobs_learned_comes_before_what_this_one_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / HELPED).write_bytes(line(7.0))
    asked: list[Observation] = []
    edge = Edge(tmp_path, monkeypatch, lambda seen: asked.append(seen) or [])
    edge.edge.controller.remember([outcome(float(number)) for number in range(MAX_OUTCOMES)])
    edge.period()
    assert [one.before for one in asked[0].outcomes] == [*map(float, range(1, MAX_OUTCOMES)), 7.0]


class Told:
    """As much of a master's core as the part sees."""

    def __init__(self, folder: Path, solution: str) -> None:
        self.spec, self.job = JobSpec(script="a", solution=solution), JobDir(folder)
        self.scene = Scene()
        self.failed: list[str] = []
        self.events: list[Event] = []
        self.ask, self.tell, self.fail = None, self.events.append, self.failed.append
        self.wall = self.steady = lambda: 0.0


def part_of(folder: Path, solution: str) -> tuple[Told, StragglersPart]:
    core = Told(folder, solution)
    part = StragglersPart(core)  # type: ignore[arg-type]
    part.begin()
    return core, part


def test_a_part_without_a_solution_does_nothing_and_counts_nothing(tmp_path: Path) -> None:
    core, part = part_of(tmp_path, "none")
    part.tick(1.0)
    part.remember([outcome(3.0)])
    part.happened(NotReplacedEvent(node="server-0"))
    assert not log_of(core.job).exists()
    assert [(one.name, one.value) for one in part.shown().figures] == [("job_decisions", 0)]


def test_a_solution_that_is_gone_ends_the_job(tmp_path: Path) -> None:
    core, part = part_of(tmp_path, "gone")
    (reason,) = core.failed
    assert reason.startswith("no solution 'gone'; there are adjust_lr, auto")
    part.tick(1.0)


def test_a_part_tells_the_scene_when_an_action_took_effect(tmp_path: Path) -> None:
    core, part = part_of(tmp_path, "nd")
    assert core.scene.since_action_s(3.0) is None
    assert (tmp_path / "decisions.jsonl").exists() and not core.failed
    assert [one.name for one in part.shown().figures] == ["job_decisions"]


def test_a_failed_solution_s_line_is_read_without_the_feature() -> None:
    event = SolutionFailedEvent(kind="KeyError", decision=4)
    assert event.clause == "KeyError (see logs/master.log); the job goes on"
    read = decode_event(event.text().encode())
    assert isinstance(read, PlainEvent)
    assert read.sentence() == event.sentence() == f"solution failed: {event.clause}"
