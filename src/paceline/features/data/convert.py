"""Turns the public files that a user has into the layout of `paceline.features.data.tables`.

Never downloads: a missing file is an error that says where to get it and where to put it.
"""

import csv
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from paceline.base.errors import ConfigError
from paceline.features.data.tables import (
    Columns,
    DataSplit,
    Meta,
    ParquetParts,
    new_directory,
    write_meta,
)

Array = NDArray[np.generic]
Flags = NDArray[np.bool_]

ADULT_NUMERIC = (
    ("age", 0),
    ("fnlwgt", 2),
    ("education_num", 4),
    ("capital_gain", 10),
    ("capital_loss", 11),
    ("hours_per_week", 12),
)
ADULT_CATEGORICAL = (
    ("workclass", 1),
    ("education", 3),
    ("marital_status", 5),
    ("occupation", 6),
    ("relationship", 7),
    ("race", 8),
    ("sex", 9),
    ("native_country", 13),
)
_ADULT_LABELS = {"<=50K": 0, ">50K": 1}
_ADULT_NUM_COLUMNS = 15

MOVIELENS_HOLD_OUT = 0.1
GOOD_RATING = 4.0

CRITEO_NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CRITEO_CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
CRITEO_TEST_EVERY = 10

_SOURCES = {
    "adult": "https://archive.ics.uci.edu/dataset/2/adult (adult.data, adult.test)",
    "movielens": "https://grouplens.org/datasets/movielens (ratings.csv, movies.csv)",
    "criteo": "https://ailab.criteo.com/ressources (Kaggle challenge data, train.txt)",
}


def find(directory: Path, name: str, data_set: str) -> Path:
    """Return ``name`` or ``name``.gz in ``directory`` or in a folder directly below it.

    Raises:
        ConfigError: there is none, or several.
    """
    found = _look_for(directory, name)
    if not found:
        raise ConfigError(
            f"{name} (or {name}.gz) is neither in {directory} nor in a folder directly below it; "
            f"download it from {_SOURCES[data_set]}, put it there, or name its folder with --from "
            "or PACELINE_DATA"
        )
    if len(found) > 1:
        raise ConfigError(
            f"{name}: found {', '.join(map(str, found))}; name the one folder with --from"
        )
    return found[0]


def adult(source: Path, out: Path) -> Meta:
    """Convert UCI Adult; its own test file is the test split."""
    files = {
        split: find(source, name, "adult")
        for split, name in (("train", "adult.data"), ("test", "adult.test"))
    }
    rows = {split: list(_adult_rows(path)) for split, path in files.items()}
    everything = rows["train"] + rows["test"]
    codes = {
        name: {text: code for code, text in enumerate(sorted({row[i] for row in everything}))}
        for name, i in ADULT_CATEGORICAL
    }
    splits = {split: _adult_columns(rows[split], codes) for split in rows}
    return _write(
        out,
        splits,
        name="adult",
        source="UCI Adult; split as published; '?' is a category of its own",
        categorical={name: len(texts) for name, texts in codes.items()},
    )


def movielens(source: Path, out: Path) -> Meta:
    """Convert MovieLens ratings: label 1 for a rating of at least 4 stars.

    Test is the latest tenth (rounded up) of each user's ratings, by time, then by movie.
    """
    path = find(source, "ratings.csv", "movielens")
    table = _read_csv(path)
    names = ("userid", "movieid", "rating", "timestamp")
    users, movies, ratings, times = (_column(table, name, path) for name in names)
    movie_ids, movie_codes = np.unique(movies, return_inverse=True)
    user_ids, user_codes = np.unique(users, return_inverse=True)
    genres = _genres(source, movie_ids)
    columns: dict[str, Array] = {
        "label": (ratings.astype(np.float64) >= GOOD_RATING).astype(np.int8),
        **{name: flags[movie_codes] for name, flags in genres.items()},
        "user": user_codes.astype(np.int64),
        "movie": movie_codes.astype(np.int64),
    }
    held = _latest_per_user(user_codes, times, movies)
    return _write(
        out,
        {split: _pick(columns, mask) for split, mask in (("train", ~held), ("test", held))},
        name="movielens",
        source=(
            f"MovieLens; label: rating >= {GOOD_RATING:g}; "
            f"test: the latest {MOVIELENS_HOLD_OUT:.0%} of each user's ratings"
        ),
        categorical={"user": len(user_ids), "movie": len(movie_ids)},
    )


