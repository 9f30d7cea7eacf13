"""TLS at a master's port: only a master that the job's authority vouches for is spoken to."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from paceline.base.errors import PermanentError, TransientError
from paceline.base.jobdir import JobDir
from paceline.jobs.authority import make_authority
from paceline.wire.client import Done, GetStatus
from paceline.wire.control import ControlClient
from paceline.wire.control_tls import MASTER, fault
from paceline.wire.messages.agent import AgentHello, Heartbeat, StopProcess
from paceline.wire.messages.node import Finished
from tests.chaos.on_the_way import Recorder
from tests.unit.wire.test_wire_control import HOST, LIMIT_S, SECRET, Master, take

CALL_S = 5.0
TOLD = "it shows a certificate that this job's authority has not signed for a master"


def a_job(folder: Path, name: str = "job", host: str = HOST) -> JobDir:
    job = JobDir(folder / name)
    job.path.mkdir()
    make_authority(job, host)
    return job


def with_port(
    identity: bytes, body: Callable[[Master, str], Awaitable[None]], path: Path | None = None
) -> None:
    async def main() -> None:
        master = Master()
        port = await master.server.start(host=HOST, identity=identity, path=path)
        try:
            async with asyncio.timeout(LIMIT_S):
                await body(master, f"{HOST}:{port}")
        finally:
            await master.server.stop()

    asyncio.run(main())


async def refused(client: ControlClient, words: str) -> None:
    """All three ways to speak with a master end at once, and say the same."""
    ways: list[Callable[[], Awaitable[object]]] = [
        client.connect_agent,
        lambda: client.call(GetStatus(), CALL_S),
        lambda: asyncio.to_thread(client.call_sync, GetStatus(), CALL_S),
    ]
    for way in ways:
        with pytest.raises(PermanentError) as told:
            await way()
        assert str(told.value).startswith(f"{client.address}: ")
        assert words in str(told.value)


def test_messages_and_calls_go_through_tls(tmp_path: Path) -> None:
    job = a_job(tmp_path)

    async def body(master: Master, address: str) -> None:
        client = ControlClient(address, SECRET, job.authority_pem())
        stream = await client.connect_agent()
        stream.send_nowait(AgentHello(node="worker-0", agent="a", agent_pid=1, host="h"))
        stream.send_nowait(Heartbeat(node="worker-0"))
        assert await take(stream, 1) == [StopProcess(inc=2, grace_s=1.0)]
        await stream.close()
        assert await client.call(GetStatus(), CALL_S) == Done()
        assert await asyncio.to_thread(client.call_sync, GetStatus(), CALL_S) == Done()

    with_port(job.master_identity.read_bytes(), body)


def test_the_version_is_1_3_and_openssl_finds_the_certificate_right(tmp_path: Path) -> None:
    """By the name of every master, and by the address at which this one listens."""
    job = a_job(tmp_path)

    def shake_hands(address: str, name: str) -> str | None:
        context = ssl.create_default_context(cadata=job.authority_pem().decode())
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["h2"])
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), CALL_S) as plain,
            context.wrap_socket(plain, server_hostname=name) as found,
        ):
            return found.version()

    async def body(master: Master, address: str) -> None:
        for name in (MASTER, HOST):
            assert await asyncio.to_thread(shake_hands, address, name) == "TLSv1.3"
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(shake_hands, address, "127.0.0.9")

    with_port(job.master_identity.read_bytes(), body)


def test_a_unix_socket_has_no_tls_beside_a_port_that_has(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    tmp_path.chmod(0o700)
    path = tmp_path / "master.sock"

    async def body(master: Master, address: str) -> None:
        for authority in (b"", job.authority_pem()):
            client = ControlClient(f"unix:{path}", SECRET, authority)
            assert await client.call(GetStatus(), CALL_S) == Done()

    with_port(job.master_identity.read_bytes(), body, path)


def test_the_master_of_another_job_is_not_spoken_to(tmp_path: Path) -> None:
    """Nor is a host on the way that knows the job's name, and even its secret."""
    job = a_job(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    same_name = a_job(tmp_path / "elsewhere")
    another = a_job(tmp_path, "another")

    async def body(master: Master, address: str) -> None:
        await refused(ControlClient(address, SECRET, job.authority_pem()), TOLD)
        assert not master.seen

    for other in (same_name, another):
        with_port(other.master_identity.read_bytes(), body)


def test_a_certificate_for_something_else_is_no_masters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else the authority may come to sign, its owner is no master."""
    monkeypatch.setattr("paceline.jobs.authority.MASTER", "worker-1.paceline")
    job = a_job(tmp_path)

    async def body(master: Master, address: str) -> None:
        await refused(ControlClient(address, SECRET, job.authority_pem()), TOLD)

    with_port(job.master_identity.read_bytes(), body)


def test_a_listener_that_speaks_no_tls_is_named(tmp_path: Path) -> None:
    job = a_job(tmp_path)

    async def body(master: Master, address: str) -> None:
        client = ControlClient(address, SECRET, job.authority_pem())
        await refused(client, "it speaks no TLS, as this job's master does")
        assert not master.seen

    with_port(b"", body)


def test_a_client_in_clear_at_a_port_with_tls_is_told_so(tmp_path: Path) -> None:
    job = a_job(tmp_path)

    async def body(master: Master, address: str) -> None:
        await refused(
            ControlClient(address, SECRET), "it speaks TLS, and this job has no authority"
        )

    with_port(job.master_identity.read_bytes(), body)


@pytest.mark.parametrize("damaged", [b"nonsense", b"\xff\xfe"], ids=["text", "bytes"])
def test_a_damaged_certificate_is_named(tmp_path: Path, damaged: bytes) -> None:
    job = a_job(tmp_path)

    async def body(master: Master, address: str) -> None:
        words = "the certificate of the job's authority, by which its master is known, is damaged"
        await refused(ControlClient(address, SECRET, damaged), words)

    with_port(job.master_identity.read_bytes(), body)


def test_another_secret_is_refused_inside_tls(tmp_path: Path) -> None:
    job = a_job(tmp_path)

    async def body(master: Master, address: str) -> None:
        client = ControlClient(address, b"of another job", job.authority_pem())
        await refused(client, "what listens there does not have this job's secret")

    with_port(job.master_identity.read_bytes(), body)


def test_nobody_there_is_no_matter_of_certificates(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    with socket.socket() as held:
        held.bind((HOST, 0))  # and does not listen
        address = f"{HOST}:{held.getsockname()[1]}"
        assert not fault(address, job.authority_pem())
        client = ControlClient(address, SECRET, job.authority_pem())
        with pytest.raises(TransientError, match="UNAVAILABLE"):
            client.call_sync(GetStatus(), CALL_S)


def test_a_listener_that_says_nothing_is_not_waited_for_long(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    with socket.create_server((HOST, 0)) as silent:
        client = ControlClient(f"{HOST}:{silent.getsockname()[1]}", SECRET, job.authority_pem())
        with pytest.raises(TransientError):
            client.call_sync(GetStatus(), 0.5)


@pytest.mark.parametrize("encrypted", [True, False], ids=["tls", "off"])
def test_a_host_on_the_way_reads_messages_only_without_tls(tmp_path: Path, encrypted: bool) -> None:
    job = a_job(tmp_path)
    node = "a-node-of-a-long-name-that-no-cipher-writes-by-chance"

    async def body(master: Master, address: str) -> None:
        with contextlib.closing(Recorder(address)) as way:
            authority = job.authority_pem() if encrypted else b""
            stream = await ControlClient(way.address, SECRET, authority).connect_agent()
            stream.send_nowait(AgentHello(node=node, agent="a", agent_pid=1, host="h"))
            stream.send_nowait(Heartbeat(node=node))
            await take(stream, 1)
            await stream.close()
            heard = bytes(way.heard)
        assert len(heard) > 500
        assert SECRET not in heard
        for plain in (node.encode(), b"paceline.Control", b"authorization", b"AgentHello"):
            assert (plain in heard) == (not encrypted), plain

    with_port(job.master_identity.read_bytes() if encrypted else b"", body)


def test_gossip_of_grpc_stays_out_of_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job, other = a_job(tmp_path), a_job(tmp_path, "other")

    async def body(master: Master, address: str) -> None:
        await refused(ControlClient(address, SECRET, other.authority_pem()), TOLD)
        with socket.create_connection((HOST, int(address.rpartition(":")[2]))) as stranger:
            stranger.sendall(bytes(Finished.__name__, "ascii") * 10)
            await asyncio.to_thread(stranger.recv, 100)

    with_port(job.master_identity.read_bytes(), body)
    assert capfd.readouterr().err == ""
    assert os.environ.get("GRPC_VERBOSITY") != "NONE", "scripts would inherit it"
