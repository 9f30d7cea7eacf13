"""The frames in which a script runs: its variables, and how far its ``for`` statements are.

A script's loop over batches is the innermost of several statements, in several functions. This
module finds the frames of these functions, reads and binds their variables, and reads and sets the
iterators of their ``for`` statements. Those iterators lie on a frame's value stack, which Python
shows to nobody: its memory is read where the layout is the known one (CPython 3.11 to 3.13), after
checks. Elsewhere there are no iterators to be had, which the caller says.
"""

import ctypes
import dis
import inspect
import itertools
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, NamedTuple, TypeVar

import paceline

Place = tuple[str, str, int]
"""File, function and line of a call."""

_WORD = ctypes.sizeof(ctypes.c_void_p)
_AT_FRAME = 3
"""Words before a frame object's pointer to the interpreter's frame."""
_AT_LOCALS = 9
"""Words before the variables in the interpreter's frame; the value stack follows them."""
_CHECKS = {(3, 11): (4, 5), (3, 12): (0, 6), (3, 13): (0, 6)}
"""Python version -> words before the code and the frame object in the interpreter's frame."""
_NEVER_FALLS = frozenset(
    (
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
        "INTERPRETER_EXIT",
    )
)
"""Instructions after which the one that follows is not the next one."""
_JUMPS = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"))
_PASSES = _JUMPS | {"NOP", "CACHE", "PUSH_NULL", "POP_EXCEPT", "PRECALL", "RESUME"}
"""Instructions that change nothing that a script sees."""
_BRANCHES = ("POP_JUMP", "FOR_ITER", "JUMP_IF", "SEND", "YIELD", "GET_ITER", "RERAISE", "RETURN")
_LEAVES = "POP_TOP"
"""The instruction with which ``break`` and ``return`` drop the iterator of a ``for`` statement."""
_WRITES_THROUGH = sys.version_info >= (3, 13)
"""Whether what is set in ``frame.f_locals`` is set in the frame."""
_OWN_REFERENCES = 4
"""References to a frame's dictionary in `_let_go`: the frame's, the caller's, its own and the
counter's."""


@cache
def _foreign() -> tuple[str, ...]:
    """Folders of Python, of installed packages, and of paceline itself."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    folders.append(str(Path(paceline.__file__).parent))
    folders += [str(Path(one).resolve()) for one in folders]
    return tuple({f"{one}/" for one in folders})


@lru_cache(maxsize=4096)
def is_scripts(file: str) -> bool:
    """Tell whether a file's code is the script's own, and not a library's."""
    if file.startswith("<"):
        return not file.startswith("<frozen")
    return not (file.startswith(_foreign()) or "/site-packages/" in file)


def is_library_module(name: str) -> bool:
    """Tell whether a module is of a library whose objects are looked into."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and bool(library_of(file))


def is_scripts_module(name: str) -> bool:
    """Tell whether a module is the script's own."""
    if name in ("__main__", "__mp_main__"):
        return True
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith("/") and is_scripts(file)


