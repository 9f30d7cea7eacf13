"""Buffers that a forward pass changes are put back where its step breaks."""

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from paceline.runtime.variables.forward import SMALL_BYTES, ForwardBuffers


class Counting(nn.Module):
    """A small and a large buffer that each pass changes, one that none does, one that is bound."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("large", torch.zeros(SMALL_BYTES))
        self.register_buffer("fixed", torch.zeros(3))
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("none", None)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.large += 1
        self.last = x.detach().sum().reshape(1)
        return x


def test_what_a_pass_changes_is_put_back() -> None:
    module = Counting()
    buffers = ForwardBuffers([nn.Sequential(module, nn.BatchNorm1d(2))])
    for number in range(3):
        buffers.keep()
        module(torch.full((1,), float(number)))
        # A large buffer is copied once it was seen to change.
        assert buffers.undo() == (number > 0)
        module(torch.full((1,), float(number)))
        assert module.seen.tolist() == [number + 1.0] * 2
        assert module.last.tolist() == [float(number)]
    assert module.large[0] == 4.0


def test_nothing_is_put_back_that_has_become_anothers() -> None:
    module = Counting()
    buffers = ForwardBuffers([module])
    buffers.keep()
    module(torch.ones(1))
    buffers.forget()
    assert buffers.undo()
    assert module.seen.tolist() == [1.0, 1.0]


def test_a_spectral_norm_is_where_it_was() -> None:
    torch.manual_seed(1)
    one = spectral_norm(nn.Linear(8, 8).double())
    x, buffers = torch.ones(8).double(), ForwardBuffers([one])
    buffers.keep()
    before = one(x)
    assert not torch.equal(one(x), before)
    assert buffers.undo()
    assert torch.equal(one(x), before)
