"""How a job says that it shares a device, and what is refused before anything starts."""

import os
from pathlib import Path

import pytest

from paceline.base import devices
from paceline.base.devices import cores_of, shared_name
from paceline.base.errors import ConfigError
from paceline.features.sharing import lacks, pages
from paceline.features.sharing.agent import coordinate
from paceline.features.sharing.gate_page import MINIMUM, ROOM, GatePage
from paceline.features.sharing.master import rows
from paceline.features.sharing.wire import GateMode, SharingDecision
from paceline.jobs.spec_file import resolve
from paceline.wire.spec import JobSpec, ShareSpec

CORE = min(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where run directories lie, and a current folder with a script in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(pages, "run_place", lambda: tmp_path)
    return tmp_path


def page_of(place: Path, job_id: str, device: str, share: str) -> GatePage:
    """The page of a worker that lives."""
    folder = place / f"paceline-{job_id}"
    folder.mkdir()
    path = folder / "worker-0.share"
    return GatePage.create(path, device, share)  # type: ignore[arg-type]


def test_flags_and_files_say_the_same() -> None:
    flags = {"strategy": "script", "share": "guaranteed", "device": f"cpu:{CORE}"}
    by_flags = resolve("train.py", flags)
    text = f"script: train.py\nstrategy: script\nshare: {{class: guaranteed, device: cpu:{CORE}}}\n"
    Path("job.yaml").write_text(text)
    assert by_flags.share == resolve("job.yaml", {}).share
    assert by_flags.share == ShareSpec(kind="guaranteed", device=f"cpu:{CORE}")
    assert by_flags.sources["share.device"] == "--device"
    assert resolve("train.py", {"device": f"cpu:{CORE}"}).share.kind == "auto"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            {"share": "guaranteed"},
            "--share: got guaranteed without a device, expected the cores that it shares; "
            "write e.g. --device cpu:0",
        ),
        ({"device": "gpu"}, "--device: got 'gpu', expected cores, like cpu:0 or cpu:0-3"),
        ({"device": "cuda"}, "got 'cuda', expected cores, like cpu:0 or cpu:0-3, or a GPU, like"),
        ({"device": "cpu:70-71"}, "--device: got 'cpu:70-71', expected cores that this machine"),
        ({"device": "cpu:3-2"}, "--device: got 'cpu:3-2', expected cores that this machine"),
        (
            {"device_memory": "4GiB"},
            "--device-memory: got a memory without a device, expected it; write e.g. --device cpu:0",
        ),
        (
            {"device": "cpu:0", "share.minimum_memory": "1GiB"},
            "share.minimum_memory: got a part of a memory that is not shared, expected "
            "share.device_memory as well",
        ),
        (
            {"device": "cpu:0", "device_memory": "1GiB", "share.minimum_memory": "2GiB"},
            "share.minimum_memory: got more than the device's memory, expected a part of it",
        ),
    ],
)
def test_mistakes_are_found_before_a_start(flags: dict[str, str], complaint: str) -> None:
    assert complaint in lacks.share_complaint(resolve("train.py", flags))


def test_a_class_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 'both', expected auto or guaranteed or opportunis"):
        resolve("train.py", {"share": "both", "device": f"cpu:{CORE}"})


def test_a_program_has_no_gates() -> None:
    flags = {"strategy": "script", "run_as": "program", "device": f"cpu:{CORE}"}
    complaint = lacks.share_complaint(resolve("sh", flags))
    assert "got auto for a program, expected guaranteed, or a script or a module" in complaint
    assert not lacks.share_complaint(resolve("sh", {**flags, "share": "guaranteed"}))


def test_each_worker_can_have_a_device_of_its_own() -> None:
    text = "script: train.py\nworkers: 3\nshare: {class: guaranteed, devices: [cpu:0, cpu:1]}\n"
    Path("job.yaml").write_text(text)
    share = resolve("job.yaml", {}).share
    assert [share.of(f"worker-{at}") for at in range(3)] == [("cpu:0",), ("cpu:1",), ("cpu:0",)]
    assert share.of("server-1") == share.every == ("cpu:0", "cpu:1")
    assert ShareSpec().of("worker-0") == ()
    assert rows("b", share, ["worker-1"], {}, {})[0][:3] == ("worker-1", "cpu:1", "guaranteed")


