"""A look at a script's variables: each that has a value of a known kind, by its path.

    main.stopper.best        # a variable of the function, an attribute of an object of the script's
    utils:NUM_SEEN           # a global of a module

An object of one of the script's own classes is looked into, attribute by attribute, and so is a
list or dictionary of such objects. An object of a library is, too, after all that is the script's
own: a meter, a saver of checkpoints, an engine. What ``job.prepare`` and ``job.state`` have is
theirs.
"""

import array
import ast
import re
import sys
from argparse import Namespace
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
)

from paceline.runtime.script.averages import follows_steps
from paceline.runtime.variables import frames
from paceline.runtime.variables.kinds import Kind, encoded, kind_of
from paceline.runtime.variables.plain import ATOMS, CONTAINERS, dict_of
from paceline.runtime.variables.settings import CLASS, NAMED, settings_of
from paceline.runtime.variables.spelled import NoPlainError, is_spelled

DEEPEST = 8
"""Objects within objects that are looked into."""
MOST_LEAVES = 4096
LONGEST = 4096
"""Elements of a container that is looked into, where it is not of plain data."""
DATA = "data"
"""Path of what a loop reads, where the script has no name for it."""
MOST_OF_LIBRARIES = 512
"""Objects of libraries that are looked into."""
OF_MODULES = frozenset(vars(nn.Module())) | {"training"}
"""Attributes that every module has; the others of one are the script's."""


class Variable(NamedTuple):
    """A variable, or a part of one."""

    kind: Kind
    value: Any
    bind: Callable[[Any], None]
    """Gives it another value."""


class Attributes(NamedTuple):
    """Some attributes of an object of a library."""

    whole: Any
    names: tuple[str, ...]


class Besides(NamedTuple):
    """An object without some of its attributes."""

    whole: Any
    names: frozenset[str]


