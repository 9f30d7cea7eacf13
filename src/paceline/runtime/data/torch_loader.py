"""torch's DataLoader given in place of a dataset: what it reads, and in which order.

The loader itself is not iterated: the job deals out its records, as those of any dataset. What is
taken from it is all that decides which records come in which order, in which batches: dataset,
batch size, sampler, batch sampler, generator, ``drop_last``, ``collate_fn``, loader processes.
"""

from collections.abc import Callable
from itertools import accumulate, islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from paceline.base.errors import ConfigError
from paceline.runtime.data.batch import CollateFn
from paceline.runtime.data.drawn import DrawnOrder
from paceline.runtime.data.iterated import (
    Iterated,
    has_state,
    length_of,
)
from paceline.runtime.data.listed import Listed, Order
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.process.seeding import kept, seed_cpu, seed_of
from paceline.runtime.script.dealt import DealtLoader
from paceline.runtime.script.feed_requests import check_number
from paceline.runtime.variables.kinds import GENERATORS, Kind, kind_of
from paceline.wire.messages.feeds import ScriptPlace, Underway
from paceline.wire.spec import JobSpec


class Selection(NamedTuple):
    """Data that ``job.batches`` reads, and how: by its own arguments, or those of a DataLoader."""

    dataset: Any
    batch_size: int | None
    shuffle: bool
    num_workers: int
    collate_fn: CollateFn | None
    pin_memory: bool
    prefetch: int
    drop_last: bool = False


MAX_BATCHES = 100_000
"""Most batches of a batch sampler in one pass: the job keeps where each ends."""
MOST_LISTED = 1 << 22
"""Most entries of a sampler that are drawn before a pass begins; of more, each when it is read."""
DEFAULTS = Selection(None, None, True, 0, None, False, 2)
"""Values of the arguments that a call of ``job.batches`` leaves out."""


class Pass(NamedTuple):
    """One pass over a DataLoader."""

    turn: int = 0
    """Passes over the DataLoader before this one."""
    seed: int = 0
    """Seed of this pass alone, for samplers that draw from the generators of the process."""
    begun: Tensor | None = None
    """State of the DataLoader's own generator before the first pass."""
    num_skipped: int = 0
    """Passes between the last one here and this one, which others have had."""
    drew_from: tuple[tuple[Any, Kind, Any], ...] = ()
    """Generators of its samplers, their kinds, and their states before this pass."""


class ReadingLoop(NamedTuple):
    """A loop that is about to begin."""

    caller: str
    """Name of the call, for messages."""
    spec: JobSpec
    place: ScriptPlace
    """Place of the loop in the training that it belongs to."""
    epochs: int = 1
    epoch: int | None = None
    """Epoch of the loop over ``job.epochs`` around this loop; None: there is none."""
    size: int = 0
    """Samples per batch, where neither the spec nor what is read says it; 0: not given."""
    accumulate: int = 1
    underway: Callable[[], Underway | None] = lambda: None
    """See `Strategy.underway`."""
    passed: Callable[[float], None] = lambda _: None
    """See `Iterated`."""
    turn: int | None = None
    """The number of the pass over its DataLoader; None: it follows the one before."""