_NOT_FOLLOWED = frozenset(
    (
        # Tensors, data and pictures: what they hold is data, or is not Python's.
        *("torch", "torchvision", "torchaudio", "numpy", "scipy", "sklearn", "pandas", "pyarrow"),
        *("polars", "datasets", "PIL", "cv2", "matplotlib", "tokenizers", "huggingface_hub"),
        # Trainers that have adapters.
        *("accelerate", "transformers", "lightning", "pytorch_lightning", "lightning_fabric"),
        # Progress bars and curves: what they show goes on on its own.
        *("tqdm", "rich", "wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "clearml"),
        # Libraries that start a script, or read its arguments.
        *("click", "typer", "fire", "absl", "hydra", "omegaconf", "pydantic", "yaml", "ray"),
        *("pytest", "_pytest", "pluggy", "paceline"),
    )
)
"""Packages whose loops and objects are no part of a script."""


@lru_cache(maxsize=4096)
def library_of(file: str) -> str:
    """The installed package of a file, if its loops and objects are followed; else empty."""
    _, found, inner = file.rpartition("/site-packages/")
    if not found or file.startswith(str(Path(paceline.__file__).parent)):
        return ""
    name = inner.partition("/")[0].removesuffix(".py")
    return "" if name in _NOT_FOLLOWED else name


def frames_of(innermost: FrameType) -> list[FrameType]:
    """The frames of a script, from the one that asks for a batch out to its module.

    Frames of a library that asks for batches in the script's place (ignite's ``Engine``) are part
    of it. Other library functions between the script's own (``tqdm``, ``click``) are left out.
    """
    found, drives = list[FrameType](), list[FrameType]()
    frame: FrameType | None = innermost
    while frame is not None:
        file = frame.f_code.co_filename
        if is_scripts(file):
            found.append(frame)
        elif not found and library_of(file):
            drives.append(frame)
        frame = frame.f_back
    return [*drives, *found] if found else []


def place_of(frame: FrameType, *, opens: bool = False) -> Place:
    """Return where a frame is.

    Of lines that do the same and go on at the same place, as two ``batch = next(batches)`` of a
    ``try`` statement, it is the first.

    Args:
        frame: of a script.
        opens: it opens the loop that such lines ask for batches, which does the same wherever it
            goes on: the asking is compared as well.
    """
    code, line = frame.f_code, frame.f_lineno or 0
    runs = _runs_of(code)
    run = next((one for one in runs if one.start <= frame.f_lasti < one.stop), None)
    if run is not None:
        line = run.line
        if opens and any(one.asks and one.line != one.own_line for one in runs):
            line = min(one.own_line for one in runs if one.does == run.does)
    return Path(code.co_filename).name, code.co_qualname, line


class _Run(NamedTuple):
    """Instructions of one line, one after the other, without any branch."""

    start: int
    stop: int
    """Offsets."""
    does: tuple[tuple[str, Any], ...]
    asks: bool
    """Whether it calls ``next``."""
    own_line: int
    line: int
    """First line of those that do the same and go on at the same place."""


@lru_cache(maxsize=256)
def _runs_of(code: CodeType) -> list[_Run]:
    """The runs of a function that call something."""
    steps = list(dis.get_instructions(code))
    numbers = {step.offset: k for k, step in enumerate(steps)}
    first, found, at = dict[Any, int](), list[_Run](), 0
    for line, group in itertools.groupby(steps, lambda one: one.positions and one.positions.lineno):
        part = list(group)
        at += len(part)
        does = tuple((one.opname, one.argval) for one in part if one.opname not in _PASSES)
        plain = not any(name.startswith(_BRANCHES) for name, _ in does)
        if line is None or not plain or not any(name.startswith("CALL") for name, _ in does):
            continue
        goes_on = does, _goes_on_at(steps, numbers, at - 1)
        stop = steps[at].offset if at < len(steps) else len(code.co_code)
        asks = any(value == "next" for _, value in does)
        canonical = first.setdefault(goes_on, line)
        found.append(_Run(part[0].offset, stop, does, asks, line, canonical))
    return found


def _goes_on_at(steps: list[dis.Instruction], numbers: Mapping[int, int], at: int) -> int:
    """The offset of what is done next, behind an instruction and all jumps; -1: nothing."""
    for _ in steps:
        at = numbers[steps[at].argval] if steps[at].opname in _JUMPS else at + 1
        if at >= len(steps):
            break
        if steps[at].opname not in _PASSES:
            return steps[at].offset
    return -1


def is_module(frame: FrameType) -> bool:
    """Tell whether the frame is that of a module, whose variables are its globals."""
    return frame.f_code.co_name == "<module>"


def variables_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a function's frame, also those that inner functions share.

    Before Python 3.13 they are read through a dictionary that the frame keeps. It is emptied here,
    so that nothing lives longer than in a script that nobody looks at.
    """
    shown = frame.f_locals
    found = dict(shown)
    if not _WRITES_THROUGH:
        _let_go(shown)
    return found


def bind(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Set variables of a function's frame."""
    shown = frame.f_locals
    shown.update(values)
    if not _WRITES_THROUGH:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        _let_go(shown)


def _let_go(shown: dict[str, Any]) -> None:
    """Empty a frame's dictionary, unless the script has it, too, by ``locals()``."""
    if sys.getrefcount(shown) <= _OWN_REFERENCES:
        shown.clear()


# ---------------------------------------------------------------------------- iterators


def iterators_of(frame: FrameType) -> list[Any] | None:
    """The iterators of the ``for`` statements that a frame is in, outermost first; None: unknown.

    The frame must be waiting for a call, as that of a script that asks for its next batch.
    """
    held = _stack_of(frame)
    if held is None:
        return None
    return [one for one in held if hasattr(type(one), "__next__")]


def _word(address: int) -> int:
    return int(ctypes.c_size_t.from_address(address).value)


def _stack_of(frame: FrameType, at: int | None = None) -> list[Any] | None:
    """Return what lies on a frame's value stack below the call that is under way.

    Args:
        frame: runs, or waits.
        at: instruction of an earlier call, if the ``for`` statements around that go on.
    """
    checks = _CHECKS.get(sys.version_info[:2])
    if checks is None or sys.implementation.name != "cpython":
        return None
    code = frame.f_code
    depth = _depth_below(code, frame.f_lasti if at is None else at)
    if depth == 0:
        return []
    if at is not None and depth and _is_for(code, at):
        depth -= 1  # its own statement is the one that is left
    inner = _word(id(frame) + _AT_FRAME * _WORD)
    told = tuple(_word(inner + at * _WORD) for at in checks)
    if told != (id(code), id(frame)) or depth is None:
        return None
    shared = set(code.co_cellvars) - set(code.co_varnames)
    start = _AT_LOCALS + len(code.co_varnames) + len(shared) + len(code.co_freevars)
    addresses = (_word(inner + (start + k) * _WORD) for k in range(depth))
    return [_object(address) for address in addresses if address]


def _object(address: int) -> Any:
    return ctypes.cast(address, ctypes.py_object).value


@lru_cache(maxsize=256)
def _depth_below(code: CodeType, at: int) -> int | None:
    """Count the objects on the value stack below what the call at ``at`` takes.

    Found as a compiler finds it: by following every way through the code.
    """
    steps = list(dis.get_instructions(code))
    numbers = {one.offset: k for k, one in enumerate(steps)}
    depths, todo = {0: 0}, [0]
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        depths[entry.target] = entry.depth + 1 + bool(entry.lasti)
        todo.append(entry.target)
    while todo:
        offset = todo.pop()
        for target, depth in _nexts(steps, numbers[offset], depths[offset]):
            if target not in depths:
                depths[target] = depth
                todo.append(target)
    # An instruction has space behind it for what Python learns of it; a frame may point there.
    offset = max((one for one in numbers if one <= at), default=0)
    if offset not in depths:
        return None
    step = steps[numbers[offset]]
    if step.opname == _LEAVES:
        return max(0, depths[offset] - 1)
    effect = dis.stack_effect(step.opcode, step.arg, jump=False)
    return max(0, depths[offset] + effect - 1)


def _nexts(steps: list[dis.Instruction], number: int, depth: int) -> Iterator[tuple[int, int]]:
    """Yield where the code may go on after an instruction, and how many objects there are then."""
    step = steps[number]
    if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
        yield step.argval, depth + dis.stack_effect(step.opcode, step.arg, jump=True)
    if step.opname not in _NEVER_FALLS and number + 1 < len(steps):
        effect = dis.stack_effect(step.opcode, step.arg, jump=False)
        # Python 3.11 counts this one in the function that calls the generator's.
        effect = 1 if step.opname == "RETURN_GENERATOR" else effect
        yield steps[number + 1].offset, depth + effect


def positions_of(frame: FrameType) -> list[Any]:
    """The iterators of a frame, with those within generators (``trange``) in their places."""
    return [inner for one in iterators_of(frame) or [] for inner in _within(one)]


def _within(iterator: Any) -> list[Any]:
    """An iterator, and those that a zip has, or a generator which is not running."""
    if not isinstance(iterator, GeneratorType):
        return [iterator, *(inner for one in _zipped(iterator) for inner in _in_zip(one))]
    frame = iterator.gi_frame
    if frame is None or iterator.gi_running:
        return [iterator]
    return [iterator, *(inner for one in _stack_of(frame) or [] for inner in _inner(one))]


def _zipped(iterator: Any) -> tuple[Any, ...]:
    """The iterators that a zip or map reads, also in an enumerate; none: it is another, or over."""
    kind = type(iterator)
    if kind is enumerate:
        inner = iterator.__reduce__()[1][0]
        return (inner,) if type(inner) in _READ_SEVERAL else ()
    if kind not in _READ_SEVERAL:
        return ()
    read: tuple[Any, ...] = iterator.__reduce__()[1]
    return read if kind is zip else read[1:]  # behind the function


def _in_zip(value: Any) -> list[Any]:
    if type(value) is enumerate:
        return [value, *_in_zip(value.__reduce__()[1][0])]
    return _inner(value)


_READ_SEVERAL: tuple[type, ...] = (zip, map)


def _zips_of(frame: FrameType | None) -> list[Any]:
    """The zips that wait for a batch: around the loop, or within a library's generator."""
    found = list[Any]()
    while frame is not None:
        code = frame.f_code
        passes_on = bool(code.co_flags & inspect.CO_GENERATOR)  # maybe by ``yield from``
        asks = passes_on or is_in_for(frame)
        held = (iterators_of(frame) or [None])[-1] if asks else None
        if _zipped(held):
            found.append(held)
        if is_scripts(code.co_filename) and not passes_on:
            break
        frame = frame.f_back
    return found


def zipped_with_batches(frame: FrameType) -> list[Any]:
    """The iterators in the zips through which a frame's ``for`` statement waits for a batch."""
    return [inner for held in _zips_of(frame) for inner in _within(held)[1:]]


def lost_in_zip(frame: FrameType) -> str:
    """Name what a zip has that cannot go on where it was, while it waits for a batch.

    What stands before the batches is taken by then; behind them it must be of a known kind.
    """
    return ", ".join(lost for held in _zips_of(frame) if (lost := _lost_in(held)))


def _lost_in(held: Any) -> str:
    first, *others = _zipped(held)
    if reached(_counted(first)) is not None:
        return f"a {type(_counted(first)).__name__} before them"
    named = [f"a {type(one).__name__}" for one in others if not _goes_back(one)]
    return ", ".join(filter(None, [_lost_in(first) if _zipped(first) else "", *named]))


def _counted(value: Any) -> Any:
    return value.__reduce__()[1][0] if type(value) is enumerate else value


def _goes_back(value: Any) -> bool:
    value = _counted(value)
    if inner := _zipped(value):
        return all(map(_goes_back, inner))
    return reached(value) is not None and type(value) is not itertools.count


def _inner(value: Any) -> list[Any]:
    return _within(value) if hasattr(type(value), "__next__") else []


def is_in_for(frame: FrameType) -> bool:
    """Tell whether a frame waits for the next element of a ``for`` statement, and not in a call."""
    return _is_for(frame.f_code, frame.f_lasti)


def targets_of(frame: FrameType) -> frozenset[str]:
    """Return the names that the ``for`` statement binds for whose next element a frame waits."""
    return _targets(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=256)
def _targets(code: CodeType, at: int) -> frozenset[str]:
    steps = [one for one in dis.get_instructions(code) if one.offset >= at]
    if not steps or steps[0].opname != "FOR_ITER":
        return frozenset()
    found = set[str]()
    for one in steps[1:]:
        if one.opname.startswith("STORE_"):
            names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            found.update(name for name in names if isinstance(name, str))
            if "LOAD" in one.opname:  # the body begins in the same instruction
                break
        elif not one.opname.startswith("UNPACK_") and one.opname not in _PASSES:
            break
    return frozenset(found)


def drops_iterator(frame: FrameType) -> bool:
    """Tell whether a frame drops a ``for`` statement's iterator as it leaves it, by no error."""
    found = [one for one in dis.get_instructions(frame.f_code) if one.offset <= frame.f_lasti]
    return bool(found) and found[-1].opname == _LEAVES


def asks_by_itself(frame: FrameType) -> bool:
    """Tell whether a frame asks for batches in a ``for`` statement or by ``next``.

    Else a call does, or a comprehension, which has collected something that no variable holds.
    """
    return frame.f_code.co_name not in _COMPREHENSIONS and _asks(frame.f_code, frame.f_lasti)


_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


@lru_cache(maxsize=256)
def _asks(code: CodeType, at: int) -> bool:
    if _is_for(code, at):
        return True
    found = [*dis.get_instructions(code)]
    line = next((one.positions for one in found if one.offset == at), None)
    lines = {line.lineno if line is not None else 0}
    same = (one for one in found if one.positions is not None and one.positions.lineno in lines)
    return any(one.argval in ("next", "__next__", "anext") for one in same)


@lru_cache(maxsize=256)
def _is_for(code: CodeType, at: int) -> bool:
    before = [one for one in dis.get_instructions(code) if one.offset <= at]
    return bool(before) and before[-1].opname.startswith("FOR_ITER")


# ---------------------------------------------------------------------------- positions

_RANGE = type(iter(range(0)))
_INDEXED: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter("a")), type(iter("ä")))
_AT_INDEX = 2
"""Words before the count in an ``enumerate``."""


