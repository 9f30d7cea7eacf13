"""How a link is measured by chunks; time is virtual."""

import pytest

from paceline.runtime.process import link_chunks
from paceline.runtime.process.link_chunks import CHUNK_BYTES, FIRST_BYTES, LONGEST_S, LinkChunks


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic(self) -> float:
        return self.now_s


def sent_over(
    monkeypatch: pytest.MonkeyPatch, bytes_per_s: float, stream_s: float = 0.05
) -> tuple[LinkChunks, list[int]]:
    """Send chunks until there are enough; return them, and the size of each."""
    clock, sizes = Clock(), list[int]()
    monkeypatch.setattr(link_chunks, "time", clock)
    chunks = LinkChunks(quick_s=0.1, stream_s=stream_s)
    while True:
        clock.now_s += chunks.size / bytes_per_s
        sizes.append(chunks.size)
        chunks.note()
        if chunks.may_grow:
            chunks.grow()
        elif chunks.is_long or chunks.are_enough():
            return chunks, sizes


def test_a_quick_link_is_measured_by_the_largest_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, sizes = sent_over(monkeypatch, 100e6)
    assert chunks.size == CHUNK_BYTES
    assert sizes[:5] == [FIRST_BYTES * 4**power for power in range(5)]
    assert sum(chunks.took_s) >= 0.05
    assert chunks.size / min(chunks.took_s) == pytest.approx(100e6)


def test_a_slow_link_is_measured_by_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sizes = sent_over(monkeypatch, 10e3)
    assert set(sizes) == {FIRST_BYTES}
    assert len(sizes) == 4


def test_a_very_slow_one_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, sizes = sent_over(monkeypatch, FIRST_BYTES / LONGEST_S)
    assert sizes == [FIRST_BYTES]
    assert chunks.took_s == [LONGEST_S]


def test_there_are_some_of_the_last_size(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, _ = sent_over(monkeypatch, 100e6, stream_s=0.0)
    assert len(chunks.took_s) == link_chunks.MIN_CHUNKS
    assert not LinkChunks(quick_s=0.1, stream_s=0.0).are_enough(coming=3)
