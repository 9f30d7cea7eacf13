"""The port that tells whether a supervisor lives."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from paceline.base.jobdir import JobDir
from paceline.base.machine_probe import listens
from paceline.supervisor import life_port
from paceline.supervisor.life_port import LifePort
from paceline.wire import spec as specs
from paceline.wire.spec import JobSpec


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    # No other address is sure to be there.
    monkeypatch.setattr(life_port, "LOOPBACK", "")
    specs.save(JobSpec(script="/train.py"), tmp_path / "job.json")
    return JobDir(tmp_path)


def takes(job: JobDir) -> bool:
    return asyncio.run(listens(job.life_address.read_text().strip()))


def test_it_takes_connections_as_long_as_the_supervisor_lives(job: JobDir) -> None:
    port = LifePort(job)
    for _ in range(2 * life_port.BACKLOG):
        assert takes(job)
        port.look()
    port.close()
    assert not takes(job)


def test_who_connects_all_the_time_does_not_hold_it_up(job: JobDir) -> None:
    port = LifePort(job)

    class Busy:
        taken = 0

        def accept(self) -> tuple["Busy", None]:
            self.taken += 1
            return self, None

        def close(self) -> None:
            pass

    own, port._socket = port._socket, Busy()  # type: ignore[assignment]
    port.look()
    assert own is not None
    own.close()


def test_the_next_supervisor_has_the_same_port(job: JobDir) -> None:
    first = LifePort(job)
    before = job.life_address.read_text()
    second = LifePort(job)
    assert job.life_address.read_text() != before, "it is taken"
    second.close()
    first.close()
    job.life_address.write_text(before)
    third = LifePort(job)
    assert job.life_address.read_text() == before
    third.close()


@pytest.mark.parametrize("changed", [{"backend": "ray"}, {}])
def test_there_is_none_where_no_other_machine_takes_over(
    tmp_path: Path, changed: dict[str, str]
) -> None:
    spec = msgspec.structs.replace(JobSpec(script=os.devnull), **changed)
    specs.save(spec, tmp_path / "job.json")
    port = LifePort(JobDir(tmp_path))
    port.look()
    assert not JobDir(tmp_path).life_address.exists()
    port.close()
