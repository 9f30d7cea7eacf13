"""The history of jobs: what goes into it, comes out of it, and what it refuses."""

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from paceline.base import features
from paceline.base.errors import ConfigError
from paceline.cli.main import app
from paceline.features.history import book, migrations
from paceline.features.history.beginning import warm_started
from paceline.features.history.book import NEWEST, JobFilter, PastJobs
from paceline.features.history.job import PastJob, SizeChange
from paceline.features.history.making import past_job, submitted_features
from paceline.features.history.place import HistoryPlace, history_place, without_password
from paceline.features.history.policy.features import JobFeatures
from paceline.features.history.policy.warm_start import WarmStart
from paceline.features.history.preparing import prepared
from paceline.features.history.tables import METADATA
from paceline.jobs.ground import check_ground
from paceline.jobs.outcome import End, Outcome
from paceline.policy.job_size import JobSize
from paceline.policy.observation import RestartOutcome
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.nodes import (
    NodeResizedEvent,
    ProcessExitedEvent,
    RelaunchEvent,
    ServersNotChangedEvent,
    Verdict,
)
from paceline.wire.spec import JobSpec, NodeSpec, ResourcesSpec

FEATURES = JobFeatures(
    user="ada",
    script="/home/ada/train.py",
    strategy="ps",
    mode="asp",
    num_samples=80_000_000_000,
    table_rows={"users": 5},
)
JOB = PastJob(
    job_id="train-1",
    name="train",
    backend="local",
    end=End.FINISHED,
    exit_code=0,
    started_s=1_000.5,
    ended_s=1_060.5,
    features=FEATURES,
    first=JobSize(workers=1, servers=1, worker_cpu=0.25),
    final=JobSize(workers=4, servers=2, server_memory=1 << 40),
    sizes=(
        SizeChange(since_launch_s=3.0, size=JobSize(workers=4, servers=1), reason="1 -> 4 workers"),
        SizeChange(since_launch_s=9.5, size=JobSize(workers=4, servers=2), reason=""),
    ),
    samples=5_000_000_000,
    samples_per_s=100.25,
    training_s=50.0,
    jct_s=60.0,
    relaunches=3,
    restores=1,
    out_of_memory=2,
    restarts=(RestartOutcome(role="worker", before=3.0, after=1.0, weight=0.5),),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PACELINE_HISTORY", raising=False)
    return tmp_path / "home"


def usual() -> PastJobs:
    place = history_place()
    assert place is not None
    return PastJobs(place)


def at(url: str) -> PastJobs:
    return PastJobs(HistoryPlace(url, "history"))


def paceline(*args: str) -> Result:
    return CliRunner().invoke(app, args)


# --------------------------------------------------------------------------- what is kept


def test_a_job_comes_out_as_it_went_in(home: Path) -> None:
    usual().add(JOB)
    assert usual().newest(5) == [JOB]
    assert usual().find("train") == JOB
    file = home / "history.sqlite"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_job_that_ends_again_replaces_its_first_end() -> None:
    usual().add(JOB)
    again = replace(JOB, ended_s=2_000.0, sizes=JOB.sizes[:1], restarts=())
    usual().add(again)
    assert usual().newest(5) == [again]


def test_jobs_are_listed_the_newest_first_as_wanted() -> None:
    other = replace(FEATURES, user="bob", script="/x/other_train.py", mode=None)
    jobs = [
        replace(JOB, job_id="a", ended_s=1.0),
        replace(JOB, job_id="b", ended_s=3.0, end=End.FAILED, error="it broke"),
        replace(JOB, job_id="c", ended_s=2.0, features=other, backend="ray"),
    ]
    for job in jobs:
        usual().add(job)

    def found(limit: int = 9, **wanted: Any) -> str:
        return "".join(job.job_id for job in usual().newest(limit, JobFilter(**wanted)))

    assert found() == "bca"
    assert found(2) == "bc"
    assert found(user="ada") == "ba"
    assert found(script="train.py") == "ba"
    assert found(script="/x/other_train.py") == "c"
    assert found(end="failed") == "b"
    assert found(mode="asp", backend="ray") == ""


def test_restarts_are_those_of_the_newest_jobs_of_a_backend_the_oldest_first() -> None:
    def restarted(before: float) -> RestartOutcome:
        return RestartOutcome(role="worker", before=before, after=1.0)

    for number in (1, 2, 3):
        restarts = (restarted(number), restarted(number + 0.5))
        job = replace(JOB, job_id=f"job-{number}", ended_s=float(number), restarts=restarts)
        usual().add(job)
    usual().add(replace(JOB, job_id="far", ended_s=9.0, backend="ray"))
    assert [one.before for one in usual().restarts("local", 3)] == [2.5, 3.0, 3.5]
    assert len(usual().restarts("ray", 3)) == 1


def test_masters_of_many_jobs_write_at_one_moment(home: Path) -> None:
    # Also the tables are made by several at once.
    code = (
        "import sys; from msgspec.structs import replace; from tests.unit.history.test_past import JOB, "
        "usual\nfor n in range(5): usual().add(replace(JOB, job_id=f'{sys.argv[1]}-{n}'))"
    )
    root = Path(__file__).parents[3]
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], cwd=root) for number in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert len({job.job_id for job in usual().newest(100)}) == 20