def criteo(
    source: Path,
    out: Path,
    buckets: int,
    on_rows: Callable[[int], None] = lambda _: None,
) -> Meta:
    """Convert Criteo's train.txt in constant memory; every tenth row goes to test.

    A missing number becomes NaN. A category is hashed already (32 bits): its code is
    1 + hash % ``buckets``, and 0 where it is missing.
    """
    if not 1 <= buckets <= 2**32:
        raise ConfigError(f"--buckets: got {buckets}, expected a number from 1 to 2**32")
    path = find(source, "train.txt", "criteo")
    new_directory(out)
    rows, positives = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    with ParquetParts(out / "train") as train, ParquetParts(out / "test") as test:
        for columns in _criteo_batches(path, buckets):
            number = rows.sum() + np.arange(len(columns["label"]))
            held = number % CRITEO_TEST_EVERY == CRITEO_TEST_EVERY - 1
            for k, (parts, mask) in enumerate(((train, ~held), (test, held))):
                parts.add(_pick(columns, mask))
                rows[k] += mask.sum()
                positives[k] += columns["label"][mask].astype(np.int64).sum()
            on_rows(len(held))
    splits = {
        split: DataSplit(rows=int(rows[k]), positives=int(positives[k]))
        for k, split in enumerate(("train", "test"))
    }
    meta = Meta(
        name="criteo",
        source=f"Criteo train.txt; test: every {CRITEO_TEST_EVERY}th row; codes: hash % {buckets}",
        numeric=CRITEO_NUMERIC,
        categorical=dict.fromkeys(CRITEO_CATEGORICAL, buckets + 1),
        splits=splits,
        rows=int(rows.sum()),
        positives=int(positives.sum()),
    )
    write_meta(out, meta)
    return meta


def _look_for(directory: Path, name: str) -> list[Path]:
    for folders in ([directory], sorted(directory.glob("*/"))):
        both = [folder / file for folder in folders for file in (name, f"{name}.gz")]
        if found := [path for path in both if path.is_file()]:
            # Plain and packed side by side are one file, not two.
            return list({path.parent: path for path in reversed(found)}.values())
    return []


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast("TextIO", gzip.open(path, "rt", encoding="utf-8", newline=""))
    return path.open(encoding="utf-8", newline="")


def _adult_rows(path: Path) -> Iterator[list[str]]:
    with _open_text(path) as file:
        for number, row in enumerate(csv.reader(file, skipinitialspace=True), start=1):
            # The published adult.test opens with a comment line and ends with an empty one.
            if not row or row[0].startswith("|"):
                continue
            if len(row) != _ADULT_NUM_COLUMNS or row[-1].rstrip(".") not in _ADULT_LABELS:
                raise ConfigError(
                    f"{path}:{number}: got {row}, expected {_ADULT_NUM_COLUMNS} columns, the last "
                    f"one of {', '.join(_ADULT_LABELS)} (a dot may follow)"
                )
            yield row


def _adult_columns(rows: list[list[str]], codes: dict[str, dict[str, int]]) -> Columns:
    try:
        numeric = {
            name: np.array([row[i] for row in rows]).astype(np.float32) for name, i in ADULT_NUMERIC
        }
    except ValueError as error:
        raise ConfigError(f"adult: a numeric column holds text: {error}") from error
    return {
        "label": np.array([_ADULT_LABELS[row[-1].rstrip(".")] for row in rows], dtype=np.int8),
        **numeric,
        **{
            name: np.array([codes[name][row[i]] for row in rows], dtype=np.int64)
            for name, i in ADULT_CATEGORICAL
        },
    }


def _read_csv(path: Path) -> pa.Table:
    try:
        table = pa_csv.read_csv(path)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{path}: not a readable CSV file: {error}") from error
    # The published headers say userId, some copies userid.
    return table.rename_columns([name.lower() for name in table.column_names])


