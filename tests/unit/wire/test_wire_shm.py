"""Arenas: memory that one process writes and others read in place."""

import gc
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from paceline.wire.shm import SUFFIX, Arena, ArenaError, BadPlace, FramePlace, PeerArenas

SIZE = 1 << 20


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    with closing(Arena(tmp_path, "own", SIZE)) as arena:
        yield arena


@pytest.fixture
def peers(tmp_path: Path) -> PeerArenas:
    return PeerArenas(tmp_path)


def test_what_is_placed_is_read_in_place_and_freed_with_the_last_reference(
    arena: Arena, peers: PeerArenas
) -> None:
    place = arena.place(memoryview(b"tensor" * 1000), "r")
    assert place is not None
    frame = peers.view(arena.name, place)
    array = np.frombuffer(frame, np.uint8)[6:]
    assert bytes(frame) == b"tensor" * 1000
    del frame
    assert arena.num_used_bytes > 0
    del array
    assert arena.num_used_bytes == 0


def test_a_full_arena_has_no_room_until_something_is_released(
    arena: Arena, peers: PeerArenas
) -> None:
    third = memoryview(bytes(SIZE // 3))
    places = [arena.place(third, "r") for _ in range(4)]
    assert places[3] is None
    assert places[1] is not None
    frame = peers.view(arena.name, places[1])
    assert arena.place(third, "r") is None
    del frame
    assert arena.place(third, "r") is not None


def test_an_allocated_block_that_is_never_sent_is_freed(arena: Arena) -> None:
    block = arena.allocate(1000)
    assert block is not None
    assert arena.num_used_bytes >= 1000
    del block
    assert arena.num_used_bytes == 0


def test_an_allocated_block_is_sent_where_it_lies_and_only_once(
    arena: Arena, peers: PeerArenas
) -> None:
    block = arena.allocate(1000)
    assert block is not None
    block[:] = b"x" * 1000
    first = arena.place(block, "r")
    second = arena.place(block, "r")
    assert first is not None
    assert second is not None
    assert first.offset != second.offset
    del block
    assert bytes(peers.view(arena.name, first)) == b"x" * 1000
    assert arena.num_used_bytes > 0
    assert bytes(peers.view(arena.name, second)) == b"x" * 1000
    assert arena.num_used_bytes == 0


def test_a_withdrawn_block_belongs_to_its_sender_again_and_a_copy_is_freed(arena: Arena) -> None:
    block = arena.allocate(1000)
    assert block is not None
    place, copy = arena.place(block, "r"), arena.place(memoryview(bytes(500)), "r")
    assert place is not None
    assert copy is not None
    arena.withdraw(place)
    arena.withdraw(copy)
    assert 1000 <= arena.num_used_bytes < 1500
    assert arena.place(block, "r") == place


def test_a_late_release_frees_nothing_but_its_own_block(arena: Arena, peers: PeerArenas) -> None:
    old = arena.place(memoryview(bytes(1000)), "zombie")
    assert old is not None
    zombie = peers.view(arena.name, old)
    arena.reclaim("zombie")
    new = arena.place(memoryview(bytes(1000)), "r")
    assert new is not None
    assert (new.offset, new.entry) == (old.offset, old.entry)
    del zombie
    assert arena.num_used_bytes >= 1000


def test_reclaiming_frees_what_one_receiver_holds(arena: Arena) -> None:
    for receiver in ("a", "b", "a"):
        arena.place(memoryview(bytes(1000)), receiver)
    arena.reclaim("a")
    assert arena.receivers() == {"b"}


def test_random_use_never_overlaps_and_never_leaks(arena: Arena, peers: PeerArenas) -> None:
    rng = random.Random(11)
    held: list[tuple[bytes, memoryview]] = []
    num_refused = 0
    for _ in range(3000):
        if held and rng.random() < 0.45:
            data, frame = held.pop(rng.randrange(len(held)))
            assert bytes(frame) == data
            del frame
            continue
        data = rng.randbytes(1) * rng.randrange(1, 60_000)
        place = arena.place(memoryview(data), "r")
        num_refused += place is None
        if place is not None:
            held.append((data, peers.view(arena.name, place)))
    assert num_refused > 0
    assert all(bytes(frame) == data for data, frame in held)
    held.clear()
    gc.collect()
    assert arena.num_used_bytes == 0


@pytest.mark.parametrize(
    "place",
    [
        FramePlace(0, 8, 0, 1),
        FramePlace(8192, SIZE + 1, 0, 1),
        FramePlace(1 << 60, 8, 0, 1),
        FramePlace(8192, -1, 0, 1),
        FramePlace(8192, 8, 1024, 1),
        FramePlace(8192, 8, -1, 1),
    ],
)
def test_a_place_outside_of_the_arena_is_refused(
    arena: Arena, peers: PeerArenas, place: FramePlace
) -> None:
    with pytest.raises(BadPlace):
        peers.view(arena.name, place)


@pytest.mark.parametrize("name", ["missing" + SUFFIX, "../x" + SUFFIX, "own", "short" + SUFFIX])
def test_what_is_no_arena_is_refused(peers: PeerArenas, tmp_path: Path, name: str) -> None:
    (tmp_path / f"short{SUFFIX}").write_bytes(b"short")
    with pytest.raises(BadPlace):
        peers.view(name, FramePlace(8192, 8, 0, 1))


def test_without_room_on_the_file_system_there_is_no_arena(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="shared memory"):
        Arena(tmp_path, "huge", 1 << 60)
    with pytest.raises(ArenaError, match="nowhere"):
        Arena(tmp_path / "nowhere", "x", SIZE)
    assert os.listdir(tmp_path) == []


_OWNER = """
import sys
from pathlib import Path
from paceline.wire.shm import Arena
print(Arena(Path(sys.argv[1]), "child", 1 << 16).name, flush=True)
sys.stdin.read()
"""


def test_the_death_of_an_owner_is_known_and_its_file_removed(
    tmp_path: Path, peers: PeerArenas
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    with child:
        assert child.stdout is not None
        name = child.stdout.readline().decode().strip()
        assert peers.alive(name)
        with closing(Arena(tmp_path, "own", SIZE)):
            assert (tmp_path / name).exists()
        child.kill()
        child.wait()
        assert not peers.alive(name)
        assert (tmp_path / name).exists()
        with closing(Arena(tmp_path, "own", SIZE)):
            assert not (tmp_path / name).exists()
        assert not peers.alive(name)
