"""What a machine that joins a job makes of its own."""

import asyncio
import os
import re
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError, TransientError
from paceline.base.interfaces import free_port
from paceline.base.jobdir import JobDir
from paceline.base.joined import LEFT_ALONE, remove_joined
from paceline.base.processes import JOB_DIR
from paceline.cli.join import join_job, make_joined
from paceline.jobs.authority import make_authority
from paceline.jobs.tickets import Ticket
from paceline.wire.client import Done
from paceline.wire.control import ControlServer
from paceline.wire.spec import JobSpec

HOST, SECRET = "127.0.0.1", b"0123456789abcdef"


def test_a_node_may_have_the_name_of_one_that_was_here_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))

    def join(secret: str) -> JobDir:
        ticket = Ticket(address="h:1", secret=secret, authority=b"")
        return make_joined("job", JobSpec(script="train.py"), "worker-2", ticket)

    first = join("one")
    (first.logs / "worker-2.log").write_text("before")
    assert join("two").path == first.path  # killed: its files are still there
    assert first.secret_file.read_bytes() == b"two"
    remove_joined(first)  # gone as it should be
    join("three")
    assert first.secret_file.read_bytes() == b"three"
    assert (first.logs / "worker-2.log").read_text() == "before"
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env={JOB_DIR: str(first.path)}
    ) as alive:
        with pytest.raises(ConfigError, match="worker-2 of job job still runs here; join again"):
            join("four")
        alive.kill()
    remove_joined(first)


LEFT_AFTER = """
import sys
from paceline.agent import agent
agent.JOINED_WAIT_S = float(sys.argv.pop())
from paceline.agent.__main__ import main
main()
"""


def test_an_agent_whose_master_is_gone_for_good_says_so_and_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    held = JobDir(tmp_path / "held")
    held.path.mkdir()
    make_authority(held, HOST)
    authority = ssl.PEM_cert_to_DER_cert(held.authority_pem().decode())
    ticket = Ticket(
        address=f"{HOST}:{free_port(HOST)}", secret=SECRET.decode(), authority=authority
    )
    job = make_joined("job", JobSpec(script="train.py"), "worker-2", ticket)
    done = subprocess.run(
        [sys.executable, "-c", LEFT_AFTER, "--job-dir", job.path, "--node", "worker-2", "1"],
        env={**os.environ, JOB_DIR: str(job.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == LEFT_ALONE, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "paceline: no master of the job has answered for 1 s, so worker-2 has left; it is not "
        "known how the job ended, or whether it goes on"
    )
    assert not job.run_dir.exists()


def a_ticket(path: Path, port: int, secret: bytes = SECRET, authority: bytes = b"") -> Path:
    der = ssl.PEM_cert_to_DER_cert(authority.decode()) if authority else b""
    ticket = Ticket(address=f"{HOST}:{port}", secret=secret.decode(), authority=der)
    (path / "ticket").write_text(ticket.word())
    return path / "ticket"


def test_an_address_where_no_master_answers_is_one_line_with_its_remedy(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind((HOST, 0))  # and does not listen
        port = held.getsockname()[1]
        path = a_ticket(tmp_path, port)
        with pytest.raises(TransientError) as refused:
            join_job(path, None)
    assert str(refused.value) == (
        f"--join: {path} names {HOST}:{port}, where no master answers; see whether the job runs, "
        "copy its `ticket` again, and check that no firewall lies between"
    )


def test_a_place_that_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--at: got 'there', expected HOST:PORT"):
        join_job(a_ticket(tmp_path, 1), "there")


@pytest.mark.parametrize(
    ("shows", "knows", "secret", "told"),
    [
        ("its own", "its own", b"of another", "what listens there does not have this job's secret"),
        ("another's", "its own", SECRET, "it shows a certificate that this job's authority has"),
        ("nothing", "its own", SECRET, "it speaks no TLS, as this job's master does"),
        ("its own", "nothing", SECRET, "it speaks TLS, and this job has no authority"),
    ],
)
def test_a_ticket_that_does_not_fit_is_one_line_with_its_remedy(
    tmp_path: Path, shows: str, knows: str, secret: bytes, told: str
) -> None:
    jobs = {"its own": JobDir(tmp_path / "own"), "another's": JobDir(tmp_path / "another")}
    for job in jobs.values():
        job.path.mkdir()
        make_authority(job, HOST)
    identity = {"nothing": b""} | {
        who: job.master_identity.read_bytes() for who, job in jobs.items()
    }
    authority = {"nothing": b""} | {who: job.authority_pem() for who, job in jobs.items()}

    async def main() -> None:
        server = ControlServer(
            SECRET, lambda _: asyncio.sleep(0), lambda _: asyncio.sleep(0, Done())
        )
        port = await server.start(host=HOST, identity=identity[shows])
        path = a_ticket(tmp_path, port, secret, authority[knows])
        try:
            with pytest.raises(ConfigError) as refused:
                await asyncio.to_thread(join_job, path, None)
        finally:
            await server.stop()
        text = str(refused.value)
        assert text.startswith(f"--join: {path}: {HOST}:{port}: {told}")
        assert text.endswith(
            "; expected the file `ticket` of the job's directory on the master's machine"
        )

    asyncio.run(main())


@pytest.mark.parametrize("at", [None, f"{HOST}:1"])
def test_who_is_not_reached_is_named_as_he_was_given(tmp_path: Path, at: str | None) -> None:
    path = tmp_path / "ticket"
    ticket = Ticket(address=f"{HOST}:{free_port(HOST)}", secret=SECRET.decode(), authority=b"")
    path.write_text(ticket.word())
    path.chmod(0o600)
    named = f"--join: {path} names {ticket.address}" if at is None else f"--at: {at} names {at}"
    with pytest.raises(TransientError, match=re.escape(named)):
        join_job(path, at)