class ScriptLook:
    """The script's variables as they are now.

    Args:
        chain: the script's frames, innermost first; see `frames.frames_of`.
        others: ids of objects whose state is kept elsewhere.
        dataset: what the script's loop reads.
        prepared: modules whose settings are the script's variables, too.
        objects: of a library, or parts of such, by their paths, that are looked into as well.
    """

    def __init__(
        self,
        chain: list[FrameType],
        others: Collection[int] = (),
        dataset: Any = None,
        objects: Mapping[str, Any] = MappingProxyType({}),
        prepared: Sequence[nn.Module] = (),
    ) -> None:
        self.leaves: dict[str, Variable] = {}
        self.holders: dict[str, Callable[[str, Any], None]] = {}
        """Path -> gives a variable beside it a name and a value."""
        self.roots = list[str]()
        """Beginnings of the paths of variables: those of the script's functions and modules."""
        self._functions = list[str]()
        self.of_libraries = set[str]()
        """Paths that lead through an object of a library."""
        self.of_batch = set[str]()
        """Paths of what the ``for`` statement that asks for a batch has bound to the one before,
        but for whole numbers, which `enumerate` counts."""
        self.opaque: dict[str, type] = {}
        """Path -> type of what cannot be looked into in an environment: memory of its own."""
        self._num_named = 0
        self._environments = list[str]()
        self._defaults: dict[str, defaultdict[Any, Any]] = {}
        self._others, self._seen = others, set[int]()
        #: Objects of libraries: they come last, so that they take no place of the script's own.
        self._later = deque[tuple[str, Any, int]]()
        self._in_library, self._in_batch = False, False
        #: Libraries whose loops ask for the script's batches.
        self._drive = {frames.library_of(one.f_code.co_filename) for one in chain} - {""}
        for path, value in objects.items():
            self._of_library(path, value)
        names = dict[str, int]()
        for frame in reversed(chain):
            if frames.is_module(frame):
                continue
            name = frame.f_code.co_qualname.replace("<locals>.", "")
            again = names[name] = names.get(name, 0) + 1
            self._in_library = bool(frames.library_of(frame.f_code.co_filename))
            self._of_frame(frame, name if again == 1 else f"{name}#{again}")
        self._in_library = self._in_batch = False
        bound = {
            id(one.f_globals): frames.targets_of(one) for one in chain if frames.is_module(one)
        }
        for module in frames.modules_of(chain):
            self._of_module(module, bound.get(id(vars(module)), frozenset()))
        self._in_batch = False
        self._of_dataset(DATA, dataset)
        for path, kind, value, bind in settings_of(prepared, is_own):
            self.leaves[path] = Variable(kind, value, bind)
        self._of_libraries()

    def _of_libraries(self) -> None:
        self._in_library = True
        for _ in range(MOST_OF_LIBRARIES):
            if not self._later:
                break
            self._of_object(*self._later.popleft())

    def _of_library(self, path: str, value: Any) -> None:
        if isinstance(value, Attributes):
            for name in value.names:
                one = getattr(value.whole, name)
                self._add(f"{path}.{name}", one, _binder(_setter(value.whole), name), 1)
            return
        hidden = frozenset[str]()
        if isinstance(value, Besides):
            value, hidden = value
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._of_object(path, value, 0, hidden)

    def variable_of(self, path: str) -> str:
        """Path of the script's variable through which a path leads; empty: there is none.

        What a function has closed over is found by more than one way.
        """
        root = max((one for one in self.roots if path.startswith(one)), key=len, default="")
        name = root + re.split(r"[.\[]", path.removeprefix(root), maxsplit=1)[0]
        return "" if not root or name in self._functions else name

    def make_defaults(self, paths: Iterable[str]) -> bool:
        """Make what a peer has in its ``defaultdict`` and ours has not (meters by name).

        Returns:
            Whether something was made, so that another look finds more.
        """
        made = False
        for path in paths:
            for holder, values in self._defaults.items():
                if path in self.leaves or not path.startswith(f"{holder}["):
                    continue
                try:
                    key = ast.literal_eval(path[len(holder) + 1 :].partition("]")[0])
                    made |= key not in values
                    values[key]
                except (ValueError, SyntaxError, TypeError, LookupError):
                    continue
        return made

    def _of_dataset(self, path: str, dataset: Any) -> None:
        """Add what a script has made for its loop alone, and has no name for."""
        if isinstance(dataset, Subset):
            self._of_dataset(path, dataset.dataset)
        elif isinstance(dataset, TensorDataset) or is_own(type(dataset)):
            self._add(path, dataset, lambda value: None, 0)

    def _of_frame(self, frame: FrameType, name: str) -> None:
        if not self._in_library:
            self.roots.append(f"{name}.")
        self.holders[name] = lambda key, value: frames.bind(frame, {key: value})
        targets = frames.targets_of(frame)
        for key, value in frames.variables_of(frame).items():
            if not _is_hidden(key):
                self._in_batch = key in targets
                self._add(f"{name}.{key}", value, _binder(self.holders[name], key), 0)

    def _of_module(self, module: ModuleType, targets: Collection[str]) -> None:
        name = "" if module.__name__ in ("__main__", "__mp_main__") else module.__name__
        values = vars(module)
        self.roots.append(f"{name}:")
        self.holders[f"{name}:"] = values.__setitem__
        for key, value in list(values.items()):
            if not _is_hidden(key):
                self._in_batch = key in targets
                self._add(f"{name}:{key}", value, _binder(values.__setitem__, key), 0)

    def _add(self, path: str, value: Any, bind: Callable[[Any], None], depth: int) -> None:  # noqa: C901, PLR0912
        if depth > DEEPEST or len(self.leaves) - self._num_named >= MOST_LEAVES:
            return
        if type(value) not in ATOMS:
            if isinstance(value, FunctionType):
                self._of_function(path, value, depth)
                self._keep_name(path, NAMED, value, bind)
                return
            if isinstance(value, MethodType):
                value = value.__self__
            if isinstance(value, type):
                self._of_class(path, value, depth)
            if isinstance(value, type | BuiltinFunctionType):
                self._keep_name(path, NAMED, value, bind)
                return
            if isinstance(value, ModuleType):
                return
            if id(value) in self._seen and not (isinstance(value, tuple) or _is_number(value)):
                return
            self._seen.add(id(value))
            if isinstance(value, nn.Module) and id(value) not in self._others:
                self._keep_name(f"{path}.class", CLASS, value, bind)
            if self._is_group_of_others(value):
                return
            if type(value) is defaultdict:
                self._defaults[path] = value
            if self._of_attributes(path, value, depth) and not isinstance(value, CONTAINERS):
                return
            if isinstance(value, CONTAINERS) and self._is_node(value):
                self._of_container(path, value, bind, depth)
                return
        kind = kind_of(value)
        if kind is None:
            self._of_unknown(path, value)
        elif not self._is_kept_elsewhere(kind, value):
            self.leaves[path] = Variable(kind, value, bind)
            if self._in_batch and type(value) is not int:
                self.of_batch.add(path)
            if self._in_library:
                self.of_libraries.add(path)

    def _keep_name(self, path: str, kind: Kind, value: Any, bind: Callable[[Any], None]) -> None:
        self._num_named += path not in self.leaves
        self.leaves[path] = Variable(kind, value, bind)
        if self._in_library:
            self.of_libraries.add(path)

    def _is_group_of_others(self, value: Any) -> bool:
        """Tell whether a dictionary is a group of parameters of a prepared optimizer.

        A script that sets rates by hand has one as a variable; a joiner has none before its body.
        """
        params = value.get("params") if type(value) is dict else None
        return type(params) is list and any(id(one) in self._others for one in params)

    def _is_kept_elsewhere(self, kind: Kind, value: Any) -> bool:
        if isinstance(value, DataLoader) or follows_steps(type(value)):
            return True
        if isinstance(value, Dataset) and not isinstance(value, TensorDataset):
            return True
        return kind.name == "state" and id(value) in self._others

    def _of_unknown(self, path: str, value: Any) -> None:
        """Keep in mind what an environment is made of beside plain data."""
        module = type(value).__module__.partition(".")[0]
        is_known = module in ("builtins", "numpy") or isinstance(value, Enum)
        if not is_known and any(path.startswith(one) for one in self._environments):
            self.opaque[path] = type(value)

    def _of_attributes(self, path: str, value: Any, depth: int) -> bool:
        """Look into an object; whether that is all there is to it."""
        kind, is_module = type(value), isinstance(value, nn.Module)
        if is_own(kind):
            self._of_object(path, value, depth)
        elif not is_of_library(kind) or id(value) in self._others:
            return is_module and self._holds_prepared(path, value, depth)
        elif is_module or self._is_driven(kind) or not hasattr(kind, "load_state_dict"):
            self._later.append((path, value, depth))
        else:
            return False
        # Besides, a module has what an average of weights or a teacher consists of.
        return not is_module or self._holds_prepared(path, value, depth)

    def _is_driven(self, kind: type) -> bool:
        """Tell whether a class is of a library whose loops ask for the script's batches."""
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        return frames.library_of(file) in self._drive

    def _holds_prepared(self, path: str, value: nn.Module, depth: int) -> bool:
        """Tell whether a module has parts that are the job's; then look into its other parts."""
        if id(value) in self._others or all(id(one) not in self._others for one in value.modules()):
            return False
        for name, one in value.named_children():
            self._add(f"{path}.{name}", one, lambda value: None, depth + 1)
        return True

    @staticmethod
    def _is_node(value: Any) -> bool:
        """Tell whether there is something in a container that is not plain data."""
        try:
            encoded(value)
        except NoPlainError:
            return True
        return False

    def _of_container(self, path: str, value: Any, bind: Callable[[Any], None], depth: int) -> None:
        parts = [*value] if isinstance(value, tuple) else value

        def put(key: Any) -> Callable[[Any], None]:
            def put_there(new: Any) -> None:
                parts[key] = new
                if isinstance(value, tuple):
                    bind(value._make(parts) if hasattr(value, "_make") else tuple(parts))

            return put_there

        if len(value) > LONGEST:
            return
        if isinstance(value, dict):
            for number, (key, one) in enumerate(list(dict_of(value).items(value))):
                name = repr(key)
                # An object without a name of its own lies elsewhere in another process.
                name = f"#{number}" if " at 0x" in name else name
                self._add(f"{path}[{name}]", one, put(key), depth + 1)
        elif isinstance(value, list | tuple | deque):
            for number, one in enumerate(list(value)):
                self._add(f"{path}[{number}]", one, put(number), depth + 1)

    def _of_object(
        self, path: str, value: Any, depth: int, hidden: frozenset[str] = frozenset()
    ) -> None:
        attributes: dict[str, Any] = getattr(value, "__dict__", {})
        if is_environment(type(value)):
            self._environments.append(f"{path}.")
        self.holders[path] = attributes.__setitem__
        if isinstance(value, nn.Module):
            hidden |= OF_MODULES
        for key, one in list(attributes.items()):
            if key not in hidden:
                bind = _binder(attributes.__setitem__, key)
                self._add(f"{path}.{key}", one, bind, depth + 1)
        for key, one in slots_of(value):
            if key in hidden:
                continue
            self._add(f"{path}.{key}", one, _binder(_setter(value), key), depth + 1)

    def _of_function(self, path: str, value: FunctionType, depth: int) -> None:
        if not frames.is_scripts_module(value.__module__) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._functions.append(path)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if id(cell) not in self._seen:
                self._seen.add(id(cell))
                try:
                    held = cell.cell_contents
                except ValueError:
                    continue
                self._add(f"{path}.{name}", held, _cell(cell), depth + 1)
        for name, one in list(vars(value).items()):
            self._add(f"{path}.{name}", one, _binder(vars(value).__setitem__, name), depth + 1)
        for number, one in enumerate(value.__defaults__ or ()):
            if isinstance(one, CONTAINERS):
                self._add(f"{path}.default{number}", one, lambda value: None, depth + 1)

    def _of_class(self, path: str, value: type, depth: int) -> None:
        if not frames.is_scripts_module(value.__module__) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if issubclass(value, Enum | tuple):  # what these have is Python's
            return
        for name, one in list(vars(value).items()):
            if not _is_hidden(name) and (type(one) in ATOMS or type(one) in CONTAINERS):
                self._add(f"{path}.{name}", one, _binder(_setter(value), name), depth + 1)


