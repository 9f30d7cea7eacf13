"""Commands that start nothing: mistakes, and what is to be seen of jobs that are over."""

import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.processes import try_lock
from paceline.cli import run
from paceline.cli.main import app
from paceline.cli.run import read_sizes
from paceline.cli.show import show_jobs
from paceline.jobs.listing import JobSelection
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.jobs.resize import Resize
from paceline.wire import spec as specs
from paceline.wire.events.nodes import ProcessExitedEvent, Verdict
from paceline.wire.spec import JobSpec

SCRIPT = Path(__file__).parents[2] / "chaos" / "planted.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    # No feature hears of the end of a job, about which it may do much.
    monkeypatch.setattr(run, "call_parts", lambda *_: None)
    return tmp_path


def paceline(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def ended_job(name: str = "old", **end: object) -> JobDir:
    job = JobDir.create(name)
    job.run_dir.rmdir()
    specs.save(JobSpec(script="/home/me/train.py"), job.spec)
    job.events.write_text('{"t":1.0,"event":"killed","node":"worker-0","inc":1}\n')
    job.metrics.write_text(
        '{"t":2.0,"committed":500,"samples_per_s":10.0,"nodes":{"worker-0":{"step":1,'
        '"samples":600,"bpt_s":0.5,"compute_s":0.1,"server_s":0.1,"message_s":0.1,'
        '"rss_bytes":1048576,"cpu_s":3.0}}}\n'
    )
    (job.logs / "worker-0.log").write_text("loss 0.3\n")
    (job.logs / "server-0.log").write_text("ready\n")
    if end:
        write_outcome(msgspec.convert(end, Outcome), job.outcome)
    return job


FAILED = {"state": "failed", "exit_code": 3, "error": "it broke", "committed": 500, "total": 1000}


def test_a_job_is_resumed_with_other_numbers_of_nodes() -> None:
    spec = JobSpec(script="train.py")
    assert read_sizes(spec, {}) == Resize()
    assert read_sizes(spec, {"workers": "3", "servers": "1"}) == Resize(workers=3, servers=1)


@pytest.mark.parametrize(
    ("spec", "flags", "message"),
    [
        ({}, {"servers": "0"}, "--servers: got '0', expected a number from 1 to 10000"),
        ({}, {"workers": "few"}, "--workers: got 'few', expected a number from 1 to 10000"),
        ({"strategy": "allreduce"}, {"servers": "1"}, "a job of strategy allreduce has no servers"),
        ({"strategy": "allreduce", "min_workers": 3}, {"workers": "2"}, "a number from 3 to 10000"),
        (
            {"strategy": "allreduce", "deterministic": True, "blocks": 4},
            {"workers": "5"},
            "got '5', expected a number from 1 to 4",
        ),
        ({"max_workers": 3}, {"workers": "4"}, "got '4', expected a number from 1 to 3"),
        ({"strategy": "script"}, {"workers": "2"}, "workers of strategy script stay as many"),
        ({"strategy": "fsdp", "machines": 2}, {"workers": "2"}, "a job of 2 machines keeps its"),
    ],
)
def test_numbers_of_nodes_that_cannot_be(
    spec: dict[str, Any], flags: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_sizes(JobSpec(script="train.py", **spec), flags)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run",), "nothing to run"),
        (("run", "nowhere.py"), "no such file"),
        (("run", "x.py", "--set", "workers"), "expected KEY=VALUE"),
        (("run", "x.py", "--workers", "two"), "--workers: got 'two'"),
        (
            ("scale", "x", "--workers", "x"),
            "--workers: got 'x', expected a number from 1 on; write",
        ),
        (
            ("scale", "x", "--workers", "0"),
            "--workers: got '0', expected a number from 1 on; write",
        ),
        (("kill", "--worker", "2.5"), "--worker: got '2.5', expected a number from 0 on; write"),
        (("replace", "--server", "-1"), "--server: got '-1', expected a number from 0 on; write"),
        (
            ("logs", "--tail", "few"),
            "--tail: got 'few', expected a number from 0 on; write e.g. --",
        ),
        (
            ("checkpoint", "show", "--cut", "x"),
            "--cut: got 'x', expected a number from 0 on; write",
        ),
        (("run", "--resume"), "there is no job yet"),
        (
            ("run", "--resume", "x", "--workers", "2", "--mode", "asp"),
            "--resume goes on with the job's own settings",
        ),
        (("attach", "x"), "no job matches 'x'"),
        (("replay", "x.jsonl"), "x.jsonl: no such file"),
        (("agent", "--join", "there:1"), "--join: got there:1, which cannot be read (No such file"),
        (("agent", "--join", "there", "--workers", "0"), "--workers: got '0', expected a number"),
        (
            ("rehearse", "x.py", "--workers", "17"),
            "got '17', expected a number from 2 to 16; write",
        ),
        (("check", "x.py", "--seconds", "soon"), "got 'soon', expected a number from 1 on; write"),
        (("agent", "--join", __file__), "holds no whole ticket of a job; copy the file `ticket`"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(args: tuple[str, ...], message: str) -> None:
    result = paceline(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_dry_run_says_where_each_value_comes_from(home: Path) -> None:
    result = paceline("run", str(SCRIPT), "--dry-run", "--workers", "4", "--set", "servers.cpu=2")
    assert result.exit_code == 0
    assert "workers.count = 4  (--workers)" in result.stdout
    assert "servers.cpu = 2  (--set servers.cpu)" in result.stdout
    assert "mode = bsp  (default)" in result.stdout
    assert not (home / "jobs").exists()


def test_status_of_nothing_says_how_to_begin() -> None:
    assert "paceline run" in paceline("status").stdout


def test_status_lists_all_jobs_with_how_they_ended() -> None:
    dead, failed = ended_job("dead"), ended_job(**FAILED)
    first, second = paceline("status").stdout.splitlines()[1:]
    assert first.split()[:5] == [failed.job_id, "failed", "50", "%", "500"]
    assert second.split()[:2] == [dead.job_id, "interrupted"]


JSON_OF_A_JOB = (
    *("job_id", "state", "exit_code", "error", "name", "strategy", "script", "workers", "servers"),
    *("committed", "total", "samples_per_s", "started_s", "ended_s", "jct_s", "path"),
)
JSON_OF_A_NODE = (
    *("node", "role", "state", "inc", "pid", "agent_pid", "restarts", "step", "samples", "bpt_s"),
    *("compute_s", "server_s", "message_s", "data_s", "rss_bytes", "cpu_s"),
    *("cores", "limit_bytes", "note", "sharing", "memory"),
)


def read_json(*args: str) -> Any:
    result = paceline(*args)
    assert result.exit_code == 0, result.stderr
    return msgspec.json.decode(result.stdout)


def test_an_end_that_cannot_be_read_is_named_and_hides_no_other_job() -> None:
    ended_job("whole", **FAILED)
    damaged = ended_job("damaged", **FAILED)
    damaged.outcome.write_bytes(damaged.outcome.read_bytes()[:37])
    rows = msgspec.json.decode(paceline("ps", "--json").stdout)
    assert sorted(row["state"] for row in rows) == ["failed", "unreadable"]
    for args in (("status",), ("stop",), ("attach",), ("run", "--resume")):
        told = paceline(*args, damaged.job_id)
        assert told.exit_code == 2, args
        assert f"{damaged.outcome}: got a file that is no end of a job" in told.stderr
    assert paceline("rm", damaged.job_id).exit_code == 0


def test_json_of_jobs_keeps_its_names() -> None:
    assert read_json("status", "--json") == []
    dead = ended_job("dead")
    job = ended_job(**FAILED, jct_s=50.0)
    created = dead.spec.stat()
    dead.spec.write_text("{}")  # of another version
    os.utime(dead.spec, ns=(created.st_atime_ns, created.st_mtime_ns))
    first, second = read_json("ps", "--json")
    assert read_json("status", "--json") == [first, second]
    assert tuple(first) == tuple(second) == JSON_OF_A_JOB
    told = (first["job_id"], first["state"], first["exit_code"], first["samples_per_s"])
    assert told == (job.job_id, "failed", 3, None)
    assert first["started_s"] == 1.0, "the launch, as in every other view of the job"
    assert (second["state"], second["script"], second["committed"]) == ("interrupted", None, 500)
    detail = read_json("status", job.job_id, "--json")
    more = ("eta_s", "valid_cuts", "nodes", "events", "slow", "logged", "notes", "relieved")
    assert tuple(detail) == (*JSON_OF_A_JOB, *more)
    (node,) = detail["nodes"]
    assert tuple(node) == JSON_OF_A_NODE
    ended_job("timed", **FAILED, training_s=20.0)
    (timed, *_) = read_json("ps", "--json")
    assert timed["samples_per_s"] == 25.0, "the mean over its training"
    assert "25/s" in paceline("ps", "--last", "1").stdout
    assert (node["node"], node["samples"]) == ("worker-0", 600)
    assert detail["events"][0]["event"] == "killed"


def test_ps_lists_the_newest_first_and_only_those_that_fit() -> None:
    oldest, dead, newest = ended_job("a", **FAILED), ended_job("b"), ended_job("ac", **FAILED)

    def shown(*args: str) -> list[str]:
        return [row["job_id"] for row in read_json("ps", "--json", *args)]

    assert shown() == [newest.job_id, dead.job_id, oldest.job_id]
    assert shown("-n", "2") == [newest.job_id, dead.job_id]
    assert shown("--state", "failed", "--last", "1") == [newest.job_id]
    assert shown("--name", "a") == [newest.job_id, oldest.job_id]
    assert shown("--state", "running") == []
    assert "lists all" in paceline("ps", "--state", "running").stdout
    assert shown("--state", "training") == []
    wrong = paceline("ps", "--state", "done")
    assert wrong.exit_code == 2
    assert "there are: failed, interrupted, and running" in wrong.stderr


def test_a_beginning_that_fits_several_jobs_names_them() -> None:
    first, second = ended_job(**FAILED), ended_job("older", **FAILED)
    for command in ("status", "logs", "attach", "stop"):
        result = paceline(command, "old")
        assert result.exit_code == 2
        assert "'old' is the beginning of 2 jobs: " in result.stderr
        assert first.job_id in result.stderr
        assert second.job_id in result.stderr
    assert paceline("status", "older").exit_code == 0


def test_ids_of_jobs_are_whole_on_narrow_terminals() -> None:
    job = ended_job(**FAILED)
    for width in (22, 30, 45, 60, 80):
        console = Console(file=io.StringIO(), width=width)
        show_jobs(console, JobSelection())
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert lines[1].startswith(job.job_id)
        assert max(map(len, lines)) <= width


def test_status_of_an_ended_job_comes_from_its_files() -> None:
    job = ended_job(**FAILED)
    shown = paceline("status", job.job_id).stdout
    for part in ("failed", "it broke", "exit code 3", "worker-0", "500.0 ms", "killed by order"):
        assert part in shown


def test_status_of_a_job_whose_processes_all_died_says_how_to_go_on() -> None:
    job = ended_job()
    assert f"paceline run --resume {job.job_id}" in paceline("status", job.job_id).stdout


def test_status_of_a_job_whose_master_is_away_does_not_call_it_ended() -> None:
    job = ended_job()
    lock = try_lock(job.supervisor_lock)
    assert lock is not None
    shown = paceline("status", job.job_id).stdout
    os.close(lock)
    assert "master away" in shown
    assert "its master is being started again" in shown
    assert "--resume" not in shown
    assert re.search(r"worker-0 +not known", shown)
    assert "\n   0:00  " in shown, "counted from the launch"


def test_files_that_are_damaged_hide_no_job() -> None:
    job = ended_job(**FAILED)
    job.metrics.write_bytes(b"\0" * 100 + b"\n")
    job.events.write_bytes(b"\0" * 100 + b"\n")
    job.curves.write_bytes(b"{\n\xff\n")
    for args in (("ps",), ("ps", "--json"), ("status",), ("status", "--json")):
        shown = paceline(args[0], *([job.job_id] if args[0] != "ps" else []), *args[1:])
        assert (shown.exit_code, shown.exception) == (0, None), args
        assert job.job_id in shown.stdout


def test_logs_are_told_apart_and_one_is_printed_as_it_is() -> None:
    ended_job(**FAILED)
    assert paceline("logs").stdout.splitlines() == ["worker-0 | loss 0.3", "server-0 | ready"]
    assert paceline("logs", "--node", "worker-0", "-f").stdout == "loss 0.3\n"
    wrong = paceline("logs", "--node", "worker-5")
    assert wrong.exit_code == 2
    assert "there are: worker-0, server-0" in wrong.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("kill", "--worker", "0"),
        ("kill", "--master"),
        ("scale", "--workers", "2"),
        ("stop",),
        ("stop", "--now"),
    ],
)
def test_orders_to_a_job_that_has_ended_are_refused(args: tuple[str, ...]) -> None:
    ended_job(**FAILED)
    result = paceline(*args)
    assert result.exit_code == 2
    assert "does not run: it has failed" in result.stderr


def test_attaching_to_an_ended_job_tells_how_it_ended_and_passes_its_code_on() -> None:
    ended_job(**FAILED)
    result = paceline("attach")
    assert result.exit_code == 3
    assert "it broke" in result.stderr
    assert "Failed by an error of the script after 500 of 1,000 samples" in result.stdout


def test_a_traceback_is_shown_once_whichever_workers_have_it_and_not_again_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.cli.watch.POLL_S", 0.01)
    job = ended_job(**FAILED, traceback="TB\nValueError: x\n")
    with job.events.open("a") as events:
        for node, text in (("worker-0", "x"), ("worker-1", "x"), ("worker-0", "y")):
            trace = f"TB\nValueError: {text}\n"
            end = ProcessExitedEvent(node=node, inc=1, verdict=Verdict.RETRYABLE, traceback=trace)
            events.write(end.text())
    assert run.watch(job, Console(file=io.StringIO())) == 3
    shown = capsys.readouterr().err
    assert shown.startswith("TB\nValueError: x\nTB\nValueError: y\npaceline: it broke; logs: ")
    assert shown.count("TB") == 2


def test_watching_a_job_whose_processes_all_died_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.cli.watch.GONE_S", 0.0)
    monkeypatch.setattr("paceline.cli.watch.POLL_S", 0.01)
    job = ended_job()
    result = paceline("attach")
    assert result.exit_code == 1
    assert "all processes of job" in result.stdout
    assert f"paceline run --resume {job.job_id}" in result.stdout


def test_files_that_cannot_be_read_do_not_change_how_the_job_ended() -> None:
    job = ended_job(**FAILED)
    job.spec.write_text("{")
    result = paceline("attach")
    assert result.exit_code == 3
    assert "Script failed; what the job wrote cannot be read" in result.stdout


# --------------------------------------------------------------------------- resuming


def never(*_: object) -> None:
    raise AssertionError("something was started")


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ({"committed": 0}, 0, "has already finished: 0 samples in the model; nothing was started"),
        (
            {"end": "stopped early", "exit_code": 3, "committed": 500, "total": 1000},
            3,
            "has returned; it left early, after 500 of 1,000 samples; nothing was started",
        ),
        ({"end": "not trained"}, 0, "has returned; it never trained anything"),
    ],
)
def test_a_job_that_is_over_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, end: dict[str, object], code: int, words: str
) -> None:
    job = ended_job(**({"state": "finished", "exit_code": 0} | end))
    monkeypatch.setattr("paceline.jobs.launch.start_detached", never)
    result = paceline("run", "--resume", job.job_id)
    assert result.exit_code == code
    assert words in result.stdout
    assert job.outcome.exists()


