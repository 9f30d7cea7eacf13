"""Every optimizer that servers run gives torch's numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.holding.servers.optimizer import TABLE_KINDS, group_of
from paceline.runtime.server.optimizers import KINDS
from paceline.runtime.server.rules import check_group
from paceline.runtime.server.store import Gradients, Store
from paceline.runtime.state.layout import initial_arrays
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table

UPDATES = 100
ROWS, DIM = 70, 5
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
ALONE = (0,) * NUM_BUCKETS
PAGES = Path(__file__).parents[4] / "docs"

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "sgd": {
        "decay": {"weight_decay": 0.1},
        "momentum": {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
        "nesterov": {"momentum": 0.9, "nesterov": True},
    },
    "adagrad": {
        "all": {
            "lr_decay": 0.01,
            "weight_decay": 0.1,
            "initial_accumulator_value": 0.2,
            "eps": 1e-4,
        }
    },
    "rmsprop": {
        "momentum": {"alpha": 0.9, "momentum": 0.8, "weight_decay": 0.01},
        "centered": {"alpha": 0.9, "eps": 1e-4, "centered": True},
        "all": {"alpha": 0.9, "eps": 1e-4, "centered": True, "momentum": 0.8, "weight_decay": 0.01},
    },
    "adam": {"all": {"betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}},
}
"""Options of torch's classes to compare, beside the defaults, by kind."""

DENSE = {
    f"{name} {case}": (name, options)
    for name, kind in KINDS.items()
    if kind.torch and kind.dense
    for case, options in ({"defaults": {}} | OPTIONS.get(name, {})).items()
}

SPARSE: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {}),
    "adagrad": ("adagrad", {}),
    "adagrad with all": (
        "adagrad",
        {"lr_decay": 0.01, "initial_accumulator_value": 0.2, "eps": 1e-4},
    ),
}

OTHERWISE = {
    "rowwise_adagrad": "by its formula",
    "ftrl": "by its formula",
    "adam": "row by row with torch's SparseAdam",
    "sparse_adam": "in test_ps_parity.py",
}
"""How kinds are proven that torch does not have, or whose rows it updates in another way."""


def test_every_optimizer_of_servers_is_proven() -> None:
    dense = {name for name, _ in DENSE.values()} | set(OTHERWISE)
    rows = {name for name, _ in SPARSE.values()} | set(OTHERWISE)
    assert {name for name, kind in KINDS.items() if kind.dense} <= dense
    assert {name for name, kind in KINDS.items() if kind.rows} <= rows


def of_torch(name: str, weight: torch.nn.Parameter, options: dict[str, Any]) -> Optimizer:
    made: Optimizer = getattr(torch.optim, KINDS[name].torch)([weight], lr=0.05, **options)
    return made


@pytest.fixture(autouse=True)
def _checked_sparse_tensors() -> Iterator[None]:
    """Torch warns when nobody has said whether it shall check its sparse tensors."""
    with torch.sparse.check_sparse_tensor_invariants(True):
        yield


def close(found: np.ndarray, expected: torch.Tensor, dtype: str) -> None:
    wanted = expected.detach().numpy()
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DENSE)
def test_dense_optimizer_equals_torch_after_100_updates(name: str, dtype: str) -> None:
    kind, options = DENSE[name]
    rng = np.random.default_rng(1)
    start = rng.normal(size=300).astype(dtype)
    tensor = DenseTensor(name="w", shape=(300,), dtype=dtype, offset=0, group=0)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = of_torch(kind, weight, options)
    group = group_of(optimizer, optimizer.param_groups[0])
    assert group.kind == kind
    schema = ModelSchema(dense=(tensor,), groups=(group,), block_elems=32)
    store = Store(schema, ALONE, 0)
    store.load([initial_arrays(schema, {dtype: start}, {})])
    for _ in range(UPDATES):
        grad = rng.normal(size=300).astype(dtype)
        weight.grad = torch.from_numpy(grad)
        optimizer.step()
        store.apply([Gradients({dtype: grad}, {}, 8, (0.05,))])
    close(store.dense()[dtype], weight, dtype)


def table_store(
    kind: str, hyper: dict[str, float], dtype: str, start: np.ndarray[Any, Any]
) -> Store:
    table = Table(name="t", dim=DIM, dtype=dtype, group=0, num_rows=ROWS)
    schema = ModelSchema(tables=(table,), groups=(OptimizerGroup(kind=kind, hyper=hyper),))
    store = Store(schema, ALONE, 0)
    store.load([initial_arrays(schema, {}, {0: start})])
    return store


