"""The authority of a job: its files, and its end with the secret."""

import stat
import tempfile
from pathlib import Path

import pytest
from cryptography import x509

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.jobs.authority import make_authority
from paceline.jobs.joining import make_directory
from paceline.jobs.tickets import Ticket, read_ticket, ticket_of, write_ticket
from paceline.wire.spec import JobSpec

ADDRESS = "10.0.0.5:4711"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    job = JobDir.fresh("train")
    job.fill_on_disk()
    job.master_address.write_text(f"{ADDRESS}\n")
    return job


def test_only_its_owner_reads_the_keys(job: JobDir) -> None:
    make_authority(job, "10.0.0.5")
    assert stat.S_IMODE(job.tls.stat().st_mode) == 0o700
    for path in (job.authority, job.authority_key, job.master_identity):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert b"PRIVATE KEY" in job.authority_key.read_bytes()
    assert b"PRIVATE KEY" not in job.authority_pem()


def test_what_a_killed_master_left_half_made_is_made_again(job: JobDir) -> None:
    half = job.path / "tls.new"
    half.mkdir()
    (half / job.authority.name).write_bytes(b"half")
    make_authority(job, "10.0.0.5")
    assert job.authority_pem().startswith(b"-----BEGIN CERTIFICATE-----")
    assert not half.exists()


def test_a_certificate_outlives_any_job_and_a_clock_that_is_behind(job: JobDir) -> None:
    make_authority(job, "10.0.0.5")
    for path in (job.authority, job.master_identity):
        data = path.read_bytes()
        found = x509.load_pem_x509_certificate(data[data.index(b"-----BEGIN CERT") :])
        valid = found.not_valid_after_utc - found.not_valid_before_utc
        assert valid.days > 3_650


def test_another_secret_is_another_authority(job: JobDir) -> None:
    make_authority(job, "10.0.0.5")
    write_ticket(job)
    before = job.authority_pem()
    job.renew_secret()
    assert not job.ticket.exists()
    assert job.authority_pem() == b""
    make_authority(job, "10.0.0.5")
    assert job.authority_pem() != before


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_ticket_is_one_word_that_makes_a_node_know_the_master(
    job: JobDir, tmp_path: Path, encrypted: bool
) -> None:
    if encrypted:
        make_authority(job, "10.0.0.5")
    write_ticket(job)
    assert stat.S_IMODE(job.ticket.stat().st_mode) == 0o600
    assert len(job.ticket.read_text().split()) == 1
    ticket = read_ticket(job.ticket)
    assert ticket == ticket_of(job)
    assert ticket.address == ADDRESS
    there = make_directory(tmp_path / "there.worker-1", JobSpec(script="train.py"), ticket)
    try:
        assert there.secret() == job.secret()
        assert there.control_address() == ADDRESS
        assert there.authority_pem().split() == job.authority_pem().split()
        assert bool(there.authority_pem()) == encrypted
        assert not there.authority_key.exists()
    finally:
        there.run_dir.rmdir()


def test_a_node_that_joins_again_in_clear_forgets_the_authority(
    job: JobDir, tmp_path: Path
) -> None:
    make_authority(job, "10.0.0.5")
    ticket = ticket_of(job)
    path, spec = tmp_path / "there.worker-1", JobSpec(script="train.py")
    there = make_directory(path, spec, ticket)
    try:
        plain = Ticket(address=ADDRESS, secret=ticket.secret, authority=b"")
        assert make_directory(path, spec, plain).authority_pem() == b""
    finally:
        there.run_dir.rmdir()


@pytest.mark.parametrize(
    ("folder", "mode", "is_said"),
    [(0o755, 0o600, False), (0o755, 0o640, False), (0o755, 0o604, True), (0o700, 0o644, False)],
)
def test_a_ticket_that_others_can_read_is_told_of(
    job: JobDir, capsys: pytest.CaptureFixture[str], folder: int, mode: int, is_said: bool
) -> None:
    write_ticket(job)
    with tempfile.TemporaryDirectory() as open_folder:  # that of pytest is open to nobody else
        Path(open_folder).chmod(folder)
        path = Path(open_folder, "ticket")
        path.write_bytes(job.ticket.read_bytes())
        path.chmod(mode)
        read_ticket(path)
    told = capsys.readouterr().err
    assert (f"other users of this machine can read {path}" in told) == is_said
    assert bool(told) == is_said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no whole ticket of a job"),
        ("ab" * 32, "holds no whole ticket of a job"),
        ("paceline1.abc", "holds no whole ticket of a job"),
        ("\xff\xfe", "holds no whole ticket of a job"),
    ],
)
def test_what_is_no_ticket_is_refused_with_the_remedy(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "ticket"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(ConfigError, match=words) as refused:
        read_ticket(path)
    assert "copy the file `ticket` of the job's directory" in str(refused.value)


def test_half_a_ticket_and_one_of_another_version_are_refused(job: JobDir) -> None:
    write_ticket(job)
    word = job.ticket.read_text().strip()
    for text, words in (
        (word[: len(word) // 2], "holds no whole ticket"),
        (word.removeprefix("paceline1."), "holds no ticket of this version"),
    ):
        job.ticket.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_ticket(job.ticket)
