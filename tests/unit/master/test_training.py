"""The edge around the master's state: results of evaluations, what cuts cost."""

import errno
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.samples import Span
from paceline.master.cut_folders import CutChosen
from paceline.master.holding.edge import GATHER_S
from paceline.master.holding.servers import ANSWER_PATIENCE_S, MOVE_PATIENCE_S, TELL_S, ServerEdge
from paceline.master.monitor import Monitor
from paceline.master.outbox import Outbox
from paceline.master.parts import MasterParts
from paceline.master.training import Training
from paceline.policy.actions import Profile
from paceline.protocol.cuts.cadence import Cadence
from paceline.protocol.nodes.hangs import Hang
from paceline.protocol.nodes.lives import Backing, NodePlace
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.platform import AnyWord
from paceline.protocol.samples.grant_size import BATCHES_BEFORE_MEASURED
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.base import Server
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    AskCut,
    Committed,
    Copied,
    CutMade,
    EvaluateResult,
    FenceAnswer,
    Finished,
    InitialWritten,
    Joined,
    LeaseRequest,
    MapSet,
    NodeDown,
    OpenFeed,
    Prepared,
    ProcessUp,
    Recall,
    Restored,
    WorkersNow,
)
from paceline.wire.places import AskedPlace, Resized, Resizing, Room
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec, TimeoutSpec

SERVERS, WORKER, OTHER = (1, 2), 3, 4
NODES = ("server-0", "server-1", "worker-0", "worker-1")
EVALUATION = Feed(
    feed=0,
    purpose="evaluate",
    num_samples=8,
    epochs=1,
    batch_size=4,
    shard_size=4,
    shuffle=False,
    seed=0,
)


class NoBackend:
    """Nothing is launched here."""

    def launch(
        self, node: str, place: AskedPlace, token: str, *, may_move: bool = False
    ) -> None: ...
    def adopt(self, node: str, launch: str, pid: int) -> None: ...
    def stop(self, node: str, grace_s: float = 0.0) -> None: ...
    def resize(self, node: str, place: AskedPlace) -> Resizing:
        return Resized()

    def room(self, place: AskedPlace) -> Room:
        return Room(pending_s=0.0)

    async def picture(self, nodes: Iterable[str]) -> set[str]:
        return set()

    async def close(self) -> None: ...

    async def watch(self) -> AsyncIterator[AnyWord]:
        return
        yield


TRAINED = msgspec.structs.replace(EVALUATION, purpose="train", num_samples=1000, batch_size=20)


