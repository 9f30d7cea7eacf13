"""A machine that joined trains, and whoever reads along between the machines learns nothing."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from paceline.wire.control_tls import MASTER
from paceline.wire.spec import ControlPlaneSpec, DataPlaneSpec, NodeSpec
from tests.chaos.on_the_way import Recorder, Wire
from tests.integration.running import running, until
from tests.integration.test_join import JOINED, joining, num_samples_of, standing_still
from tests.integration.test_machines import Kind, in_own_network, num_batches, on_two_machines

ENOUGH = 2_000
"""Bytes of a joined machine that works: hello, plans, leases, heartbeats."""
PLAIN = (b"paceline.Control", b"authorization", JOINED.encode(), b"server-0", b"counted.py")
"""Words of the control plane: of gRPC, of messages, of the spec."""


def heard_between(tmp_path: Path, control: str) -> bytes:
    """What a host hears through which a machine joins a job, and trains."""
    out, home = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    home.mkdir()
    spec: dict[str, Any] = {
        "workers": 1,
        "servers": NodeSpec(count=1),
        "data_plane": DataPlaneSpec(transport="tcp"),
        "control_plane": ControlPlaneSpec(encryption=control),
    }
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(running(out, "--step-s", "0.03", **spec))
        job.until_committed(1)
        address = job.job.master_address.read_text().strip()
        way = stack.enter_context(contextlib.closing(Recorder(address)))
        with contextlib.ExitStack() as joined:
            with standing_still(job, "worker-0"):
                there = joined.enter_context(joining(job, home, at=way.address))
                assert bool(there.authority_pem()) == (control == "tls")
                assert not there.authority_key.exists()
                until(lambda: num_samples_of(job, JOINED) > 100, "samples at the joined machine")
            job.check_finished()
        assert not there.tls.exists()
        assert job.job.secret() not in way.heard
        return bytes(way.heard)


@pytest.mark.parametrize("control", ["tls", pytest.param("off", marks=pytest.mark.soak)])
def test_a_host_on_the_way_hears_nothing_of_the_control_plane(tmp_path: Path, control: str) -> None:
    """In clear it hears all but the secret, so the test would notice."""
    heard = heard_between(tmp_path, control)
    assert len(heard) > ENOUGH
    for word in PLAIN:
        assert (word in heard) == (control == "off"), word


def words_on_the_wire(tmp_path: Path, kind: Kind, words: tuple[bytes, ...]) -> dict[bytes, bool]:
    """Which words cross from one machine to another while both train."""
    with on_two_machines(tmp_path, kind=kind) as (job, other):
        job.until_committed(1)
        with contextlib.closing(Wire("host")) as wire:
            other.join()
            until(lambda: num_batches(job, JOINED) > 2, "batches of the other machine")
        heard = bytes(wire.heard)
        secret = job.job.secret()
        (job.out / "hurry").touch()
        job.end()
    assert len(heard) > ENOUGH
    assert MASTER.encode() in heard, "the name for which a client asks in clear"
    assert secret not in heard
    assert bytes.fromhex(secret.decode()) not in heard
    return {word: word in heard for word in words}


@pytest.mark.soak
def test_all_streams_of_a_job_with_servers_are_encrypted(tmp_path: Path) -> None:
    """Of agents, of workers to servers, and of files of cuts."""
    if not in_own_network(test_all_streams_of_a_job_with_servers_are_encrypted):
        return
    found = words_on_the_wire(tmp_path, running, (*PLAIN, b"worker-0"))
    assert not any(found.values()), found
