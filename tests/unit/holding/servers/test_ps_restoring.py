"""A cut of servers is read into a store: into its own place where the shares are the same."""

from pathlib import Path

import numpy as np
import pytest

from paceline.base.errors import PermanentError
from paceline.cuts.manifest import CutManifest
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.server.restoring import read_saves
from paceline.runtime.server.store import Gradients, Store
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table

SCHEMA = ModelSchema(
    dense=(DenseTensor(name="a", shape=(4096,), dtype="float32", offset=0, group=0),),
    tables=(
        Table(name="fixed", dim=3, dtype="float32", group=0, num_rows=640),
        Table(name="dynamic", dim=2, dtype="float32", group=0, init_seed=3),
    ),
    groups=(OptimizerGroup(kind="adagrad"),),
    block_elems=64,
)
ALONE = (0,) * NUM_BUCKETS
EVEN = tuple(bucket % 2 for bucket in range(NUM_BUCKETS))
TURNED = tuple(1 - owner for owner in EVEN)


def trained(owners: tuple[int, ...], me: int) -> Store:
    """Each row and element holds a number that tells whose it is."""
    store = Store(SCHEMA, owners, me)
    mine = [bucket for bucket in range(NUM_BUCKETS) if owners[bucket] == me]
    ids = np.concatenate([np.arange(bucket, 640, NUM_BUCKETS) for bucket in mine])
    store.apply([Gradients({}, {0: (ids, np.outer(ids, [1, 2, 3]).astype("f4"))}, 1.0, (0.1,))])
    store.dense()["float32"][:] = me + 1
    return store


def write_cut(directory: Path, owners: tuple[int, ...]) -> CutManifest:
    files = {}
    for me in range(max(owners) + 1):
        name = f"server-{me}-1.safetensors"
        files[name], _ = cutfile.write_save(directory, name, trained(owners, me).save())
    return CutManifest(
        cut_no=1,
        epoch_no=1,
        position=1,
        step=1,
        committed=(),
        schema=SCHEMA,
        files=files,
        num_bytes=1,
    )


def is_in_place(store: Store, saves: list[dict[str, np.ndarray]]) -> list[bool]:
    slab = store.save()["table.fixed.value"]
    return [np.shares_memory(slab, arrays["table.fixed.value"]) for arrays in saves]


def test_a_whole_copy_is_read_where_the_first_one_is_cut_off(tmp_path: Path) -> None:
    manifest = write_cut(tmp_path / "disk", EVEN)
    for name in manifest.files:
        damaged = tmp_path / "memory" / "node" / name
        damaged.parent.mkdir(parents=True, exist_ok=True)
        damaged.write_bytes((tmp_path / "disk" / name).read_bytes()[:100])
    store = Store(SCHEMA, EVEN, 0)
    saves = list(read_saves(store, manifest, tmp_path / "memory", tmp_path / "disk"))
    assert is_in_place(store, saves) == [True, False]


@pytest.mark.parametrize("me", [0, 1])
@pytest.mark.parametrize(
    ("owners", "in_place"), [(EVEN, (0, 1)), (TURNED, (1, 0)), (ALONE, (None, None))]
)
def test_a_store_takes_what_it_owns_and_its_own_share_in_place(
    tmp_path: Path, me: int, owners: tuple[int, ...], in_place: tuple[int | None, int | None]
) -> None:
    manifest = write_cut(tmp_path, EVEN)
    if owners == ALONE and me:
        return
    store = Store(SCHEMA, owners, me)
    saves = list(read_saves(store, manifest, tmp_path))
    assert is_in_place(store, saves) == [number == in_place[me] for number in (0, 1)]
    store.load(saves)
    expected = Store(SCHEMA, owners, me)
    expected.load([trained(EVEN, 0).save(), trained(EVEN, 1).save()])
    found = store.save()
    for name, array in expected.save().items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    before = found["table.fixed.value"].copy()
    store.apply(
        [Gradients({}, {0: (np.array([store.buckets[0]]), np.ones((1, 3), "f4"))}, 1.0, (1.0,))]
    )
    assert not np.array_equal(before, found["table.fixed.value"]), "it can be trained"


def test_a_damaged_share_is_refused_by_name(tmp_path: Path) -> None:
    manifest = write_cut(tmp_path, EVEN)
    assert manifest.files
    for name in manifest.files:
        image = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(image[:-30] + bytes([image[-30] ^ 1]) + image[-29:])
        with pytest.raises(PermanentError, match=name):
            list(read_saves(Store(SCHEMA, EVEN, 0), manifest, tmp_path))
        (tmp_path / name).write_bytes(image)
