"""Requests of a script to ``job.batches`` and ``job.evaluate``, as feeds."""

from typing import Any

import msgspec

from paceline.base.errors import ConfigError
from paceline.runtime.data.contents import contents_of
from paceline.runtime.data.growth import CountGrowth, Growth, StreamGrowth, is_long
from paceline.runtime.data.listed import ends_of_batches, order_of_records, part_of_records
from paceline.runtime.data.order import DEFAULT_SHARD_SIZE
from paceline.runtime.data.stream import StreamSource
from paceline.runtime.script.strategy import Strategy
from paceline.wire.messages.feeds import Feed
from paceline.wire.spec import JobSpec

WINDOW_SHARDS = 64
"""Shards that are mixed with each other where the epoch is too long to be counted first."""
_NO_ACCUMULATION = (
    "job.batches: accumulate={0}, and here each batch is a step; give {0} times the batch_size "
    "without accumulate, or run the job with --strategy allreduce and without --deterministic"
)
LOOPBACK = "127.0.0.1"
Growing = StreamGrowth | CountGrowth


def feed_to_train(
    strategy: Strategy,
    number: int,
    dataset: Any,
    *,
    batch_size: int | None,
    batch_per_worker: int | None,
    accumulate: int,
    epochs: int,
    shuffle: bool,
) -> tuple[Feed, Growing | None]:
    """Define feed ``number`` of a job; with what tells how far its dataset can be read.

    Raises:
        ConfigError: a value is out of range, or the dataset cannot be read so.
    """
    spec = strategy.spec
    check_number("job.batches", "accumulate", accumulate)
    if accumulate > 1 and not strategy.can_accumulate:
        raise ConfigError(_NO_ACCUMULATION.format(accumulate))
    size = _slice_size(spec, batch_size, batch_per_worker)
    ends = ends_of_batches(dataset)
    if ends:
        _check_ends(strategy, accumulate)
    shuffle = shuffle and spec.data.shuffle and not isinstance(dataset, StreamSource)
    window_shards = WINDOW_SHARDS if shuffle and is_long(dataset) else 0
    shard_size = spec.data.shard_size or DEFAULT_SHARD_SIZE
    growth = _growth_of(strategy, dataset, window_shards * shard_size)
    feed = _feed(
        spec,
        number,
        "train",
        dataset,
        growth,
        batch_size=size * accumulate if size is not None else None,
        epochs=epochs,
        shuffle=shuffle,
        per_worker=batch_per_worker is not None,
        window_shards=window_shards,
    )
    return msgspec.structs.replace(feed, ends=ends), growth


def _check_ends(strategy: Strategy, accumulate: int) -> None:
    """Raise ConfigError where steps cannot be batches of several sizes."""
    said = "job.batches: the DataLoader's batch_sampler makes batches of several sizes, "
    spec = strategy.spec
    if not strategy.takes_uneven_steps:
        raise ConfigError(
            f"{said}which are steps of several sizes: run the job with --strategy allreduce, or "
            "give it batches of one size"
        )
    if spec.batch_size:
        raise ConfigError(
            f"{said}and the job's spec says batch_size={spec.batch_size}; leave that out"
        )
    if accumulate > 1:
        raise ConfigError(
            f"{said}and accumulate={accumulate} would mix them; leave accumulate out, and have the "
            "sampler make larger batches"
        )


def feed_to_evaluate(strategy: Strategy, number: int, dataset: Any, batch_size: int) -> Feed:
    """Define feed ``number`` of a job, each of whose records is evaluated once.

    Raises:
        ConfigError: as `feed_to_train`.
    """
    if ends_of_batches(dataset):
        raise ConfigError(
            "job.evaluate: the DataLoader's batch_sampler makes batches of several sizes; give "
            "job.evaluate its dataset, with batch_size=1 if records differ in length"
        )
    return _feed(
        strategy.spec,
        number,
        "evaluate",
        dataset,
        None,
        batch_size=batch_size,
        epochs=1,
        shuffle=False,
    )