class Recorded(Outbox):
    """Of what is sent to whom, too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent: list[tuple[int, NodeDown]] = []

    def to_process(self, inc: int, message: NodeDown) -> None:
        self.sent.append((inc, message))
        super().to_process(inc, message)


class Job:
    """Two servers and two workers, all up, in their first epoch."""

    def __init__(self, path: Path, mode: str = "bsp") -> None:
        self.job = JobDir(path)
        self.job.cuts.mkdir()
        self.spec = JobSpec(
            script="train.py",
            mode=mode,
            workers=NodeSpec(count=2),
            servers=NodeSpec(count=2),
            checkpoint=CheckpointSpec(every_s=1.0, share=0.1),
        )
        self.members = Membership(num_workers=2, num_servers=2, restart=RestartSpec())
        backend = NoBackend()
        self.outbox = Recorded(self.job, self.members, backend)
        self.failed: list[str] = []
        self.monitor = Monitor()
        parts = MasterParts(self.job, self.spec, backend, self.members, self.monitor, self.outbox)
        edge = ServerEdge(self.spec)
        self.training = Training(parts, edge, self.failed.append, lambda found: None)
        self.now_s = 0.0
        self.begin()

    def begin(self) -> None:
        for inc, node in zip((*SERVERS, WORKER, OTHER), NODES, strict=True):
            role = node.partition("-")[0]
            self.members._new_life(self.members.roster.nodes[node], 0.0)
            up = ProcessUp(node=node, inc=inc, pid=inc, role=role, address=f"ipc://{inc}")
            self.members.process_up(up, 0.0)
        for inc in (WORKER, OTHER):
            self.training.worker_up(inc)
            self.say(Prepared(inc=inc, schema=ModelSchema()))
        self.say(InitialWritten(inc=WORKER, file="initial", checksum="", num_bytes=0))
        self.epoch()

    def epoch(self) -> None:
        self.training.epochs.start(CutChosen(0, []), self.now_s)
        for inc in SERVERS:
            self.say(Restored(epoch_no=self.state.epoch_no, inc=inc))

    @property
    def state(self):  # type: ignore[no-untyped-def]
        return self.training.state

    def say(self, message) -> None:  # type: ignore[no-untyped-def]
        node = NODES[message.inc - 1]
        self.training.handle(node, message, self.now_s)
        self.outbox.flush()

    def evaluate(self, inc: int) -> Span:
        """A worker opens the evaluation and gets work."""
        self.say(OpenFeed(inc=inc, feed=EVALUATION))
        self.say(LeaseRequest(epoch_no=self.state.epoch_no, inc=inc, n=1, feed=0, starving=True))
        (span,) = self.state.ledger.leases[inc]
        return span

    def hand_in(self, inc: int, span: Span) -> None:
        self.say(
            EvaluateResult(
                epoch_no=self.state.epoch_no, inc=inc, feed=0, span=span, values=b"values"
            )
        )

    def stored(self) -> list[str]:
        root = self.job.evaluations
        return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())

    def cut(self, *costs_s: float) -> None:
        """A cut that took the servers so long."""
        number = self.state.cuts.copying
        assert number is not None
        for inc, cost_s in zip(SERVERS, costs_s, strict=True):
            copied = Copied(
                epoch_no=self.state.epoch_no,
                inc=inc,
                cut_no=number,
                position=1,
                step=0,
                committed=(),
                sharers=SERVERS,
                file="",
                checksum="",
                num_bytes=0,
                cost_s=cost_s,
                stored=True,
            )
            self.say(copied)

    def wait(self, for_s: float) -> None:
        """Let time pass."""
        self.now_s += for_s
        self.training.tick(self.now_s, cuts=True)
        self.outbox.flush()

    def next_cut_s(self) -> float:
        """Wait until a cut is asked for; the seconds that took."""
        since_s = self.now_s
        while self.state.cuts.copying is None:
            self.wait(0.5)
        return self.now_s - since_s


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_an_epoch_says_how_many_samples_it_takes_out_of_the_model(job: Job) -> None:
    job.say(OpenFeed(inc=WORKER, feed=TRAINED))
    trained = (Span(0, 0, 60),)
    job.say(Committed(epoch_no=1, inc=SERVERS[0], step=3, committed=trained))
    job.epoch()
    assert undone(job) == [0, 60]


@pytest.mark.parametrize(("epoch_no", "expected"), [(1, [0, 700, 0]), (0, [0, 0, 0])])
def test_where_all_have_died_the_last_measurement_says_how_many(
    job: Job, epoch_no: int, expected: list[int]
) -> None:
    """Unless it is of an epoch before: then that epoch's end has told of it already."""
    measured = Monitor().metrics(1.0, 700, epoch_no)
    job.job.metrics.write_bytes(msgspec.json.encode(measured) + b"\n")
    job.training.resume()
    job.epoch()
    job.epoch()
    assert undone(job) == expected


def undone(job: Job) -> list[int]:
    lines = map(msgspec.json.decode, job.job.events.read_text().splitlines())
    return [line["undone"] for line in lines if line["event"] == "epoch"]


def report_silence(job: Job, inc: int, silent_s: float) -> None:
    facts = NodeFacts(inc=inc, silent_s=silent_s)
    job.monitor.heartbeat(NODES[inc - 1], facts, job.now_s)


