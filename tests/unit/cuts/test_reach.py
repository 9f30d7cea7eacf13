"""What a node of another machine gives to the master, and where it finds what it loads."""

import itertools
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.base.errors import PermanentError, TransientError
from paceline.base.jobdir import JobDir
from paceline.cuts import keeper, reach
from paceline.cuts.distant import DistantStore
from paceline.cuts.manifest import MANIFEST, CutManifest, checksum, write_file, write_manifest
from paceline.cuts.reach import JoinedCuts, cuts_of, evaluated, keep_servers
from paceline.cuts.serving import FileServer
from paceline.cuts.store import PIECE_BYTES, LocalCuts, results_of
from paceline.wire.data_plane import DataClient
from paceline.wire.messages.agent import FileServers
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.files import FileTaken, GiveFile
from paceline.wire.messages.node import Copied
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import JobSpec

NAME, IMAGE = "worker-1-7.safetensors", b"what worker-1 holds"
REF = CutRef(cut_no=3, epoch_no=1, memory=True, stored=True)


class Machines:
    """The master's, one that has made a cut, and one that joins."""

    def __init__(self, root: Path) -> None:
        self.jobs = {name: JobDir(root / name) for name in ("master", "maker", "here")}
        self.servers: dict[str, FileServer] = {}
        for name, job in self.jobs.items():
            job.path.mkdir()
            job.secret_file.write_text("ab" * 32)
            if name != "master":
                keep_servers(job, FileServers())
        self.folders = {
            name: LocalCuts(job.cuts, job.path / "memory") for name, job in self.jobs.items()
        }
        for name in ("master", "maker"):
            job, bind = self.jobs[name], f"shm://{root / name}.data"
            self.servers[name] = FileServer(
                bind, job.secret(), job, self.folders[name], takes=name == "master"
            )
        nodes = {"worker-1": self.servers["maker"].address}
        keep_servers(self.jobs["here"], FileServers(self.servers["master"].address, nodes))
        self.cuts = JoinedCuts(self.jobs["here"])
        self.cuts.memory = self.folders["here"].memory

    def seal(self, epoch_no: int = 1) -> None:
        """The master makes the cut one."""
        manifest = CutManifest(
            cut_no=3,
            epoch_no=epoch_no,
            position=1,
            step=1,
            committed=(),
            schema=ModelSchema(),
            files={NAME: checksum(IMAGE)},
            num_bytes=len(IMAGE),
        )
        write_manifest(self.folders["master"].disk.folder(3), manifest)

    def has(self, name: str, image: bytes = IMAGE) -> None:
        self.folders[name].disk.put(3, NAME, memoryview(image))

    def loaded(self) -> bytes:
        """The file as it is found when the cut is loaded."""
        found = [path / NAME for path in self.cuts.places(REF)]
        (path,) = [path for path in found if path.exists()]
        return path.read_bytes()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    for server in made.servers.values():
        server.close()


@pytest.mark.parametrize("who", ["here", "maker", "master"])
def test_a_file_is_taken_from_where_it_is(machines: Machines, who: str) -> None:
    machines.seal()
    machines.has(who)
    assert machines.loaded() == IMAGE


def test_a_damaged_copy_gives_way_to_the_next_one(machines: Machines) -> None:
    machines.seal()
    machines.has("here", b"damaged")
    machines.has("maker", b"damaged, too")
    machines.has("master")
    assert machines.loaded() == IMAGE


def test_a_peer_that_is_gone_is_not_waited_for_long(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "PEER_PATIENCE_S", 0.2)
    machines.seal()
    machines.has("master")
    machines.servers["maker"].close()
    assert machines.loaded() == IMAGE


def test_a_file_that_nobody_has_is_named(machines: Machines) -> None:
    machines.seal()
    with pytest.raises(PermanentError, match=NAME):
        machines.cuts.places(REF)


def test_a_cut_of_the_same_number_of_another_epoch_is_refused(machines: Machines) -> None:
    machines.seal(epoch_no=2)
    machines.has("master")
    with pytest.raises(PermanentError, match="another cut of this number"):
        machines.cuts.places(REF)


def test_of_what_was_fetched_one_cut_stays(machines: Machines) -> None:
    machines.seal()
    machines.has("master")
    machines.cuts.disk.put(2, NAME, memoryview(b"of before"))
    machines.loaded()
    assert machines.cuts.disk.numbers() == [3]


