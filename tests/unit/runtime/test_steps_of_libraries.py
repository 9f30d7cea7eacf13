"""How many samples a step has for a library that has a training loop of its own."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.runtime.integrations.steps import SharedLoader
from paceline.wire.spec import JobSpec, NodeSpec


@pytest.mark.parametrize(("splits", "size"), [(False, 16 * 3 * 2), (True, 16 * 3)])
def test_a_batch_is_that_of_one_worker_or_of_all(*, splits: bool, size: int) -> None:
    spec = JobSpec(script="train.py", strategy="allreduce", workers=NodeSpec(count=2))
    member: Any = SimpleNamespace(strategy=SimpleNamespace(spec=spec, largest=0))
    loader = DataLoader(TensorDataset(torch.arange(480)), batch_size=16)
    steps = SharedLoader(member, loader, 3, splits=splits)
    assert (steps.batch_size, len(steps)) == (size, 480 // size)
    assert member.strategy.largest == 16
