"""The edge of `Watch`: digests of hyper-parameters, checksums of state, and what they differ in.

Hyper-parameters are hashed at each update as they are then used, which takes microseconds. State
that must be alike in all members is what optimizers train and keep: a hash of each tensor's bytes,
in the time that memory takes to be read once. A tensor on a device is summed there, each word times
its place, and all sums are fetched at once. Both show values that have changed places or signs.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import torch
import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.base.numbering import StepNo
from paceline.protocol.holding.group.watch import (
    Difference,
    Watch,
    Word,
    differences,
    in_words,
    judge,
)
from paceline.runtime.group.group import Group
from paceline.runtime.group.store import GroupOver
from paceline.runtime.script.stepping import params_of

_STATIC = frozenset({"params", "param_names"})
_MASK = (1 << 63) - 1
_WORDS = ((4, torch.int32), (2, torch.int16), (1, torch.uint8))
"""Widths of words in bytes, and their types. Words have half a machine word at most: in a sum of
whole ones, changes of two signs would cancel."""
_ROW = 1024
KERNELS = "torch's kernels for the processor"
"""Name of torch's kernels. They differ among machines of different kinds, and with them the last
bits of what they compute."""
SHOWN = 3
"""Most values that differ and are named in a message."""


class Divergence(NamedTuple):
    """Members of a group do not hold the same."""

    text: str
    """Words that name the members and the values that differ."""
    minority: tuple[int, ...]
    """Ranks of members that must copy from the others; empty: nobody knows which are right."""
    begins: bool = False
    """See `Difference.begins`."""


class Diverged(GroupOver):
    """The step cannot be done: what it would change is not alike in all members."""

    def __init__(self, found: Divergence) -> None:
        super().__init__(found.text)
        self.found = found


class Watcher:
    """Watches what one member holds. For the training thread.

    Args:
        modules: that were prepared, for the names of parameters.
        optimizers: that were prepared.
        buffers: others that must be alike in all members, by their names.
        checks: whether all members hold the same, and not shards of it.
        training: of the script, from 0.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        buffers: Callable[[], Mapping[str, Tensor]] = dict,
        *,
        checks: bool = True,
        training: int = 0,
    ) -> None:
        self.watch = Watch()
        self._optimizers, self._buffers, self._checks = optimizers, buffers, checks
        self._names = {
            id(param): name if len(modules) == 1 else f"{number}.{name}"
            for number, module in enumerate(modules)
            for name, param in module.named_parameters()
        }
        self._settings = [OptimizerSettings(optimizer) for optimizer in optimizers]
        self._stepping: dict[int, int] = {}
        #: Whether each optimizer has stepped on the newest batch.
        self._steps: dict[int, bool] = {}
        self.trained = training, 0, 0
        """The training, how many parameters it trains, and a digest of them and of all groups."""
        self._not_trained = list[str]()
        self._timed_from: tuple[int, float] | None = None

    # ------------------------------------------------------------------ as training goes on

    def trains(self, params: Sequence[nn.Parameter], what: str = "") -> None:
        """Train these from here on; all members must say the same, also of ``what``."""
        groups = [[len(one["params"]) for one in each.param_groups] for each in self._optimizers]
        rows = [[self._names.get(id(one), ""), str(one.dtype), *one.shape] for one in params]
        self.trained = self.trained[0], len(params), _digest([groups, rows, what])
        ours = set(map(id, params))
        self._not_trained = [name for one, name in self._names.items() if one not in ours]

    def check_trained(self, told: Sequence[Sequence[int]], group: Group) -> None:
        """Compare what all members train.

        Raises:
            ConfigError: they differ: sums would be of different sizes.
        """
        nodes = [member.node for member in group.run.members]
        trainings = [f"training {one[0]}" for one in told]
        if len(set(trainings)) > 1:
            raise ConfigError(
                "the workers are in different trainings of the script: "
                f"{in_words(nodes, trainings)}. Each job.prepare begins one: call it in all "
                "workers, whatever their ranks"
            )
        if len(set(map(tuple, told))) > 1:
            shown = [f"{count} tensors, {digest:016x}" for _, count, digest in told]
            raise ConfigError(
                "the workers train different parameters, or have different groups of them: "
                f"{in_words(nodes, shown)}{self._without(nodes[group.rank])}. Between two loops "
                "over job.batches all of them may "
                "thaw parameters, or add groups, by the number of the epoch: if epoch >= 3"
            )

    def _without(self, node: str) -> str:
        """Name what we do not train. Not all members compare, so they exchange no tables."""
        if not self._not_trained:
            return ""
        more = len(self._not_trained) - SHOWN
        named = ", ".join(self._not_trained[:SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"; {node} trains all but {named}"

    def stepping(self, number: int, step: StepNo, *, steps: bool = True) -> None:
        """An optimizer is about to change the model, which completes this step; or it does not."""
        digest = self._settings[number].digest()
        self._stepping[number] = digest if steps else _digest([digest, "it does not step"])
        self._steps[number] = steps
        if len(self._stepping) == len(self._optimizers):
            whole = tuple(self._stepping[one] for one in sorted(self._stepping))
            self._stepping.clear()
            self.watch.updating(step, whole[0] if len(whole) == 1 else _digest(whole))

    def is_due(self, step: StepNo) -> bool:
        """Whether members check what they hold after this step, so that their words count."""
        return self.watch.is_due(step)

    def word(self, step: StepNo, *, joins: bool) -> Word:
        """Return the word to tell as a step begins.

        Args:
            step: complete ones.
            joins: we have copied what we hold while the others began.
        """
        checksum = 0
        if self._checks and not joins and self.watch.is_due(step):
            start_s = monotonic()
            checksum = self._checksum()
            now_s = monotonic()
            if self._timed_from is not None and step > self._timed_from[0]:
                last, since_s = self._timed_from
                self.watch.timed(now_s - start_s, (start_s - since_s) / (step - last))
            self._timed_from = step, now_s
        return self.watch.word(step, checksum)

    def judge(
        self, step: StepNo, words: Sequence[Word], group: Group, *, begins: bool = False
    ) -> None:
        """Compare what all members have told as they entered the step after ``step``.

        ``begins``: it is the first one of a training.

        Raises:
            Diverged: they differ; all members find the same.
            RuntimeError, GroupOver: the group is over.
        """
        verdict = judge(words, begins=begins)
        if verdict is None:
            self.watch.agree(step, words)
            return
        raise Diverged(self._find(step, verdict, group))

    def heal(self, step: StepNo, found: Divergence, *, gave_up: bool) -> None:
        """Return if training may go on: most members agree, and the others copy from them.

        Where a training begins, they copy from the first one.

        ``gave_up``: we are one of those, and hold nothing any more.

        Raises:
            ConfigError: it may not.
        """
        if not self._checks:
            raise ConfigError(f"{found.text}. {REMEDY}") from None
        if not found.minority:
            raise ConfigError(f"{found.text}; no more than half of them agree. {REMEDY}") from None
        if gave_up and not self.watch.heal(step, begins=found.begins):
            often = "again and again" if found.begins else "for the second time"
            raise ConfigError(f"{found.text}, {often}. {REMEDY}") from None

    # ------------------------------------------------------------------ what differs

    def _find(self, step: StepNo, verdict: Difference, group: Group) -> Divergence:
        """Exchange tables, as all members do now; raises as `Gathering.wait`."""
        own = dict(self._table(verdict))
        names = {_digest(name): name for name in own}
        texts = {_digest(name): value for name, value in own.items()}
        nodes = [member.node for member in group.run.members]
        tables = _exchange(texts, group)
        found = differences(tables, names)
        keys = {name: key for key, name in names.items()}
        shown = [
            f"{name}: {in_words(nodes, [table.get(keys[name], '') for table in tables])}"
            for name in found[:SHOWN]
        ]
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        what = "hyper-parameters" if verdict.in_settings else "weights or optimizer state"
        listed = "; ".join(shown) or "which they share again by now"
        text = f"the workers' {what} differ after step {step}: {listed}{more}"
        return Divergence(text, verdict.minority, verdict.begins)

    def _table(self, verdict: Difference) -> Iterator[tuple[str, str]]:
        if verdict.in_settings:
            yield from self._settings_table()
        else:
            yield KERNELS, torch.backends.cpu.get_cpu_capability()
            for name, total in self._sums():
                yield name, f"{total % (1 << 64):016x}"

    def _settings_table(self) -> Iterator[tuple[str, str]]:
        for number, optimizer in enumerate(self._optimizers):
            steps = "yes" if self._steps.get(number, True) else "no"
            yield f"whether {type(optimizer).__name__} {number} has stepped", steps
            for place, group in enumerate(optimizer.param_groups):
                for key in sorted(group):
                    if key not in _STATIC:
                        whose = f"{type(optimizer).__name__} {number}, group {place}"
                        yield f"{key} of {whose}", str(_plain(group[key]))

    # ------------------------------------------------------------------ what is held

    def _checksum(self) -> int:
        return _digest([(name, total) for name, total in self._sums()])

    def _sums(self) -> list[tuple[str, int]]:
        """Return the name and the checksum of each value that must be alike."""
        names, values = [], []
        for name, value in self._values():
            names.append(name)
            values.append(_hash(value) if isinstance(value, Tensor) else _digest(_plain(value)))
        return list(zip(names, _fetched(values), strict=True))

    def _values(self) -> Iterator[tuple[str, Any]]:
        for number, optimizer in enumerate(self._optimizers):
            for place, param in enumerate(params_of(optimizer)):
                name = self._names.get(id(param), f"parameter {place} of optimizer {number}")
                yield name, param
                state = optimizer.state.get(param, {})
                for key in sorted(state, key=str):
                    yield from _leaves(f"{key} of {name}", state[key])
        yield from self._buffers().items()


REMEDY = (
    "Set learning rates and the like by job.step, which is the same in all workers, or by a "
    "scheduler that is given to job.prepare, and change nothing in a model by what one worker "
    "counts, draws or measures"
)


class OptimizerSettings:
    """The hyper-parameters of one optimizer: all of its groups but the parameters."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        #: The values when they were hashed last, if nobody can change them in place.
        self._known: list[tuple[Any, ...]] = []
        self._digest = 0

    def digest(self) -> int:
        """A number that tells them apart, above 0.

        Raises:
            ConfigError: one of them is text that no message can carry.
        """
        groups = self._optimizer.param_groups
        values = [tuple(group.values()) for group in groups]
        if self._known and self._is_known(values):
            return self._digest
        rows = [
            [[key, _plain(value)] for key, value in sorted(group.items()) if key not in _STATIC]
            for group in groups
        ]
        try:
            self._digest = _digest(rows)
        except UnicodeEncodeError as error:
            raise ConfigError(self._undecodable(error)) from error
        kept = (value for group in groups for key, value in group.items() if key not in _STATIC)
        self._known = values if all(map(_is_fixed, kept)) else []
        return self._digest

    def _undecodable(self, error: UnicodeEncodeError) -> str:
        names = [
            f"{key!a} of {type(self._optimizer).__name__}, group {place}"
            for place, group in enumerate(self._optimizer.param_groups)
            for key, value in group.items()
            if key not in _STATIC and error.object in (str(key), str(value))
        ]
        return (
            f"hyper-parameter {', '.join(names)}: the text {error.object!a} is no valid "
            "Unicode, so that no message can carry it; set it to valid text, or remove it"
        )

    def _is_known(self, values: list[tuple[Any, ...]]) -> bool:
        try:
            return values == self._known
        except (RuntimeError, ValueError):  # a tensor or array has come: neither equal nor not
            return False


def _is_fixed(value: Any) -> bool:
    """Tell whether nobody can change a value in place."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    """A hyper-parameter as data. One on a device is not fetched at each step: its effect is."""
    match value:
        case bool() | int() | float():  # 1, 1.0 and True act alike, as do 0.0 and -0.0
            return float(value) + 0.0 if abs(value) < 1 << 53 else str(value)
        case str() | None:
            return value
        case Tensor() if value.is_cpu:
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return [[str(key), _plain(one)] for key, one in sorted(value.items(), key=str)]
        case _ if hasattr(value, "tolist") and not isinstance(value, Tensor):
            return _plain(value.tolist())
        case _:
            return type(value).__name__


def _digest(value: Any) -> int:
    """Return a digest above 0 that is the same in all processes."""
    data = msgspec.msgpack.encode(value)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) & _MASK or 1


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            for key in sorted(value, key=str):
                yield from _leaves(f"{name}.{key}", value[key])
        case list() | tuple():
            for number, one in enumerate(value):
                yield from _leaves(f"{name}.{number}", one)
        case _:
            yield name, value


def _hash(tensor: Tensor) -> Tensor | int:
    """A number that tells a tensor's bytes, where the tensor is."""
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    if flat.is_cpu:
        return xxhash.xxh3_64_intdigest(flat.view(torch.uint8).numpy().data)
    return sum_by_place(flat)


def sum_by_place(flat: Tensor) -> Tensor:
    """The sum of a flat tensor's words, each times its place, without a copy of them.

    Words are laid out in rows. What each row and each column sum up to says it for all of them.
    """
    size, start = flat.nbytes, int(flat.storage_offset()) * flat.element_size()
    words = flat.view(next(kind for width, kind in _WORDS if not (size | start) % width))
    rows = words.numel() // _ROW
    grid, tail = words[: rows * _ROW].view(rows, _ROW), words[rows * _ROW :]
    sums = grid.sum(1, dtype=torch.int64), grid.sum(0, dtype=torch.int64), tail.to(torch.int64)
    of_row, of_column, of_tail = (torch.arange(len(one), device=flat.device) for one in sums)
    weights = (of_row + 1) * _ROW, of_column, of_tail + (rows + 1) * _ROW
    return torch.stack([(a * b).sum() for a, b in zip(sums, weights, strict=True)]).sum()


def _fetched(values: Sequence[Tensor | int]) -> list[int]:
    """Numbers, also where they are on a device: fetched with one wait."""
    waits = [value for value in values if isinstance(value, Tensor)]
    fetched: dict[int, int] = {}
    for device in {value.device for value in waits}:
        there = [value for value in waits if value.device == device]
        fetched |= zip(map(id, there), torch.stack(there).tolist(), strict=True)
    return [fetched[id(one)] if isinstance(one, Tensor) else one for one in values]


def _exchange(texts: Mapping[int, str], group: Group) -> list[dict[int, str]]:
    """The table of each member, of texts by numbers; raises as `Gathering.wait`."""
    data = msgspec.msgpack.encode(dict(texts))
    sizes = [size for (size,) in group.gather([len(data)]).wait()]
    room = -(-max(sizes) // 8)
    padded = data + bytes(8 * room - len(data))
    words = [int.from_bytes(padded[k : k + 8], signed=True) for k in range(0, len(padded), 8)]
    return [
        msgspec.msgpack.decode(
            b"".join(word.to_bytes(8, signed=True) for word in of_one)[:size], type=dict[int, str]
        )
        for size, of_one in zip(sizes, group.gather(words).wait(), strict=True)
    ]