class IteratorAt(NamedTuple):
    """Position of an iterator."""

    kind: str
    at: int


def reached(iterator: Any) -> IteratorAt | None:
    """Return the position of an iterator if it can be read and set; None: it cannot."""
    if type(iterator) is _RANGE:
        made: Any = iterator.__reduce__()
        numbers, index = made[1][0], (made[2] or 0) if len(made) > 2 else 0
        return IteratorAt("range", numbers[index] if index < len(numbers) else numbers.stop)
    if type(iterator) in _INDEXED:
        reduced: Any = iterator.__reduce__()
        return IteratorAt("sequence", reduced[2]) if len(reduced) > 2 else None
    if type(iterator) is enumerate:
        told: Any = iterator.__reduce__()
        return IteratorAt("enumerate", told[1][1])
    if type(iterator) is itertools.count:
        counted: Any = iterator.__reduce__()
        at = counted[1][0]
        return IteratorAt("count", at) if isinstance(at, int) else None
    return None


def reach(iterator: Any, wanted: IteratorAt, *, back: bool = False) -> bool:
    """Have an iterator go on from where another one was; False: it cannot.

    Args:
        iterator: of a kind that `reached` knows.
        wanted: where it should be.
        back: whether it may go back. An ``enumerate`` always may.
    """
    own = reached(iterator)
    if own is None or own.kind != wanted.kind:
        return False
    if own == wanted:
        return True
    match wanted.kind:
        case "range":
            return _return_to(iterator, wanted) if back else _pass_to(iterator, wanted)
        case "count":
            return own.at < wanted.at and _pass_to(iterator, wanted)
        case "sequence":
            if back or own.at < wanted.at:
                iterator.__setstate__(wanted.at)
            return reached(iterator) == wanted
        case "enumerate":
            return _set_count(iterator, own.at, wanted.at)
        case _:
            return False


