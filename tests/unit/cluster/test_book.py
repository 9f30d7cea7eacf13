"""What the journal of a scheduler says, what a start finds, and what a cluster may consist of."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from paceline.base.errors import ConfigError, PacelineError
from paceline.base.jobdir import JobDir
from paceline.features.cluster import book as books
from paceline.features.cluster import running
from paceline.features.cluster.answers import device_rows, queue_rows
from paceline.features.cluster.book import (
    AnyClusterRecord,
    CancelOrdered,
    ClusterBook,
    JobDecided,
    JobLaunched,
    JobOver,
    JobQueued,
)
from paceline.features.cluster.folder import ClusterConfig, ClusterDir
from paceline.features.cluster.policy.facts import (
    ChangingAct,
    ClusterJob,
    ReleaseDevices,
    ReserveDevices,
    StartJob,
    Tenant,
    UpgradeJob,
    fault,
)
from paceline.wire.spec import JobSpec

CONFIG = ClusterConfig(devices=("cpu:0", "cpu:1"), tenants=(Tenant("a", 2),))


def queued(name: str, size: int = 1, t: float = 100.0) -> JobQueued:
    job = ClusterJob(job_id=name, tenant="a", asked="auto", size=size, submitted_s=t)
    return JobQueued(t=t, job=job, spec=JobSpec(script="/train.py"), wait_s=5.0)


def decided(act: ChangingAct, t: float = 110.0) -> JobDecided:
    return JobDecided(t=t, act=act)


def start(name: str, *devices: str, kind: str = "guaranteed") -> StartJob:
    return StartJob(job_id=name, devices=devices, kind=kind, reason="it is next")


def read(*records: AnyClusterRecord) -> ClusterBook:
    book = ClusterBook(CONFIG)
    for record in records:
        book.apply(record)
    return book


HISTORY: tuple[AnyClusterRecord, ...] = (
    queued("j0"),
    queued("j1", 2),
    queued("j2"),
    decided(start("j0", "cpu:1", kind="opportunistic")),
    decided(ReserveDevices(job_id="j1", devices=("cpu:0", "cpu:1"), until_s=700.0, reason="full")),
    JobLaunched(t=112.0, job_id="j0"),
    decided(UpgradeJob(job_id="j0", reason="quota is left"), 115.0),
    CancelOrdered(t=116.0, job_id="j2"),
    JobOver(t=116.0, job_id="j2", how="never started", finished=False),
)


def test_records_become_facts_rows_and_words() -> None:
    book = read(*HISTORY)
    facts = book.facts(120.0, {"cpu:1": 0.5})
    assert [job.job_id for job in facts.jobs] == ["j0", "j1"]
    assert facts.on_devices("guaranteed") == {"cpu:1": 1}
    assert facts.reserved() == {"cpu:0", "cpu:1"}
    assert facts.usual_s == 600.0
    rows = queue_rows(book, {"j1": "waits for its reservation"}, {"j1": 30.0}).rows
    assert [(row.state, row.kind, row.wait_s, row.why) for row in rows] == [
        ("running", "guaranteed", None, "quota is left"),
        ("waiting", "", 30.0, "waits for its reservation"),
        ("over", "", None, "never started"),
    ]
    devices = device_rows(CONFIG, facts)
    assert [(one.load, one.guaranteed, one.reserved) for one in devices.devices] == [
        (0.0, "", "j1"),
        (0.5, "j0", "j1"),
    ]
    assert devices.tenants[0].used == 1
    assert [text for _, text in book.entries["j0"].told()] == [
        "submitted by a: auto, 1 devices, expected to wait 5 s",
        "started on cpu:1 as opportunistic, after 10 s: it is next",
        "its master answers",
        "upgraded to guaranteed: quota is left",
    ]


def test_a_book_is_the_same_after_its_own_records() -> None:
    book = read(*HISTORY)
    again = read(*book.records())
    assert again.facts(120.0, {}) == book.facts(120.0, {})
    assert [list(one.told()) for one in again.entries.values()] == [
        list(one.told()) for one in book.entries.values()
    ]


def test_the_oldest_jobs_that_are_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MAX_OVER", 2)
    book = read(queued("alive"))
    for at in range(4):
        name = f"j{at}"
        book.apply(queued(name))
        book.apply(decided(start(name, "cpu:0"), 200.0))
        book.apply(JobOver(t=210.0 + at, job_id=name, how="finished", finished=True))
    assert list(book.entries) == ["alive", "j2", "j3"]
    assert book.facts(0.0, {}).usual_s == 12.5
    book.apply(JobOver(t=1.0, job_id="j0", how="finished", finished=True))  # of a forgotten one


def test_what_jobs_have_and_the_cluster_has_not_is_named() -> None:
    book = ClusterBook(ClusterConfig(devices=("cpu:0",), tenants=(Tenant("b", 1),)))
    for record in HISTORY[:4]:
        book.apply(record)
    assert sorted(book.missing()) == [
        "device cpu:1 of j0",
        "tenant a of j0",
        "tenant a of j1",
        "tenant a of j2",
    ]


@pytest.mark.parametrize(
    ("act", "wrong"),
    [
        (start("j1", "cpu:0", "cpu:1"), "cpu:1 has a guaranteed job already"),
        (start("j1", "cpu:0", "cpu:0"), "cpu:0, cpu:0 is not what it needs now"),
        (start("j1", "cpu:0"), "cpu:0 is not what it needs now"),
        (start("j1", "cpu:0", "cpu:7"), "cpu:0, cpu:7 is not what it needs now"),
        (start("j0", "cpu:0"), "cpu:0 is not what it needs now"),
        (start("j9", "cpu:0"), "there is no such job"),
        (UpgradeJob(job_id="j0", reason=""), "cpu:1 is not what it needs now"),
        (ReleaseDevices(job_id="j1", reason=""), ""),
        (start("j1", "cpu:0", "cpu:1", kind="opportunistic"), ""),
    ],
)
def test_what_a_policy_must_not_do_is_refused(act: ChangingAct, wrong: str) -> None:
    assert fault(read(*HISTORY).facts(120.0, {}), act) == wrong


class Started:
    """A job's folder, and what a start did with it."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.calls = JobDir(home / "jobs" / "j0"), []
        self.is_up = False
        patched = {
            "launch": lambda _spec, folder: self.calls.append(("launch", folder.path.exists())),
            "resume": lambda _folder: self.calls.append(("resume", True)),
            "is_kept_up": lambda _folder: self.is_up,
            "is_supervised": lambda _folder: self.is_up,
        }
        for name, function in patched.items():
            monkeypatch.setattr(running, name, function)

    def start(self, *, launched: bool) -> list[tuple[str, bool]]:
        """Start it."""
        self.calls.clear()
        running.start_granted(self.folder, JobSpec(script="/t.py"), launched=launched)
        return list(self.calls)