def is_own(kind: type) -> bool:
    """Tell whether objects of a class are the script's own, which are looked into."""
    found = _own.get(kind)
    if found is None:
        found = _own[kind] = _is_own(kind)
    return found


_own: dict[type, bool] = {}


def is_of_library(kind: type) -> bool:
    """Tell whether objects of a class are of a library, and are looked into."""
    found = _of_library.get(kind)
    if found is None:
        found = _of_library[kind] = not issubclass(kind, _NOT_LOOKED_INTO) and (
            frames.is_library_module(kind.__module__)
            # Files, pools, bars: what they hold is outside of the script.
            and (is_environment(kind) or not any(hasattr(kind, name) for name in _OF_OUTSIDE))
        )
    return found


def is_environment(kind: type) -> bool:
    """Tell whether objects of a class are what an agent acts in (gymnasium, dm_env)."""
    return all(callable(getattr(kind, name, None)) for name in ("reset", "step", "close"))


_OF_OUTSIDE = ("__enter__", "__next__", "__await__")


_of_library: dict[type, bool] = {}
_NOT_LOOKED_INTO = (
    type,
    np.ndarray,
    Tensor,
    ModuleType,
    Enum,
    BaseException,
    Dataset,
    DataLoader,
    Sampler,
    Optimizer,
    LRScheduler,
)


