"""From a copied state to two nodes' memory, then to disk."""

import errno
import os
import re
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.cuts import keeper as cut_keeping
from paceline.cuts import manifest as cut
from paceline.cuts import memory as memory
from paceline.cuts.keeper import CutKeeper, Image
from paceline.cuts.store import LocalCuts
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.checkpoint.writer import CutWriter
from paceline.runtime.server.store import Store
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.node import Copied, CutDelayed, CutKept, KeepCut
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup
from paceline.wire.spec import CheckpointSpec, TimeoutSpec

SCHEMA = ModelSchema(
    dense=(DenseTensor(name="w", shape=(4096,), dtype="float32", offset=0, group=0),),
    groups=(OptimizerGroup(kind="sgd"),),
)
NAME = "server-0-7.safetensors"


class Bench:
    """One server's writer, in a job with two servers' nodes and one worker's."""

    def __init__(self, tmp_path: Path, *nodes: str, in_memory: bool = True) -> None:
        self.job = JobDir(tmp_path / f"cut-writer-{os.getpid()}-{tmp_path.name}")
        self.job.path.mkdir()
        self.job.make_run_dir()
        for node in nodes:
            NodeFiles(self.job, node).agent_lock.touch()
        timeouts = TimeoutSpec(disk_s=60.0)
        self.refusals: list[str] = []
        self.delayed: list[CutDelayed] = []
        spec = SimpleNamespace(checkpoint=CheckpointSpec(in_memory=in_memory), timeouts=timeouts)
        cuts = LocalCuts(self.job.cuts, self.job.memory)
        process = SimpleNamespace(job=self.job, node="server-0", inc=7, spec=spec, cuts=cuts)
        self.writer = CutWriter(process)  # type: ignore[arg-type]
        self.agent = CutKeeper(self.job, cuts.disk, self.answer, self.refused, 60.0)
        self.asked: KeepCut | None = None
        self.store = Store(SCHEMA, [0] * NUM_BUCKETS, 0)
        self.restore_from(CutRef(cut_no=0))

    def refused(self, copied: Copied, reason: str) -> None:
        self.refusals.append(reason)
        self.writer.kept(CutKept(inc=copied.inc, copied=copied, delayed=True))

    def restore_from(self, ref: CutRef) -> None:
        self.writer.start_epoch(["server-0"], from_memory=ref.in_memory)

    def copy(self, cut_no: int, value: float) -> None:
        self.store.dense()["float32"][:] = value
        copied = Copied(
            epoch_no=1, inc=7, cut_no=cut_no, position=1, step=1, committed=(), sharers=(7,)
        )
        self.writer.copy(copied, self.store.save())

    def answer(self, copied: Copied, error: Exception | None) -> None:
        """The agent does, more than once."""
        for _ in range(2):
            error_text = "" if error is None else str(error)
            self.writer.kept(CutKept(inc=7, copied=copied, error=error_text))

    def hand_over(self) -> None:
        """What there is to keep to the agent, which does it once."""
        for ask in self.writer.to_agent(time.monotonic()):
            if isinstance(ask, CutDelayed):
                self.delayed.append(ask)
                continue
            if ask == self.asked:
                continue
            self.asked = ask
            path = self.in_memory(ask.copied.cut_no, "server-0")
            if path.exists():
                self.agent.keep(Image(ask.copied, memoryview(path.read_bytes()), ask.partner))
            else:
                self.writer.kept(CutKept(inc=7, copied=ask.copied, gone=True))

    def said(self) -> Copied:
        deadline_s = time.monotonic() + 10
        while (found := self.writer.finished()) is None:
            self.hand_over()
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        return found

    def whole(self, cut_no: int, value: float) -> list[bool]:
        self.copy(cut_no, value)
        said = [self.said()]
        while not said[-1].stored:
            said.append(self.said())
        return [one.stored for one in said]

    def in_memory(self, cut_no: int, node: str) -> Path:
        return self.job.memory / f"{cut_no:06d}" / node / NAME

    def values(self, path: Path) -> set[float]:
        saved = cutfile.unpack(path.read_bytes())
        return set(saved["dense.float32.value"].tolist())


@pytest.fixture
def bench(tmp_path: Path):  # type: ignore[no-untyped-def]
    made: list[Bench] = []

    def make(*nodes: str, in_memory: bool = True) -> Bench:
        made.append(Bench(tmp_path, *nodes, in_memory=in_memory))
        return made[-1]

    yield make
    for one in made:
        shutil.rmtree(one.job.run_dir, ignore_errors=True)


