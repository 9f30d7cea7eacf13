"""Schema of a model, by which servers, workers and cut files describe it.

Dense parameters of one dtype are laid end to end and cut in blocks of ``block_elems`` elements;
embedding rows fall into ``NUM_BUCKETS`` hash buckets. Blocks and buckets share one owner table:
block ``k`` lives with bucket ``k % NUM_BUCKETS``.
"""

import math

import msgspec

NUM_BUCKETS = 64

FROZEN = "frozen"
"""The kind of group whose parameters nobody trains."""


class OptimizerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One torch parameter group, as the servers run it.

    ``kind`` is `FROZEN`, or the name of a row in `paceline.runtime.server.optimizers`. ``hyper``
    holds the remaining hyper-parameters by torch's names (momentum, eps, beta1, beta2,
    weight_decay, ...), as they are when the model is prepared. What changes later, and the learning
    rate, is read at every step and travels with each contribution.
    """

    kind: str
    hyper: dict[str, float] = {}


class DenseTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One dense parameter; ``offset`` counts elements in the flat vector of its dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """``float32`` or ``float64``."""
    offset: int
    group: int
    names: tuple[str, ...] = ()
    """All that the script's state dict calls it, where that is not ``name`` alone."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One embedding table; ``num_rows`` None means dynamic (64-bit keys, rows on first use)."""

    name: str
    dim: int
    dtype: str
    group: int
    num_rows: int | None = None
    init_seed: int = 0
    init_std: float = 0.01
    """Dynamic tables: rows start as N(0, init_std), a pure function of (seed, key)."""
    admit: int = 1
    """Dynamic tables: a key gets a row in the update that is the n-th to contain it."""
    ttl_steps: int | None = None
    """Dynamic tables: rows unused for this many applied updates are evicted. None: never."""
    capacity: int | None = None
    """Dynamic tables: rows kept at most (least recently used go first). None: no bound."""
    modules: tuple[str, ...] = ()
    """The modules that read it, by their names in the script; none: as the table is called."""

    @property
    def value_bytes(self) -> int:
        """Bytes of a row's values, without the optimizer's state."""
        return self.dim * _item_bytes(self.dtype)


class ModelSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a fresh server must know to hold its share of the model."""

    dense: tuple[DenseTensor, ...] = ()
    tables: tuple[Table, ...] = ()
    groups: tuple[OptimizerGroup, ...] = ()
    block_elems: int = 65_536

    @property
    def dense_bytes(self) -> int:
        """Bytes of all parameters that are no tables."""
        return sum(math.prod(one.shape) * _item_bytes(one.dtype) for one in self.dense)


def _item_bytes(dtype: str) -> int:
    """Bytes of one value; servers hold 32 and 64 bits."""
    return 8 if dtype.endswith("64") else 4
