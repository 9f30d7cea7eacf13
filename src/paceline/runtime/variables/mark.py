"""Mark of a script's variables as it asked for a batch, so that its body can be taken back.

A step that a lost worker breaks comes again, and so does the body of the script's loop. What the
first run of the body has done to the script's variables is undone before the second one: a count
counts once.

A mark is made for each batch, so it costs little: variables are kept by reference, containers by a
shallow copy, tensors and arrays by a copy where they are small, large tensors by one whenever they
have changed. What cannot be undone is named.
"""

import array
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.runtime.script.averages import follows_steps
from paceline.runtime.variables import frames
from paceline.runtime.variables.large import SAMPLED, LargeTensors, is_large_kind
from paceline.runtime.variables.look import OF_MODULES, is_of_library, is_own, slots_of
from paceline.runtime.variables.plain import ATOMS, CONTAINERS, dict_of

SMALL_BYTES = 1 << 16
"""Bytes up to which tensors and arrays are copied for each batch."""
LONG = 4096
"""Elements beyond which a container is taken back by its length alone: a body appends."""

MOST_OBJECTS = 4096
"""Objects that one mark keeps."""

MOST_OF_LIBRARIES = 512
"""Objects of libraries that one mark keeps."""

Keep = Callable[[Any], Any]
Undo = Callable[[Any, Any], bool]
"""Object, what was kept of it -> whether it is as it was."""


