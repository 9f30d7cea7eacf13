"""Recipes for the ids of each look-up from the batch: learned on one batch, replayed on others.

While a batch is recorded, integer operations and views on its tensors are noted. A look-up whose
ids are one of their results has a recipe, which on the next batch gives the ids before the model
runs, so that all rows arrive in one pull. Nothing depends on it: the look-up compares the ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NUM_RECORDINGS = 3
"""Batches that may be recorded per feed, in the hope of finding recipes for all look-ups."""
NUM_STRIKES = 3
"""Batches in a row in which a recipe was wrong, after which it is dropped."""

MAX_DEPTH = 4
"""Most levels of objects inside objects that are looked into: they may form a circle."""

Path = tuple[tuple[bool, Any], ...]
"""Steps from a batch to a tensor: (an attribute?, its name) or (False, key or index)."""
TensorKey = tuple[int, int, torch.dtype, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor of the batch."""

    path: Path


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """``func(*args, **kwargs)``; other nodes among the arguments stand for their results."""

    func: Any
    args: Any
    kwargs: Any
    output: int | None
    """Place of the result among several; None: it is the only one."""


@dataclass(frozen=True, slots=True)
class BatchMultiple:
    """A size that was this many times the number of samples."""

    times: int


Node = Leaf | Operation


@dataclass(slots=True)
class Recipe:
    """Gives the ids of one look-up."""

    table: int
    node: Node
    strikes: int = 0


@dataclass(slots=True)
class Recipes:
    """All recipes of one feed."""

    found: list[Recipe] = field(default_factory=list)
    size_path: Path = ()
    """Path to the tensor whose leading size is the number of samples."""
    recordings_left: int = NUM_RECORDINGS

    def ids_of(self, batch: Any) -> list[tuple[Recipe, Tensor]]:
        """The ids of each look-up that has a recipe, as far as it works on this batch."""
        replay = _Replay(batch, self.size_path)
        ids = []
        for recipe in self.found:
            # A recipe may meet a batch of another kind: its look-ups go the slow way.
            try:
                ids.append((recipe, replay.result_of(recipe.node)))
            except (RuntimeError, LookupError, TypeError, AttributeError):
                recipe.strikes += 1
        return ids

    def learned(self, recorder: "Recorder") -> None:
        """Take the recipes of a recorded batch in place of what was known."""
        self.recordings_left -= 1
        self.size_path = recorder.size_path
        self.found = [Recipe(table, node) for table, node in recorder.looked_up if node is not None]

    def judge(self, used: Sequence[tuple[Recipe, bool]]) -> None:
        """Note which recipes were right; drop those that were wrong too often."""
        for recipe, right in used:
            recipe.strikes = 0 if right else recipe.strikes + 1
        if any(recipe.strikes >= NUM_STRIKES for recipe in self.found):
            self.found = [recipe for recipe in self.found if recipe.strikes < NUM_STRIKES]


