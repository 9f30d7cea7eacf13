"""Curves go to other places as well: TensorBoard's files, and sinks of packages."""

import json
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.features.curves import feeding as sink_feeding
from paceline.features.curves.feeding import SinkFeed
from paceline.features.curves.keeping import SETTLE_S, CurveKeeping
from paceline.features.curves.sinks import registry, sink, wandb
from paceline.features.curves.sinks.sink import Sink, SinkWriter
from paceline.features.curves.wire import Logged, LoggedStep, LoggedTotal, SinkFailedEvent
from paceline.jobs.curves import CurveFile, CurveLine
from paceline.jobs.ground import check_ground
from paceline.jobs.spec_file import resolve
from paceline.wire.messages.base import Attempt
from paceline.wire.spec import JobSpec


class Kept:
    """What a sink was given: steps, and ``(step,)`` where it went back."""

    def __init__(self) -> None:
        self.steps: list[int | tuple[int]] = []
        self.closed = False
        self.go_on = threading.Event()
        self.go_on.set()

    def add(self, line: CurveLine) -> None:
        assert self.go_on.wait(10.0)
        self.steps.append(line.step)

    def go_back(self, step: int) -> None:
        self.steps.append((step,))

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        self.closed = True


class Broken(Kept):
    """A sink whose place goes away."""

    def add(self, line: CurveLine) -> None:
        super().add(line)
        if line.step == 2:
            raise OSError("no room")


KEPT: dict[str, Kept] = {}


class Mine(Sink, frozen=True, kw_only=True):
    """A sink of a package."""

    def check(self) -> None:
        if self.to.endswith("nowhere"):
            raise ConfigError(f"got {self.to}, expected somewhere; name another")

    def open(self, job_id: str) -> SinkWriter:
        return KEPT[job_id]


@pytest.fixture(autouse=True)
def _mine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "mine", Mine)  # type: ignore[arg-type]
    KEPT.clear()


SPEC = JobSpec(script="/train.py", log_to={"mine": "/there"})


def line(step: int, group: int = 1, value: float | str = 0.5) -> CurveLine:
    values: dict[str, float | str] = {"loss": value}
    return CurveLine(t=100.0 + step, group=group, step=step, samples=8 * step, values=values)