def test_a_start_goes_on_where_a_killed_scheduler_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Started(tmp_path, monkeypatch)
    assert job.start(launched=False) == [("launch", False)]
    job.folder.path.mkdir(parents=True)  # half of one: it is made from the beginning
    assert job.start(launched=False) == [("launch", False)]
    assert job.start(launched=True) == []  # somebody has removed it
    assert running.look(job.folder) == (False, "its folder was removed", False)
    job.folder.path.mkdir()
    job.folder.spec.touch()  # it may run
    job.is_up = True
    assert job.start(launched=False) == []
    job.is_up = False
    assert job.start(launched=False) == [("resume", True)]
    assert running.look(job.folder) == (False, "", False)
    job.folder.outcome.write_text('{"state":"finished","exit_code":0,"end":"finished"}')
    assert job.start(launched=False) == []
    assert running.look(job.folder) == (False, "finished", True)
    job.is_up = True  # it still cleans up
    assert running.look(job.folder).lives


def test_a_grant_says_devices_and_class() -> None:
    book = read(*HISTORY[:4])
    entry = book.entries["j0"]
    spec = running.on_devices(entry.spec, entry.job)
    assert (spec.share.kind, spec.share.devices) == ("opportunistic", ("cpu:1",))
    assert spec.env == {"PACELINE_DEVICES": "cpu:1", "PACELINE_SHARE": "opportunistic"}
    program = replace(entry.spec, run_as="program", strategy="script")
    assert running.kind_of(program, entry.job) == "guaranteed"


def test_a_resume_that_comes_too_late_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Started(tmp_path, monkeypatch)
    job.folder.path.mkdir(parents=True)
    job.folder.spec.touch()

    def refuse(_folder: JobDir) -> None:
        job.is_up = started
        raise ConfigError("it runs")

    monkeypatch.setattr(running, "resume", refuse)
    started = True
    assert job.start(launched=True) == []
    job.is_up = started = False
    with pytest.raises(PacelineError, match="it runs"):
        job.start(launched=True)


def test_a_cluster_is_checked_and_kept(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    good = ClusterConfig(devices=(f"cpu:{core}",), tenants=(Tenant("a", 1),))
    good.check()
    for wrong, told in (
        (replace(good, devices=("cpu:99999",)), "--devices: got 'cpu:99999', expected cores that"),
        (replace(good, devices=("cuda:0",)), "expected cores: no GPU is granted yet"),
        (replace(good, devices=good.devices * 2), "expected each core once"),
        (replace(good, tenants=(Tenant("a", 1), Tenant("b", 1))), "got quotas of 2 devices"),
        (replace(good, tenants=(Tenant("a b", 1),)), "expected a name for each"),
        (replace(good, policy="best"), "no policy 'best'"),
    ):
        with pytest.raises(ConfigError, match=told):
            wrong.check()
    folder = ClusterDir(tmp_path / "cluster")
    assert folder.load() is None
    folder.make()
    secret = folder.secret()
    folder.make()
    assert folder.secret() == secret
    assert folder.secret_file.stat().st_mode & 0o777 == 0o600
    folder.want(good)
    assert folder.load() is None, "a start that fails must change nothing"
    folder.settle()
    assert folder.load() == good
    folder.settle()
    assert folder.load() == good