class Recorder(TorchDispatchMode):
    """Notes what is made of a batch's tensors, while active; compiled models run as they were."""

    def __init__(self, batch: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stance: AbstractContextManager[Any] | None = None
        tensors = dict(tensors_in(batch))
        self.size_path = next((path for path, tensor in tensors.items() if tensor.dim()), ())
        """The first tensor's leading size stands for the batch's."""
        self._size = tensors[self.size_path].shape[0] if tensors else 0
        self._nodes: dict[TensorKey, Node] = {_key(t): Leaf(p) for p, t in tensors.items()}
        # Addresses name tensors only while these live.
        self._alive: list[Any] = [batch]
        self.looked_up: list[tuple[int, Node | None]] = []
        """Look-ups: the table of each, and where its ids come from if that is known."""

    def __enter__(self) -> "Recorder":
        # A model that torch will compile, and calls first under such a mode, stays uncompiled.
        self._stance = torch.compiler.set_stance("force_eager")
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._stance is not None:
            self._stance.__exit__(*error)

    def note_lookup(self, table: int, ids: Tensor) -> None:
        """A table was asked for ``ids``."""
        self.looked_up.append((table, self._nodes.get(_key(ids))))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func._schema.is_mutable:
            self._forget_written(func, args, kwargs)
        elif torch.Tag.nondeterministic_seeded not in func.tags:
            self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not any(_key(t) in self._nodes for t in _tensors(args, kwargs)):
            return
        several = isinstance(out, tuple | list)
        for index, result in enumerate(out if several else [out]):
            if isinstance(result, Tensor) and _worth_noting(func, result):
                made = Operation(
                    func, self._as_nodes(args), self._as_nodes(kwargs), index if several else None
                )
                self._nodes.setdefault(_key(result), made)
                self._alive.append(result)

    def _as_nodes(self, value: Any, *, inside: bool = False) -> Any:
        if isinstance(value, Tensor):
            return self._nodes.get(_key(value), value)
        if isinstance(value, tuple | list):
            return type(value)(self._as_nodes(item, inside=True) for item in value)
        if isinstance(value, dict):
            return {name: self._as_nodes(item) for name, item in value.items()}
        # Only sizes in a list: a plain number may as well be a modulus.
        if inside and type(value) is int and self._size > 1 and value and value % self._size == 0:
            return BatchMultiple(value // self._size)
        return value

    def _forget_written(self, func: Any, args: Any, kwargs: Any) -> None:
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _tensors([given.get(argument.name)], {}):
                    address = tensor.untyped_storage().data_ptr()
                    self._nodes = {k: n for k, n in self._nodes.items() if k[0] != address}


class _Replay:
    """Recipes at work on one batch."""

    def __init__(self, batch: Any, size_path: Path) -> None:
        self._batch, self._size_path = batch, size_path
        self._done: dict[int, Any] = {}

    def result_of(self, node: Node) -> Any:
        if isinstance(node, Leaf):
            return tensor_at(self._batch, node.path)
        result = self._done.get(id(node))
        if result is None:
            result = node.func(*self._fill(node.args), **self._fill(node.kwargs))
            if node.output is not None:
                result = result[node.output]
            self._done[id(node)] = result
        return result

    def _fill(self, value: Any) -> Any:
        kind = type(value)
        if kind is Leaf or kind is Operation:
            return self.result_of(value)
        if kind is BatchMultiple:
            return value.times * tensor_at(self._batch, self._size_path).shape[0]
        if kind is tuple or kind is list:
            return kind([self._fill(item) for item in value])
        if kind is dict:
            return {name: self._fill(item) for name, item in value.items()}
        return value


def tensors_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield all tensors of a batch: in dicts, lists, tuples and attributes of objects."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from tensors_in(item, (*path, (False, name)))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            if not isinstance(item, str | int | float):
                yield from tensors_in(item, (*path, (False, index)))
    elif hasattr(value, "__dict__") and not isinstance(value, type) and len(path) < MAX_DEPTH:
        for name, item in vars(value).items():
            yield from tensors_in(item, (*path, (True, name)))


def tensor_at(batch: Any, path: Path) -> Any:
    """Return what `tensors_in` found at ``path``, in another batch."""
    for is_attribute, name in path:
        batch = getattr(batch, name) if is_attribute else batch[name]
    return batch


def _key(tensor: Tensor) -> TensorKey:
    return (
        tensor.untyped_storage().data_ptr(),
        int(tensor.storage_offset()),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
    )


def _worth_noting(func: Any, result: Tensor) -> bool:
    """Ids are integers; floats only where they are the batch's own, on their way to ``long()``."""
    if result.layout is not torch.strided or not result.numel():
        return False
    own = func.is_view or func._overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.clone)
    return own or not (result.is_floating_point() or result.is_complex())


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            if value.layout is torch.strided:
                yield value
        elif isinstance(value, tuple | list):
            yield from (v for v in value if isinstance(v, Tensor) and v.layout is torch.strided)