class Loaders:
    """The DataLoaders that a script has given so far, and how often each."""

    def __init__(self) -> None:
        self._passes: WeakKeyDictionary[DataLoader[Any], Pass] = WeakKeyDictionary()

    def read(self, given: Selection, loop: ReadingLoop) -> Selection:
        """Return what to read: as given, or as a DataLoader given in place of a dataset says.

        Raises:
            ConfigError: see `as_read`; or what it reads is another selection in each pass, and
                there are several.
        """
        if isinstance(given.dataset, DealtLoader):
            given = given._replace(dataset=given.dataset.loader)
        if not isinstance(given.dataset, DataLoader):
            return _by_position(as_read(given, loop.caller, Pass()), loop)
        now = self._next_pass(given.dataset, loop)
        read = _by_position(as_read(given, loop.caller, now), loop)
        if read.drop_last:
            read = without_rest(read, loop.spec.batch_size or read.batch_size or 1, now.seed)
        if isinstance(read.dataset, Listed) and loop.epochs > 1:
            raise ConfigError(
                f"{loop.caller}: epochs={loop.epochs} with a DataLoader whose sampler, "
                "batch_sampler or drop_last says what each pass reads; call job.batches once for "
                "each epoch"
            )
        if loop.caller == "job.evaluate" and read.shuffle:
            read = read._replace(shuffle=False)
        return read

    def turn_of(self, given: Any) -> int:
        """The number of the newest pass over a DataLoader; of anything else -1."""
        loader = given.loader if isinstance(given, DealtLoader) else given
        last = self._passes.get(loader) if isinstance(loader, DataLoader) else None
        return -1 if last is None else last.turn

    def turn_back(self, given: Any, turn: int) -> None:
        """Have the next pass over a DataLoader follow this one."""
        loader = given.loader if isinstance(given, DealtLoader) else given
        if isinstance(loader, DataLoader) and (now := self._passes.get(loader)) is not None:
            for generator, kind, state in now.drew_from:
                kind.put(generator, state)
            self._passes[loader] = now._replace(turn=turn)

    def _next_pass(self, loader: DataLoader[Any], loop: ReadingLoop) -> Pass:
        last = self._passes.get(loader)
        if last is None:
            begun = loader.generator.get_state() if loader.generator is not None else None
            last = Pass(-1, 0, begun)
        turn = last.turn + 1
        if loop.turn is not None:
            turn = loop.turn
        elif loop.epoch is not None:
            if loop.epoch < turn:
                raise ConfigError(
                    f"{loop.caller}: the same DataLoader was given twice in epoch {loop.epoch} of "
                    "job.epochs; make one for each loop"
                )
            turn = loop.epoch
        now = last._replace(
            turn=turn,
            seed=seed_of(loop.spec.data_seed, turn),
            num_skipped=max(0, turn - last.turn - 1),
            drew_from=generators_of_samplers(loader),
        )
        self._passes[loader] = now
        return now


def _by_position(read: Selection, loop: ReadingLoop) -> Selection:
    """Make a dataset that is only iterated one that is read by position; leave any other."""
    if not isinstance(read.dataset, IterableDataset):
        return read
    size = loop.spec.batch_size or read.batch_size or loop.size
    check_number(loop.caller, "batch_size", size or None)  # before records are counted
    iterated = Iterated(
        read.dataset,
        seed=seed_of(loop.spec.data_seed, *loop.place),
        step=size * loop.accumulate,
        copies=read.collate_fn is not None,
        passed=loop.passed,
    )
    iterated.open(loop.underway)
    if read.drop_last:
        iterated.leave_out_rest(size)
    return read._replace(dataset=iterated, drop_last=False)


def without_rest(read: Selection, size: int, seed: int) -> Selection:
    """Leave out the records that make no whole batch: others in each pass."""
    length = len(read.dataset)
    whole = length // size * size
    if whole == length:
        return read
    if isinstance(read.dataset, Listed):
        return read._replace(dataset=read.dataset.first(whole))
    order = EpochOrder(length, shard_size=length, seed=seed, shuffle=read.shuffle)
    listed = Listed(read.dataset, order.indices(0, 0, whole))
    return read._replace(dataset=listed, shuffle=False)


def as_read(given: Selection, caller: str, now: Pass) -> Selection:
    """Return what to read: as given, or as a DataLoader that was given in place of a dataset says.

    Args:
        given: the arguments of the call.
        caller: for messages.
        now: which pass over a loader it is.

    Raises:
        ConfigError: a DataLoader that reads in a way that cannot be dealt out, or that says
            something else than the call.
    """
    if isinstance(given.dataset, IterableDataset):
        _check_iterated(given.dataset, caller, given.num_workers)
        return given._replace(shuffle=False)
    if not isinstance(given.dataset, DataLoader):
        return given
    read = reading_of(given.dataset, caller, now)
    for name, said, default in zip(given._fields, given, DEFAULTS, strict=False):
        if name in ("dataset", "drop_last") or said == default:
            continue
        if name != "batch_size" or said != read.batch_size:
            raise ConfigError(
                f"{caller}: {name}={said!r} was given with a DataLoader, which says how it is "
                f"read ({name}: {getattr(read, name)!r}); leave {name} out, or give its dataset"
            )
    return read


