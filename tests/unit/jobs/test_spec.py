"""A job spec is read from file and flags, keeps its sources, and survives its job file."""

import os
import stat
from pathlib import Path

import msgspec
import pytest
import typer

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.cli.main import app
from paceline.jobs.flags import OF_SPEC, flag_of
from paceline.jobs.joining import of_this_machine
from paceline.jobs.spec_file import explain, resolve
from paceline.jobs.spec_values import LEAVES, parse_duration_s, parse_size_bytes
from paceline.jobs.zygotes import process_environment
from paceline.wire.spec import JobSpec, NodeSpec, TimeoutSpec, load, save


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a script in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


def test_flags_win_over_the_file_and_the_file_over_defaults() -> None:
    Path("job.yaml").write_text("script: train.py\nworkers: {count: 4, memory: 2GB}\nseed: 7\n")
    spec = resolve("job.yaml", {"workers": "3", "mode": "asp"}, args=["--lr", "0.1"])
    assert spec.workers == NodeSpec(count=3, memory_bytes=2_000_000_000)
    assert (spec.mode, spec.seed, spec.data_seed, spec.servers) == ("asp", 7, 7, NodeSpec())
    assert spec.args == ("--lr", "0.1")
    assert spec.sources == {
        "script": "job.yaml:1",
        "workers.count": "--workers",
        "workers.memory": "job.yaml:2",
        "seed": "job.yaml:3",
        "mode": "--mode",
        "args": "command line",
        "strategy": "since mode asp is given",
    }
    assert spec.strategy == "ps"


def test_a_script_alone_is_a_job_with_all_defaults(here: Path) -> None:
    spec = resolve("train.py", {})
    script = str(here / "train.py")
    sources = {"script": "command line", "strategy": "since train.py has no sparse tables"}
    assert spec == JobSpec(
        script=script, cwd=str(here), name="train", strategy="allreduce", sources=sources
    )


@pytest.mark.parametrize("strategy", ["ps", "allreduce", "fsdp", "script"])
def test_scripts_run_in_the_folder_of_the_command(here: Path, strategy: str) -> None:
    (here / "folder" / "job.yml").write_text("script: ../train.py\n")
    assert resolve("folder/job.yml", {"strategy": strategy}).cwd == str(here)
    chosen = resolve("train.py", {"strategy": strategy, "cwd": "folder"})
    assert chosen.cwd == str(here / "folder")


def test_a_machine_that_joins_has_the_jobs_folder_or_the_root(here: Path) -> None:
    spec = resolve("train.py", {})
    assert of_this_machine(spec, "127.0.0.1:1").cwd == str(here)
    gone = msgspec.structs.replace(spec, cwd="/no/such/folder")
    assert of_this_machine(gone, "127.0.0.1:1").cwd is None


def test_a_script_with_an_odd_name_still_gives_a_job_name() -> None:
    Path("__my first&job.py").touch()
    assert resolve("__my first&job.py", {}).name == "my-first-job"


def test_paths_in_a_spec_are_relative_to_its_folder(here: Path) -> None:
    (here / "folder" / "deep.py").touch()
    (here / "folder" / "job.yml").write_text("script: deep.py\ncheckpoint: {dir: cuts}\n")
    spec = resolve("folder/job.yml", {})
    assert spec.script == str(here / "folder" / "deep.py")
    assert spec.checkpoint.dir == str(here / "folder" / "cuts")
    assert (spec.checkpoint.folder, spec.checkpoint.url) == (spec.checkpoint.dir, None)
    there = resolve("folder/job.yml", {"checkpoint.dir": "file:///store/job"}).checkpoint
    assert (there.folder, there.url) == (None, "file:///store/job")


def test_words_keep_their_spelling_whatever_yaml_makes_of_them() -> None:
    Path("job.yaml").write_text(
        "script: train.py\nargs: [010, 1e-3, yes, null-ish]\nenv: {A: on, B: 1_0}\n"
        "data_plane: {encryption: off}\nname: 2024\nbatch_size: 4_096\n"
    )
    spec = resolve("job.yaml", {})
    assert spec.args == ("010", "1e-3", "yes", "null-ish")
    assert spec.env == {"A": "on", "B": "1_0"}
    assert (spec.data_plane.encryption, spec.name, spec.batch_size) == ("off", "2024", 4096)


def test_null_takes_an_optional_value_back_to_none() -> None:
    Path("job.yaml").write_text("script: train.py\ncheckpoint: {dir: cuts}\n")
    assert resolve("job.yaml", {"checkpoint.dir": "null"}).checkpoint.dir is None


