"""How long the check of a link may take, on links of any speed; time is virtual."""

from typing import Any

import pytest
import torch

from paceline.runtime.group import links
from paceline.runtime.group.store import GroupOver
from paceline.runtime.process import link_chunks


class Wire:
    """The leader's end of a link: what it receives takes as long as the link takes for it."""

    def __init__(self, bytes_per_s: float, rtt_s: float = 0.0) -> None:
        self.bytes_per_s, self.rtt_s = bytes_per_s, rtt_s
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> "Done":
        return Done(self, 0.0)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> "Done":
        return Done(self, tensors[0].numel() / self.bytes_per_s + self.rtt_s / 2)


class Done:
    def __init__(self, wire: Wire, takes_s: float) -> None:
        self.wire, self.takes_s = wire, takes_s

    def wait(self, timeout: Any) -> None:
        self.wire.now_s += self.takes_s


@pytest.mark.parametrize("bits_per_s", [1e4, 1e5, 1e6, 1e8, 1e10])
def test_the_check_of_a_link_is_bounded_whatever_it_carries(
    monkeypatch: pytest.MonkeyPatch, bits_per_s: float
) -> None:
    wire = Wire(bits_per_s / 8, rtt_s=1e-4)
    monkeypatch.setattr(link_chunks, "time", wire)
    began_s = wire.now_s
    rate = links._Pair(wire, 1, leads=True, patience_s=9.0).bytes_per_s()
    assert rate == pytest.approx(bits_per_s / 8, rel=0.5)
    # The last chunk is begun before the time is over.
    longest_chunk_s = max(
        link_chunks.FIRST_BYTES * 8 / bits_per_s, link_chunks.GROWTH * links.QUICK_S
    )
    assert wire.now_s - began_s < link_chunks.LONGEST_S + 2 * longest_chunk_s


def test_a_lost_connection_is_the_end_of_the_group() -> None:
    class Cut(Wire):
        def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Done:
            raise RuntimeError("connection closed by peer")

    with pytest.raises(GroupOver, match="closed by peer"):
        links.measure_links(Cut(1.0), 0, ["worker-0", "worker-1"], [[(0, 1)]])
