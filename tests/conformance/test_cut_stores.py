"""What every store of cuts promises, wherever it keeps their files."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.cuts.distant import DistantStore
from paceline.cuts.manifest import Checksum, checksum
from paceline.cuts.remote import RemoteCuts
from paceline.cuts.serving import FileServer
from paceline.cuts.store import (
    PIECE_BYTES,
    CutStore,
    FolderStore,
    LocalCuts,
    MemoryStore,
    fetch,
)

SECRET = b"ab" * 32
NAME = "worker-0-7.safetensors"
IMAGE = bytes(range(256)) * 5
LARGE = bytes(itertools.islice(itertools.cycle(range(251)), 2 * PIECE_BYTES + 17))


def in_folder(folder: Path) -> Iterator[CutStore]:
    yield FolderStore(folder)


def in_memory(folder: Path) -> Iterator[CutStore]:
    yield MemoryStore(folder, "worker-0")


def at_url(folder: Path) -> Iterator[CutStore]:
    yield RemoteCuts(f"file://{folder}/cuts")


def served(folder: Path, address: str) -> Iterator[CutStore]:
    """By another machine's server of files, over this data plane."""
    job = JobDir(folder / "job")
    job.path.mkdir()
    cuts = LocalCuts(folder / "cuts", folder / "memory")
    server = FileServer(address, SECRET, job, cuts, takes=True)
    yield DistantStore(lambda: server.address, SECRET)
    server.close()


def over_curve(folder: Path) -> Iterator[CutStore]:
    yield from served(folder, "curve://127.0.0.1:*")


def over_shared_memory(folder: Path) -> Iterator[CutStore]:
    yield from served(folder, f"shm://{folder}/files.data")


@pytest.fixture(
    params=[in_folder, in_memory, at_url, over_curve, over_shared_memory],
    ids=lambda make: make.__name__,
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CutStore]:
    make: Callable[[Path], Iterator[CutStore]] = request.param
    yield from make(tmp_path)


def read(store: CutStore, number: int, name: str = NAME) -> bytes:
    return b"".join(store.get(number, name))


@pytest.mark.parametrize("image", [b"x", IMAGE, LARGE], ids=["one byte", "small", "large"])
def test_what_was_put_is_got_in_pieces(store: CutStore, image: bytes) -> None:
    digest = Checksum()
    store.put(3, NAME, memoryview(image), digest)
    assert str(digest) == checksum(image)
    pieces = list(store.get(3, NAME))
    assert b"".join(pieces) == image
    assert max(map(len, pieces), default=0) <= PIECE_BYTES
    assert store.files(3) == {NAME: len(image)}


def test_files_are_told_apart_by_number_and_by_name(store: CutStore) -> None:
    store.put(3, NAME, memoryview(b"three"))
    store.put(4, NAME, memoryview(b"four"))
    store.put(4, "other", memoryview(b"other"))
    assert read(store, 4) == b"four"
    assert read(store, 4, "other") == b"other"
    assert set(store.files(4)) == {NAME, "other"}


def test_a_file_that_is_put_again_is_the_new_one(store: CutStore) -> None:
    for image in (LARGE, IMAGE, LARGE):
        store.put(3, NAME, memoryview(image))
        assert read(store, 3) == image


def test_what_is_not_there_is_named(store: CutStore) -> None:
    store.put(3, NAME, memoryview(IMAGE))
    assert store.files(4) == {}
    for number, name in ((4, NAME), (3, "missing")):
        with pytest.raises(PermanentError, match=f"{number}.*{name}"):
            read(store, number, name)
    assert "3" in store.where(3)


def test_a_cut_that_is_deleted_is_gone_and_no_other(store: CutStore) -> None:
    store.put(3, NAME, memoryview(IMAGE))
    store.put(4, "other", memoryview(IMAGE))
    store.delete(3)
    store.delete(9)
    assert store.files(3) == {}
    assert read(store, 4, "other") == IMAGE


def test_a_file_is_fetched_whole_or_not_at_all(store: CutStore, tmp_path: Path) -> None:
    store.put(3, NAME, memoryview(LARGE))
    folder = tmp_path / "fetched"
    fetch(store, 3, NAME, checksum(LARGE), folder)
    assert (folder / NAME).read_bytes() == LARGE
    with pytest.raises(PermanentError, match="checksum differs"):
        fetch(store, 3, NAME, checksum(IMAGE), folder / "damaged")
    assert not list((folder / "damaged").iterdir())
