"""The planted click log: reproducible block by block, with the ceiling that it claims."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.base.errors import ConfigError
from paceline.features.data.ctr import (
    BLOCK_ROWS,
    NUM_CATEGORICAL,
    BayesCount,
    Block,
    CtrSettings,
    PlantedClicks,
    logit_grid,
    zipf_ids,
)
from paceline.features.data.make_ctr import CATEGORICAL, NUMERIC, make_ctr
from paceline.features.data.tables import read_meta


def same(left: Block, right: Block) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def probability(block: Block) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-logit_grid()[block.logit_bin]))


def test_a_block_does_not_depend_on_the_blocks_made_before() -> None:
    one, other = PlantedClicks(CtrSettings(seed=3)), PlantedClicks(CtrSettings(seed=3))
    other.block(0, 100)
    assert same(one.block(5, 100), other.block(5, 100))
    assert not same(one.block(5, 100), one.block(6, 100))


def test_seeds_plant_different_weights() -> None:
    one, other = PlantedClicks(CtrSettings(seed=1)), PlantedClicks(CtrSettings(seed=2))
    assert not np.array_equal(one.block(0, 100).logit_bin, other.block(0, 100).logit_bin)


@pytest.mark.parametrize("seed", [0, 1, 2, 2**40])
def test_every_seed_has_the_stated_clicks_and_a_ceiling_near_080(seed: int) -> None:
    block = PlantedClicks(CtrSettings(seed=seed, positive_rate=0.23)).block(0)
    count = BayesCount()
    count.add(block.logit_bin, block.label)
    assert count.num_rows == BLOCK_ROWS
    assert count.num_positives == block.label.sum()
    assert block.label.mean() == pytest.approx(0.23, abs=0.006)
    expected, sampled = count.expected_auc(), count.sample_auc()
    assert expected == pytest.approx(0.80, abs=0.015)
    # The standard error of an AUC of 15,000 against 50,000 rows is about 0.002.
    assert sampled == pytest.approx(expected, abs=0.008)


def test_ceiling_of_the_sample_is_the_auc_of_the_true_probability() -> None:
    block = PlantedClicks(CtrSettings(seed=4)).block(0, 800)
    count = BayesCount()
    count.add(block.logit_bin[:300], block.label[:300])
    count.add(block.logit_bin[300:], block.label[300:])
    p = probability(block)
    won = p[block.label == 1][:, None] - p[block.label == 0][None, :]
    assert count.sample_auc() == pytest.approx(float(((won > 0) + 0.5 * (won == 0)).mean()))


def test_expected_ceiling_is_the_mean_over_redrawn_labels() -> None:
    block = PlantedClicks(CtrSettings(seed=4)).block(0, 2_000)
    rng, p = np.random.default_rng(0), probability(block)
    redrawn = []
    for _ in range(200):
        count = BayesCount()
        count.add(block.logit_bin, (rng.random(len(p)) < p).astype(np.int8))
        redrawn.append(count.sample_auc())
    count = BayesCount()
    count.add(block.logit_bin, block.label)
    assert count.expected_auc() == pytest.approx(np.mean(redrawn), abs=0.003)


def test_labels_follow_the_true_probability_at_every_level() -> None:
    block = PlantedClicks(CtrSettings(seed=5)).block(0)
    p = probability(block)
    order = np.argsort(p)
    for rows in np.array_split(order, 10):
        assert block.label[rows].mean() == pytest.approx(p[rows].mean(), abs=0.025)


@pytest.mark.parametrize("skew", [0.0, 1.0, 1.3])
def test_ids_follow_the_power_law_between_whole_numbers(skew: float) -> None:
    size, rows = 50, 200_000
    ids = zipf_ids(np.random.default_rng(0).random(rows), size, skew)
    assert ids.min() == 0
    assert ids.max() == size - 1
    edges = np.arange(1, size + 2, dtype=float)
    mass = np.log(edges) if skew == 1.0 else edges ** (1.0 - skew) / (1.0 - skew)
    expected = np.diff(mass) / (mass[-1] - mass[0])
    np.testing.assert_allclose(np.bincount(ids) / rows, expected, atol=0.004)


def test_the_largest_uniform_stays_inside_the_vocabulary() -> None:
    below_one = np.array([np.nextafter(1.0, 0.0)])
    for size in (1, 7, 2**32):
        assert zipf_ids(below_one, size, 1.3)[0] <= size - 1


def test_huge_vocabularies_need_no_table() -> None:
    block = PlantedClicks(CtrSettings(vocab=(2**32,) * NUM_CATEGORICAL, skew=0.9)).block(0, 1_000)
    assert block.ids.max() > 2**31


def test_vocabularies_of_one_id_leave_a_learnable_log() -> None:
    block = PlantedClicks(CtrSettings(vocab=(1,) * NUM_CATEGORICAL)).block(0, 1_000)
    assert block.ids.max() == 0
    assert 0 < block.label.sum() < 1_000


def read(directory: Path) -> pa.Table:
    return pq.read_table(directory)


def test_files_hold_each_row_once_and_meta_counts_them(tmp_path: Path) -> None:
    rows = BLOCK_ROWS + 1_234
    meta = make_ctr(tmp_path / "d", rows, CtrSettings(seed=9), hold_out=0.25)
    train, test = read(tmp_path / "d/train"), read(tmp_path / "d/test")
    assert (train.num_rows, test.num_rows) == (rows - rows // 4, rows // 4)
    assert meta == read_meta(tmp_path / "d")
    assert meta.splits["test"].rows == test.num_rows
    assert meta.splits["train"].positives == sum(train["label"].to_pylist())
    assert meta.bayes_auc == meta.splits["test"].bayes_auc
    assert meta.categorical == dict(zip(CATEGORICAL, CtrSettings().vocab, strict=True))
    planted = PlantedClicks(CtrSettings(seed=9))
    blocks = [planted.block(0), planted.block(1, 1_234)]
    for name, field in (("C1", 0), ("C26", 25)):
        made = np.concatenate([block.ids[field] for block in blocks])
        held = np.arange(rows) % 4 == 3
        np.testing.assert_array_equal(train[name].to_numpy(), made[~held])
        np.testing.assert_array_equal(test[name].to_numpy(), made[held])


def test_parquet_has_the_stated_types_and_whole_row_groups(tmp_path: Path) -> None:
    make_ctr(tmp_path / "d", 2 * BLOCK_ROWS, CtrSettings(), hold_out=0.1)
    schema = pq.read_schema(tmp_path / "d/train/part-00000.parquet")
    assert schema.names == ["label", *NUMERIC, *CATEGORICAL]
    assert schema.field("label").type == pa.int8()
    assert schema.field("I13").type == pa.float32()
    assert schema.field("C1").type == pa.int64()
    groups = pq.ParquetFile(tmp_path / "d/train/part-00000.parquet").metadata
    assert groups.row_group(0).num_rows == 65_536


def test_text_is_criteos_layout_with_the_same_rows(tmp_path: Path) -> None:
    make_ctr(tmp_path / "p", 500, CtrSettings(seed=2), hold_out=0.0)
    make_ctr(tmp_path / "t", 500, CtrSettings(seed=2), hold_out=0.0, file_format="tsv")
    lines = (tmp_path / "t/train/part-00000.tsv").read_text().splitlines()
    table = read(tmp_path / "p/train")
    assert len(lines) == 500
    cells = [line.split("\t") for line in lines]
    assert {len(row) for row in cells} == {40}
    assert {len(cell) for row in cells for cell in row[14:]} == {8}
    assert [int(row[0]) for row in cells] == table["label"].to_pylist()
    assert [float(row[13]) for row in cells] == table["I13"].to_pylist()
    assert [int(row[14], 16) for row in cells] == table["C1"].to_pylist()
    assert [int(row[39], 16) for row in cells] == table["C26"].to_pylist()


def test_an_empty_hold_out_has_no_ceiling(tmp_path: Path) -> None:
    meta = make_ctr(tmp_path / "d", 100, CtrSettings(), hold_out=0.0)
    assert meta.splits["test"].rows == 0
    assert meta.bayes_auc is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": -1}, "seed: got -1"),
        ({"vocab": (10,) * 25}, "expected 26 numbers"),
        ({"vocab": (0,) * 26}, "between 1 and"),
        ({"skew": 9.0}, "skew: got 9.0"),
        ({"positive_rate": 1.0}, "positive rate: got 1.0"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CtrSettings(**change)


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match="not an empty directory"):
        make_ctr(tmp_path, 10, CtrSettings())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