@pytest.mark.parametrize("nodes", [(), ("server-1",)])
def test_room_that_was_made_is_what_a_cut_is_copied_into(
    bench: Any, nodes: tuple[str, ...]
) -> None:
    one = bench("server-0", *nodes)
    one.writer.make_room(1, cutfile.packed_bytes(one.store.save()))
    path = one.in_memory(1, "server-0")
    before = path.stat().st_ino if nodes else id(one.writer._private)
    one.copy(1, 3.0)
    assert before == (path.stat().st_ino if nodes else id(one.writer._private))
    while not one.said().stored:
        pass
    (stored,) = one.job.cuts.glob(f"*/{NAME}")
    assert one.values(stored) == {3.0}


def test_a_cut_is_in_the_memory_of_two_nodes_then_on_disk(bench) -> None:  # type: ignore[no-untyped-def]
    job = bench("server-0", "worker-0")
    job.copy(1, 3.0)
    first, second = job.said(), job.said()
    assert (first.stored, second.stored) == (False, True)
    assert (first.file, first.checksum) == (second.file, second.checksum) == (NAME, first.checksum)
    for path in (job.in_memory(1, "server-0"), job.in_memory(1, "worker-0")):
        assert cut.checksum(path.read_bytes()) == first.checksum
        assert job.values(path) == {3.0}
    assert job.values(job.job.cuts / "000001" / NAME) == {3.0}


def test_the_pages_of_the_last_cut_are_used_again(bench) -> None:  # type: ignore[no-untyped-def]
    job = bench("server-0", "server-1")
    job.whole(1, 1.0)
    pages = [job.in_memory(1, node).stat().st_ino for node in ("server-0", "server-1")]
    job.whole(2, 2.0)
    found = [job.in_memory(2, node).stat().st_ino for node in ("server-0", "server-1")]
    assert found == pages
    assert not job.in_memory(1, "server-0").exists()
    assert job.values(job.in_memory(2, "server-1")) == {2.0}
    assert job.values(job.job.cuts / "000001" / NAME) == {1.0}


def test_what_the_epoch_was_restored_from_is_left_alone(bench) -> None:  # type: ignore[no-untyped-def]
    job = bench("server-0", "server-1")
    job.whole(1, 1.0)
    job.restore_from(CutRef(cut_no=1, memory=True))
    assert job.whole(2, 2.0) == [True], "memory has room for one cut"
    for node in ("server-0", "server-1"):
        assert job.values(job.in_memory(1, node)) == {1.0}
    assert job.whole(3, 3.0) == [False, True]
    assert job.values(job.in_memory(3, "server-1")) == {3.0}