class Said:
    """What the master tells."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def tell(self, event: object) -> None:
        self.events.append(event)

    def send(self, *_: object) -> None:
        """Nobody is there."""


class Job:
    """A worker that logs, and a master that writes it down."""

    def __init__(self, folder: Path, kept: Kept) -> None:
        self.path, self.kept, self.said, self.n = folder / "curves.jsonl", kept, Said(), 0
        KEPT["j"] = kept
        self.begin()

    def begin(self) -> None:
        self.keeping = CurveKeeping(
            self.path,
            self.said.tell,
            self.said.send,
            lambda: 100.0 + self.n,
            partial(SinkFeed, SPEC, "j"),
        )

    def logs(self, *steps: int, group: int = 1) -> None:
        for step in steps:
            self.n += 1
            logged = LoggedStep(Attempt(1, group), step, 8 * step, {"loss": LoggedTotal(0.5, 1)})
            message = Logged(n=self.n, steps=(logged,))
            self.keeping.heard(Inc(1), message, 0.0, lambda: pytest.fail("it knows where it is"))
        self.keeping.tick(SETTLE_S)


def test_a_sink_gets_each_point_once_and_hears_which_steps_come_again(tmp_path: Path) -> None:
    job = Job(tmp_path, Kept())
    job.logs(1, 2, 3)
    job.logs(3, 4, group=2)
    job.keeping.close()
    assert job.kept.steps == [(1,), 1, 2, 3, (3,), 3, 4]
    assert job.kept.closed
    assert not job.said.events


def test_a_new_master_writes_the_newest_points_again(tmp_path: Path) -> None:
    job = Job(tmp_path, Kept())
    job.logs(1, 2, 3)
    job.keeping.file.flush()
    KEPT["j"] = again = Kept()
    job.begin()
    job.logs(4)
    job.keeping.close()
    assert again.steps == [(1,), 1, 2, 3, 4]


def test_a_sink_that_fails_is_given_up_and_the_job_says_so_once(tmp_path: Path) -> None:
    job = Job(tmp_path, Broken())
    job.logs(1, 2, 3)
    job.keeping.close()
    assert job.kept.steps == [(1,), 1, 2]
    assert job.said.events == [SinkFailedEvent(sink="mine", error="OSError: no room")]
    assert len(job.path.read_text().splitlines()) == 3


def test_a_sink_that_cannot_be_opened_is_no_end_of_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, Kept())
    KEPT.clear()
    job.logs(1)
    job.keeping.close()
    assert job.said.events == [SinkFailedEvent(sink="mine", error="KeyError: 'j'")]


def test_a_slow_sink_holds_nobody_up_and_what_waits_for_it_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_feeding, "MAX_WAITING", 10)
    job = Job(tmp_path, Kept())
    job.kept.go_on.clear()
    job.logs(*range(1, 101))
    assert len(job.path.read_text().splitlines()) == 100
    job.kept.go_on.set()
    job.keeping.close()
    assert 5 <= len(job.kept.steps) <= 12


def test_the_newest_lines_of_a_file_are_those_of_its_last_minute(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    file = CurveFile(path)
    for step in range(1, 201):
        file.add(line(step))
    file.close()
    found = CurveFile(path).newest
    assert [one.step for one in found] == list(range(141, 201))
    assert CurveFile(tmp_path / "none.jsonl").newest == []


# --------------------------------------------------------------------------- the spec


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    path = tmp_path / "train.py"
    path.touch()
    return path


def test_a_flag_and_a_key_name_a_sink_and_paths_are_absolute(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    assert resolve(script, {"log_to.tensorboard": "runs"}).log_to == {
        "tensorboard": str(script.parent / "runs")
    }
    file = script.with_name("job.yaml")
    file.write_text("script: train.py\nlog_to:\n  mine: sub/there\n  tensorboard: gs://bucket/x\n")
    assert resolve(file, {}).log_to == {
        "mine": str(script.parent / "sub/there"),
        "tensorboard": "gs://bucket/x",
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"log_to.tensorboard": "runs", "strategy": "script"},
            "--tensorboard: got it with strategy script, whose scripts log on their own",
        ),
    ],
)
def test_a_sink_to_which_nothing_would_come_is_refused(
    script: Path, flags: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(script, flags)
    assert message in str(caught.value)


def test_a_sink_that_no_package_declares_is_refused_with_the_nearest_name(script: Path) -> None:
    expected = (
        "--set log_to.tensorbord: got the sink 'tensorbord', expected one of mine, mlflow, "
        "tensorboard, wandb; did you mean tensorboard?"
    )
    with pytest.raises(ConfigError, match=re.escape(expected)):
        check_ground(resolve(script, {"log_to.tensorbord": "runs"}))


def test_what_a_sink_lacks_is_said_before_the_job_starts(script: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set log_to\.mine: got .*nowhere, expected somewhere"):
        check_ground(resolve(script, {"log_to.mine": "nowhere"}))


def test_tensorboard_without_its_package_is_refused_with_the_remedy(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink.importlib.util, "find_spec", lambda _: None)
    spec = resolve(script, {"log_to.tensorboard": str(script.parent / "runs")})
    with pytest.raises(ConfigError) as caught:
        check_ground(spec)
    assert str(caught.value).startswith("--tensorboard: got ")
    assert "run `pip install 'paceline[tensorboard]'`" in str(caught.value)


def test_a_folder_that_cannot_be_is_refused(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink.importlib.util, "find_spec", lambda _: object())
    with pytest.raises(ConfigError, match="expected a folder to write to"):
        check_ground(resolve(script, {"log_to.tensorboard": str(script / "runs")}))


# --------------------------------------------------------------------------- TensorBoard


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A job that goes back to step 5, and another master after that."""
    pytest.importorskip("tensorboard", reason="the extra tensorboard; `make extras` installs it")
    spec = JobSpec(script="/train.py", log_to={"tensorboard": str(tmp_path)})
    feed = SinkFeed(spec, "j", ())
    for step in range(1, 9):
        feed.add(line(step, value=1.0))
    for step in range(5, 11):
        feed.add(line(step, group=2, value="nan" if step == 7 else 2.0))
    feed.close()
    assert feed.take_failed() == []
    again = SinkFeed(spec, "j", [line(step, group=2, value=3.0) for step in (9, 10)])
    again.add(line(11, group=2, value=3.0))
    again.close()
    assert again.take_failed() == []
    return tmp_path / "j"


def test_tensorboard_reads_each_step_once(written: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(written)).Reload().Scalars("loss")
    assert [event.step for event in events] == list(range(1, 12))
    values = [event.value for event in events]
    assert values[:4] == [1.0] * 4
    assert str(values[6]) == "nan"
    assert values[4:6] + values[7:8] == [2.0] * 3
    assert values[8:] == [3.0] * 3
    assert [event.wall_time for event in events] == [100.0 + step for step in range(1, 12)]


# --------------------------------------------------------------------------- Weights & Biases