def reading_of(loader: DataLoader[Any], caller: str, now: Pass) -> Selection:
    """Return what a DataLoader reads in one pass; see `as_read`."""
    _refuse_unknown(loader, caller)
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        _check_iterated(dataset, caller, loader.num_workers)
        return _reading(loader, dataset, loader.batch_size)
    elif is_plain(grouped := loader.batch_sampler):
        order, shuffle = _order_of(loader, sampler_of(loader), caller, now)
        read = dataset if order is None else Listed(dataset, order)
        # If the script has made it, the loader itself says none of this.
        size, drop_last = grouped.batch_size, grouped.drop_last  # type: ignore[union-attr]
        return _reading(loader, read, size, shuffle=shuffle)._replace(drop_last=drop_last)
    elif loader.batch_sampler is not None:
        _check_count(loader.batch_sampler, caller)
        batches = _drawn(loader, loader.batch_sampler, caller, now)
        return _reading(loader, _joined(dataset, batches, caller), max(map(len, batches)))
    raise ConfigError(
        f"{caller}: the DataLoader has batch_size=None, so it makes no batches; give it the "
        "batch_size of a step"
    )


def _reading(
    loader: DataLoader[Any], dataset: Any, size: int | None, *, shuffle: bool = False
) -> Selection:
    return Selection(
        dataset,
        size,
        shuffle,
        loader.num_workers,
        None if loader.collate_fn is default_collate else loader.collate_fn,
        loader.pin_memory,
        loader.prefetch_factor or 2,
        loader.drop_last,
    )


def _check_iterated(dataset: Any, caller: str, num_workers: int) -> None:
    """Raise ConfigError for an ``IterableDataset`` that cannot be dealt out by position."""
    if length_of(dataset) is None and not has_state(dataset):
        if hasattr(dataset, "__len__"):
            len(dataset)  # its own error says more
        raise ConfigError(
            f"{caller}: a {type(dataset).__name__} is an IterableDataset without __len__, "
            "state_dict and load_state_dict, and the job deals records out by their position; give "
            "it a __len__ (so many of its records are read in each pass) if it always yields the "
            "same records in the same order, give list(dataset) if they fit into memory, or make "
            "it a dataset with __len__ and __getitem__ (of tar files: paceline.TarRows), or a "
            "paceline.StreamSource"
        )
    if num_workers:
        raise ConfigError(
            f"{caller}: a {type(dataset).__name__} with num_workers={num_workers}: an "
            "IterableDataset may yield other records in each loader process; say num_workers=0, or "
            "make it a dataset with __len__ and __getitem__"
        )


def _refuse_unknown(loader: DataLoader[Any], caller: str) -> None:
    if loader.worker_init_fn is not None and loader.num_workers:  # else torch calls it nowhere
        raise ConfigError(
            f"{caller}: the DataLoader has a worker_init_fn; leave it out: the job gives each "
            "record random numbers of its own, and get_worker_info().seed differs in each process"
        )
    sampler = sampler_of(loader)
    replicas = getattr(sampler, "num_replicas", 1)
    if replicas != 1:
        raise ConfigError(
            f"{caller}: the DataLoader has a {type(sampler).__name__} for "
            f"{replicas} replicas; leave it out and say shuffle=True: the job "
            "divides the records among its workers"
        )


def is_plain(batches: Any) -> bool:
    """Tell whether a batch sampler only groups what a sampler yields."""
    return type(batches) is BatchSampler or (
        _of_torchdata(batches) and type(batches).__name__ == "BatchSampler"
    )


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return what says in which order a DataLoader reads: that of a batch sampler, if it groups."""
    grouped: Any = loader.batch_sampler
    return grouped.sampler if is_plain(grouped) else loader.sampler


def is_random(sampler: Any) -> bool:
    """Tell whether a sampler yields all records in a random order, or some."""
    return type(sampler) is RandomSampler or (
        _of_torchdata(sampler) and type(sampler).__name__ == "RandomSampler"
    )


def _of_torchdata(value: Any) -> bool:
    """Tell whether it is of torchdata's ``StatefulDataLoader``, which has samplers of its own."""
    return type(value).__module__ == "torchdata.stateful_dataloader.sampler"