def _is_own(kind: type) -> bool:
    # What is read by iteration goes on ahead of the script: the job knows how far it is.
    if issubclass(kind, IterableDataset):
        return False
    if issubclass(kind, type | np.ndarray | Tensor | FunctionType | ModuleType | Enum):
        return False
    return frames.is_scripts_module(kind.__module__) or kind in _PLAIN_OBJECTS


_PLAIN_OBJECTS = frozenset([Namespace, SimpleNamespace])


def _is_number(value: Any) -> bool:
    """Tell whether two variables that have one object have equal values, as of two objects."""
    is_single = isinstance(value, Tensor) and value.numel() == 1
    if isinstance(value, bytearray | array.array):
        return False
    return is_single or isinstance(value, np.generic | Enum) or is_spelled(value)


def _is_hidden(name: str) -> bool:
    return name == "_" or name.startswith(("__", "@", "."))


def slots_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of an object's slots."""
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            if hasattr(value, name) and not _is_hidden(name):
                yield name, getattr(value, name)


def _binder(put: Callable[[str, Any], None], name: str) -> Callable[[Any], None]:
    return lambda value: put(name, value)


def _setter(value: Any) -> Callable[[str, Any], None]:
    return lambda name, new: setattr(value, name, new)


def _cell(cell: Any) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        cell.cell_contents = value

    return put