def test_what_is_kept_of_a_job_follows_from_its_events() -> None:
    spec = JobSpec(
        script="/t.py",
        workers=NodeSpec(count=2, cpu=(1.0, 0.5)),
        servers=NodeSpec(count=1, memory_bytes=7),
    )
    outcome = Outcome(state="stopped", exit_code=4, jct_s=60.0, committed=300)
    oom = ProcessExitedEvent(t=120.0, node="server-0", inc=1, verdict=Verdict.OOM)
    events = [
        oom,
        RelaunchEvent(t=121.0, node="server-0", inc=1, cause="out of memory", wait_s=0.0),
        ScaledEvent(t=130.0, role="worker", count=5, before=2),
        ScaledEvent(t=140.0, role="server", count=2, before=1),
        NodeResizedEvent(t=150.0, node="server-0", inc=2, cores=None, memory_bytes=9),
        NodeResizedEvent(t=151.0, node="server-1", inc=3, cores=None, memory_bytes=9),
        ScaledEvent(t=160.0, role="server", count=4, before=2),
        ServersNotChangedEvent(t=170.0, count=2, withdrawn=True),
    ]
    job = past_job(
        "t-1", spec, outcome, launched_s=100.0, features=FEATURES, events=events, points=[]
    )
    assert job.first == JobSize(
        workers=2, servers=1, worker_cpu=0.75, server_cpu=0.0, server_memory=7
    )
    assert [change.since_launch_s for change in job.sizes] == [30.0, 40.0, 50.0, 60.0, 70.0]
    assert job.final.server_memory == 9
    assert (job.final.workers, job.final.servers, job.final.worker_cpu) == (5, 2, 0.75)
    assert (job.end, job.ended_s, job.relaunches, job.out_of_memory) == (End.STOPPED, 160.0, 1, 1)


# --------------------------------------------------------------------------- versions


def test_the_migrations_make_the_tables_that_the_code_reads(tmp_path: Path) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [NEWEST]
    at(f"sqlite:///{tmp_path}/new.sqlite").check()
    engine = sql.create_engine(f"sqlite:///{tmp_path}/new.sqlite", poolclass=sql.pool.NullPool)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_a_database_of_a_later_version_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/later.sqlite"
    at(url).add(JOB)
    with sqlite3.connect(tmp_path / "later.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
    connection.close()
    with pytest.raises(ConfigError, match="got tables of version 0999, expected 0001 at most"):
        at(url).newest(1)


def test_tables_that_are_half_made_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/half.sqlite"
    migrate = book._migrate

    def die(connection: sql.Connection) -> None:
        migrate(connection)
        raise KeyboardInterrupt

    monkeypatch.setattr(book, "_migrate", die)
    with pytest.raises(KeyboardInterrupt):
        at(url).check()
    monkeypatch.setattr(book, "_migrate", migrate)
    at(url).add(JOB)
    assert at(url).newest(1) == [JOB]


# --------------------------------------------------------------------------- what is refused


def foreign(folder: Path) -> str:
    (folder / "no.sqlite").write_text("no database, but long enough to be taken for one" * 9)
    return f"sqlite:///{folder}/no.sqlite"


def somebodys(folder: Path) -> str:
    with sqlite3.connect(folder / "theirs.sqlite") as connection:
        connection.execute("CREATE TABLE jobs (x INTEGER)")
    connection.close()
    return f"sqlite:///{folder}/theirs.sqlite"


def locked_away(folder: Path) -> str:
    (folder / "file").touch()
    return f"sqlite:///{folder}/file/history.sqlite"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (foreign, "cannot be used (file is not a database); mend it, or name another database"),
        (somebodys, "got a database with a table jobs that is none of paceline's"),
        (locked_away, "cannot be opened: File exists"),
        (lambda _: "postgresql+psycopg://ada:secret@127.0.0.1:9/x", "cannot be used (connection"),
        (lambda _: "postgresql+nodriver://h/x", "pip install 'paceline[postgresql]'"),
        (lambda _: "mysql://h/x", "expected the URL of a database"),
        (lambda _: "history.db", "expected the URL of a database"),
        (lambda _: "sqlite:///near.db", "expected a whole path; write sqlite:////folder/file"),
    ],
)
def test_a_history_that_somebody_names_and_cannot_be_used_starts_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, message: str
) -> None:
    url = make(tmp_path)
    with pytest.raises(ConfigError) as refused:
        check_ground(JobSpec(script="t.py", history=url, sources={"history": "job.yaml:3"}))
    assert message in str(refused.value)
    assert str(refused.value).startswith("job.yaml:3: history")
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("PACELINE_HISTORY", url)
    with pytest.raises(ConfigError, match=r"^PACELINE_HISTORY: "):
        check_ground(JobSpec(script="t.py"))
    shown = paceline("history")
    assert shown.exit_code == 2
    assert message in shown.stderr


