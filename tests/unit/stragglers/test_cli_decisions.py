"""What people are told of decisions, and decisions made again from a log."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.cli.explain import explain
from paceline.cli.main import app
from paceline.cli.replay import replay_logs
from paceline.features.failslow.events import (
    ComparedPart,
    DiagnosedEvent,
    RelievedEvent,
    SlowedEvent,
)
from paceline.features.stragglers.policy.decision_log import (
    ActionRefused,
    AnyLine,
    Begun,
    Decided,
    Failed,
    Helped,
    Measured,
    TookEffect,
    decode,
)
from paceline.features.stragglers.policy.registry import solution
from paceline.features.stragglers.policy.solution import Compared, Solution
from paceline.features.stragglers.stories import name_of, read_log, seen_of, stories
from paceline.jobs.jsonl import LineFile
from paceline.policy.actions import (
    AdjustBatch,
    AdjustRate,
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
    Profile,
    Share,
)
from paceline.policy.decisions.past import last_number
from paceline.policy.observation import (
    Observation,
    RestartCost,
    RestartOutcome,
    ServerSeen,
    WorkerSeen,
)
from paceline.policy.stats.windows import Pace
from paceline.wire.events.job import LaunchedEvent
from paceline.wire.events.nodes import ProcessUpEvent

T0 = 1_795_000_000.0
COST = RestartCost(pending_s=2.0, start_s=3.5, rebuild_s=1.0, restore_s=0.25)


def pace(compute_s: float = 0.0, server_s: float = 0.0) -> Pace:
    return Pace(
        iterations=20, seconds=9.0, samples=64.0, compute_s=compute_s, server_s=server_s, bpt_s=0.5
    )


def observation(*compute_s: float, step: int = 100) -> Observation:
    """Workers that take so long over the long window, and two servers."""
    workers = tuple(
        WorkerSeen(node=f"worker-{i}", batch_size=64, short=pace(time_s), long=pace(time_s))
        for i, time_s in enumerate(compute_s)
    )
    servers = tuple(
        ServerSeen(node=f"server-{i}", short=pace(server_s=t), long=pace(server_s=t))
        for i, t in enumerate((0.01, 0.012))
    )
    return Observation(
        now_s=1.0,
        step=step,
        mode="asp",
        global_batch=64,
        steps_left=None,
        workers=workers,
        servers=servers,
        pending_s=2.0,
        worker_restart=COST,
    )


def decided(no: int, seen: Observation, *actions: AnyAction) -> Decided:
    return Decided(t=T0 + 10.0 * no, no=no, observation=seen, actions=actions, took_s=0.001)


def by_nd(no: int, seen: Observation) -> Decided:
    return decided(no, seen, *solution("nd").decide(seen))


def log() -> list[AnyLine]:
    """``nd`` restarts worker-1, and it helps."""
    return [
        Begun(t=T0, solution="nd", every_s=30.0, every_iterations=100),
        by_nd(1, observation(0.1, 0.1, 0.1)),
        by_nd(4, observation(0.1, 0.5, 0.1, step=400)),
        TookEffect(t=T0 + 46.0, no=4, index=0, cost=COST),
        Measured(t=T0 + 80.0, no=4, index=0, before=800.0, after=1200.0, seconds=30.0, gain_s=95.0),
    ]


def write(path: Path, lines: list[AnyLine]) -> Path:
    file = LineFile(path)
    for line in lines:
        file.add(line)
    file.flush()
    return path


# --------------------------------------------------------------------------- the log


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    lines = [
        *log(),
        ActionRefused(t=T0, no=5, index=1, reason="not yet"),
        Failed(t=T0, no=6, kind="late"),
    ]
    assert read_log(write(tmp_path / "decisions.jsonl", lines)) == lines


def test_torn_lines_are_passed_over_and_strange_ones_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "decisions.jsonl", log())
    with path.open("ab") as file:
        file.write(b'{"type":"Decided","no":9,"obs\n{"type":"Refused","no":7,"index":0,"rea')
    assert read_log(path) == log()
    with path.open("rb") as file:
        assert last_number(file) == 4
    path.write_bytes(b'{"type":"Decided","t":1.0,"no":"one"}\n')
    with pytest.raises(ConfigError, match="line 1: "):
        read_log(path)
    with pytest.raises(ConfigError, match="no decisions were written; start the job with"):
        read_log(tmp_path / "nowhere.jsonl")
    assert list(decode([b""])) == []


# --------------------------------------------------------------------------- explain


def test_a_restart_is_told_from_what_was_seen_to_what_came_of_it() -> None:
    (story,) = stories(log())
    assert (story.no, story.t, story.what) == (4, T0 + 40.0, "KILL_RESTART worker-1")
    assert story.seen == (
        "worker-1 took 500.0 ms, the 2 others 100.0 ms on average, 5.0 times as long"
    )
    assert story.rule == "nd: 0.5 s over L_per >= 1.5 * 0.233 s"
    assert story.expected == (
        "a restart takes 6.75 s (pending 2.00 s, start 3.50 s, rebuild 1.00 s, restore 0.25 s); "
        "waiting for a place 2.00 s"
    )
    assert story.became == (
        "in effect after 6.00 s; its start took 6.75 s "
        "(pending 2.00 s, start 3.50 s, rebuild 1.00 s, restore 0.25 s)"
    )
    assert story.outcome == (
        "800 samples/s before, 1,200 samples/s in the 30.0 s after; "
        "the rest takes 95.0 s less at that speed (estimate)"
    )


def test_a_server_is_compared_with_servers_and_a_plan_with_the_slowest_worker() -> None:
    kill = KillRestart(node="server-1", gain_s=50.0, cost_s=9.0)
    adjust = AdjustBatch(shares={"worker-0": Share(40), "worker-1": Share(24)})
    seen = observation(0.1, 0.3)
    seen = msgspec.structs.replace(seen, pending_s=None)
    server, plan = stories([Begun(t=T0, solution="auto"), decided(2, seen, kill, adjust)])
    assert server.seen == "server-1 took 12.0 ms, the other 10.0 ms, 1.2 times as long"
    assert server.expected.startswith("gain 50.0 s; cost 9.00 s; a restart takes 0.00 s")
    assert server.expected.endswith("waiting for a place not known")
    assert plan.what == "ADJUST_BS worker-0 40, worker-1 24"
    assert plan.seen.startswith("worker-1 took 300.0 ms")
    assert plan.expected == ""


def test_what_did_not_come_to_pass_is_told() -> None:
    seen = observation(0.1, 0.5)
    lines = [
        Begun(t=T0, solution="nd"),
        Failed(t=T0 + 1, no=1, kind="KeyError", traceback="Traceback\n  at\nKeyError: 'worker-9'"),
        decided(2, seen, KillRestart(node="worker-1"), BackupWorkers(count=1)),
        ActionRefused(t=T0, no=2, index=1, reason="not in this mode"),
        Measured(t=T0, no=2, index=0, before=None, after=5.0, seconds=1.0),
    ]
    failed, kill, backup = stories(lines)
    assert (failed.what, failed.rule) == ("nd failed", "KeyError: 'worker-9'")
    assert kill.became == "not known to have taken effect"
    assert kill.outcome == "the speeds before and after cannot be compared"
    assert backup.became == "not carried out: not in this mode"


def test_a_loss_is_told_as_one() -> None:
    lines = log()[:-1]
    lines.append(
        Measured(t=T0, no=4, index=0, before=9.0, after=8.0, seconds=30.0, gain_s=-5.0, others=1)
    )
    (story,) = stories(lines)
    assert story.outcome.endswith(
        "the rest takes 5.00 s more at that speed (estimate); together with 1 other action"
    )


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (KillRestart(node="worker-3"), "KILL_RESTART worker-3"),
        (BackupWorkers(count=2), "BACKUP_WORKERS 2"),
        (Partial(left_out=5000, chunks=4), "PARTIAL, up to 5,000 samples in 4 chunks"),
        (
            Partial(left_out=1, late=5000, grace_s=0.25),
            "PARTIAL, up to 1 sample, or 5,000 after 0.25 s",
        ),
        (Partial(left_out=0, late=5000, grace_s=0.25), "PARTIAL, up to 5,000 samples after 0.25 s"),
        (AdjustRate(factors={"worker-0": 0.5}), "ADJUST_LR of 1 worker"),
        (Profile(sizes={"worker-0": 5, "worker-1": 5}, steps=3), "PROFILE of 2 workers"),
        (
            AdjustBatch(shares={f"worker-{i}": Share(8, 2) for i in range(8)}),
            "ADJUST_BS worker-0 8 x 2, worker-1 8 x 2, worker-2 8 x 2, worker-3 8 x 2, "
            "worker-4 8 x 2, worker-5 8 x 2 and 2 more",
        ),
    ],
)
def test_actions_have_the_paper_s_names(action: AnyAction, name: str) -> None:
    assert name_of(action) == name


@pytest.mark.parametrize("terminal", [True, False])
def test_explain_tells_all_stories_plainly_and_on_a_terminal(
    tmp_path: Path, terminal: bool
) -> None:
    write(tmp_path / "decisions.jsonl", log())
    (tmp_path / "events.jsonl").write_text(f'{{"t":{T0 - 5.0},"event":"launched"}}\n')
    out = io.StringIO()
    console = Console(file=out, width=300, force_terminal=terminal, color_system=None)
    explain(JobDir(tmp_path), console)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[1] == (
        "  2 decisions written, 1 with actions (of the others, one in a while is written)"
    )
    assert "   0:45  decision 4: KILL_RESTART worker-1" in lines
    parts = [line.split()[0] for line in lines if line.startswith("         ")]
    assert parts == ["seen", "rule", "expected", "became", "outcome"]


# --------------------------------------------------------------------------- replay


def run(path: Path, *args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", str(path), *args])
    return result.exit_code, result.output


def test_the_log_s_own_solution_reproduces_its_decisions(tmp_path: Path) -> None:
    path = write(tmp_path / "decisions.jsonl", log())
    assert run(path) == (0, "nd: reproduces all 2 decisions of the log\n")


def test_a_decision_that_is_made_otherwise_now_is_shown_and_fails(tmp_path: Path) -> None:
    lines = log()
    changed = msgspec.structs.replace(lines[2].actions[0], reason="another")  # type: ignore[union-attr]
    lines[2] = msgspec.structs.replace(lines[2], actions=(changed,))
    code, output = run(write(tmp_path / "decisions.jsonl", lines))
    assert code == 1
    assert "decision 4: was KILL_RESTART worker-1 (another); is now KILL_RESTART" in output
    assert "nd: differs in 1 of 2 decisions of the log" in output


def test_another_solution_is_shown_beside_the_log(tmp_path: Path) -> None:
    path = write(tmp_path / "decisions.jsonl", log())
    code, output = run(path, "--solution", "none")
    assert code == 0
    assert "none: acts in 0 of 2 decisions" in output
    row = next(line for line in output.splitlines() if line.startswith("4 "))
    assert "KILL_RESTART worker-1" in row
    assert row.rstrip().endswith("-")


def test_parameters_can_be_tried(tmp_path: Path) -> None:
    path = write(tmp_path / "decisions.jsonl", log())
    assert "acts in 0 of 2" in run(path, "--set", "slowness=9")[1]
    assert "acts in 1 of 2" in run(path, "--set", "slowness=2")[1]
    own = [
        msgspec.structs.replace(log()[0], args={"slowness": "9"}),
        *(decided(no, observation(0.1, 0.5, 0.1)) for no in (1, 2)),
    ]
    assert run(write(tmp_path / "own.jsonl", own))[0] == 0


def test_every_run_of_a_log_is_asked_of_its_own_solution(tmp_path: Path) -> None:
    lines = [*log(), Begun(t=T0, solution="none"), decided(5, observation(0.1, 0.5, 0.1))]
    code, output = run(write(tmp_path / "decisions.jsonl", lines))
    assert (code, output) == (0, "nd and none: reproduces all 3 decisions of the log\n")


def test_another_solution_is_asked_where_the_log_s_own_is_not_installed(tmp_path: Path) -> None:
    lines = [msgspec.structs.replace(log()[0], solution="theirs"), *log()[1:]]
    path = write(tmp_path / "decisions.jsonl", lines)
    code, output = run(path, "--solution", "none")
    assert code == 0
    assert "none: acts in 0 of 2 decisions" in output
    assert "not compared with the log's own solution: no solution 'theirs'; there are" in output
    assert "reproduces" not in output
    for args in ((), ("--set", "slowness=2"), ("--solution", "theirs")):
        code, output = run(path, *args)
        assert code == 2
        assert "no solution 'theirs'" in output


def test_mistakes_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "decisions.jsonl", log())
    for args, text in (
        (("--solution", "best"), "no solution 'best'; there are"),
        (("--set", "lambda=2"), "solution nd has no parameter lambda"),
        (("--set", "slowness"), "expected KEY=VALUE"),
    ):
        code, output = run(path, *args)
        assert code == 2
        assert text in output


def test_a_log_can_be_named_by_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = tmp_path / "jobs" / "job-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    write(job / "decisions.jsonl", log())
    out = io.StringIO()
    assert replay_logs("job-1", None, {}, Console(file=out))
    assert "reproduces all" in out.getvalue()


@pytest.mark.parametrize(
    ("verb", "strategy", "told"),
    [
        *[
            (verb, strategy, told)
            for verb in ("explain", "failslow", "replay")
            for strategy, told in (
                ("fsdp", "job job-1: got strategy fsdp, whose workers compute equal shares, so"),
                ("allreduce", "no decisions were written; start the job with a solution, e.g."),
            )
        ],
        ("replay", "script", "job job-1: got strategy script, which cannot be acted on, so that"),
    ],
)
def test_a_job_without_a_log_is_advised_by_the_row_of_its_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, strategy: str, told: str
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = tmp_path / "jobs" / "job-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text(f'{{"script":"a.py","strategy":"{strategy}"}}')
    result = CliRunner().invoke(app, [verb, "job-1"])
    assert result.exit_code == 2
    assert told in result.stderr
    assert ("expected strategy ps or allreduce;" in result.stderr) == (strategy != "allreduce")


@pytest.mark.parametrize("verb", ["explain", "failslow"])
def test_a_script_s_story_is_told_by_either_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = tmp_path / "jobs" / "job-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text('{"script":"a.py","strategy":"script"}')
    slowed = SlowedEvent(t=19.0, step=440, before_s=0.027, after_s=0.054)
    part = ComparedPart("computing", ("worker-2",), 0.052, 0.0228)
    found = DiagnosedEvent(
        t=22.0,
        culprit="computation",
        nodes=("worker-2",),
        ratio=2.28,
        took_s=3.0,
        parts=(part,),
    )
    events = [LaunchedEvent(t=0.0), slowed, found]
    (job / "events.jsonl").write_text("".join(event.text() for event in events))
    result = CliRunner().invoke(app, [verb, "job-1"])
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "job-1: slow since 0:19: worker-2 computes 2.28 times as long"
    assert "2.28 times" in lines[-1] and "22.8 ms" in lines[-1]
    for end, said in (
        (RelievedEvent(t=30.0, step=900, before_s=0.054, after_s=0.027), "well again"),
        (
            ProcessUpEvent(t=30.0, node="worker-0", inc=4, pid=9),
            "slow until 0:30, when processes of the script were started again; since then steps "
            "are compared with those after that",
        ),
    ):
        (job / "events.jsonl").write_text("".join(event.text() for event in [*events, end]))
        result = CliRunner().invoke(app, [verb, "job-1"])
        assert result.stdout.splitlines()[0] == f"job-1: {said}"


@pytest.mark.parametrize("verb", ["explain", "failslow"])
def test_a_straggler_s_story_is_told_by_either_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = tmp_path / "jobs" / "job-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text('{"script":"a.py","strategy":"allreduce"}')
    write(job / "decisions.jsonl", log())
    result = CliRunner().invoke(app, [verb, "job-1"])
    assert result.exit_code == 0, result.stderr
    assert "decision 4: KILL_RESTART worker-1" in result.stdout


def test_a_wait_for_data_is_told_where_it_is_a_part_of_a_batch_to_speak_of() -> None:
    seen = observation(0.1, 0.1)
    reading = msgspec.structs.replace(
        seen.workers[1], short=msgspec.structs.replace(pace(0.1), data_s=0.2)
    )
    slow = msgspec.structs.replace(seen, workers=(seen.workers[0], reading))
    action = BackupWorkers(count=1)
    assert "waited" not in seen_of(Solution(), action, seen)
    assert seen_of(Solution(), action, slow).endswith(
        "worker-1 waited 200.0 ms of each batch for its data"
    )


def test_what_a_rule_has_looked_at_is_told_in_its_own_words() -> None:
    class Asked(Solution, frozen=True):
        def compared(self, seen: Observation, action: AnyAction) -> Compared:
            times_s = {worker.node: 0.3 for worker in seen.workers[1:]}
            return Compared(times_s=times_s, usual_s=0.1, verb="takes")

    seen = observation(0.5, 0.1)
    told = "worker-1 takes 300.0 ms, 3.0 times the usual 100.0 ms"
    assert seen_of(Asked(), KillRestart(node="worker-1"), seen) == told
    assert seen_of(Asked(), BackupWorkers(count=1), seen) == told
    assert seen_of(Asked(), KillRestart(node="worker-0"), seen) == "", "it was not measured"


@pytest.mark.parametrize("answer", [None, Compared(times_s={"worker-1": "long"})])  # type: ignore[dict-item]
def test_a_solution_that_cannot_say_what_it_compared_costs_no_explanation(
    answer: Compared | None,
) -> None:
    class Failing(Solution, frozen=True):
        def compared(self, seen: Observation, action: AnyAction) -> Compared:
            if answer is None:
                raise KeyError(action)
            return answer

    kill, seen = KillRestart(node="worker-1"), observation(0.1, 0.5)
    told = "worker-1 took 500.0 ms, the other 100.0 ms, 5.0 times as long"
    assert seen_of(Failing(), kill, seen) == seen_of(Solution(), kill, seen) == told


def test_windows_are_not_mixed() -> None:
    seen = observation(0.1, 0.5)
    fresh = msgspec.structs.replace(seen.workers[0], long=None, short=pace(0.3))
    seen = msgspec.structs.replace(seen, workers=(fresh, seen.workers[1]))
    assert seen_of(Solution(), KillRestart(node="worker-1"), seen) == "worker-1 took 500.0 ms"
    told = "worker-0 took 300.0 ms, the other 500.0 ms, 0.6 times as long"
    assert seen_of(Solution(), KillRestart(node="worker-0"), seen) == told


def test_whether_a_restart_has_cured_is_told() -> None:
    kill = KillRestart(node="worker-1")
    outcome = RestartOutcome(role="worker", before=3.0, after=1.1)
    lines: list[AnyLine] = [
        Begun(t=T0, solution="auto"),
        decided(1, observation(0.1, 0.3), kill),
        Helped(t=T0 + 60, no=1, index=0, outcome=outcome),
    ]
    (story,) = stories(lines)
    assert story.outcome == "cured: 3.00 times the usual before, 1.10 after"