def test_what_must_outlive_the_node_is_given_to_the_master(machines: Machines) -> None:
    machines.cuts.durable.put(5, NAME, memoryview(IMAGE))
    assert machines.folders["master"].disk.files(5) == {NAME: len(IMAGE)}
    assert machines.folders["here"].disk.files(5) == {}


def test_results_of_an_evaluation_come_from_the_master(machines: Machines) -> None:
    results_of(machines.jobs["master"], 4).put(1, "0-8.safetensors", memoryview(IMAGE))
    found = evaluated(machines.jobs["here"], 4)
    assert found.files(1) == {"0-8.safetensors": len(IMAGE)}
    assert b"".join(found.get(1, "0-8.safetensors")) == IMAGE


def test_who_serves_is_not_known_before_the_master_says_so(machines: Machines) -> None:
    with pytest.raises(TransientError, match="has not said"):
        JoinedCuts(machines.jobs["maker"]).places(REF)


def test_on_the_master_s_machine_all_lies_in_folders(machines: Machines) -> None:
    cuts = cuts_of(machines.jobs["master"], JobSpec(script="/train.py"))
    assert type(cuts) is LocalCuts
    assert cuts.durable is cuts.disk


# ---------------------------------------------------------------------------- what is refused


def given(machines: Machines, who: str = "master") -> DistantStore:
    return DistantStore(
        lambda: machines.servers[who].address, machines.jobs["here"].secret(), patience_s=1.0
    )


@pytest.mark.parametrize("name", ["../outside", "a/b", ".hidden", "", "x" * 300])
def test_a_name_that_leads_elsewhere_is_none(machines: Machines, name: str) -> None:
    write_file(machines.folders["master"].disk.root, "outside", b"private")
    with pytest.raises(PermanentError, match="is no name"):
        given(machines).put(3, name, memoryview(IMAGE))
    with pytest.raises(PermanentError, match="is not there"):
        list(given(machines).get(3, name))


def test_a_cut_that_counts_is_changed_and_removed_by_the_master_alone(machines: Machines) -> None:
    machines.seal()
    machines.has("master")
    store = given(machines)
    for name in (NAME, MANIFEST, "more"):
        with pytest.raises(PermanentError, match="master's"):
            store.put(3, name, memoryview(b"changed"))
    with pytest.raises(PermanentError, match="master's"):
        store.delete(3)
    assert machines.loaded() == IMAGE


def test_a_manifest_is_the_master_s_to_write(machines: Machines) -> None:
    for number in (0, 1):
        with pytest.raises(PermanentError, match="master's"):
            given(machines).put(number, MANIFEST, memoryview(IMAGE))