def _return_to(iterator: Any, wanted: IteratorAt) -> bool:
    """Set a range's iterator back to a number that it has given before."""
    made: Any = iterator.__reduce__()
    numbers = made[1][0]
    if made[2] is not None:  # Python 3.11 counts
        if wanted.at in numbers:
            iterator.__setstate__(numbers.index(wanted.at))
        return reached(iterator) == wanted
    # From 3.12 on it holds what is left: the next number, the step, and how many.
    fields = (ctypes.c_long * 3).from_address(id(iterator) + _AT_INDEX * _WORD)
    given, rest = divmod(numbers.start - wanted.at, numbers.step)
    if [*fields] != [numbers.start, numbers.step, len(numbers)] or rest or given < 0:
        return False
    fields[0], fields[2] = wanted.at, len(numbers) + given
    return reached(iterator) == wanted


def _pass_to(iterator: Any, wanted: IteratorAt) -> bool:
    """Take from an iterator until it is there."""
    return any(reached(iterator) == wanted for _ in iterator)


def _set_count(iterator: Any, before: int, wanted: int) -> bool:
    """Set the count of an ``enumerate``, which has no method for it."""
    address = id(iterator) + _AT_INDEX * _WORD
    if sys.implementation.name != "cpython" or _word(address) != before:
        return False
    count = ctypes.c_ssize_t.from_address(address)
    count.value = wanted
    if iterator.__reduce__()[1][1] == wanted:
        return True
    count.value = before
    return False