def test_a_worker_beside_servers_that_neither_speaks_nor_works_hangs(job: Job) -> None:
    report_silence(job, WORKER, 62.0)
    assert job.training.edge.find_hang(10.0, job.now_s) is None, "it has not begun to speak"
    job.evaluate(WORKER)
    assert job.training.edge.find_hang(70.0, job.now_s) is None
    found = job.training.edge.find_hang(10.0, job.now_s)
    assert found == Hang(("worker-0",), 62.0, silent=True)
    report_silence(job, WORKER, 59.0)
    assert job.training.edge.find_hang(10.0, job.now_s) is None, "it may be blocked for so long"
    report_silence(job, WORKER, 62.0)
    job.members.script_returned(Finished(inc=WORKER, joined=True))
    assert job.training.edge.find_hang(10.0, job.now_s) is None, "its script is over"


def test_a_server_that_neither_speaks_nor_works_hangs_but_not_while_it_loads_a_cut(
    job: Job,
) -> None:
    job.now_s = 100.0
    report_silence(job, SERVERS[1], 62.0)
    found = job.training.edge.find_hang(10.0, job.now_s)
    assert found == Hang(("server-1",), 62.0, silent=True)
    job.training.epochs.start(CutChosen(0, []), job.now_s)
    assert job.training.edge.find_hang(10.0, job.now_s) is None
    for inc in SERVERS:
        job.say(Restored(epoch_no=job.state.epoch_no, inc=inc))
    assert job.training.edge.find_hang(10.0, job.now_s) is None, "what was reported is of before"
    job.now_s += 61.0
    assert job.training.edge.find_hang(10.0, job.now_s) == found


def test_with_servers_every_batch_counts_so_none_is_profiled(job: Job) -> None:
    with pytest.raises(ConfigError, match=r"Profile: .* --strategy allreduce"):
        job.training.edge.profile(Profile(sizes={"worker-0": 5}, steps=3))


def test_results_lie_in_the_job_directory_until_the_job_ends(job: Job) -> None:
    span = job.evaluate(WORKER)
    job.hand_in(WORKER, span)
    assert job.stored() == [f"1/0/{span.start}-{span.stop}.safetensors"]
    job.training.close()
    assert job.stored() == []


def test_results_of_the_epoch_before_stay_for_who_is_reading_them(job: Job) -> None:
    for epoch_no in (1, 2, 3):
        if epoch_no > 1:
            job.epoch()
        job.hand_in(WORKER, job.evaluate(WORKER))
        epochs = {name.partition("/")[0] for name in job.stored()}
        assert epochs == {str(number) for number in (epoch_no - 1, epoch_no) if number}