def test_an_image_that_is_being_written_is_left_alone(  # type: ignore[no-untyped-def]
    bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    write_file = cut.write_file

    def wait(*args: Any) -> None:
        assert go.wait(10)
        write_file(*args)

    monkeypatch.setattr("paceline.cuts.store.write_file", wait)
    job = bench("server-0", "server-1")
    job.copy(1, 1.0)
    assert not job.said().stored
    job.copy(1, 2.0)  # of the next epoch: the first one did not become valid
    assert job.values(job.in_memory(1, "server-1")) == {1.0}
    go.set()
    assert [job.said().stored, job.said().stored] == [True, True]
    assert job.values(job.job.cuts / "000001" / NAME) == {2.0}


def test_a_cut_that_outgrew_its_file_frees_it_first(  # type: ignore[no-untyped-def]
    bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench("server-0", "server-1")
    job.whole(1, 1.0)
    old = job.writer._own
    monkeypatch.setattr(cutfile, "packed_bytes", lambda saved: 1 << 20)
    job.copy(2, 2.0)
    assert old._mapped.closed
    assert not job.in_memory(1, "server-0").exists()
    while not job.said().stored:
        pass  # its thread writes until then


def test_files_deleted_behind_its_back_are_made_anew(bench) -> None:  # type: ignore[no-untyped-def]
    job = bench("server-0", "server-1")
    job.whole(1, 1.0)
    shutil.rmtree(job.job.memory)
    assert job.whole(2, 2.0) == [False, True]
    assert job.values(job.in_memory(2, "server-0")) == {2.0}


def test_a_copy_whose_file_is_deleted_is_kept_all_the_same(bench) -> None:  # type: ignore[no-untyped-def]
    job = bench("server-0", "server-1")
    job.copy(1, 1.0)
    shutil.rmtree(job.job.memory)
    assert job.said().stored
    assert job.values(job.job.cuts / "000001" / NAME) == {1.0}
    assert job.whole(2, 2.0) == [False, True]


@pytest.mark.parametrize(
    ("nodes", "in_memory"), [(("server-0",), True), (("server-0", "b"), False)]
)
def test_without_a_partner_or_by_wish_it_counts_when_it_is_on_disk(  # type: ignore[no-untyped-def]
    bench, nodes: tuple[str, ...], in_memory: bool
) -> None:
    job = bench(*nodes, in_memory=in_memory)
    assert job.whole(1, 1.0) == [True]
    assert job.whole(2, 2.0) == [True]
    assert job.values(job.job.cuts / "000002" / NAME) == {2.0}
    # Its own copy, which the agent has written from.
    assert job.in_memory(2, "server-0").exists() == in_memory


def test_where_memory_has_no_room_it_counts_when_it_is_on_disk(  # type: ignore[no-untyped-def]
    bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    job = bench("server-0", "server-1")
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert job.whole(1, 1.0) == [True]
    assert job.whole(2, 2.0) == [True]
    assert job.values(job.job.cuts / "000002" / NAME) == {2.0}
    (line,) = caplog.messages
    assert "checkpoint.in_memory" in line


def test_where_the_machine_is_short_of_memory_an_image_lies_on_disk(  # type: ignore[no-untyped-def]
    bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = [0]
    monkeypatch.setattr(memory, "memory_left", lambda: memory.RESERVE_BYTES + left[0])
    job = bench("server-0", "server-1")
    assert job.whole(1, 1.0) == [True]
    assert job.whole(2, 2.0) == [True]
    assert job.values(job.job.cuts / "000002" / NAME) == {2.0}
    assert str(job.job.cuts) in Path("/proc/self/maps").read_text()
    assert {path.name for path in job.job.cuts.iterdir()} == {"000001", "000002"}
    (line,) = caplog.messages
    assert "room for two copies more" in line
    left[0] = 1 << 30
    assert job.whole(3, 3.0) == [False, True], "there is room again"
    left[0] = 0
    assert job.whole(4, 4.0) == [False, True], "it needs no more than it has"
    assert str(job.job.cuts) not in Path("/proc/self/maps").read_text()


def test_a_disk_that_refuses_is_asked_again_for_a_while(  # type: ignore[no-untyped-def]
    bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = iter([True, True])
    write_file = cut.write_file

    def refuse(*args: Any) -> None:
        if next(full, refusing):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_file(*args)

    refusing = False
    monkeypatch.setattr("paceline.cuts.store.write_file", refuse)
    monkeypatch.setattr(cut_keeping, "RETRY_S", 0.01)
    job = bench("server-0", "server-1")
    assert not job.writer.is_delayed
    assert job.whole(1, 1.0) == [False, True]
    assert len(caplog.messages) == 1
    assert len(job.refusals) == 2
    assert job.writer.is_delayed

    refusing = True
    job.agent._patience_s = 0.05
    with pytest.raises(PermanentError, match=r"cut 2 is not stored: no space left on .*make room"):
        job.whole(2, 2.0)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG])
def test_what_no_room_would_mend_is_not_waited_for(  # type: ignore[no-untyped-def]
    bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("paceline.cuts.store.write_file", refuse)
    job = bench("server-0", "server-1")
    why = re.escape(os.strerror(number))
    with pytest.raises(PermanentError, match=rf"cut 1 is not stored: .*{why}.*; mend that"):
        job.whole(1, 1.0)
    assert job.refusals == []


def test_a_process_that_keeps_its_cuts_says_itself_that_the_disk_refuses(  # type: ignore[no-untyped-def]
    bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = iter([True])
    write_file = cut.write_file

    def refuse(*args: Any) -> None:
        if next(full, False):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        write_file(*args)

    monkeypatch.setattr("paceline.cuts.store.write_file", refuse)
    monkeypatch.setattr(cut_keeping, "RETRY_S", 0.01)
    job = bench("server-0", "server-1", in_memory=False)
    assert job.whole(1, 1.0) == [True]
    assert job.writer.is_delayed
    (told,) = job.delayed
    assert (told.inc, told.cut_no) == (7, 1)
    assert told.reason.startswith("cut 1 is not stored: the quota is used up on ")


def test_one_damaged_copy_in_memory_is_no_loss(bench) -> None:  # type: ignore[no-untyped-def]
    job = bench("server-0", "server-1")
    job.copy(1, 1.0)
    checksum = job.said().checksum
    directory = job.in_memory(1, "x").parent.parent
    job.in_memory(1, "server-0").write_bytes(b"damaged")
    assert cut.map_file(NAME, checksum, directory, job.job.cuts / "000001")
    shutil.rmtree(directory / "server-1")
    with pytest.raises(PermanentError, match="checksum differs"):
        cut.map_file(NAME, checksum, directory)


def test_memory_that_others_need_is_left_to_them(  # type: ignore[no-untyped-def]
    bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_headroom", lambda: memory.RESERVE_BYTES)
    job = bench("server-0", "server-1")
    assert job.whole(1, 1.0) == [True]
    assert not list(job.job.memory.rglob("*.safetensors"))
