"""What a job needs of the machine is tried before it starts."""

import errno
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline.base import features, jobdir
from paceline.base.disk import describe, is_refusal
from paceline.base.errors import ConfigError
from paceline.jobs import ground, launch
from paceline.jobs.ground import check_ground, note_on_clear, note_on_memory
from paceline.wire.spec import (
    CheckpointSpec,
    ControlPlaneSpec,
    DataPlaneSpec,
    JobSpec,
    NodeSpec,
    ResourcesSpec,
    ShareSpec,
    WindowSpec,
)

SPEC = JobSpec(script="/train.py", sources={"listen": "--set listen", "metrics_port": "job.yaml:3"})
ELSEWHERE = "192.0.2.7"
"""Of RFC 5737: no machine has it."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def refusal(**changes: object) -> str:
    with pytest.raises(ConfigError) as refused:
        check_ground(JobSpec(script="/train.py", sources=SPEC.sources, **changes))  # type: ignore[arg-type]
    return str(refused.value)


def test_a_machine_that_has_all_is_fine_and_its_folders_are_there(home: Path) -> None:
    check_ground(JobSpec(script="/train.py", checkpoint=CheckpointSpec(dir=str(home / "a/b"))))
    assert (home / "a" / "b").is_dir()
    assert not list((home / "a" / "b").iterdir())


def test_a_home_that_cannot_be_made_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "file" / "home"))
    told = refusal()
    assert told.startswith(f"PACELINE_HOME: got {tmp_path}/file/home, expected a folder to write")
    assert told.endswith("set PACELINE_HOME to another folder")


def test_a_folder_for_cuts_that_cannot_be_made_is_refused() -> None:
    told = refusal(checkpoint=CheckpointSpec(dir="/proc/cuts"))
    assert told.startswith("checkpoint.dir: got /proc/cuts, expected a folder to write to")
    assert "\n" not in told


def test_a_container_with_little_shared_memory_is_told_what_that_costs(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (jobdir, ground):
        monkeypatch.setattr(module, "SHARED_MEMORY", small_disk)
    told = note_on_memory(SPEC)
    assert told.startswith(f"note: {small_disk} has ")
    assert "--shm-size" in told
    assert not note_on_memory(JobSpec(script="/train.py", backend="ray"))


def test_a_read_only_folder_is_refused(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    told = refusal(checkpoint=CheckpointSpec(dir=str(small_disk)))
    assert "(Read-only file system); name another" in told


def test_a_full_file_system_is_refused_by_its_name(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(small_disk))
    told = refusal()
    assert told.startswith(f"no space left on {small_disk}: 512 KiB are free, a job needs 1024 KiB")
    assert "PACELINE_HOME" in told


def test_full_shared_memory_is_refused(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobdir, "SHARED_MEMORY", small_disk)
    assert refusal().startswith(f"no space left on {small_disk}")


def test_an_advertised_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refusal(advertise=f"job-a:{port}")
    assert told.endswith(
        f"advertise: got port {port} of 127.0.0.1 (another process listens there), expected a free "
        "port; name another"
    )


def test_an_address_of_another_machine_is_refused() -> None:
    told = refusal(listen=ELSEWHERE)
    assert told.startswith(f"--set listen: got {ELSEWHERE} (Cannot assign requested address)")
    assert "hostname -I" in told


def test_all_that_is_missing_is_said_at_once() -> None:
    told = refusal(listen=ELSEWHERE, checkpoint=CheckpointSpec(dir="/proc/cuts"))
    assert len(told.splitlines()) == 2


def test_of_a_job_that_cannot_be_written_nothing_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_spec: JobSpec, path: Path) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(path))

    monkeypatch.setattr(launch.specs, "save", refuse)
    with pytest.raises(ConfigError, match=r"the quota is used up on .*job\.json; make room there"):
        launch.launch(SPEC)
    assert not list((home / "jobs").iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_refusals_of_disks_name_the_path(number: int) -> None:
    error = OSError(number, "text")
    assert is_refusal(error)
    assert "/data" in describe(error, Path("/data"))


def test_a_key_of_a_feature_that_is_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "installed", tuple)
    assert refusal(share=ShareSpec(device="cpu:0")) == (
        "share: no installed feature takes it; remove it"
    )
    assert refusal(solution="nd", windows=WindowSpec(long_s=9.0)) == (
        "solution: no installed feature takes it; remove it\n"
        "windows: no installed feature takes it; remove it"
    )
    assert refusal(history="off") == "history: no installed feature takes it; remove it"
    found = refusal(
        resources=ResourcesSpec(policy="rm"), servers=NodeSpec(max_memory_bytes=1 << 30)
    )
    assert found == (
        "resources: no installed feature takes it; remove it\n"
        "servers.max_memory: no installed feature takes it; remove it"
    )
    auto = JobSpec(
        script="/train.py",
        resources=ResourcesSpec(policy="rm"),
        sources={"resources.policy": "--auto"},
    )
    with pytest.raises(ConfigError, match="--auto: no installed feature takes it; remove it"):
        check_ground(auto)
    check_ground(JobSpec(script="/train.py"))
    check_ground(JobSpec(script="/train.py", solution="none"))


def test_what_is_on_by_default_is_refused_without_its_feature_only_if_somebody_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "installed", tuple)
    told = "job.yaml:3: preflight: no installed feature takes it; remove it"
    with pytest.raises(ConfigError, match=told):
        check_ground(JobSpec(script="/train.py", sources={"preflight": "job.yaml:3"}))
    for preflight in (True, False):
        check_ground(JobSpec(script="/train.py", preflight=preflight))
    check_ground(JobSpec(script="/train.py", preflight=False, sources={"preflight": "job.yaml:3"}))


# --------------------------------------------------------------------------- in clear

OFF = DataPlaneSpec(transport="tcp", encryption="off")


@pytest.mark.parametrize(
    ("changes", "clear"),
    [
        ({"strategy": "ps"}, []),
        ({"strategy": "ps", "data_plane": OFF}, ["parameters, records and files of cuts (data_p"]),
        (
            {"strategy": "ps", "control_plane": ControlPlaneSpec(encryption="off")},
            ["messages (con"],
        ),
        ({"strategy": "allreduce"}, ["sums of gradients (neither torch's gloo nor NCCL encrypts)"]),
        (
            {"strategy": "allreduce", "data_plane": OFF},
            ["parameters, records", "sums of gradients"],
        ),
        ({"strategy": "fsdp"}, ["parameters and sums of gradients"]),
        ({"strategy": "script"}, ["what the script's torch.distributed sends"]),
    ],
)
def test_a_job_of_several_machines_says_what_is_in_clear(
    changes: dict[str, Any], clear: list[str]
) -> None:
    told = note_on_clear(JobSpec(script="/train.py", listen=ELSEWHERE, **changes))
    assert bool(told) == bool(clear)
    for words in clear:
        assert words in told
    assert told.count("(") == len(clear)
    assert not told or told.endswith("or one that encrypts, as WireGuard does")
    assert not note_on_clear(JobSpec(script="/train.py", **changes)), "on one machine"
