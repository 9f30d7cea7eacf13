"""What of a shell a run keeps, and what of one never reaches it."""

from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.jobs.surroundings import fixed
from paceline.jobs.zygotes import process_environment
from paceline.wire.spec import JobSpec, NodeSpec, load, save

JOB = JobDir(Path("job"))


def environment(spec: JobSpec) -> dict[str, str]:
    return process_environment(JOB, "worker-0", spec)


def test_the_first_start_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    spec = fixed(JobSpec(script="train.py"))
    save(spec, tmp_path / "job.json")
    monkeypatch.setenv("PYTHONHASHSEED", "6")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("TZ")
    kept = load(tmp_path / "job.json")
    assert fixed(kept) == kept == spec
    found = environment(kept)
    assert (found["PYTHONHASHSEED"], found["TZ"], found["LANG"]) == ("5", "Asia/Tokyo", "C.UTF-8")
    assert "LC_ALL" not in found


@pytest.mark.parametrize("exported", [None, "random", "nonsense", "-1", str(2**32)])
def test_a_hash_seed_that_is_none_becomes_one(
    exported: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exported is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", exported)
    spec = fixed(JobSpec(script="train.py", seed=2**32 + 7))
    seed = environment(spec)["PYTHONHASHSEED"]
    assert 0 <= int(seed) < 2**32
    assert exported or seed == "7"
    assert environment(spec)["PYTHONHASHSEED"] == seed


def test_a_random_seed_of_the_spec_is_drawn_once() -> None:
    spec = fixed(JobSpec(script="train.py", env={"PYTHONHASHSEED": "random"}))
    seed = environment(spec)["PYTHONHASHSEED"]
    assert seed.isdecimal()
    assert environment(spec)["PYTHONHASHSEED"] == seed


@pytest.mark.parametrize("strategy", ["ps", "allreduce", "fsdp", "script"])
def test_variables_of_torchrun_stay_outside(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    foreign += ("ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    for name in foreign:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("FRANK", "1")
    spec = JobSpec(script="train.py", strategy=strategy)  # type: ignore[arg-type]
    for one in (spec, fixed(spec)):
        found = environment(one)
        assert found.keys().isdisjoint(foreign)
        assert found["FRANK"] == "1"


def test_threads_are_those_of_the_machine_that_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    spec = fixed(JobSpec(script="train.py", workers=NodeSpec(count=2)))
    on_ray = fixed(JobSpec(script="train.py", workers=NodeSpec(count=2), backend="ray"))
    assert environment(spec)["OMP_NUM_THREADS"] == "4"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert environment(spec)["OMP_NUM_THREADS"] == "4"
    assert environment(on_ray)["OMP_NUM_THREADS"] == "32"


def test_a_script_by_itself_keeps_its_exported_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    spec = fixed(JobSpec(script="train.py", strategy="script"))
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    assert environment(spec)["OMP_NUM_THREADS"] == "3"
