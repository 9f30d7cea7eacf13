"""``pl.Embedding``: an embedding without a vocabulary."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.base.errors import ConfigError


def is_table(module: nn.Module) -> bool:
    """Tell whether its rows live in a table of the job: looked up per batch, updated one by one."""
    sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    return sparse or isinstance(module, Embedding)


class Embedding(nn.Module):
    """Rows for 64-bit keys that need not be known beforehand; a row appears on first use.

    ``forward`` takes int64 keys of any value and shape and returns ``[*shape, dim]``. The rows
    live in a table of the job: in this process when it runs alone, on the servers otherwise. The
    learning rate is that of the optimizer that was given this module's (empty) ``weight``.

    Args:
        name: of the table, unique in the job.
        dim: elements of a row.
        admit: a key gets a row of its own in the update (batch) that is the n-th to contain it; how
            often it occurs within one does not count.
        ttl_steps: rows unused for this many steps are dropped; None: never.
        capacity: rows kept at most, the least recently used go first; None: no bound.
        optimizer: such as ``"adagrad"`` or ``"ftrl"`` (``docs/howto/servers.md`` lists all);
            None: as that of ``weight``.
        optimizer_args: hyper-parameters of the table's optimizer beside the learning rate, by
            torch's names, such as ``{"eps": 1e-6}``. The rest are those of the optimizer of
            ``weight`` where it is of the same kind, torch's defaults elsewhere.
        std: rows start as N(0, std), a pure function of the job's seed, table and key.
        seed: of the initial rows; None: the job's.
        dtype: float32 or float64; None: torch's default.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(  # noqa: PLR0913
        self,
        name: str,
        dim: int,
        *,
        admit: int = 1,
        ttl_steps: int | None = None,
        capacity: int | None = None,
        optimizer: str | None = None,
        optimizer_args: Mapping[str, float] | None = None,
        std: float = 0.01,
        seed: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check(name, dim=dim, admit=admit, ttl_steps=ttl_steps, capacity=capacity)
        self.name, self.dim = name, dim
        self.admit, self.ttl_steps, self.capacity = admit, ttl_steps, capacity
        self.optimizer, self.optimizer_args = optimizer, dict(optimizer_args or {})
        self.std, self.seed = std, seed
        self.weight = nn.Parameter(torch.empty(0, dim, dtype=dtype))
        """Never holds rows; stands for the table in ``model.parameters()``."""

    def forward(self, ids: Tensor) -> Tensor:
        """Look up rows; replaced by ``job.prepare``."""
        raise ConfigError(
            f"pl.Embedding {self.name!r} was used on {tuple(ids.shape)} keys before "
            "job.prepare(model, optimizer), which gives it its table"
        )

    def extra_repr(self) -> str:
        return f"{self.name!r}, dim={self.dim}"


def _check(name: str, **numbers: Any) -> None:
    if not name or not isinstance(name, str):
        raise ConfigError(f"pl.Embedding: name is {name!r}; give the table a name of its own")
    for key, value in numbers.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(
                f"pl.Embedding {name!r}: {key} is {value!r}; give a whole number of at least 1"
            )