@pytest.mark.parametrize("text", ["[2, 0.5]", "2, 0.5"])
def test_nodes_of_one_role_may_have_different_quotas(text: str) -> None:
    Path("job.yaml").write_text(f"script: train.py\nworkers:\n  count: 3\n  cpu: {text}\n")
    spec = resolve("job.yaml", {"servers.cpu": "1"})
    assert [spec.workers.cpu_of(number) for number in range(3)] == [2.0, 0.5, 2.0]
    assert spec.servers.cpu_of(7) == 1.0
    assert "workers.cpu = 2, 0.5" in "\n".join(explain(spec))


def test_a_file_with_every_key_is_read() -> None:
    Path("job.yaml").write_text(
        "script: train.py\nargs: [a]\nname: n\nseed: 1\nstrategy: ps\nmode: ssp\nstaleness: 2\n"
        "deterministic: no\n"
        "samples: at-most-once\nmax_workers: 4\nsolution: none\nworkers: {count: 2, cpu: 0.5, memory: 1GiB, max_memory: 2GiB, gpus: 0}\n"
        "servers: {count: 2, cpu: 1, memory: 512MiB, max_memory: 1GiB, gpus: 0}\ntorch_threads: 2\nenv: {A: b}\n"
        "data: {shard_size: 10, shuffle: no, seed: 3}\nbatch_size: 8\nepochs: 2\n"
        "backend: local\nray_address: null\npending_s: 200ms\n"
        "checkpoint: {every_s: 1m, share: 0.1, keep: 3, dir: d, in_memory: no}\n"
        "restart: {budget: 0, window_s: 1m, backoff_s: 0, backoff_max_s: 1h, repeat: yes}\n"
        "timeouts: {heartbeat_s: 0.1, lost_after_s: 9s, stop_s: 2, hang_s: 9s, disk_s: 1m,"
        " places_s: 1m}\n"
        "pending_trace: 0s 1s\nmetrics_port: 0\npreflight: no\nwatch: yes\nlog: 1MiB\nlisten: 10.0.0.5\n"
        "advertise: job-a:4711\n"
        "control_plane: {encryption: tls}\n"
        "data_plane: {transport: tcp, encryption: curve}\ndecide_every_s: 1m\n"
        "windows: {short_steps: 10, short_s: 1m, long_steps: null, long_s: 2m}\n"
        "run_as: file\ncwd: .\nhistory: off\nscript_state: declared\n"
        f"share: {{class: guaranteed, device: 'cpu:{min(os.sched_getaffinity(0))}', "
        "devices: [], device_memory: 4GiB, minimum_memory: 1GiB}\n"
        "resources: {policy: none, cores: 8, memory: 8GiB, node_memory: 2GiB, workers: 4, servers: 2, cost: 9, "
        "window_s: 5s, settle_s: 10s, between_s: 1m, patience_s: 2m}\n"
    )
    spec = resolve("job.yaml", {})
    only_elsewhere = {"machines", "min_workers", "blocks", "checkpoint.every_steps"}
    assert set(spec.sources) == {*LEAVES, "env.A"} - only_elsewhere
    defaults = [line for line in explain(spec) if line.endswith("(default)")]
    assert sorted(defaults) == [
        "blocks = 16  (default)",
        "checkpoint.every_steps = none  (default)",
        "machines = 1  (default)",
        "min_workers = 1  (default)",
    ]
    assert (spec.data_seed, spec.pending_s, spec.restart.backoff_max_s) == (3, 0.2, 3600.0)


def test_threads_follow_the_machine_but_not_where_bits_follow_them() -> None:
    spec = JobSpec(script="train.py", workers=NodeSpec(count=3))
    assert [spec.threads(cores) for cores in (1, 3, 8)] == [1, 1, 2]
    replaced = msgspec.structs.replace
    assert [spec.threads(64, quota) for quota in (0.2, 1.0, 1.5, 100.0)] == [1, 1, 2, 21]
    assert replaced(spec, deterministic=True).threads(8) == 1
    assert replaced(spec, deterministic=True, torch_threads=4).threads(8) == 4
    environment = process_environment(JobDir(Path("job")), "worker-0", spec)
    assert "MKL_CBWR" not in environment
    spec = replaced(spec, deterministic=True)
    environment = process_environment(JobDir(Path("job")), "worker-0", spec)
    assert (environment["MKL_CBWR"], environment["OMP_NUM_THREADS"]) == ("AUTO,STRICT", "1")


def test_explain_names_each_value_and_its_source_but_hides_the_environment() -> None:
    Path("job.yaml").write_text("script: train.py\nworkers: 4\nenv: {TOKEN: secret}\n")
    lines = explain(resolve("job.yaml", {"servers.memory": "2GiB"}))
    assert "workers.count = 4  (job.yaml:2)" in lines
    assert "servers.memory = 2GiB  (--set servers.memory)" in lines
    assert "checkpoint.every_s = none  (default)" in lines
    assert "batch_size = none  (default)" in lines
    assert "env.TOKEN = ***  (job.yaml:3)" in lines
    assert "secret" not in "\n".join(lines)


