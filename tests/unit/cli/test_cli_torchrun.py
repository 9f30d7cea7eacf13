"""torchrun's flags as those of `paceline run`, and the environment that its scripts read."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from paceline.agent import torchrun
from paceline.agent.torchrun import torchrun_environment
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.cli.main import app
from paceline.jobs.spec_file import resolve
from paceline.jobs.zygotes import process_environment
from paceline.terminal.torchrun import translate
from paceline.wire.messages.agent import Ranks, StartProcess
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec

START = StartProcess(inc=3, role="worker", rank=1, num_workers=2, restart=4, port=4711)


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def dry_run(*args: str) -> dict[str, str]:
    """Setting -> value, of `paceline run --dry-run`."""
    done = CliRunner().invoke(app, ["run", "--dry-run", *args])
    assert done.exit_code == 0, done.output
    pairs = (line.rpartition("  (")[0].partition(" = ") for line in done.output.splitlines())
    return {key: value for key, _, value in pairs}


def test_torchruns_flags_make_a_script_job() -> None:
    spec = dry_run("--nproc-per-node", "2", "--max-restarts", "3", "train.py", "--", "--lr", "0.1")
    assert spec["strategy"] == "script"
    assert (spec["workers.count"], spec["args"]) == ("2", "[--lr, 0.1]")
    assert (spec["restart.budget"], spec["restart.repeat"]) == ("3", "true")
    assert spec["restart.window_s"] == "none"
    assert (spec["cwd"], spec["solution"]) == (os.getcwd(), "none")


def test_a_whole_torchrun_command_line_is_taken() -> None:
    spec = dry_run(
        *("--standalone", "--nnodes=1:1", "--nproc_per_node=cpu", "--node_rank", "0"),
        *("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--rdzv_id=abc"),
        *("--master_addr=127.0.0.1", "--master_port=29500", "--shutdown_timeout=20"),
        *("--log_dir=logs", "--role=trainer", "train.py"),
    )
    assert spec["workers.count"] == str(len(os.sched_getaffinity(0)))
    assert spec["timeouts.stop_s"] == "20s"
    chosen = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "ROLE_NAME"}
    assert {f"env.{name}" for name in chosen} <= spec.keys()


def test_flags_that_tune_torchruns_agent_are_ignored_in_one_line() -> None:
    flags = ("-t", "3", "--redirects=0:1", "--monitor_interval", "0.1", "--start-method", "fork")
    done = CliRunner().invoke(app, ["run", "--dry-run", *flags, "train.py"])
    assert done.exit_code == 0, done.output
    assert "strategy = script" in done.stdout
    (line,) = done.stderr.splitlines()
    assert "--tee, --redirects, --monitor-interval, --start-method: ignored" in line
    assert not CliRunner().invoke(app, ["run", "--dry-run", "train.py"]).stderr


def test_a_local_address_is_where_workers_meet() -> None:
    assert translate({"local-addr": "127.0.0.1"}, {})["env.MASTER_ADDR"] == "127.0.0.1"
    with pytest.raises(ConfigError, match="an address of this machine"):
        translate({"local-addr": "192.0.2.1"}, {})


@pytest.mark.parametrize("strategy", ["script", "allreduce"])
def test_exported_numbers_of_threads_are_kept_for_scripts_by_themselves(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads(**spec: Any) -> list[str]:
        job = JobSpec(script="a", strategy=strategy, workers=NodeSpec(count=10_000), **spec)
        found = process_environment(JobDir(Path("job")), "worker-0", job)
        return [found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]]

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert threads() == ["1", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert threads() == (["6", "6"] if strategy == "script" else ["1", "1"])
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    assert threads() == (["6", "2"] if strategy == "script" else ["1", "1"])
    assert threads(torch_threads=3) == ["3", "3"]


def test_other_jobs_are_what_they_were() -> None:
    assert dry_run("train.py")["strategy"] == "allreduce"
    assert translate({}, {"workers": "2"}) == {}


def test_a_module_and_a_program_can_be_run() -> None:
    for made in ("train.py", "__main__.py"):
        Path("pkg").mkdir(exist_ok=True)
        Path("pkg", made).touch()
    assert resolve("pkg", {"strategy": "script", "run_as": "module"}).script == "pkg"
    module = resolve("pkg.train", {"strategy": "script", "run_as": "module"})
    assert (module.script, module.run_as) == ("pkg.train", "module")
    program = resolve("bash", {"strategy": "script", "run_as": "program"})
    assert os.access(program.script, os.X_OK)
    Path("job.yaml").write_text("script: pkg.train\nstrategy: script\nrun_as: module\n")
    assert resolve("job.yaml", {}).script == "pkg.train"


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("nproc-per-node", "0", "expected a number of processes, cpu, gpu or auto"),
        ("nproc-per-node", "many", "expected a number of processes"),
        ("nnodes", "1:4", "expected a number of machines"),
        ("node-rank", "1", "all others join by `paceline agent --join TICKET`"),
        ("rdzv-backend", "etcd", "the job's master brings the workers together"),
        ("rdzv-endpoint", "192.0.2.1:29400", "an address of this machine"),
        ("master-addr", "192.0.2.1", "an address of this machine"),
        ("master-port", "0", "leave it out, and each start gets a fresh one"),
        ("max-restarts", "-1", "at least 0"),
        ("numa-binding", "node", "no counterpart"),
    ],
)
def test_a_flag_without_a_meaning_here_is_refused(flag: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        translate({flag: value}, {})


def test_nnodes_makes_a_job_of_several_machines() -> None:
    flags = ("--nnodes", "2", "--nproc-per-node", "3", "--rdzv-endpoint", "127.0.0.1:29400")
    spec = dry_run(*flags, "train.py")
    assert (spec["machines"], spec["workers.count"], spec["listen"]) == ("2", "6", "127.0.0.1")
    assert "env.MASTER_ADDR" not in spec
    own = translate({"nnodes": "2", "master-addr": "localhost", "nproc-per-node": "1"}, {})
    assert (own["listen"], own["workers"]) == ("127.0.0.1", "2")
    shards = translate({"nnodes": "2", "nproc-per-node": "2"}, {"strategy": "fsdp"})
    assert shards == {"strategy": "fsdp", "workers": "4", "machines": "2"}
    ray = translate({"nnodes": "2", "nproc-per-node": "2"}, {"backend": "ray"})
    assert ray == {"strategy": "script", "workers": "4"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"strategy": "script"}, "where no other one reaches the job, expected an address of this"),
        ({"strategy": "allreduce", "listen": "127.0.0.1"}, "with strategy fsdp or script only"),
        ({"strategy": "script", "listen": "127.0.0.1", "workers": "3"}, "as many on each machine"),
    ],
)
def test_what_several_machines_need_is_said(flags: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve("train.py", {"machines": "2", "workers": "4"} | flags)


def test_flags_that_contradict_each_other_are_refused() -> None:
    for given, others in (
        ({"nproc-per-node": "2"}, {"strategy": "ps"}),
        ({"nproc-per-node": "2"}, {"workers": "2"}),
        ({"no-python": "True"}, {"run_as": "module"}),
    ):
        with pytest.raises(ConfigError):
            translate(given, others)


def test_a_refused_flag_of_torchrun_is_told_apart_from_a_misspelt_one() -> None:
    refused = CliRunner().invoke(app, ["run", "--numa-binding", "node", "train.py"])
    assert refused.exit_code == 2
    assert "no counterpart" in refused.output


@pytest.mark.parametrize("key", ["mode", "batch_size", "servers", "checkpoint.every_s"])
def test_what_a_script_by_itself_decides_cannot_be_set(key: str) -> None:
    values = {"mode": "asp", "batch_size": "8", "servers": "2", "checkpoint.every_s": "1s"}
    able = "ps" if key in ("mode", "servers") else "ps, allreduce or fsdp"
    with pytest.raises(ConfigError, match=f"strategy {able} only"):
        resolve("train.py", {"strategy": "script", key: values[key]})


def test_where_workers_meet_is_for_scripts_to_choose_only() -> None:
    flags = {"env.MASTER_PORT": "29500"}
    assert resolve("train.py", flags | {"strategy": "script"}).env == {"MASTER_PORT": "29500"}
    with pytest.raises(ConfigError, match="none that paceline sets"):
        resolve("train.py", flags)
    with pytest.raises(ConfigError, match="none that paceline sets"):
        resolve("train.py", {"strategy": "script", "env.RANK": "0"})


def test_a_script_finds_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    spec = JobSpec(
        script="train.py",
        strategy="script",
        workers=NodeSpec(count=2),
        restart=RestartSpec(budget=5),
    )
    found = torchrun_environment(START, spec, "job-1", Path("/logs/worker-1.3.error.json"))
    assert found == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "ROLE_RANK": "1",
        "GROUP_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RUN_ID": "job-1",
        "TORCHELASTIC_RESTART_COUNT": "4",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/logs/worker-1.3.error.json",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_a_rank_on_another_machine_finds_its_place_and_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(torchrun, "interface_of", {"10.0.0.6": "eth7"}.__getitem__)
    ranks = Ranks(rank=3, local_rank=1, local_size=2, machine=1, machines=2, host="10.0.0.5")
    start = msgspec.structs.replace(START, num_workers=4, ranks=ranks)
    spec = JobSpec(script="train.py", strategy="script", listen="10.0.0.6")
    found = torchrun_environment(start, spec, "job-1", Path("e"))
    wanted = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    wanted |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.5"}
    assert found.items() >= (wanted | {"GLOO_SOCKET_IFNAME": "eth7"}).items()


def test_what_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    env = {"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "mine"}
    spec = JobSpec(script="train.py", strategy="script", env=env)
    found = torchrun_environment(START, spec, "job-1", Path("e"))
    assert (found["MASTER_PORT"], found["TORCHELASTIC_RUN_ID"]) == ("29500", "mine")
    assert "GLOO_SOCKET_IFNAME" not in found
