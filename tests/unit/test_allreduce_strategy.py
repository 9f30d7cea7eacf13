"""What strategy allreduce refuses before any work starts."""

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.allreduce.stepping import check_dense, trained_by


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
        check_dense([nn.Sequential(nn.Linear(2, 2), table)])
    check_dense([nn.Sequential(nn.Linear(2, 2), nn.Embedding(4, 2))])


def test_a_parameter_belongs_to_one_optimizer() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    first = torch.optim.SGD(layer.parameters(), lr=0.1)
    assert trained_by([first]) == [layer.weight]
    with pytest.raises(ConfigError, match="in two optimizers"):
        trained_by([first, torch.optim.Adam(layer.parameters())])