def test_a_device_is_cores() -> None:
    assert cores_of(f"cpu:{CORE}") == {CORE}
    own = sorted(os.sched_getaffinity(0))
    if own == [*range(own[0], own[-1] + 1)]:
        assert cores_of(f"cpu:{own[0]}-{own[-1]}") == set(own)
    assert cores_of(f"cpu:{','.join(map(str, own))}") == set(own)


CARDS = ("GPU-aa11", "GPU-bb22", "GPU-bb33")


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("cpu:0", None, "cpu:0"),
        ("cuda:1", None, "GPU-bb22"),
        ("cuda:0", "2,1", "GPU-bb33"),
        ("cuda:1", "GPU-aa11, GPU-bb3", "GPU-bb33"),
        ("cuda:0", "MIG-77", "MIG-77"),
        ("cuda:0", "1,9,0", "GPU-bb22"),
    ],
)
def test_a_gpu_has_one_name_for_all_jobs(device: str, visible: str | None, name: str) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert shared_name(device, environment, lambda: CARDS) == name


@pytest.mark.parametrize(
    ("device", "visible", "there"),
    [
        ("cuda:3", None, "is given: cuda:0, cuda:1, cuda:2"),
        ("cuda:0", "", "is given by CUDA_VISIBLE_DEVICES=: none"),
        ("cuda:1", "1,9,0", "is given by CUDA_VISIBLE_DEVICES=1,9,0: cuda:0"),
        ("cuda:0", "GPU-bb", "is given by CUDA_VISIBLE_DEVICES=GPU-bb: none"),
    ],
)
def test_a_gpu_that_a_job_is_not_given_is_refused(
    device: str, visible: str | None, there: str
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    with pytest.raises(ConfigError, match=there):
        shared_name(device, environment, lambda: CARDS)


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_driver", lambda: False)
    with pytest.raises(ConfigError, match=r"no NVIDIA driver; install it, or share cores"):
        shared_name("cuda:0", {}, lambda: None)
    monkeypatch.setattr(devices, "has_driver", lambda: True)
    assert shared_name("cuda:0", {}, lambda: None) == "cuda:0", "NVML is not there to ask"
    assert shared_name("cuda:1", {"CUDA_VISIBLE_DEVICES": "0,3"}, lambda: None) == "cuda:3"


def test_a_gpu_has_one_guaranteed_job_by_whatever_number(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lacks, "shared_name", lambda _device, _environment: "GPU-bb22")
    page = page_of(place, "first", "GPU-bb22", "guaranteed")
    complaint = lacks.share_complaint(spec_for("guaranteed", "cuda:0"))
    assert "expected one guaranteed job on cuda:0, which is first" in complaint
    assert not lacks.share_complaint(spec_for("opportunistic", "cuda:0"))
    monkeypatch.undo()
    monkeypatch.setattr(pages, "run_place", lambda: place)
    assert not lacks.share_complaint(spec_for("guaranteed", f"cpu:{CORE}"))
    assert page.device == "GPU-bb22"


def spec_for(kind: str, device: str) -> JobSpec:
    share = ShareSpec(kind=kind, device=device)  # type: ignore[arg-type]
    return JobSpec(script="train.py", share=share)


def test_a_device_has_one_guaranteed_job(place: Path) -> None:
    page = page_of(place, "first", f"cpu:{CORE}", "guaranteed")
    wanted = spec_for("guaranteed", f"cpu:{CORE}")
    assert lacks.share_complaint(wanted) == (
        f"share.class: got guaranteed, expected one guaranteed job on cpu:{CORE}, which is first; "
        "choose another device, or opportunistic"
    )
    assert not lacks.share_complaint(spec_for("opportunistic", f"cpu:{CORE}"))
    page.close()
    del page
    assert not lacks.share_complaint(wanted), "it is over"


def test_jobs_of_a_device_agree_on_its_memory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lacks, "compiled", lambda source: source)
    device = f"cpu:{CORE}"
    page = page_of(place, "first", device, "opportunistic")
    page.words[ROOM], page.words[MINIMUM] = 1 << 30, 600 << 20

    def complaint(room: int | None, minimum: int | None = None) -> str:
        share = ShareSpec(device=device, device_memory_bytes=room, minimum_memory_bytes=minimum)
        return lacks.share_complaint(JobSpec(script="train.py", share=share))

    said = "expected 1GiB, as job first says"
    assert complaint(2 << 30) == f"share.device_memory: got 2GiB, {said}"
    assert complaint(None) == f"share.device_memory: got none, {said}"
    assert not complaint(1 << 30, 400 << 20)
    assert complaint(1 << 30, 600 << 20) == (
        "share.minimum_memory: got 600MiB, expected 424MiB at most, which other jobs leave of 1GiB "
        "for each worker"
    )