def counts_of(frame: FrameType | None) -> list[Any]:
    """The ``enumerate`` objects that wait for a batch: around the loop, or within a library's.

    Args:
        frame: of the function that asked for the batch.
    """
    found = list[Any]()
    while frame is not None:
        held = (iterators_of(frame) or [None])[-1]
        inner = held.__reduce__()[1][0] if type(held) is enumerate else held
        if inner is not held:
            found.append(held)
        code = frame.f_code
        if is_scripts(code.co_filename) and not code.co_flags & inspect.CO_GENERATOR:
            break
        frame = frame.f_back
    return found


def modules_of(chain: list[FrameType]) -> list[ModuleType]:
    """The modules whose globals are the script's: the started one, its frames', what these use."""
    names = ["__main__", *(str(one.f_globals.get("__name__")) for one in chain)]
    own = [name for name in dict.fromkeys(names) if is_scripts_module(name)]
    for name in [*own]:
        own += _used_by(name, len(vars(sys.modules[name]))) if name in sys.modules else ()
    found = (sys.modules.get(name) for name in dict.fromkeys(own))
    return [one for one in found if one is not None]


@lru_cache(maxsize=256)
def _used_by(name: str, num_names: int) -> tuple[str, ...]:
    """Names of the script's other modules of which this one has something; its names may grow."""
    held = [*vars(sys.modules[name]).values()]
    modules = {
        one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None)
        for one in held
        if isinstance(one, ModuleType | FunctionType | type)
    }
    hidden = ("__main__", "__mp_main__", name)
    own = (one for one in modules if one and one not in hidden and is_scripts_module(one))
    return tuple(sorted(one for one in own if _may_change(sys.modules[one])))


_FIXED = (ModuleType, FunctionType, type, int, float, complex, str, bytes, type(None), TypeVar)


def _may_change(module: ModuleType) -> bool:
    """Tell whether a module has a container, an object, or a function that sets its globals."""
    for name, value in [*vars(module).items()]:
        if name.startswith("__") or type(value).__module__ in ("typing", "types"):
            continue
        if not isinstance(value, _FIXED):
            return True
        functions = vars(value).values() if isinstance(value, type) else (value,)
        if any(_sets_globals(one) for one in functions if isinstance(one, FunctionType)):
            return True
    return False


def _sets_globals(function: FunctionType) -> bool:
    return any(one.opname == "STORE_GLOBAL" for one in dis.get_instructions(function.__code__))
