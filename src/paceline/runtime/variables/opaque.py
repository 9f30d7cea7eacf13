"""Values that can be told apart, but not handed over: iterators, generators, queues, streams.

A script that loses the position of an ``itertools.cycle`` trains on otherwise, and nobody would
know. So such a value has a digest, made of what Python's copying would take of it: if that changes,
the variable is named.
"""

import queue
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import GeneratorType
from typing import Any

DEEPEST = 4
"""Values within values that are looked at."""
MOST_PARTS = 1 << 12
"""Elements of one value that are looked at."""


def is_opaque(value: Any) -> bool:
    """Tell whether a value is of Python's own library, and goes on as a script uses it."""
    kind = type(value)
    if isinstance(value, GeneratorType):
        return not value.gi_running  # else its variables are looked at themselves
    root = kind.__module__.partition(".")[0]
    is_iterator = root in sys.stdlib_module_names and hasattr(kind, "__next__")
    return is_iterator or root in _WITH_STATE or isinstance(value, threading.local)


_WITH_STATE = frozenset(["collections", "contextvars", "_contextvars", "io", "_io", "queue"])


def seen_opaque(value: Any, plain: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return what tells a value from another, as plain data.

    Args:
        value: any.
        plain: digests plain data, and raises TypeError for anything else.
        depth: values around it.

    Raises:
        TypeError: it cannot be told.
    """
    try:
        return plain(value)
    except TypeError:
        pass
    name = type(value).__qualname__
    try:
        if depth > DEEPEST or not is_opaque(value):
            raise TypeError(f"a {name} is not looked into")
        parts = _parts_of(value)
    except TypeError:
        if depth:
            return name
        raise
    if len(parts) > MOST_PARTS:
        raise TypeError(f"a {name} of more than {MOST_PARTS} parts")
    return [name, *(seen_opaque(one, plain, depth + 1) for one in parts)]


def _parts_of(value: Any) -> list[Any]:
    match value:
        case GeneratorType():
            frame = value.gi_frame
            return [] if frame is None else [frame.f_lasti, *frame.f_locals.items()]
        case ContextVar():
            return [value.get(None)]
        case threading.local():
            return [*vars(value).items()]
        case queue.Queue():
            return list(value.queue)
        case dict():
            return [*value.items()]
        case list() | tuple() | set() | frozenset():
            return [*value]
        case _:
            return _taken_apart(value)


def _taken_apart(value: Any) -> list[Any]:
    """Return the parts of a value that Python's copying would take."""
    try:
        made: Any = value.__reduce_ex__(2)
    except Exception as error:
        raise TypeError(f"a {type(value).__qualname__} cannot be taken apart") from error
    if isinstance(made, str):
        return [made]
    _, arguments, *rest = made
    state, *inner = [*rest, None, None, None][:3]
    return [*arguments, state, *(part for one in inner if one is not None for part in one)]
