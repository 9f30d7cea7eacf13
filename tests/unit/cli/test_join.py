"""What a machine that joins a job makes of its own."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError, TransientError
from paceline.base.jobdir import JobDir
from paceline.base.joined import remove_joined
from paceline.base.processes import JOB_DIR
from paceline.cli.join import join_job, make_joined
from paceline.wire.spec import JobSpec


def test_a_node_may_have_the_name_of_one_that_was_here_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))

    def join(secret: bytes) -> JobDir:
        return make_joined("job", JobSpec(script="train.py"), "worker-2", "h:1", secret)

    first = join(b"one")
    (first.logs / "worker-2.log").write_text("before")
    assert join(b"two").path == first.path  # killed: its files are still there
    assert first.secret_file.read_bytes() == b"two"
    remove_joined(first)  # gone as it should be
    join(b"three")
    assert first.secret_file.read_bytes() == b"three"
    assert (first.logs / "worker-2.log").read_text() == "before"
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env={JOB_DIR: str(first.path)}
    ) as alive:
        with pytest.raises(ConfigError, match="worker-2 of job job still runs here; join again"):
            join(b"four")
        alive.kill()
    remove_joined(first)


def test_an_address_where_no_master_answers_is_one_line_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("abc\n")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(TransientError) as refused:
            join_job(address, tmp_path / "secret")
    assert str(refused.value) == (
        f"--join: got {address}, where no master answers, expected HOST:PORT of a job that runs; "
        "read it in master.address of the job's directory on the master's machine, and check that "
        "no firewall lies between"
    )