def _growth_of(strategy: Strategy, dataset: Any, window_size: int) -> Growing | None:
    """Tells how far a dataset of unknown length can be read; None: the length is known."""
    if isinstance(dataset, StreamSource):
        if not strategy.takes_growth:
            raise ConfigError(
                f"job.batches: a {type(dataset).__name__} is a stream, which mode bsp cannot "
                "read: each of its steps is a slice of a known order; run the job with "
                "--mode asp or --mode ssp"
            )
        return StreamGrowth(dataset)
    if is_long(dataset) and strategy.takes_growth:
        return CountGrowth(dataset, window_size or None)
    return None


def _feed(  # noqa: PLR0913
    spec: JobSpec,
    number: int,
    purpose: str,
    dataset: Any,
    growth: Growth | None,
    *,
    batch_size: int | None,
    epochs: int,
    shuffle: bool,
    window_shards: int = 0,
    per_worker: bool = False,
) -> Feed:
    caller = "job.evaluate" if purpose == "evaluate" else "job.batches"
    check_number(caller, "batch_per_worker" if per_worker else "batch_size", batch_size)
    check_number(caller, "epochs", epochs)
    num_samples = _length(caller, dataset) if growth is None else None
    # Files read neighbours together, so they are mixed by shards; elsewhere all are mixed.
    asked = spec.data.shard_size or getattr(dataset, "shard_size_hint", None)
    divided = spec.deterministic and spec.traits.blocks
    return Feed(
        feed=number,
        purpose=purpose,
        num_samples=num_samples,
        epochs=epochs,
        batch_size=batch_size or 0,
        shard_size=asked or num_samples or DEFAULT_SHARD_SIZE,
        shuffle=shuffle,
        window_shards=window_shards,
        per_worker=per_worker,
        # A second loop over the same data is not to repeat the order of the first.
        seed=spec.data_seed + number,
        blocks=spec.blocks if divided and purpose == "train" else 0,
        contents=_contents(spec, dataset),
    )


def _contents(spec: JobSpec, dataset: Any) -> str:
    """Summarize what is read, to be compared among workers."""
    # A job that no other machine can be part of has no files to compare.
    files = contents_of(dataset) if spec.listen != LOOPBACK else ""
    found = (order_of_records(dataset), part_of_records(dataset), files)
    return ", ".join(filter(None, found))


def _slice_size(spec: JobSpec, batch_size: int | None, per_worker: int | None) -> int | None:
    """Samples of a slice of a training feed.

    Raises:
        ConfigError: both sizes are given, or one that follows the workers where none may.
    """
    if per_worker is None:
        return spec.batch_size or batch_size
    for name, given in (("job's spec", spec.batch_size), ("script", batch_size)):
        if given is not None:
            raise ConfigError(
                f"job.batches: batch_per_worker is {per_worker}, and batch_size in the {name} is "
                f"{given}; give one of them"
            )
    if spec.deterministic:
        raise ConfigError(
            f"job.batches: batch_per_worker is {per_worker} in a deterministic job, whose steps "
            "must be the same whichever workers train; give batch_size"
        )
    return per_worker


def check_number(caller: str, name: str, value: object) -> None:
    """Raise ConfigError for a number that is not given, or is none."""
    if value is None:
        raise ConfigError(
            f"{caller}: {name} is given neither by the script nor by the job's spec; "
            f"write {name}=..."
        )
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{caller}: {name} is {value!r}; give a whole number of at least 1")


def _length(caller: str, dataset: Any) -> int:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"{caller}: a {type(dataset).__name__} has no length or no index; give a dataset with "
            "__len__ and __getitem__, or a DataLoader of one"
        )
    length = len(dataset)
    if not length:
        raise ConfigError(f"{caller}: the dataset is empty; it must have at least one record")
    return length