def _order_of(
    loader: DataLoader[Any], sampler: Any, caller: str, now: Pass
) -> tuple[Order | None, bool]:
    """Return the order of the records, or None and whether the job must shuffle them."""
    if type(sampler) is SequentialSampler:
        return None, False
    plain = is_random(sampler) and not sampler.replacement
    # A StatefulDataLoader gives its sampler a generator of a random seed where it has none.
    made = _of_torchdata(sampler) and type(loader).__name__ == "StatefulDataLoader"
    drawn_from = None if not plain or (made and loader.generator is None) else sampler.generator
    if plain and drawn_from is None and sampler.num_samples == len(loader.dataset):  # type: ignore[arg-type]
        return None, True
    if hasattr(sampler, "__len__") and len(sampler) > MOST_LISTED:
        return _drawn_later(loader, sampler, caller, now), False
    return _drawn(loader, sampler, caller, now), False


def _drawn_later(loader: DataLoader[Any], sampler: Any, caller: str, now: Pass) -> DrawnOrder:
    """Return the order of a pass whose sampler has too many entries for a list."""
    if loader.generator is not None or getattr(sampler, "generator", None) is not None:
        raise ConfigError(
            f"{caller}: the DataLoader has a {type(sampler).__name__} of {len(sampler):,} entries "
            f"and a generator; of more than {MOST_LISTED:,} entries it is read on the way, by the "
            "job's seed: leave the generator out"
        )
    return DrawnOrder(sampler, now.seed)


def _drawn(loader: DataLoader[Any], sampler: Any, caller: str, now: Pass) -> list[Any]:
    """Return what a sampler yields in this pass, the same in all workers and lives.

    A loader with a generator of its own has drawn from it for each pass before: once itself, for
    the seed of its processes, and what its sampler draws.
    """
    name = type(sampler).__name__
    if not hasattr(sampler, "__len__"):
        raise ConfigError(
            f"{caller}: the DataLoader has a {name} without __len__, and the job must know how "
            "many records a pass has; give it a __len__"
        )
    generator, restore = loader.generator, kept()
    try:
        if generator is None:
            # A sampler that draws from a generator of its own has drawn for each pass of others.
            for _ in range(now.num_skipped + 1 if now.drew_from else 1):
                seed_cpu(now.seed)
                found = list(islice(sampler, len(sampler) + 1))
        else:
            if now.begun is not None:
                generator.set_state(now.begun)
            for _ in range(now.turn + 1):
                torch.empty((), dtype=torch.int64).random_(generator=generator)
                found = list(islice(sampler, len(sampler) + 1))
    finally:
        restore()
    if not found or len(found) > len(sampler):
        raise ConfigError(
            f"{caller}: the DataLoader's {name} says that it has {len(sampler)} entries, and "
            f"yields {len(found) or 'none'}{' or more' if found else ''}; correct its __len__"
        )
    return found


def _joined(dataset: Any, batches: list[list[int]], caller: str) -> Listed:
    """The records of batches, one after the other."""
    sizes = [*map(len, batches)]
    if not min(sizes):
        raise _refused_batches("a batch of no records", caller)
    alike = len(set(sizes[:-1])) < 2 and sizes[-1] <= sizes[0]
    order = [index for one in batches for index in one]
    return Listed(dataset, order, () if alike else tuple(accumulate(sizes)))


def _check_count(batch_sampler: Any, caller: str) -> None:
    """Raise ConfigError for a batch sampler of too many batches, before it is read."""
    if hasattr(batch_sampler, "__len__") and len(batch_sampler) > MAX_BATCHES:
        raise _refused_batches(f"{len(batch_sampler):,} batches", caller)


def _refused_batches(made: str, caller: str) -> ConfigError:
    return ConfigError(
        f"{caller}: the DataLoader's batch_sampler makes {made}; give it batches of at least "
        f"one record, and up to {MAX_BATCHES:,} of them for each pass"
    )


def generators_of_samplers(loader: DataLoader[Any]) -> tuple[tuple[Any, Kind, Any], ...]:
    """Return the generators of a loader's samplers, but not its own: each, its kind, its state."""
    samplers = [loader.sampler, loader.batch_sampler]
    samplers += [getattr(one, "sampler", None) for one in samplers]
    held = (one for sampler in samplers for one in getattr(sampler, "__dict__", {}).values())
    found = dict[int, tuple[Any, Kind, Any]]()
    for one in held:
        kind = kind_of(one)
        if kind is not None and kind.name in GENERATORS and one is not loader.generator:
            found.setdefault(id(one), (one, kind, kind.taken(one)))
    return tuple(found.values())
