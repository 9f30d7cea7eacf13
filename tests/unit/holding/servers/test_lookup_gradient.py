"""Rows that are looked up take the gradients that torch's own embedding gives them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from paceline.runtime.holding.servers.lookup import _TakeRows

IDS = torch.tensor([[2, 0, 2], [1, 2, 0]])


def _rows() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)


def _value(found: Tensor, shape: str) -> Tensor:
    if shape == "expanded":
        return found.sum()
    if shape == "sliced":
        return (torch.cat([found, found * 2], -1) ** 2).sum()
    return (found.transpose(0, 1) ** 3).sum()


@pytest.mark.parametrize("shape", ["expanded", "sliced", "transposed"])
@pytest.mark.parametrize("ids", [IDS, IDS[0], IDS[:0]])
def test_repeated_ids_sum_their_gradients_as_torch_does(shape: str, ids: Tensor) -> None:
    ours, theirs = _rows(), _rows()
    _value(_TakeRows.apply(ours, ids), shape).backward()
    _value(F.embedding(ids, theirs), shape).backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-14, atol=0)


def test_a_gradient_can_be_differentiated_again() -> None:
    rows = _rows()
    (grad,) = torch.autograd.grad((_TakeRows.apply(rows, IDS) ** 3).sum(), rows, create_graph=True)
    (grad**2).sum().backward()
    count = torch.tensor([2.0, 1.0, 3.0, 0.0], dtype=torch.float64)[:, None]
    expected = 36 * count**2 * rows.detach() ** 3
    assert rows.grad is not None
    assert torch.allclose(rows.grad, expected)