class BodyMark:
    """The values of one moment.

    Args:
        chain: the script's frames, innermost first.
        kept: names and values of ``job.state``.
        before: the mark before this one.
        large: the large tensors as of that mark; None: there was none.
        others: ids of objects whose state is kept elsewhere.
    """

    def __init__(
        self,
        chain: list[FrameType],
        kept: dict[str, Any] | None = None,
        before: "BodyMark | None" = None,
        *,
        large: LargeTensors | None = None,
        others: Collection[int] = (),
    ) -> None:
        self._large = large or LargeTensors()
        self._large.begin()
        #: List or dictionary without parts, by its id: itself and its length.
        self._plain: dict[int, tuple[Any, int]] = {}
        self._plain_before = before._plain if before is not None else self._plain
        self._seen, self._others = set[int](), others
        #: Objects of libraries, which come last; how many there were. Tensor -> its module, by ids.
        self._later, self._num_of_libraries = deque[Any](), 0
        self._owners = dict[int, Any]()
        self.is_whole = True
        """False: there are too many objects to keep all of them."""
        self._kept = list[tuple[Undo, Any, Any]]()
        self._names = list[tuple[dict[str, Any], dict[str, Any]]]()
        #: By the frame's id, since a frame that is kept keeps its loop open after a ``break``.
        self._frames = dict[int, dict[str, Any]]()
        self.places = [(one.f_code, one.f_lasti, id(one)) for one in chain]
        """Places of its frames: code, instruction, id."""
        for module in frames.modules_of(chain):
            self._keep_names(vars(module))
        if kept is not None:
            self._keep_names(kept)
        for frame in chain:
            if not frames.is_module(frame):
                values = frames.variables_of(frame)
                self._visit(values.values())
                for name in [name for name, one in values.items() if _MAY_BE_OF_BATCH[type(one)]]:
                    if _is_of_batch(values[name]):
                        del values[name]
                self._frames[id(frame)] = values
        while self._later and self._num_of_libraries < MOST_OF_LIBRARIES:
            self._num_of_libraries += 1
            _keep_attributes(self, self._later.popleft())
        self.is_whole = self.is_whole and not self._later
        self._plain_before = self._plain
        self._large.end()

    def _keep_names(self, names: dict[str, Any]) -> None:
        copy = names.copy()
        self._names.append((names, copy))
        self._visit(copy.values())

    def _visit(self, values: Iterable[Any]) -> None:
        for value in values:
            kind = type(value)
            if kind in _DULL:
                continue
            row = _ROWS.get(kind) or _row_of(kind)
            if row is None or id(value) in self._seen:
                continue
            if len(self._seen) > MOST_OBJECTS:
                self.is_whole = False
                return
            row(self, value)

    def _keep(self, value: Any, keep: Keep, undo: Undo) -> None:
        self._seen.add(id(value))
        self._kept.append((undo, value, keep(value)))

    def _visit_parts(self, value: Any, parts: Collection[Any]) -> None:
        """Visit what is in a container, but what was found to be plain data before."""
        size, known = len(parts), self._plain_before.get(id(value))
        if size > LONG:
            return
        if known is not None and known[0] is value and known[1] <= size:
            parts = [*parts][known[1] :] if size > known[1] else ()
        if set(map(type, parts)) <= _DULL:
            self._plain[id(value)] = value, size
        else:
            self._visit(parts)

    def undo(self, chain: list[FrameType]) -> list[Any]:
        """Put all of it back; return the objects that have changed and could not be.

        Of a parameter or buffer that is the module that has it.

        Args:
            chain: the script's frames now; those of then are among them.
        """
        left = [value for undo, value, kept in self._kept if not undo(value, kept)]
        left += self._large.undo()
        left = [self._owners.get(id(value), value) for value in left]
        for names, kept in self._names:
            for key in names.keys() - kept.keys():
                if type(names[key]) in ATOMS and names.get("__dict__") is None:
                    del names[key]
            names.update(kept)
        for frame, values in self._at(chain):
            now = frames.variables_of(frame) if values else {}
            changed = {
                name: value for name, value in values.items() if now.get(name, self) is not value
            }
            if changed:
                frames.bind(frame, changed)
        return left

    def is_of(self, frame: FrameType) -> bool:
        """Tell whether the frame was there."""
        return any(id(frame) == one for _, _, one in self.places)

    def forget_settings(self) -> None:
        """What optimizers hold has become another's: nothing of it is put back."""
        groups = {id(value) for undo, value, _ in self._kept if undo is _undo_settings}
        # A script may have one as a variable.
        self._kept = [one for one in self._kept if id(one[1]) not in groups]

    @property
    def names(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Variables of modules and of the script's objects, and what these were."""
        return self._names

    def locals_of(self, frame: FrameType) -> dict[str, Any] | None:
        """Return what the variables of a function's frame were; None: it was not there."""
        return self._frames.get(id(frame))

    def _at(self, chain: list[FrameType]) -> Iterator[tuple[FrameType, dict[str, Any]]]:
        """The frames of the script now, each with what its variables were.

        A function that was left may have been called again since, and ask at the same place: an
        engine's epoch whose last step broke. Its new frame goes on as the old one.
        """
        places = [(one.f_code, one.f_lasti) for one in chain]
        again = places == [(code, at) for code, at, _ in self.places]
        for number, frame in enumerate(chain):
            known = self.places[number][2] if again else id(frame)
            yield frame, self._frames.get(known, {})


class _ByType(dict[type, bool]):
    """Whether a value of a type may be of the batch in hand: looked up for every local variable."""

    def __missing__(self, kind: type) -> bool:
        found = self[kind] = issubclass(kind, Tensor) or hasattr(kind, "__next__")
        return found


_MAY_BE_OF_BATCH = _ByType()


def _is_of_batch(value: Any) -> bool:
    """Tell whether a value is of the batch in hand, which its successor replaces, or its loop."""
    if isinstance(value, Tensor):
        is_sum = value.numel() == 1  # losses that are added up as they are
        return value.nbytes > SMALL_BYTES or (value.grad_fn is not None and not is_sum)
    return True


# ---------------------------------------------------------------------------- rows

Row = Callable[[BodyMark, Any], None]
_DULL: set[type] = {
    *ATOMS,
    torch.dtype,
    torch.device,
    torch.Size,
    range,
    slice,
    type,
    ModuleType,
    BuiltinFunctionType,
    type(Ellipsis),
}
"""Types of which no value holds anything that a body could change; more are found on the way."""


def _row_of(kind: type) -> Row | None:
    """The row of a type that is seen for the first time; None: it holds nothing."""
    base = next((one for one in kind.__mro__ if one in _ROWS), None)
    row: Row | None = None
    if issubclass(kind, nn.Module):
        row = None if follows_steps(kind) else _visit_module
    elif issubclass(kind, Optimizer):
        row = _visit_own_optimizer if is_own(kind) else _visit_optimizer
    elif issubclass(kind, LRScheduler) and not is_own(kind):
        row = _visit_library
    elif kind.__module__.startswith("torch.distributed."):
        row = None  # to look at what is in parts among members all of them would have to do
    elif issubclass(kind, type):
        row = None
    elif base is not None:
        row = _visit_derived(_ROWS[base]) if is_own(kind) else _ROWS[base]
    elif is_own(kind):
        row = _visit_own
    elif is_of_library(kind):
        row = _visit_library
    if row is None:
        _DULL.add(kind)
    else:
        _ROWS[kind] = row
    return row


def _visit_derived(row: Row) -> Row:
    def visit(mark: BodyMark, value: Any) -> None:
        row(mark, value)
        if getattr(value, "__dict__", None):
            mark._keep_names(value.__dict__)

    return visit


def _visit_own(mark: BodyMark, value: Any) -> None:
    mark._seen.add(id(value))
    attributes = getattr(value, "__dict__", None)
    if attributes is not None:
        mark._keep_names(attributes)
    if slots := dict(slots_of(value)):
        mark._kept.append((_undo_slots, value, slots))
        mark._visit(slots.values())


def _undo_slots(value: Any, kept: dict[str, Any]) -> bool:
    for name, held in kept.items():
        if getattr(value, name, None) is not held:
            setattr(value, name, held)
    return True


def _visit_module(mark: BodyMark, value: Any) -> None:
    """Keep what a module has that is not the job's: an average of weights, a teacher, a metric."""
    mark._seen.add(id(value))
    if is_own(type(value)):
        attributes = value.__dict__
        kept = {key: one for key, one in attributes.items() if key not in OF_MODULES}
        if kept:
            mark._names.append((attributes, {**attributes, **kept}))
            mark._visit(kept.values())
    elif is_of_library(type(value)) and id(value) not in mark._others:
        mark._later.append(value)
    for module in () if id(value) in mark._others else value.modules():
        if id(module) in mark._others:
            continue
        for one in (*module._parameters.values(), *module._buffers.values()):
            if one is not None and id(one) not in mark._seen:
                mark._owners[id(one)] = module
                mark._visit((one,))


def _visit_library(mark: BodyMark, value: Any) -> None:
    mark._seen.add(id(value))
    if id(value) not in mark._others:
        mark._later.append(value)


def _visit_optimizer(mark: BodyMark, value: Optimizer) -> None:
    """Keep the settings of an optimizer's groups, which a script, or its schedulers, may change.

    If it is the job's, all else changes in steps that hold, and only there.
    """
    mark._seen.add(id(value))
    for group in getattr(value, "param_groups", ()):  # a script's own may have none
        settings = dict(group)
        settings.pop("params", None)
        mark._kept.append((_undo_settings, group, settings))
        if changing := [one for one in settings.values() if type(one) not in _DULL]:
            mark._visit(changing)
    if id(value) not in mark._others:
        mark._visit((getattr(value, "state", None),))


def _visit_own_optimizer(mark: BodyMark, value: Optimizer) -> None:
    _visit_optimizer(mark, value)
    _visit_own(mark, value)


def _undo_settings(group: dict[str, Any], kept: dict[str, Any]) -> bool:
    group.update(kept)
    return True


def _keep_attributes(mark: BodyMark, value: Any) -> None:
    """Keep an object's attributes of plain data: what else a library has there is its own."""
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    hidden = OF_MODULES if isinstance(value, nn.Module) else frozenset[str]()
    shown = {key: one for key, one in attributes.items() if key not in hidden}
    plain = {key: one for key, one in shown.items() if _is_data(one)}
    mark._kept.append((_undo_attributes, value, (plain, frozenset(attributes))))
    mark._visit(shown.values())


def _is_data(value: Any) -> bool:
    return type(value) in ATOMS or isinstance(value, (*CONTAINERS, Tensor, np.ndarray, np.generic))


def _undo_attributes(value: Any, kept: tuple[dict[str, Any], frozenset[str]]) -> bool:
    attributes, (plain, names) = value.__dict__, kept
    for key in attributes.keys() - names:
        if type(attributes[key]) in ATOMS:
            del attributes[key]
    attributes.update(plain)
    return True


def _visit_tensor(mark: BodyMark, value: Tensor) -> None:
    if id(value) in mark._others:
        return
    if value.nbytes > SMALL_BYTES and is_large_kind(value):
        mark._seen.add(id(value))
        mark._large.keep(value)
    else:
        mark._keep(value, _keep_tensor, _undo_tensor)


def _visit_function(mark: BodyMark, value: FunctionType) -> None:
    cells, defaults = value.__closure__, value.__defaults__
    if cells is None and defaults is None and not value.__dict__:
        return
    mark._seen.add(id(value))
    if not frames.is_scripts_module(value.__module__ or ""):
        return
    if defaults is not None:
        mark._visit(defaults)
    for cell in cells or ():
        if id(cell) not in mark._seen:
            try:
                held = cell.cell_contents
            except ValueError:  # it has none so far
                continue
            mark._seen.add(id(cell))
            mark._kept.append((_undo_cell, cell, held))
            mark._visit((held,))
    if value.__dict__:
        mark._keep_names(value.__dict__)


def _visit_method(mark: BodyMark, value: MethodType) -> None:
    mark._visit((value.__self__,))


def _visit_tuple(mark: BodyMark, value: tuple[Any, ...] | frozenset[Any]) -> None:
    if not set(map(type, value)) <= _DULL:
        mark._visit(value)


def _kept_by(keep: Keep, undo: Undo) -> Row:
    return lambda mark, value: mark._keep(value, keep, undo)


def _with_parts(keep: Keep, undo: Undo) -> Row:
    def visit(mark: BodyMark, value: Any) -> None:
        mark._keep(value, keep, undo)
        parts = dict_of(value).values(value) if isinstance(value, dict) else value
        mark._visit_parts(value, parts)

    return visit


def _undo_cell(cell: CellType, held: Any) -> bool:
    if cell.cell_contents is not held:
        cell.cell_contents = held
    return True


def _keep_list(value: list[Any]) -> Any:
    return value.copy() if len(value) <= LONG else (len(value), value[-1])


def _undo_list(value: list[Any], kept: Any) -> bool:
    if isinstance(kept, tuple):
        size, last = kept
        if len(value) < size or value[size - 1] is not last:
            return False
        del value[size:]
        return True
    value[:] = kept
    return True


def _keep_dict(value: dict[Any, Any]) -> Any:
    # Not by its own methods: those of a library may compute what they are asked for.
    size = dict.__len__(value)
    return dict(dict_of(value).items(value)) if size <= LONG else size


def _undo_dict(value: dict[Any, Any], kept: Any) -> bool:
    if isinstance(kept, int):
        for key in [*dict_of(value).keys(value)][kept:]:
            del value[key]
        return True
    kind = dict_of(value)
    if [*kind.keys(value)] != [*kept]:  # their order, too
        kind.clear(value)
    kind.update(value, kept)
    return True


def _keep_set(value: set[Any]) -> Any:
    return value.copy() if len(value) <= LONG else len(value)


def _undo_set(value: set[Any], kept: Any) -> bool:
    if isinstance(kept, int):
        return len(value) == kept
    if value != kept:
        value.clear()
        value.update(kept)
    return True


def _undo_deque(value: deque[Any], kept: deque[Any]) -> bool:
    value.clear()
    value.extend(kept)
    return True


def _keep_tensor(value: Tensor) -> Any:
    if value.is_inference() or (value.grad_fn is not None and value.numel() != 1):
        return None
    small = value.nbytes <= SMALL_BYTES
    return value._version, value.detach().clone() if small else None


def _undo_tensor(value: Tensor, kept: Any) -> bool:
    if kept is None:
        return True
    version, copy = kept
    # Running statistics of torch's BatchNorm change without a new version.
    if value._version == version and (copy is None or torch.equal(value, copy)):
        return True
    if copy is None or copy.shape != value.shape:
        return False
    with torch.no_grad():
        value.detach().copy_(copy)
    return True


def _keep_array(value: np.ndarray[Any, Any]) -> Any:
    if value.dtype == object:
        return None
    small = value.nbytes <= SMALL_BYTES
    return small, value.copy() if small else _some_of(value)


def _some_of(value: np.ndarray[Any, Any]) -> bytes:
    """Return some elements of a large array, by which it is seen whether it has changed."""
    return bytes(value.flat[:: max(1, value.size // SAMPLED)].tobytes())


def _undo_array(value: np.ndarray[Any, Any], kept: Any) -> bool:
    if kept is None:
        return True
    small, copy = kept
    if not small:
        return bool(_some_of(value) == copy)
    if value.flags.writeable:
        value[...] = copy
    return True


def _undo_buffer(value: Any, kept: Any) -> bool:
    value[:] = kept
    return True


def _set_state(value: Any, kept: Any) -> bool:
    value.set_state(kept)
    return True


def _undo_numpy(value: np.random.Generator, kept: Any) -> bool:
    value.bit_generator.state = kept
    return True


def _undo_python(value: random.Random, kept: Any) -> bool:
    value.setstate(kept)
    return True


_ROWS: dict[type, Row] = {
    list: _with_parts(_keep_list, _undo_list),
    dict: _with_parts(_keep_dict, _undo_dict),
    OrderedDict: _with_parts(_keep_dict, _undo_dict),
    defaultdict: _with_parts(_keep_dict, _undo_dict),
    set: _with_parts(_keep_set, _undo_set),
    deque: _with_parts(lambda value: value.copy(), _undo_deque),
    tuple: _visit_tuple,
    frozenset: _visit_tuple,
    Tensor: _visit_tensor,
    np.ndarray: _kept_by(_keep_array, _undo_array),
    torch.Generator: _kept_by(lambda value: value.get_state(), _set_state),
    np.random.Generator: _kept_by(lambda value: value.bit_generator.state, _undo_numpy),
    np.random.RandomState: _kept_by(lambda value: value.get_state(legacy=False), _set_state),
    random.Random: _kept_by(lambda value: value.getstate(), _undo_python),
    bytearray: _kept_by(bytes, _undo_buffer),
    array.array: _kept_by(lambda value: value[:], _undo_buffer),
    FunctionType: _visit_function,
    MethodType: _visit_method,
}