def _column(table: pa.Table, name: str, path: Path) -> Array:
    if name not in table.column_names:
        raise ConfigError(f"{path}: no column {name}; it has {', '.join(table.column_names)}")
    column = table[name]
    if column.null_count or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        raise ConfigError(f"{path}: column {name} holds something that is not a number")
    result: Array = column.to_numpy()
    return result


def _genres(source: Path, movie_ids: Array) -> dict[str, NDArray[np.float32]]:
    """Return one 0/1 column per genre, a row per movie; no columns without a movies file."""
    if not _look_for(source, "movies.csv"):
        return {}
    path = find(source, "movies.csv", "movielens")
    table = _read_csv(path)
    by_movie = dict(
        zip(_column(table, "movieid", path).tolist(), table["genres"].to_pylist(), strict=True)
    )
    sets = [frozenset(by_movie.get(movie, "").split("|")) for movie in movie_ids.tolist()]
    names = sorted(frozenset().union(*sets) - {"", "(no genres listed)"})
    return {
        f"genre_{name}": np.array([name in genres for genres in sets], dtype=np.float32)
        for name in names
    }


def _latest_per_user(user_codes: Array, times: Array, movies: Array) -> Flags:
    order = np.lexsort((movies, times, user_codes))
    counts = np.bincount(user_codes)
    ends = np.cumsum(counts)
    held_per_user = np.ceil(counts * MOVIELENS_HOLD_OUT).astype(np.int64)
    users_sorted = user_codes[order]
    held = np.zeros(len(order), dtype=np.bool_)
    held[order] = np.arange(len(order)) >= (ends - held_per_user)[users_sorted]
    return held


def _criteo_batches(path: Path, buckets: int) -> Iterator[Columns]:
    names = ("label", *CRITEO_NUMERIC, *CRITEO_CATEGORICAL)
    types: dict[str, pa.DataType] = {"label": pa.int8()}
    types |= dict.fromkeys(CRITEO_NUMERIC, pa.float32()) | dict.fromkeys(
        CRITEO_CATEGORICAL, pa.string()
    )
    try:
        reader = pa_csv.open_csv(
            path,
            read_options=pa_csv.ReadOptions(column_names=names),
            parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pa_csv.ConvertOptions(column_types=types),
        )
        for batch in reader:
            yield _criteo_columns(batch, buckets)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"{path}: expected lines of label, 13 numbers, 26 hex ids, tab-separated: {error}"
        ) from error


def _criteo_columns(batch: pa.RecordBatch, buckets: int) -> Columns:
    return (
        {"label": batch["label"].to_numpy()}
        | {name: batch[name].to_numpy(zero_copy_only=False) for name in CRITEO_NUMERIC}
        | {name: _hash_codes(batch[name], buckets) for name in CRITEO_CATEGORICAL}
    )


def _hash_codes(texts: pa.Array, buckets: int) -> NDArray[np.int64]:
    """Parse hex by the distinct values: a batch repeats the frequent ones many times."""
    encoded = pc.fill_null(texts, "").dictionary_encode()
    try:
        texts_seen = encoded.dictionary.to_pylist()
        values = [int(text, 16) % buckets + 1 if text else 0 for text in texts_seen]
    except ValueError as error:
        raise ConfigError(f"criteo: a categorical column holds no hex number: {error}") from error
    codes: NDArray[np.int64] = np.array(values, dtype=np.int64)[encoded.indices.to_numpy()]
    return codes


def _pick(columns: Columns, mask: Flags) -> Columns:
    return {name: data[mask] for name, data in columns.items()}


def _write(
    out: Path, splits: dict[str, Columns], *, name: str, source: str, categorical: dict[str, int]
) -> Meta:
    """Write splits that fit in memory."""
    new_directory(out)
    for split, columns in splits.items():
        with ParquetParts(out / split) as parts:
            parts.add(columns)
    counted = {
        split: DataSplit(rows=len(columns["label"]), positives=int(columns["label"].sum()))
        for split, columns in splits.items()
    }
    numeric = tuple(
        column for column in splits["train"] if column != "label" and column not in categorical
    )
    meta = Meta(
        name=name,
        source=source,
        numeric=numeric,
        categorical=categorical,
        splits=counted,
        rows=sum(split.rows for split in counted.values()),
        positives=sum(split.positives for split in counted.values()),
    )
    write_meta(out, meta)
    return meta
