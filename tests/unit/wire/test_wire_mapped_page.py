"""Pages that processes share: whole or not there, and records that are never read torn."""

import mmap
from pathlib import Path

import pytest

from paceline.wire.mapped_page import StampedRing, magic_of, new_page

AT, RECORD, SLOTS = 64, 16, 4


def ring_in(memory: bytearray) -> StampedRing:
    return StampedRing(memoryview(memory), at=AT, record_bytes=RECORD, num_slots=SLOTS)


@pytest.fixture
def memory() -> bytearray:
    return bytearray(AT + StampedRing.num_bytes(RECORD, SLOTS))


def test_a_page_has_its_name_when_it_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "page"
    with new_page(path, b"PACETEST", 4096) as descriptor:
        mmap.mmap(descriptor, 4096)[8:12] = b"full"
        assert not path.exists()
    assert path.read_bytes()[:12] == b"PACETESTfull"
    assert path.stat().st_size == 4096
    with path.open("rb") as file:
        assert magic_of(file.fileno(), b"OTHERVER") == b"PACETEST"


def test_a_page_that_cannot_be_filled_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match="full"), new_page(path, b"PACETEST", 4096):
        raise OSError("full")
    assert path.read_bytes() == b"before"


def test_the_newest_records_are_there(memory: bytearray) -> None:
    ring = ring_in(memory)
    assert ring.get(0) is None
    for number in range(6):
        ring.put(number, bytes([number]) * RECORD)
    assert [ring.get(number) for number in range(7)] == [
        None,
        None,
        *(bytes([number]) * RECORD for number in range(2, 6)),
        None,
    ]
    assert ring.holds(5)
    assert not ring.holds(1)
    assert memory[:AT] == bytes(AT)


def test_a_short_record_keeps_what_stood_behind_it(memory: bytearray) -> None:
    ring = ring_in(memory)
    ring.put(0, b"a" * RECORD)
    ring.put(SLOTS, b"bb")
    assert ring.get(SLOTS) == b"bb" + b"a" * (RECORD - 2)


@pytest.mark.parametrize("num_bytes", range(1, RECORD + 16))
def test_a_writer_may_die_after_any_byte(memory: bytearray, num_bytes: int) -> None:
    ring = ring_in(memory)
    ring.put(0, b"a" * RECORD)
    whole = bytes(memory)
    ring.put(SLOTS, b"b" * RECORD)
    memory[:] = bytes(memory[: AT + num_bytes]) + whole[AT + num_bytes :]
    assert ring.get(0) is None
    assert ring.get(SLOTS) == (b"b" * RECORD if num_bytes > RECORD + 8 else None)
