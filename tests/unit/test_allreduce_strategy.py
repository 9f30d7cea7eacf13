"""What strategy allreduce refuses before any work starts."""

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.allreduce.strategy import _check_dense, _trained


@pytest.mark.parametrize(
    "table",
    [
        nn.Embedding(4, 2, sparse=True),
        nn.EmbeddingBag(4, 2, sparse=True),
        pl.Embedding("user", 4),
    ],
)
def test_sparse_tables_need_servers(table: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"1 is a sparse table.*--strategy ps"):
        _check_dense([nn.Sequential(nn.Linear(2, 2), table)])
    _check_dense([nn.Sequential(nn.Linear(2, 2), nn.Embedding(4, 2))])


def test_a_parameter_belongs_to_one_optimizer() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    first = torch.optim.SGD(layer.parameters(), lr=0.1)
    assert _trained([first]) == [layer.weight]
    with pytest.raises(ConfigError, match="in two optimizers"):
        _trained([first, torch.optim.Adam(layer.parameters())])
