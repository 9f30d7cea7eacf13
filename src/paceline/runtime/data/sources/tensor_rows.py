"""Tensors in memory as a dataset."""

from collections.abc import Sequence
from typing import Any

import torch

from paceline.base.errors import ConfigError
from paceline.runtime.data.batch import batch_type


class TensorRows:
    """Named tensors of equal length as a dataset; ``batch.x`` is the tensor given as ``x``.

    Each column of a batch is made by one ``index_select``.

    Raises:
        ConfigError: no column, a column without rows, or columns of different lengths.
    """

    reads_in_thread = True
    """True: no code of the user is called."""

    def __init__(self, **columns: torch.Tensor) -> None:
        lengths = {name: tensor.shape[:1] for name, tensor in columns.items()}
        if not columns or len(set(lengths.values())) > 1 or not all(lengths.values()):
            shapes = {name: tuple(tensor.shape) for name, tensor in columns.items()}
            raise ConfigError(
                f"TensorRows needs at least one tensor, all with the same first dimension; "
                f"got shapes {shapes}"
            )
        self.columns = columns
        self._type = batch_type(tuple(columns))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> Any:
        return self._type(*(column[index] for column in self.columns.values()))

    def __getitems__(self, indices: Sequence[int] | torch.Tensor) -> Any:
        rows = torch.as_tensor(indices)
        return self._type(*(column.index_select(0, rows) for column in self.columns.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_rows, (self.columns,)


def _rebuild_rows(columns: dict[str, torch.Tensor]) -> TensorRows:
    return TensorRows(**columns)