def test_a_job_may_have_no_history(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    check_ground(JobSpec(script="t.py", history="off"))
    monkeypatch.setenv("PACELINE_HISTORY", "off")
    assert history_place(JobSpec(script="t.py")) is None
    assert not (home / "history.sqlite").exists()
    assert "got off, expected the URL" in paceline("history").stderr


def test_no_password_is_shown() -> None:
    url = "postgresql+psycopg://ada:se:cret@db.example:5432/x"
    assert without_password(url) == "postgresql+psycopg://ada:***@db.example:5432/x"
    assert without_password("sqlite:////a:b@c/d") == "sqlite:////a:b@c/d"


# --------------------------------------------------------------------------- the command


def test_the_history_is_shown_to_people_and_programs() -> None:
    assert paceline("history").stdout.startswith("no job in the history")
    usual().add(JOB)
    listed = paceline("history").stdout.splitlines()
    assert listed[0].split() == ["job", "end", "samples", "speed", "jct", "size", "ended"]
    assert listed[1].startswith("train-1  finished  5,000,000,000  100/s  60.0 s  1+1 -> 4+2  ")
    assert book.msgspec.json.decode(paceline("history", "--json").stdout, type=list[PastJob]) == [
        JOB
    ]
    assert paceline("history", "--user", "bob", "--json").stdout == "[]\n"
    shown = " ".join(paceline("history", "show", "tr").stdout.split())
    assert "first size 1 worker of 0.25 cores, 1 server" in shown
    assert "table rows users: 5" in shown
    assert "restart of a worker 3.00 -> 1.00 x usual: cured" in shown
    missing = paceline("history", "show", "x")
    assert (missing.exit_code, "no job matches 'x'" in missing.stderr) == (2, True)


def test_a_size_is_suggested_from_jobs_that_are_alike(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert (
        "no finished job in the history is like it"
        in paceline("history", "suggest", str(script)).stdout
    )
    like = replace(
        submitted_features(JobSpec(script=str(script), args=("--lr", "1"))), num_samples=7
    )
    usual().add(replace(JOB, features=like))
    usual().add(
        replace(JOB, job_id="failed", features=like, end=End.FAILED, final=JobSize(workers=99))
    )
    usual().add(
        replace(JOB, job_id="far", features=replace(like, script="/x.py", user="y", arguments=""))
    )
    asked = ("history", "suggest", str(script), "--set", "mode=bsp", "--", "--lr", "1")
    shown = " ".join(paceline(*asked).stdout.split())
    assert shown.startswith("4 workers, 2 servers of 1.0 TiB (confidence 1.00) from distance size")
    assert shown.endswith("train-1 0.00 4 workers, 2 servers of 1.0 TiB")
    found = book.msgspec.json.decode(
        paceline("history", "suggest", "--json", *asked[2:]).stdout, type=WarmStart
    )
    assert found.size == JOB.final
    assert "got off" in paceline("history", "suggest", str(script), "--set", "history=off").stderr
    assert "no such file" in paceline("history", "suggest", "nowhere.py").stderr


def test_the_command_line_starts_without_a_database() -> None:
    code = "import paceline.cli.main, sys; print({'sqlalchemy', 'alembic'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
    assert os.environ.get("PACELINE_HISTORY") is None


def test_a_job_that_finds_its_size_begins_with_that_of_jobs_like_it(home: Path) -> None:
    spec = JobSpec(
        script="/home/ada/train.py",
        mode="asp",
        resources=ResourcesSpec(policy="rm", cores=8.0),
        sources={"resources.policy": "--auto"},
    )
    assert warm_started(spec) == (spec, None), "nothing is known"
    final = JobSize(workers=3, servers=2, worker_cpu=1.5, server_cpu=0.5)
    usual().add(replace(JOB, final=final, features=submitted_features(spec)))
    begun, found = warm_started(spec)
    assert found is not None and found.similar[0].job_id == "train-1"
    assert (begun.workers.count, begun.workers.cpu) == (3, (1.5,))
    assert (begun.servers.count, begun.servers.cpu) == (2, (0.5,))
    chosen = replace(spec, sources={**spec.sources, "workers.count": "--workers"})
    assert warm_started(chosen) == (chosen, None), "a person has chosen"
    assert warm_started(replace(spec, resources=ResourcesSpec()))[1] is None


def test_a_history_that_cannot_be_used_stops_only_a_job_that_names_it(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "history.sqlite").write_bytes(b"no database" * 100)
    spec = JobSpec(script="train.py", resources=ResourcesSpec(policy="rm", cores=8.0))
    assert warm_started(spec) == (spec, None)
    named = replace(spec, history=f"sqlite:///{home / 'history.sqlite'}")
    with pytest.raises(ConfigError, match="history"):
        warm_started(named)


def test_without_the_search_for_a_size_no_size_is_suggested(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = JobSpec(script="train.py", resources=ResourcesSpec(policy="rm", cores=8.0))
    monkeypatch.setattr(features, "installed", tuple)
    assert prepared(spec) == (spec, [])
    done = paceline("history", "suggest", "train.py")
    assert done.exit_code == 2
    assert "history suggest needs the feature sizes, which is not installed" in done.stderr