def test_every_default_is_a_value_that_the_reader_takes() -> None:
    elsewhere = {"script", "args", "name", "machines", "min_workers", "blocks", "share.devices"}
    flags = {
        key: "null" if leaf.default is None else leaf.example
        for key, leaf in LEAVES.items()
        if key not in elsewhere
    }
    spec = resolve("train.py", flags | {"mode": "ssp", "workers.count": "1", "servers.count": "1"})
    assert msgspec.structs.replace(spec, sources={}, mode="bsp", name="job") == JobSpec(
        script=spec.script
    )


def test_flags_are_named_after_keys() -> None:
    keys = ["batch_size", "pending_s", "workers", "checkpoint.keep", "script", "listen"]
    assert [flag_of(key) for key in keys] == [
        "--batch-size",
        "--pending",
        "--workers",
        "--set checkpoint.keep",
        "--set script",
        "--set listen",
    ]


def test_every_flag_that_is_named_exists() -> None:
    options = typer.main.get_command(app).commands["run"].params
    known = {name for option in options for name in option.opts}
    assert {flag_of(key) for key in OF_SPEC} <= known


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 2**29), ("2GB", 2 * 10**9), ("1.5 kib", 1536), ("7", 7), ("1B", 1),
     ("2G", None), ("-1B", None), ("", None), ("1e3", None)],
)  # fmt: skip
def test_sizes_are_read_in_decimal_and_binary_units(text: str, size: int | None) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("5m", 300.0), ("2h", 7200.0), ("250ms", 0.25), ("0.5", 0.5),
     ("5 min", 300.0), ("5d", None), ("-1s", None), ("nan", None), ("inf", None)],
)  # fmt: skip
def test_durations_are_read_as_seconds(text: str, seconds: float | None) -> None:
    assert parse_duration_s(text) == seconds


def test_a_trace_of_pending_times_is_read_shown_and_followed() -> None:
    Path("job.yaml").write_text(
        "script: train.py\npending_s: 1s\npending_trace: 10s 5s, 1m 0s, 2m 500ms\n"
    )
    spec = resolve("job.yaml", {})
    assert spec.pending_trace == ((10.0, 5.0), (60.0, 0.0), (120.0, 0.5))
    shown = "pending_trace = 10s 5s, 60s 0s, 120s 0.5s  (job.yaml:3)"
    assert shown in explain(spec)
    times_s = (0.0, 9.9, 10.0, 59.0, 60.0, 1e6)
    assert [spec.pending_at(t_s) for t_s in times_s] == [1.0, 1.0, 5.0, 5.0, 0.0, 0.5]
    assert (spec.longest_pending_s, JobSpec(script="a", pending_s=3.0).longest_pending_s) == (5, 3)
    assert resolve("train.py", {"pending_trace": "0s 2s"}).pending_at(0.0) == 2.0
    save(spec, Path("job.json"))
    assert load(Path("job.json")) == spec


def test_a_saved_spec_is_loaded_as_it_was_and_is_private() -> None:
    spec = resolve("train.py", {"workers": "3", "env.A": "1", "servers.memory": "2GiB"})
    save(spec, Path("job.json"))
    assert load(Path("job.json")) == spec
    assert stat.S_IMODE(os.stat("job.json").st_mode) == 0o600
    assert not list(Path().glob("*.tmp"))


@pytest.mark.parametrize(
    "text", ["", "{}", '{"script": "a", "seed": -1}', '{"script": "a", "x":1}']
)
def test_a_damaged_spec_in_the_job_directory_is_refused_by_name(text: str) -> None:
    Path("job.json").write_text(text)
    with pytest.raises(PermanentError, match=r"^job\.json: got a file that is no job spec"):
        load(Path("job.json"))


def test_timeouts_follow_the_step_time_unless_they_were_set() -> None:
    assert TimeoutSpec().derived(None) == TimeoutSpec(lost_after_s=10.0, stop_s=5.0, hang_s=120.0)
    assert TimeoutSpec().derived(0.01) == TimeoutSpec(lost_after_s=5.0, stop_s=5.0, hang_s=10.0)
    assert TimeoutSpec().derived(3.0) == TimeoutSpec(lost_after_s=30.0, stop_s=15.0, hang_s=60.0)
    own = TimeoutSpec(lost_after_s=7.0, stop_s=1.0, hang_s=4.0)
    assert own.derived(100.0) == own
