"""Writes generated click logs to disk, block by block, in constant memory.

Rows are dealt to train and test by their number, so that each split is a pure function of the
settings and holds the stated share exactly.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from paceline.base.errors import ConfigError
from paceline.features.data.ctr import (
    BLOCK_ROWS,
    NUM_CATEGORICAL,
    NUM_NUMERIC,
    BayesCount,
    Block,
    CtrSettings,
    PlantedClicks,
)
from paceline.features.data.tables import (
    PART_ROWS,
    Columns,
    DataSplit,
    Meta,
    ParquetParts,
    new_directory,
    write_meta,
)

NUMERIC = tuple(f"I{i}" for i in range(1, NUM_NUMERIC + 1))
CATEGORICAL = tuple(f"C{i}" for i in range(1, NUM_CATEGORICAL + 1))
HOLD_OUT = 0.1

_HEX_BYTES = np.array([f"{byte:02x}" for byte in range(256)], dtype="S2")


class SplitWriter(Protocol):
    """Writes one split to a directory, in as many files as it takes."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def add(self, columns: Columns) -> None:
        """Append rows; all columns have the same length."""


class TsvParts:
    """Writes the text layout of Criteo's files: label, I1..I13, C1..C26 in hex, tab-separated."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows_in_part = PART_ROWS
        self._num_parts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing: every `add` leaves whole files."""

    def add(self, columns: Columns) -> None:
        """Append rows; a file is full at `PART_ROWS`, give or take one call's rows."""
        if self._rows_in_part >= PART_ROWS:
            self._num_parts, self._rows_in_part = self._num_parts + 1, 0
        table = pa.table({name: _text_column(data) for name, data in columns.items()})
        options = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        with (self._directory / f"part-{self._num_parts - 1:05d}.tsv").open("ab") as file:
            pa_csv.write_csv(table, file, options)
        self._rows_in_part += table.num_rows


FORMATS: dict[str, Callable[[Path], SplitWriter]] = {
    "parquet": ParquetParts,
    "tsv": TsvParts,
}


def make_ctr(
    out: Path,
    rows: int,
    settings: CtrSettings,
    *,
    hold_out: float = HOLD_OUT,
    file_format: str = "parquet",
    on_rows: Callable[[int], None] = lambda _: None,
) -> Meta:
    """Generate ``rows`` rows into ``out``/train and ``out``/test, and ``out``/meta.json.

    Args:
        out: directory to create.
        rows: train and test together.
        settings: what the rows are a function of.
        hold_out: share of the rows that goes to test.
        file_format: one of `FORMATS`.
        on_rows: told after each block how many rows it had.

    Raises:
        ConfigError: an argument is out of range, or ``out`` is not empty.
    """
    if rows < 1:
        raise ConfigError(f"--rows: got {rows}, expected 1 or more")
    if not 0.0 <= hold_out < 1.0:
        raise ConfigError(f"--hold-out: got {hold_out}, expected a fraction from 0 to below 1")
    if file_format not in FORMATS:
        raise ConfigError(f"--format: got {file_format!r}, expected one of {', '.join(FORMATS)}")
    new_directory(out)
    counts = {"train": BayesCount(), "test": BayesCount()}
    with ExitStack() as stack:
        parts: dict[str, SplitWriter] = {
            split: stack.enter_context(FORMATS[file_format](out / split)) for split in counts
        }
        for first_row, block in _blocks(rows, PlantedClicks(settings)):
            held_R = _held_out(first_row, len(block.label), hold_out)
            for split, mask_R in (("train", ~held_R), ("test", held_R)):
                counts[split].add(block.logit_bin[mask_R], block.label[mask_R])
                parts[split].add(_columns(block, mask_R))
            on_rows(len(block.label))
    meta = _meta(settings, counts, file_format)
    write_meta(out, meta)
    return meta


def _blocks(rows: int, planted: PlantedClicks) -> Iterator[tuple[int, Block]]:
    for index, first_row in enumerate(range(0, rows, BLOCK_ROWS)):
        yield first_row, planted.block(index, min(BLOCK_ROWS, rows - first_row))


def _held_out(first_row: int, num_rows: int, share: float) -> NDArray[np.bool_]:
    """Mark the rows at which ``share`` times the row number passes a whole number."""
    steps = np.floor(np.arange(first_row, first_row + num_rows + 1) * share)
    held_R: NDArray[np.bool_] = np.diff(steps) > 0
    return held_R


def _columns(block: Block, mask_R: NDArray[np.bool_]) -> Columns:
    return (
        {"label": block.label[mask_R]}
        | dict(zip(NUMERIC, block.numeric[:, mask_R], strict=True))
        | dict(zip(CATEGORICAL, block.ids[:, mask_R], strict=True))
    )


def _text_column(data: NDArray[np.generic]) -> pa.Array:
    if data.dtype == np.int64:
        return _hex_column(data)
    # Counts are floats in Parquet, for the sake of missing ones, but whole numbers in the text.
    return pa.array(data.astype(np.int32))


def _hex_column(ids_R: NDArray[np.generic]) -> pa.Array:
    """Eight hex digits per id, without a Python object per value."""
    text_R = _HEX_BYTES[ids_R.astype(">u4").view(np.uint8)]
    offsets = np.arange(0, 8 * len(ids_R) + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids_R), pa.py_buffer(offsets), pa.py_buffer(text_R))


def _meta(settings: CtrSettings, counts: dict[str, BayesCount], file_format: str) -> Meta:
    splits = {
        name: DataSplit(
            rows=count.num_rows,
            positives=count.num_positives,
            bayes_auc=count.sample_auc(),
            expected_bayes_auc=count.expected_auc(),
        )
        for name, count in counts.items()
    }
    return Meta(
        name="ctr",
        source="generated by `paceline data make-ctr`: Zipf ids, planted factorisation machine",
        format=file_format,
        numeric=NUMERIC,
        categorical=dict(zip(CATEGORICAL, settings.vocab, strict=True)),
        splits=splits,
        rows=sum(split.rows for split in splits.values()),
        positives=sum(split.positives for split in splits.values()),
        seed=settings.seed,
        skew=settings.skew,
        bayes_auc=splits["test"].bayes_auc,
    )
