"""Logs of a job as the master hands them out, and as a command on another machine reads them."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from paceline.base.disk import append_if_possible
from paceline.base.errors import ConfigError
from paceline.base.interfaces import free_port
from paceline.base.jobdir import JobDir
from paceline.base.log_times import LogTimes
from paceline.cli.logs import LogFilter, show_logs
from paceline.cli.main import FAR_VERBS, app
from paceline.jobs.authority import make_authority
from paceline.jobs.far import FarJob, ticket_of_option
from paceline.jobs.log_files import FarLogs, NearLogs
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.jobs.tickets import Ticket
from paceline.master import job_files
from paceline.master.job_files import CHUNK_BYTES, JobFiles
from paceline.wire.client import (
    Call,
    Done,
    FollowJobFiles,
    GetSpec,
    JobFileList,
    JobFileNews,
    JobFilePart,
    JobInfo,
    ListJobFiles,
    ReadJobFile,
    Reply,
    StopJob,
)
from paceline.wire.control import ControlServer
from paceline.wire.spec import JobSpec

HOST, SECRET = "127.0.0.1", b"0123456789abcdef"


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    found = JobDir(tmp_path / "train-1")
    found.logs.mkdir(parents=True)
    found.events.write_text("")
    return found


def answers(job: JobDir, *calls: ReadJobFile | FollowJobFiles | ListJobFiles) -> list[Reply]:
    async def ask() -> list[Reply]:
        files = JobFiles(job)
        return [await files.answer(call) for call in calls]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "name", ["../secret", "secret", "/etc/passwd.log", "a/b.log", ".hidden.log", "x.log\n", ""]
)
def test_nothing_but_logs_and_events_is_handed_out(name: str, job: JobDir) -> None:
    job.secret_file.write_text("s")
    for call in (
        ReadJobFile(name=name, start=0, num_bytes=9),
        FollowJobFiles(upto={name: 0}),
    ):
        with pytest.raises(ConfigError, match="expected the name of a log"):
            answers(job, call)


def test_files_are_listed_and_read_in_parts(job: JobDir) -> None:
    (job.logs / "worker-0.log").write_bytes(b"x" * (CHUNK_BYTES + 3))
    (job.logs / "worker-0.times").touch()
    (job.logs / "worker-0.from").touch()
    part = ReadJobFile(name="worker-0.log", start=0, num_bytes=1 << 40)
    listed, first, rest, none, missing = answers(
        job,
        ListJobFiles(),
        part,
        msgspec.structs.replace(part, start=CHUNK_BYTES),
        msgspec.structs.replace(part, start=CHUNK_BYTES + 9),
        msgspec.structs.replace(part, name="worker-7.log"),
    )
    assert isinstance(listed, JobFileList)
    assert [file.name for file in listed.files] == [
        "events.jsonl",
        "worker-0.log",
        "worker-0.times",
    ]
    assert isinstance(first, JobFilePart)
    assert (len(first.data), first.size_bytes) == (CHUNK_BYTES, CHUNK_BYTES + 3)
    assert isinstance(rest, JobFilePart)
    assert rest.data == b"xxx"
    assert isinstance(none, JobFilePart)
    assert (none.data, none.size_bytes) == (b"", CHUNK_BYTES + 3)
    assert missing == JobFilePart("worker-7.log", 0, b"", 0)


def test_a_follower_gets_what_is_new_and_the_end(job: JobDir) -> None:
    one, two = job.logs / "worker-0.log", job.logs / "worker-1.log"
    one.write_text("one\n")

    async def follow() -> list[Reply]:
        files = JobFiles(job)
        nothing = await files.answer(FollowJobFiles(upto={one.name: 4}, wait_s=0.01))
        waits = asyncio.create_task(files.answer(FollowJobFiles(upto={one.name: 4}, wait_s=20)))
        await asyncio.sleep(0.05)
        one.write_text("one\ntwo\n")
        grown = await waits
        two.write_text("2\n")
        other = await files.answer(FollowJobFiles(upto={one.name: 8}, every=True, wait_s=20))
        one.write_text("x\n")
        cut = await files.answer(FollowJobFiles(upto={one.name: 8}, wait_s=20))
        waits = asyncio.create_task(files.answer(FollowJobFiles(upto={one.name: 2}, wait_s=20)))
        await asyncio.sleep(0.05)
        one.write_text("x\ny\n")
        write_outcome(Outcome(state="stopped", exit_code=4), job.outcome)
        files.close()
        return [nothing, grown, other, cut, await waits]

    nothing, grown, other, cut, last = asyncio.run(follow())
    assert nothing == JobFileNews(())
    assert grown == JobFileNews((JobFilePart(one.name, 4, b"two\n", 8),))
    assert other == JobFileNews((JobFilePart(two.name, 0, b"2\n", 2),))
    assert cut == JobFileNews((JobFilePart(one.name, 0, b"x\n", 2),))
    assert isinstance(last, JobFileNews)
    assert last.parts == (JobFilePart(one.name, 2, b"y\n", 4),)
    assert msgspec.json.decode(last.outcome, type=Outcome).state == "stopped"


def test_too_many_followers_are_told_to_come_again(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_files, "MOST_FOLLOWERS", 1)

    async def follow() -> None:
        files = JobFiles(job)
        waits = asyncio.create_task(files.answer(FollowJobFiles(upto={}, wait_s=20)))
        await asyncio.sleep(0.02)
        with pytest.raises(ConfigError, match="1 others follow this job; try again later"):
            await files.answer(FollowJobFiles(upto={}, wait_s=20))
        files.close()
        await waits
        await files.answer(FollowJobFiles(upto={}))

    asyncio.run(follow())


def test_readers_are_held_to_a_rate(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files, "BYTES_PER_S", 10 * CHUNK_BYTES)
    (job.logs / "worker-0.log").touch()

    async def read() -> float:
        files, clock = JobFiles(job), asyncio.get_running_loop()
        call = ReadJobFile(name="worker-0.log", start=0, num_bytes=CHUNK_BYTES)
        begun_s = clock.time()
        await asyncio.gather(*(files.answer(call) for _ in range(4)))
        return clock.time() - begun_s

    assert asyncio.run(read()) > 0.25


# ----------------------------------------------------------------------------- over a port


class FarMaster:
    """A master's listener with TLS, in a thread of its own."""

    def __init__(self, job: JobDir, folder: Path) -> None:
        self.job, self.ordered = job, list[Call]()
        self.files: JobFiles | None = None
        identity, pem = make_identity(folder)
        self._identity = identity
        self._authority = ssl.PEM_cert_to_DER_cert(pem.decode())
        self.loop = asyncio.new_event_loop()
        self.port = 0

    def ticket(self, path: Path) -> Path:
        ticket = Ticket(
            address=f"{HOST}:{self.port}", secret=SECRET.decode(), authority=self._authority
        )
        path.write_text(ticket.word())
        return path

    async def _answer(self, call: Call) -> Reply:
        assert self.files is not None
        match call:
            case GetSpec():
                return JobInfo(self.job.job_id, JobSpec(script="/train.py"))
            case ListJobFiles() | ReadJobFile() | FollowJobFiles():
                return await self.files.answer(call)
            case _:
                self.ordered.append(call)
                return Done()

    async def open(self) -> None:
        self.files = JobFiles(self.job)

        async def nobody(_: object) -> None: ...

        self._server = ControlServer(SECRET, nobody, self._answer)
        self.port = await self._server.start(host=HOST, identity=self._identity)

    async def close(self) -> None:
        assert self.files is not None
        self.files.close()
        await self._server.stop()

    def do(self, work: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(work)


def make_identity(folder: Path) -> tuple[bytes, bytes]:
    held = JobDir(folder / "authority")
    held.path.mkdir(mode=0o700)
    make_authority(held, HOST)
    return held.master_identity.read_bytes(), held.authority_pem()


@pytest.fixture
def master(job: JobDir, tmp_path: Path) -> Iterator[FarMaster]:
    far = FarMaster(job, tmp_path)
    thread = threading.Thread(target=far.loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(far.open(), far.loop).result(10)
    try:
        yield far
    finally:
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(far.close(), far.loop).result(10)
        far.do(far.loop.stop)
        thread.join()
        far.loop.close()


WANTED: list[dict[str, object]] = [
    {},
    {"tail": 1},
    {"tail": 3, "node": "worker-0"},
    {"tail": 7},
    {"since_s": 105.0},
    {"since_s": 105.0, "tail": 1, "node": "worker-0"},
    {"timestamps": True},
    {"as_json": True},
    {"node": "master", "since_s": 2_000_000_000.0},
]


@pytest.mark.parametrize("wanted", WANTED)
def test_logs_read_from_afar_are_those_that_are_read_here(
    wanted: dict[str, object],
    master: FarMaster,
    job: JobDir,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = job.logs / "worker-0.log"
    (job.logs / "worker-0.1.log").write_text("earlier\nstill\n")
    (job.logs / "master.log").write_text("2026-11-27 20:16:43,422 INFO started\nno stamp")
    times = LogTimes(log)
    for t, text in ((100.0, "one\ntwo\n"), (110.0, "three\n"), (120.0, "x" * 200_000 + "\nopen")):
        append_if_possible(log, text)
        times.note(t)
    chosen = LogFilter(**wanted)  # type: ignore[arg-type]
    show_logs(NearLogs(job), chosen)
    here = capsys.readouterr().out
    show_logs(FarLogs(FarJob(ticket_of_option(str(master.ticket(tmp_path / "ticket"))))), chosen)
    assert capsys.readouterr().out == here
    assert here or wanted.get("node") == "master"


def test_a_log_is_followed_from_afar_until_the_job_ends(
    master: FarMaster, job: JobDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = job.logs / "worker-0.log"
    log.write_text("one\nt")
    far = FarLogs(FarJob(ticket_of_option(str(master.ticket(tmp_path / "ticket")))))

    def grow() -> None:
        append_if_possible(log, "wo\n")
        master.loop.call_later(0.6, end)

    def end() -> None:
        append_if_possible(log, "three\nlast")
        (job.logs / "worker-1.log").write_text("other\n")
        write_outcome(Outcome(state="finished", exit_code=0), job.outcome)
        assert master.files is not None
        master.files.close()

    master.do(lambda: master.loop.call_later(0.3, grow))
    show_logs(far, LogFilter(follow=True))
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("worker-0")] == [
        f"worker-0 | {text}" for text in ("one", "two", "three", "last")
    ]
    assert "worker-1 | other" in said


# ----------------------------------------------------------------------------- the command


def say(*args: str, env: dict[str, str] | None = None, stdin: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(app, args, env=env or {}, input=stdin)
    return done.exit_code, done.output.strip()


def test_a_job_is_named_by_its_ticket_or_by_its_address(master: FarMaster, tmp_path: Path) -> None:
    ticket, address = master.ticket(tmp_path / "ticket"), f"{HOST}:{master.port}"
    word = ticket.read_text()
    for args, env in (
        (("--job", str(ticket)), {}),
        (("--job", str(ticket), "--at", address), {}),
        (("--job", address), {"PACELINE_TICKET": word}),
        (("--job", address), {"PACELINE_TICKET": str(ticket)}),
    ):
        code, said = say(*args, "kill", "--worker", "1", env=env)
        assert (code, said) == (0, "job train-1: worker-1 is killed and will be started again")
    assert len(master.ordered) == 4


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--job", "nowhere", "status"), "neither a file nor HOST:PORT"),
        (("--job", "h:1", "status"), "got the address h:1, and no secret"),
        (("--at", "h:1", "status"), "--at: expected it with --job TICKET"),
        (("--job", "TICKET", "--at", "there", "logs"), "--at: got 'there', expected HOST:PORT"),
        (("--job", "TICKET", "report"), "report: got --job, but it reads the job's files; run "),
        (
            ("--job", "TICKET", "explain"),
            "From here work: kill, logs, replace, scale, status, stop",
        ),
        (("--job", "TICKET", "run", "x.py"), "run: got --job"),
        (("--job", "TICKET", "stop", "other"), "got the job other beside --job"),
        (("--job", "TICKET", "kill", "--master"), "run it on the machine of the master"),
    ],
)
def test_what_cannot_be_done_from_afar_is_one_line(
    args: tuple[str, ...], told: str, master: FarMaster, tmp_path: Path
) -> None:
    ticket = master.ticket(tmp_path / "ticket")
    code, said = say(*(str(ticket) if word == "TICKET" else word for word in args))
    assert code == 2
    assert told in said
    assert len(said.splitlines()) == 1
    assert not master.ordered


def test_a_command_says_that_it_waits_for_a_master(
    master: FarMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, address = master.ticket(tmp_path / "ticket"), f"{HOST}:{free_port(HOST)}"
    monkeypatch.setattr("paceline.jobs.far.SAY_S", 0.2)
    monkeypatch.setattr("paceline.jobs.far.AWAY_S", 0.6)
    code, said = say("--job", str(ticket), "--at", address, "status")
    assert code == 2
    assert said.splitlines() == [
        f"paceline: no master answers at {address} yet; it may be being started again, so it is "
        "asked for 1 s",
        f"paceline: no master answers at {address}; the job has ended, or its master is being "
        "started again, or a firewall lies between",
    ]


def test_verbs_that_work_from_afar_are_commands() -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    assert set(FAR_VERBS) <= names


def test_an_order_names_the_job_and_stop_waits_for_its_end(
    master: FarMaster, job: JobDir, tmp_path: Path
) -> None:
    def end() -> None:
        write_outcome(Outcome(state="stopped", exit_code=4, jct_s=3.0), job.outcome)
        assert master.files is not None
        master.files.close()

    master.do(lambda: master.loop.call_later(0.3, end))
    code, said = say("--job", str(master.ticket(tmp_path / "ticket")), "stop", "--now")
    assert code == 0
    assert said.startswith("job train-1: stopped after 3.00 s, exit code 4; `paceline run --resume")
    assert master.ordered == [StopJob(now=True)]
