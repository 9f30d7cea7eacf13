"""What strategy allreduce refuses before any work starts."""

from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.allreduce.strategy import HeldByAll, _be_deterministic
from paceline.runtime.collective.stepping import check_dense, device_of
from paceline.runtime.stepping import trained_by


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


def test_statistics_of_all_workers_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    strategy = HeldByAll.__new__(HeldByAll)  # refused before anything of it is used
    with pytest.raises(ConfigError, match=r"1 is an nn\.SyncBatchNorm.*make it an nn\.BatchNorm"):
        strategy.prepare([net], [], [])


def test_a_parameter_belongs_to_one_optimizer() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    first = torch.optim.SGD(layer.parameters(), lr=0.1)
    assert trained_by([first]) == [layer.weight]
    with pytest.raises(ConfigError, match="in two optimizers"):
        trained_by([first, torch.optim.Adam(layer.parameters())])


def test_what_is_trained_is_on_one_device() -> None:
    here, there = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
    assert device_of([*there.parameters()]).type == "meta"
    assert device_of([]).type == "cpu"
    with pytest.raises(ConfigError, match=r"on cpu and on meta.*before its optimizer is made"):
        device_of([*here.parameters(), *there.parameters()])


def test_equal_bits_cost_no_filling_of_memory_unless_the_script_saw_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    settings: Any = torch.utils.deterministic
    try:
        _be_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert not settings.fill_uninitialized_memory
        settings.fill_uninitialized_memory = True
        _be_deterministic()
        assert settings.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = True