def batches(dtype: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Updates with many duplicate ids; some rows are rare."""
    rng = np.random.default_rng(2)
    ids = [(ROWS * rng.random(40) ** 3).astype(np.int64) for _ in range(UPDATES)]
    return [(some, rng.normal(size=(40, DIM)).astype(dtype)) for some in ids]


def sparse_grad(ids: np.ndarray, grads: np.ndarray) -> torch.Tensor:
    places = torch.from_numpy(ids)[None]
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(grads), (ROWS, DIM), check_invariants=True
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_optimizer_equals_torch_after_100_updates_with_duplicates(
    name: str, dtype: str
) -> None:
    kind, options = SPARSE[name]
    start = np.random.default_rng(3).normal(size=(ROWS, DIM)).astype(dtype)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = of_torch(kind, weight, options)
    group = group_of(optimizer, optimizer.param_groups[0], sparse=True)
    store = table_store(group.kind, group.hyper, dtype, start)
    for ids, grads in batches(dtype):
        weight.grad = sparse_grad(ids, grads)
        optimizer.step()
        store.apply([Gradients({}, {0: (ids, grads)}, 8, (0.05,))])
    close(store.rows(0, np.arange(ROWS)), weight, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_adam_equals_torch_sparse_adam_with_a_step_count_per_row(dtype: str) -> None:
    start = np.random.default_rng(3).normal(size=(ROWS, DIM)).astype(dtype)
    store = table_store("adam", {"beta2": 0.99}, dtype, start)
    rows = [torch.nn.Parameter(torch.from_numpy(start[i : i + 1].copy())) for i in range(ROWS)]
    optimizer = torch.optim.SparseAdam(rows, lr=0.05, betas=(0.9, 0.99))
    for ids, grads in batches(dtype):
        for i, row in enumerate(rows):
            mine = grads[ids == i]
            zeros = torch.zeros(1, len(mine), dtype=torch.int64)
            grad = torch.sparse_coo_tensor(
                zeros, torch.from_numpy(mine), (1, DIM), check_invariants=True
            )
            row.grad = grad if len(mine) else None
        optimizer.step()
        store.apply([Gradients({}, {0: (ids, grads)}, 8, (0.05,))])
    close(store.rows(0, np.arange(ROWS)), torch.cat(rows), dtype)


def merged(ids: np.ndarray, grads: np.ndarray) -> dict[int, np.ndarray]:
    return {int(i): grads[ids == i].sum(0) for i in np.unique(ids)}


def test_rowwise_adagrad_follows_its_formula() -> None:
    start = np.random.default_rng(3).normal(size=(ROWS, DIM))
    store = table_store("rowwise_adagrad", {"eps": 1e-6}, "float64", start)
    values, sums = start.copy(), np.zeros(ROWS)
    for ids, grads in batches("float64"):
        for i, grad in merged(ids, grads).items():
            sums[i] += (grad**2).mean()
            values[i] -= 0.05 * grad / (np.sqrt(sums[i]) + 1e-6)
        store.apply([Gradients({}, {0: (ids, grads)}, 8, (0.05,))])
    np.testing.assert_allclose(store.rows(0, np.arange(ROWS)), values, rtol=1e-12)


def test_ftrl_follows_its_formula_and_l1_makes_exact_zeros() -> None:
    start = np.zeros((ROWS, DIM))
    store = table_store("ftrl", {"beta": 1.0, "l1": 2.0, "l2": 0.1}, "float64", start)
    values, z, n = start.copy(), np.zeros((ROWS, DIM)), np.zeros((ROWS, DIM))
    for ids, grads in batches("float64"):
        for i, grad in merged(ids, grads).items():
            sigma = (np.sqrt(n[i] + grad**2) - np.sqrt(n[i])) / 0.05
            z[i] += grad - sigma * values[i]
            n[i] += grad**2
            full = -(z[i] - np.sign(z[i]) * 2.0) / ((1.0 + np.sqrt(n[i])) / 0.05 + 0.1)
            values[i] = np.where(np.abs(z[i]) <= 2.0, 0.0, full)
        store.apply([Gradients({}, {0: (ids, grads)}, 8, (0.05,))])
    np.testing.assert_allclose(store.rows(0, np.arange(ROWS)), values, rtol=1e-12)
    assert 0 < (values == 0).sum() < values.size


def test_dense_ftrl_equals_ftrl_on_rows() -> None:
    start = np.zeros((ROWS, DIM))
    store = table_store("ftrl", {"l1": 0.5}, "float64", start)
    tensor = DenseTensor(name="w", shape=(ROWS, DIM), dtype="float64", offset=0, group=0)
    groups = (OptimizerGroup(kind="ftrl", hyper={"l1": 0.5}),)
    dense = Store(ModelSchema(dense=(tensor,), groups=groups), ALONE, 0)
    rng = np.random.default_rng(4)
    for _ in range(10):
        grads = rng.normal(size=(ROWS, DIM))
        store.apply([Gradients({}, {0: (np.arange(ROWS), grads)}, 8, (0.05,))])
        dense.apply([Gradients({"float64": grads.ravel()}, {}, 8, (0.05,))])
    np.testing.assert_array_equal(dense.dense()["float64"], store.rows(0, np.arange(ROWS)).ravel())


@pytest.mark.parametrize(
    ("kind", "hyper", "sparse", "named"),
    [
        ("lion", {}, False, "'lion'"),
        ("rowwise_adagrad", {}, False, "dense parameters"),
        ("adamw", {}, True, "embedding tables"),
        ("sgd", {"momentum": 0.9}, True, "momentum=0.9"),
        ("adagrad", {"weight_decay": 0.1}, True, "weight_decay=0.1"),
        ("adam", {"amsgrad": 1.0}, False, "amsgrad=1.0"),
    ],
)
def test_unsupported_optimizer_is_refused_with_the_list_of_those_that_work(
    kind: str, hyper: dict[str, float], sparse: bool, named: str
) -> None:
    with pytest.raises(ConfigError, match="adagrad \\(lr, ") as caught:
        check_group(kind, hyper, sparse)
    assert named in str(caught.value)


def test_option_that_is_switched_off_is_accepted() -> None:
    check_group("adam", {"amsgrad": 0.0, "beta1": 0.9}, True)


def test_the_pages_name_every_optimizer_of_servers() -> None:
    text = (PAGES / "howto/servers.md").read_text()
    for name, kind in KINDS.items():
        of_torch, rows = f"`{kind.torch}`" if kind.torch else "", "yes" if kind.rows else ""
        named = f"`{name}`" if name in TABLE_KINDS else ""
        dense = "yes" if kind.dense else ""
        hyper = ", ".join(f"`{one}`" for one in kind.defaults)
        assert f"| {of_torch} | {dense} | {rows} | {named} | {hyper} |" in text, name