def test_a_file_whose_beginning_a_former_master_was_given_is_given_again(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = memoryview(bytes(2 * PIECE_BYTES))
    server = machines.servers["master"]
    take = server._take

    def forget(peer: bytes, give: GiveFile, frames: list[memoryview]) -> FileTaken:
        if give.offset:
            server._give_up((peer, give.number, give.name))
        return take(peer, give, frames)

    monkeypatch.setattr(server, "_take", forget)
    with pytest.raises(TransientError, match="its beginning is missing"):
        given(machines).put(5, NAME, image)
    monkeypatch.undo()
    given(machines).put(5, NAME, image)
    assert machines.folders["master"].disk.files(5) == {NAME: len(image)}


def test_what_is_not_answered_is_asked_again(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cuts.distant.AGAIN_S", 0.05)
    image = bytes(range(256)) * (5 * PIECE_BYTES // 256) + b"end"
    server, count = machines.servers["master"], itertools.count()
    answer = server._answer

    def lose(*asked: Any) -> Any:
        found = answer(*asked)
        return None if next(count) % 3 == 1 else found

    monkeypatch.setattr(server, "_answer", lose)
    store = DistantStore(lambda: server.address, machines.jobs["here"].secret())
    store.put(5, NAME, memoryview(image))
    assert b"".join(store.get(5, NAME)) == image


def test_a_node_takes_nothing(machines: Machines) -> None:
    with pytest.raises(TransientError, match="no answer"):
        given(machines, "maker").put(5, NAME, memoryview(IMAGE))


def test_a_disk_that_is_full_says_so(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paceline.cuts.serving.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        given(machines).put(5, NAME, memoryview(IMAGE))
    assert caught.value.errno == 28
    assert not list(machines.folders["master"].disk.folder(5).iterdir())


@pytest.mark.parametrize(
    ("piece", "checksum_", "why"),
    [(b"x" * (PIECE_BYTES + 1), "", "at most"), (b"x", "xxh3:wrong", "checksum differs")],
    ids=["too large a piece", "another checksum"],
)
def test_what_was_not_sent_by_a_store_is_refused(
    machines: Machines, piece: bytes, checksum_: str, why: str
) -> None:
    address = machines.servers["master"].address
    client = DataClient({1: address}, machines.jobs["here"].secret(), "a stranger", arena_bytes=0)
    message = GiveFile(
        ticket=1, number=5, name=NAME, offset=0, num_bytes=len(piece), checksum=checksum_
    )
    client.send(1, message, [piece])
    answers: list[object] = []
    while not answers:
        answers = [answer for _, answer, _ in client.poll(1.0)]
    client.close()
    (answer,) = answers
    assert isinstance(answer, FileTaken)
    assert why in answer.error
    assert machines.folders["master"].disk.files(5) == {}


def test_a_store_that_does_not_answer_is_asked_again(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "RETRY_S", 0.01)
    store, silent = machines.cuts.durable, iter([True, True])
    put = store.put

    def answer(*given: Any) -> None:
        if next(silent, False):
            raise TransientError("no answer")
        put(*given)

    monkeypatch.setattr(store, "put", answer)
    heard: queue.SimpleQueue[tuple[Copied, Exception | None]] = queue.SimpleQueue()
    refused: list[str] = []
    keeping = keeper.CutKeeper(
        machines.jobs["here"],
        store,
        lambda *said: heard.put(said),
        lambda _, reason: refused.append(reason),
        patience_s=60.0,
    )
    copied = Copied(
        epoch_no=1, inc=7, cut_no=5, position=1, step=1, committed=(), sharers=(7,), file=NAME
    )
    keeping.keep(keeper.Image(copied, memoryview(IMAGE)))
    said, error = heard.get(timeout=30.0)
    assert error is None
    assert said.stored
    assert refused == ["cut 5 is not stored: no answer"] * 2
    assert machines.folders["master"].disk.files(5) == {NAME: len(IMAGE)}


@pytest.mark.parametrize("holder", ["master", "maker"])
def test_a_second_copy_is_kept_in_memory_of_another_machine(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    there = machines.folders[holder].memory
    monkeypatch.setattr(JobDir, "has_memory", property(lambda _: True))
    heard: queue.SimpleQueue[tuple[Copied, Exception | None]] = queue.SimpleQueue()
    keeping = keeper.CutKeeper(
        machines.jobs["here"],
        machines.cuts.durable,
        lambda *said: heard.put(said),
        lambda *_: None,
        patience_s=60.0,
    )
    copied = Copied(
        epoch_no=1, inc=7, cut_no=5, position=1, step=1, committed=(), sharers=(7,), file=NAME
    )
    elsewhere = machines.servers[holder].address
    keeping.keep(keeper.Image(copied, memoryview(IMAGE), elsewhere=elsewhere))
    said, _ = heard.get(timeout=30.0)
    assert not said.stored
    assert said.checksum == checksum(IMAGE)
    assert (there.folder(5) / "worker-1" / NAME).read_bytes() == IMAGE
    monkeypatch.setattr(JobDir, "has_memory", property(lambda _: False))
    while not heard.get(timeout=30.0)[0].stored:
        pass
    keeping.keep(keeper.Image(copied, memoryview(IMAGE), elsewhere=elsewhere))
    said, error = heard.get(timeout=30.0)
    assert said.stored, "a machine without such memory has no second copy"
    assert error is None


def test_a_name_of_a_node_that_leads_elsewhere_is_refused(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobDir, "has_memory", property(lambda _: True))
    for node in ("../up", "a/b", ".hidden"):
        store = DistantStore(
            lambda: machines.servers["maker"].address,
            machines.jobs["here"].secret(),
            memory_of=node,
        )
        with pytest.raises(PermanentError, match="no name of a node"):
            store.put(5, NAME, memoryview(IMAGE))