def test_a_full_disk_fails_the_job_and_says_what_to_do(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = job.evaluate(WORKER)

    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    job.hand_in(WORKER, span)
    (reason,) = job.failed
    assert str(job.job.evaluations) in reason
    assert "No space left on device" in reason
    assert "PACELINE_HOME" in reason
    assert job.stored() == []
    assert not job.state.ledger.done, "what is not stored is not done"


def test_a_result_without_a_lease_is_dropped_with_one_warning(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    span = job.evaluate(WORKER)
    job.evaluate(OTHER)
    for _ in range(5):
        job.hand_in(OTHER, span)
    assert job.stored() == []
    warnings = [r.getMessage() for r in caplog.records if "evaluation_dropped" in r.getMessage()]
    assert len(warnings) == 1
    assert f"inc={OTHER}" in warnings[0]


def test_at_the_tail_of_an_evaluation_whole_batches_go_to_another_worker(job: Job) -> None:
    """So each batch has the same samples, and its results the same bits, with any workers."""
    whole = msgspec.structs.replace(EVALUATION, num_samples=48)

    def ask(inc: int, n: int) -> None:
        epoch_no = job.state.epoch_no
        job.say(LeaseRequest(epoch_no=epoch_no, inc=inc, n=n, feed=0, starving=True))

    for inc in (WORKER, OTHER):
        job.say(OpenFeed(inc=inc, feed=whole))
    ask(WORKER, 1)
    for n in range(1, 16):
        ask(OTHER, n)
    recalls = {(inc, one.keep) for inc, one in job.outbox.sent if isinstance(one, Recall)}
    assert sum(map(len, job.state.ledger.leases[WORKER])) == 12
    assert recalls == {(WORKER, EVALUATION.batch_size)}


def test_the_time_between_cuts_follows_the_last_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job.training.cuts.folders, "seal", lambda *_: None)
    monkeypatch.setattr(job.training.cuts, "_has_changed", lambda: True)
    job.next_cut_s()
    job.cut(0.01, 0.01)
    assert job.next_cut_s() == 1.0
    job.cut(0.01, 2.0)
    assert job.next_cut_s() == 20.0
    job.cut(0.02, 0.01)
    assert job.next_cut_s() == 1.0


def test_a_disk_that_refuses_a_manifest_ends_the_job_with_a_reason(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job.training.cuts.folders, "seal", full)
    monkeypatch.setattr(job.training.cuts, "_has_changed", lambda: True)
    job.next_cut_s()
    job.cut(0.0, 0.0)
    job.wait(0.1)
    assert job.training.cuts.waits_for_disk(job.now_s)
    told = [line for line in job.job.events.read_text().splitlines() if "disk_refuses" in line]
    assert len(told) == 1
    assert "paceline stop --now" in told[0]
    job.wait(TimeoutSpec().disk_s - 1.0)
    assert not job.failed, "somebody may make room"
    job.wait(2.0)
    reason = job.failed[0]
    assert re.fullmatch(
        r"the manifest of cut 1 is not stored: no space left on .*/000001; "
        "make room there and resume the job",
        reason,
    )
    assert job.job.cuts.joinpath("000000").exists(), "the job is resumed from there"


def test_a_manifest_that_was_refused_is_written_when_there_is_room(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, refusals = job.training.cuts.folders.seal, iter([True, True, False])

    def full(*args: Any) -> None:
        if next(refusals):
            raise OSError(errno.ENOSPC, "No space left on device")
        seal(*args)

    monkeypatch.setattr(job.training.cuts.folders, "seal", full)
    monkeypatch.setattr(job.training.cuts, "_has_changed", lambda: True)
    job.next_cut_s()
    job.cut(0.0, 0.0)
    job.wait(0.1)
    assert not job.state.cuts.last_stored_no, "no manifest, no cut"
    assert not job.job.cuts.joinpath("000001", "manifest.json").exists()
    job.wait(0.1)
    assert job.state.cuts.last_stored_no == 1
    assert job.job.cuts.joinpath("000001", "manifest.json").exists()
    assert not job.failed
    assert "disk_heals" in job.job.events.read_text()
    assert not job.training.cuts.waits_for_disk(job.now_s)
    assert job.next_cut_s() == pytest.approx(1.0), "the time to the next one runs from there"


def test_a_manifest_that_was_refused_is_not_written_over_another_cut(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, refusals, sealed = job.training.cuts.folders.seal, iter([True]), []

    def full(*args: Any) -> None:
        if next(refusals, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        sealed.append(args)
        seal(*args)

    monkeypatch.setattr(job.training.cuts.folders, "seal", full)
    monkeypatch.setattr(job.training.cuts, "_has_changed", lambda: True)
    job.next_cut_s()
    job.cut(0.0, 0.0)
    # As when the holder of all that was copied is lost: the next cut has the same number.
    job.state.cuts.forget()
    job.training.do(job.state.take_cut())
    assert job.state.cuts.copying == 1
    job.wait(0.1)
    assert not sealed
    assert job.training.cuts._unsealed is None


# --------------------------------------------------------------------------- cuts that are asked for


def made(job: Job) -> list[tuple[int, int]]:
    """Which wishes of whom were said to be fulfilled."""
    return [(inc, message.n) for inc, message in job.outbox.sent if isinstance(message, CutMade)]


@pytest.fixture
def seldom(job: Job) -> Job:
    """The same where cuts are made but seldom, of which one is on disk."""
    job.training.cuts.cadence = Cadence(CheckpointSpec(every_s=10_000.0))
    return job


def ask(job: Job, n: int = 1, step: int = 0, inc: int = WORKER) -> None:
    job.say(AskCut(epoch_no=job.state.epoch_no, inc=inc, n=n, step=step))


def test_a_cut_that_is_asked_for_is_made_at_once_and_serves_all_who_asked(seldom: Job) -> None:
    ask(seldom)
    ask(seldom, inc=OTHER)
    ask(seldom, inc=OTHER, n=2)
    seldom.wait(0.1)
    assert seldom.state.cuts.copying == 1
    seldom.cut(0.0, 0.0)
    assert made(seldom) == [(WORKER, 1), (OTHER, 2)]
    seldom.wait(1.0)
    assert seldom.state.cuts.copying is None, "nobody wants more"


def test_what_was_begun_before_it_was_asked_for_may_lack_something(seldom: Job) -> None:
    ask(seldom)
    seldom.wait(0.1)
    ask(seldom, inc=OTHER)
    seldom.cut(0.0, 0.0)
    assert made(seldom) == [(WORKER, 1)]
    seldom.wait(0.1)
    seldom.cut(0.0, 0.0)
    assert made(seldom) == [(WORKER, 1), (OTHER, 1)]


def test_who_asks_again_is_answered_by_the_cut_that_there_is(seldom: Job) -> None:
    ask(seldom)
    seldom.wait(0.1)
    ask(seldom)
    seldom.cut(0.0, 0.0)
    assert made(seldom) == [(WORKER, 1)]


def test_a_cut_of_a_step_waits_until_that_is_in_the_model(seldom: Job) -> None:
    ask(seldom, step=3)
    seldom.wait(0.1)
    assert seldom.state.cuts.copying is None
    seldom.say(Committed(epoch_no=1, inc=SERVERS[0], step=3, committed=()))
    seldom.wait(0.1)
    assert seldom.state.cuts.copying == 1


def test_what_the_dead_asked_for_is_not_made(seldom: Job) -> None:
    ask(seldom)
    seldom.training.worker_lost(WORKER)
    seldom.wait(0.1)
    assert seldom.state.cuts.copying is None


# --------------------------------------------------------------------------- what was lost


def report(job: Job, samples: int) -> None:
    """The first worker has finished so many samples, ten and half a second a step."""
    facts = NodeFacts(inc=WORKER, samples=samples, steps=1, step_samples=10.0, bpt_s=0.5)
    job.monitor.heartbeat("worker-0", facts, job.now_s)


def redo_s(job: Job, node: str) -> float:
    """What the next start of the node counts as work to be done again."""
    job.monitor.restarts.up(node, 9, 50.0)
    job.monitor.restarts.works(node, 60.0)
    (measured,) = job.monitor.restarts.take_fresh()
    assert measured.node == node
    return measured.cost.redo_s


def lose_worker(job: Job, *committed: Span) -> None:
    job.monitor.restarts.ended("worker-0", 40.0)
    job.training.worker_lost(WORKER)
    answer = FenceAnswer(
        epoch_no=job.state.epoch_no, inc=SERVERS[0], fenced=WORKER, committed=committed
    )
    job.say(answer)


def asynchronous(path: Path) -> Job:
    job = Job(path, mode="asp")
    job.say(OpenFeed(inc=WORKER, feed=TRAINED))
    return job


def lease(job: Job, n: int) -> Span:
    job.say(LeaseRequest(epoch_no=job.state.epoch_no, inc=WORKER, n=n, feed=0, starving=True))
    return job.state.grants[WORKER].spans[0]


def test_a_lost_worker_s_finished_samples_that_are_not_in_the_model_are_lost_work(
    tmp_path: Path,
) -> None:
    job = asynchronous(tmp_path)
    span = lease(job, 1)
    assert len(span) >= 40
    report(job, 40)
    lose_worker(job, Span(span.line, span.start, span.start + 30))
    assert redo_s(job, "worker-0") == pytest.approx(0.5)


def test_a_worker_that_ended_in_order_has_lost_nothing(tmp_path: Path) -> None:
    job = asynchronous(tmp_path)
    span = lease(job, 1)
    report(job, 40)
    lose_worker(job, Span(span.line, span.start, span.start + 40))
    assert redo_s(job, "worker-0") == 0.0


def test_what_a_restore_takes_out_of_the_model_is_the_servers_lost_work(tmp_path: Path) -> None:
    job = asynchronous(tmp_path)
    span = lease(job, 1)
    report(job, 40)
    for second in range(3):
        job.monitor.committed(20 * second, float(second))
    job.state.ledger.commit([Span(span.line, span.start, span.start + 40)])
    job.monitor.restarts.ended("server-1", 3.0)
    job.epoch()
    assert redo_s(job, "server-1") == pytest.approx(40 / 20)
    # The worker lives on: only what it does from here on can be lost with it.
    lease(job, 1)
    report(job, 60)
    lose_worker(job)
    assert redo_s(job, "worker-0") == pytest.approx(20 / 10 * 0.5)


NEW = 5


def begin_copying(job: Job) -> None:
    """A move that has come to where every contribution must be held by the new server, too."""
    job.training.edge.change_servers((Server(NEW, "server-2", "ipc://5"),), (1,))
    answer(job)
    copies = job.state.holder.moving.wanted_map(job.state.holder.map)
    assert copies is not None
    job.say(MapSet(epoch_no=job.state.epoch_no, inc=1, map=copies, leads=True))
    assert job.state.holder.map.copies


def answer(job: Job, progress: int = 0) -> None:
    joined = Joined(epoch_no=job.state.epoch_no, inc=NEW, progress=progress)
    job.training.handle("server-2", joined, job.now_s)


def test_workers_of_servers_hear_again_and_again_how_many_they_are(job: Job) -> None:
    def told() -> list[tuple[int, int]]:
        job.training.tick(job.now_s, cuts=False)
        job.outbox.flush()
        found = [(inc, one.count) for inc, one in job.outbox.sent if isinstance(one, WorkersNow)]
        job.outbox.sent.clear()
        return found

    for inc in (WORKER, OTHER):
        job.say(LeaseRequest(epoch_no=job.state.epoch_no, inc=inc, n=1, feed=0))
    assert told() == [(WORKER, 2), (OTHER, 2)]
    job.now_s += TELL_S / 2
    assert told() == []
    job.training.worker_lost(OTHER)
    assert told() == [(WORKER, 1)]
    job.now_s += TELL_S
    assert told() == [(WORKER, 1)]


@pytest.mark.parametrize("answers", [False, True])
def test_a_joining_server_that_says_nothing_holds_nobody_up_for_long(
    tmp_path: Path, answers: bool
) -> None:
    job = Job(tmp_path)
    begin_copying(job)
    while job.now_s < 2 * ANSWER_PATIENCE_S:
        job.now_s += 0.5
        if answers:
            answer(job)
        job.training.tick(job.now_s, cuts=False)
        if job.now_s < ANSWER_PATIENCE_S:
            assert not job.state.holder.moving.given_up
    assert job.state.holder.moving.given_up == (not answers)


def test_a_joining_server_that_says_nothing_lives_as_long_as_workers_train(tmp_path: Path) -> None:
    job = Job(tmp_path)
    begin_copying(job)
    silent_s = 2 * ANSWER_PATIENCE_S
    while job.now_s < silent_s + 2 * ANSWER_PATIENCE_S:
        job.now_s += 0.5
        if job.now_s <= silent_s:
            job.monitor.committed(int(10 * job.now_s), job.now_s)
        job.training.tick(job.now_s, cuts=False)
        assert job.state.holder.moving.given_up == (job.now_s >= silent_s + ANSWER_PATIENCE_S)


def test_a_joining_server_to_which_nothing_comes_is_given_up_though_it_answers(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    begin_copying(job)
    while job.now_s <= MOVE_PATIENCE_S:
        assert not job.state.holder.moving.given_up
        job.now_s += 0.5
        answer(job)
        job.training.tick(job.now_s, cuts=False)
    assert job.state.holder.moving.given_up


def test_an_asynchronous_lease_is_of_batches_as_workers_compute_them(tmp_path: Path) -> None:
    job = asynchronous(tmp_path)
    assert len(lease(job, 1)) == BATCHES_BEFORE_MEASURED * TRAINED.batch_size // 2


@pytest.mark.parametrize(("ended", "failures"), [(True, 0), (False, 1)])
def test_going_on_after_an_orderly_end_is_no_failure(
    job: Job, monkeypatch: pytest.MonkeyPatch, ended: bool, failures: int
) -> None:
    """As all later epochs are."""
    counted: list[float] = []
    monkeypatch.setattr(Cadence, "went_back", lambda self, now_s: counted.append(now_s))
    job.training.resume(ended=ended)
    job.epoch()
    assert len(counted) == failures
    job.epoch()
    assert len(counted) == failures + 1


def test_a_cut_that_is_being_copied_elsewhere_stays(job: Job) -> None:
    made: list[int] = []

    def make() -> list[int]:
        job.training.do(job.state.take_cut())
        made.append(job.state.cuts.copying)
        job.cut(0.0, 0.0)
        return sorted(int(path.name) for path in job.job.cuts.iterdir())

    make()
    job.training.cuts.uploading = made[0]
    for _ in range(3):
        kept = make()
    assert kept == [made[0], *made[-2:]]
    job.training.cuts.uploading = None
    assert make() == made[-2:]


def gets_samples(job: Job, inc: int) -> bool:
    """Whether a worker that has opened its data gets samples."""
    job.say(OpenFeed(inc=inc, feed=TRAINED))
    job.say(LeaseRequest(epoch_no=job.state.epoch_no, inc=inc, n=1, feed=0, starving=True))
    return bool(job.state.ledger.leases.get(inc))


def test_the_first_samples_wait_for_workers_of_other_machines(tmp_path: Path) -> None:
    job = asynchronous(tmp_path)
    other = job.members.roster.nodes["worker-1"]
    other.agent.is_remote = True
    assert not gets_samples(job, WORKER)
    job.wait(GATHER_S - 1)
    assert not gets_samples(job, WORKER)
    assert gets_samples(job, OTHER), "nobody else is missing"
    other.agent.is_remote = True
    assert gets_samples(job, WORKER)


def test_a_worker_of_another_machine_that_does_not_come_is_not_awaited_for_ever(
    tmp_path: Path,
) -> None:
    job = asynchronous(tmp_path)
    job.members.roster.nodes["worker-1"].place = NodePlace(Backing.TAKEN, host="b")
    assert not gets_samples(job, WORKER)
    job.wait(GATHER_S)
    assert gets_samples(job, WORKER)


@pytest.mark.parametrize("backing", [Backing.UNKNOWN, Backing.PENDING, Backing.REFUSED])
def test_a_worker_without_a_place_is_not_awaited(tmp_path: Path, backing: Backing) -> None:
    job = asynchronous(tmp_path)
    job.members.roster.nodes["worker-1"].place = NodePlace(backing, host="b")
    assert gets_samples(job, WORKER)


def test_only_a_machine_that_comes_late_or_on_its_own_is_left_out_for_its_data(
    tmp_path: Path,
) -> None:
    job = asynchronous(tmp_path)
    job.say(OpenFeed(inc=WORKER, feed=TRAINED))
    other = job.members.roster.nodes["worker-1"]
    other.agent.is_remote, other.agent.host = True, "b (10.0.0.2)"
    shorter = OpenFeed(inc=OTHER, feed=msgspec.structs.replace(TRAINED, num_samples=999))
    job.say(shorter)
    assert "num_samples is 1000 for worker-0 and 999 for worker-1 on b (10.0.0.2)" in job.failed[0]
    job.state.ledger.commit([Span(0, 0, 4)])
    job.say(shorter)
    other.agent.is_remote, other.by_itself = False, True
    job.state.ledger.done.subtract([Span(0, 0, 4)])
    job.say(shorter)
    assert len(job.failed) == 1
