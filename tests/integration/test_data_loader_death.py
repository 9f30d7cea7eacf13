"""A loader process that dies is an error of the job, not a hang, and takes nothing with it."""

import multiprocessing

import pytest
import torch

from paceline.runtime.data.loader import Loader
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.sources.tensor_rows import TensorRows


def test_a_killed_loader_process_is_an_error_and_leaves_no_other_behind() -> None:
    rows = TensorRows(x=torch.arange(100))

    def read_epoch(loader: Loader) -> None:
        for start in range(100):
            loader.submit(start, [(0, start, start + 1)])
            loader.get(timeout_s=30)

    with Loader(rows, EpochOrder(100), num_workers=2) as loader:
        multiprocessing.active_children()[0].kill()
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            read_epoch(loader)
    assert not multiprocessing.active_children()