@pytest.fixture
def no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody has logged in, and the package is there; where keys are looked for."""
    monkeypatch.setattr(sink.importlib.util, "find_spec", lambda _: object())
    for name in [*wandb.KEYS, "WANDB_MODE", "WANDB_BASE_URL"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


def test_weights_and_biases_without_a_key_is_refused_with_the_remedy(
    script: Path, no_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolve(script, {"log_to.wandb": str(script.parent / "runs")})
    with pytest.raises(ConfigError, match=r"--wandb: got .*; run `wandb login`, or set WANDB_MODE"):
        check_ground(spec)
    no_key.write_text("machine api.wandb.ai login user password secret\n")
    no_key.chmod(0o600)
    check_ground(spec)
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    with pytest.raises(ConfigError, match="expected a key"):
        check_ground(spec)
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_ground(spec)


RUN = """
import sys
from paceline.jobs.curves import CurveLine
from paceline.features.curves.sinks.wandb import WeightsAndBiases

def line(step, loss):
    return CurveLine(t=1.0, group=1, step=step, samples=8 * step, values={"loss": loss})

sink = WeightsAndBiases(to=sys.argv[1])
sink.check()
run = sink.open("j-1")
for step in (1, 2, 3):
    run.add(line(step, 0.5))
run.go_back(2)
for step in (2, 3, 4):
    run.add(line(step, "nan" if step == 4 else 9.0))
run.close()
"""


def test_weights_and_biases_has_each_step_once_under_the_job_s_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb; `make extras` installs it")
    own = {name: str(tmp_path / name) for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR")}
    own |= {"WANDB_MODE": "offline", "WANDB_PROJECT": "mine"}
    command = [sys.executable, "-c", RUN, str(tmp_path / "runs")]
    subprocess.run(command, check=True, env=os.environ | own, timeout=60, cwd=tmp_path)
    (path,) = (tmp_path / "runs" / "wandb").glob("offline-run-*-j-1/run-j-1.wandb")
    records = list(wandb_records(path.read_bytes()))
    (run,) = [one.run for one in records if one.HasField("run")]
    assert (run.run_id, run.display_name, run.project) == ("j-1", "j-1", "mine")
    rows = [
        {item.nested_key[0] if item.nested_key else item.key: item.value_json for item in found}
        for one in records
        if one.HasField("history")
        for found in [one.history.item]
    ]
    assert [int(row["_step"]) for row in rows] == [1, 2, 3, 4]
    assert [row["loss"].strip('"') for row in rows] == ["0.5", "0.5", "0.5", "NaN"]
    assert [int(row["samples"]) for row in rows] == [8, 16, 24, 32]


def wandb_records(data: bytes) -> Iterator[Any]:
    """What such a file holds: after 7 bytes, records of a checksum, a length, and a type."""
    from wandb.proto.wandb_internal_pb2 import Record

    at = 7
    while at + 7 < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1, "a record that is in one piece"
        yield Record.FromString(data[at + 7 : at + 7 + length])
        at += 7 + length


# --------------------------------------------------------------------------- MLflow


def test_mlflow_has_each_step_once_and_a_later_master_goes_on(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow; `make extras` installs it")
    code = RUN.replace("wandb import WeightsAndBiases", "mlflow import MLflow as WeightsAndBiases")
    later = "\nrun = sink.open('j-1')\nrun.add(line(4, 9.0))\nrun.add(line(5, 0.25))\nrun.close()"
    own = {"MLFLOW_EXPERIMENT_NAME": "mine"}
    command = [sys.executable, "-c", code + later + READ_MLFLOW, str(tmp_path / "runs")]
    read = subprocess.run(
        command, check=True, env=os.environ | own, timeout=100, capture_output=True, text=True
    )
    found = json.loads(read.stdout.splitlines()[-1])
    assert found["runs"] == [["j-1", "FINISHED"]]
    assert found["loss"] == [[1, 0.5], [2, 0.5], [3, 0.5], [4, "nan"], [5, 0.25]]
    assert found["samples"] == [[step, 8.0 * step] for step in range(1, 6)]
    check_ground(resolve(script, {"log_to.mlflow": "http://mlflow.example:5000"}))


READ_MLFLOW = """
import json
from mlflow import MlflowClient

client = MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/mlflow.db")
runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
found = {"runs": [[one.info.run_name, one.info.status] for one in runs]}
for name in ("loss", "samples"):
    points = client.get_metric_history(runs[0].info.run_id, name)
    values = [[p.step, "nan" if p.value != p.value else p.value] for p in points]
    found[name] = sorted(values, key=lambda one: one[0])
print(json.dumps(found))
"""