def test_a_finished_job_whose_model_is_gone_or_damaged_is_not_said_to_be_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.jobs.launch.start_detached", never)
    job = ended_job(state="finished", exit_code=0, committed=500, total=500)
    assert "has finished, but has no cut any more" in paceline("run", "--resume").stderr
    cut = job.cuts / "000001"
    cut.mkdir(parents=True)
    (cut / "manifest.json").write_text("{")
    result = paceline("run", "--resume")
    assert result.exit_code == 2
    assert "has finished, but" in result.stderr


def test_of_two_commands_that_resume_a_job_the_second_names_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from paceline.jobs import launch

    job = ended_job()
    monkeypatch.setattr(launch, "check_ground", lambda _: None)
    second: list[str] = []

    def start(_: JobDir) -> None:
        second.append(paceline("run", "--resume", "--detach").stderr)

    monkeypatch.setattr(launch, "start_supervisor", start)
    assert paceline("run", "--resume", "--detach").exit_code == 0
    assert f"is being resumed by another command (pid {os.getpid()}, since " in second[0]
    shutil.rmtree(job.run_dir, ignore_errors=True)


def test_a_job_that_runs_is_not_resumed_and_the_message_says_since_when() -> None:
    job = ended_job()
    job.events.write_text('{"t":1.0,"event":"supervisor_started","pid":4711}\n')
    lock = try_lock(job.supervisor_lock)
    result = paceline("run", "--resume")
    assert lock is not None
    os.close(lock)
    assert result.exit_code == 2
    assert "is running (supervisor pid 4711, since " in result.stderr


def test_why_answers_in_three_sentences_at_most_and_names_the_command_for_more() -> None:
    error = "worker-0: KeyError: 'x'"
    job = ended_job("bad", state="failed", end="script failed", exit_code=3, error=error)
    out = paceline("why", "bad").stdout.splitlines()
    assert out[0].startswith("It failed by an error of its script (at 0:00, exit code 3): worker-0")
    assert out[-1] == f"more: `paceline report {job.job_id}`"
    assert 2 <= len(out) <= 4
    told = msgspec.json.decode(paceline("why", "bad", "--json").stdout)
    assert told["job_id"] == job.job_id
    assert told["reasons"][0]["question"] == "ended"
    assert told["reasons"][0]["sentence"] == out[0]


def test_why_of_a_job_that_nobody_knows_is_a_mistake() -> None:
    done = paceline("why", "nobody")
    assert (done.exit_code, "no job matches 'nobody'" in done.stderr) == (2, True)