def test_devices_must_not_overlap(place: Path) -> None:
    own = sorted(os.sched_getaffinity(0))
    if len(own) < 2:
        pytest.skip("one core has no two devices that overlap")
    page = page_of(place, "first", f"cpu:{own[0]},{own[1]}", "auto")
    assert lacks.share_complaint(spec_for("auto", f"cpu:{own[0]}")) == (
        f"share.device: got cpu:{own[0]}, expected {page.device}, which job first shares, or other "
        "cores"
    )


def test_a_job_on_cores_that_this_one_may_not_use_is_in_no_way(place: Path) -> None:
    page = page_of(place, "first", "cpu:70-71", "guaranteed")
    assert not lacks.share_complaint(spec_for("guaranteed", f"cpu:{CORE}"))
    assert page.device == "cpu:70-71"


def test_one_agent_of_all_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 77_777)  # not in the way of real jobs
    first = coordinate("cpu:0")
    assert first is not None
    assert coordinate("cpu:0") is None
    other = coordinate("cpu:1")
    assert other is not None
    first.close()
    second = coordinate("cpu:0")
    assert second is not None
    second.close()
    other.close()


def test_the_device_coordinator_orders_and_tells(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = page_of(place, "kept", "cpu:0", "guaranteed")
    held = page_of(place, "held", "cpu:0", "opportunistic")
    beside = page_of(place, "elsewhere", "cpu:1", "opportunistic")
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 77_777)  # not in the way of real jobs
        coordinator = coordinate("cpu:0")
    assert coordinator is not None
    coordinator.look(1.0)
    assert kept.newest.mode is GateMode.OFF
    assert held.newest.mode is GateMode.DUTY
    assert held.newest.beside == str(kept.path)
    assert beside.newest.number == 0
    for page in (kept, held):
        ((_, decision),) = page.decisions(0)
        assert (decision.cause, decision.guaranteed) == ("arrival", "kept")
    kept.close()
    del kept, page
    coordinator.look(2.0)
    assert held.newest.mode is GateMode.OFF
    assert [decision.cause for _, decision in held.decisions(1)] == ["departure"]
    coordinator.close()


def test_status_says_who_may_use_what() -> None:
    decision = SharingDecision(
        cause="within",
        mode=GateMode.GAP,
        duty=0.44,
        guaranteed="a",
        step_s=0.0253,
        alone_s=0.025,
        budget=0.03,
    )
    share = ShareSpec(kind="auto", device="cpu:0")
    workers, newest = ["worker-0", "worker-1"], {"worker-0": decision}
    now = "a step of a takes 25.3 ms (25 ms alone, +1.2%, budget 3%)"
    allowed = "44% of the device, in the gaps"
    assert rows("b", share, workers, newest, {}) == [
        ("worker-0", "cpu:0", "auto, opportunistic now", allowed, now),
        ("worker-1", "cpu:0", "auto", "-", "nothing is decided yet"),
    ]
    assert rows("a", share, workers, newest, {})[0][2] == "auto, guaranteed now"
    assert not rows("b", ShareSpec(), workers, {}, {})
