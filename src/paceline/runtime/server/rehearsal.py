"""Work that a zygote does once, so that no life of its node pays for it: loading of compiled code.

Importing is not enough: numba reads a kernel from its cache at the first call (0.4 s for the first
of them, with the compiler's own modules), and torch imports its compiler when the first optimizer
is made (1 s). Starts no thread. Called by `paceline.runtime.process.zygote` before its first fork.
"""

import importlib

import numpy as np

from paceline.runtime.data.permutation import Permutation
from paceline.runtime.server.store import Gradients, Store
from paceline.runtime.state import kernels
from paceline.runtime.state.layout import initial_arrays
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table

OWNERS = np.zeros(NUM_BUCKETS, np.int32)


def rehearse_worker() -> None:
    """Do what a worker does in its first step, without a model."""
    importlib.import_module("torch._dynamo")
    Permutation(0, 1 << 20).forward(0)
    ids = np.zeros(2, np.int64)
    kernels.dedup(ids, np.zeros((2, 1), np.float32))
    rows = np.zeros((2, 1), np.float32)
    kernels.gather(rows, ids, rows.copy())
    kernels.add_rows(ids, rows, rows.copy())
    for dynamic in (False, True):
        kernels.split(ids, OWNERS, 1, dynamic=dynamic)


def rehearse_server() -> None:
    """A step on a table of each kind and its export, without a worker."""
    schema = ModelSchema(
        dense=(DenseTensor(name="", shape=(1,), dtype="float32", offset=0, group=0),),
        tables=(
            Table(name="fixed", dim=1, dtype="float32", num_rows=2, group=0),
            Table(name="dynamic", dim=1, dtype="float32", num_rows=None, group=0),
        ),
        groups=(OptimizerGroup(kind="adagrad"),),
    )
    store = Store(schema, OWNERS.tolist(), 0)
    one = np.zeros(1, np.float32)
    store.load([initial_arrays(schema, {"float32": one}, {0: np.zeros((2, 1), np.float32)})])
    ids = np.zeros(2, np.int64)
    sparse = {table: (ids[:1], one.reshape(1, 1)) for table in (0, 1)}
    store.apply([Gradients({"float32": one}, sparse, 1, (0.1,))])
    for table in (0, 1):
        store.rows(table, ids[:1])
        store.export(table)
