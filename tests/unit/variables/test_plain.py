"""Plain data that travels to another worker, or into a cut, is of the same types when it arrives."""

import array
import datetime
import pathlib
import sys
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.runtime.state.packed import packed, unpacked
from paceline.runtime.variables import kinds
from paceline.runtime.variables.spelled import NoPlainError


class Pair(NamedTuple):
    one: Any
    two: Any


class Run(Pair):
    """A named tuple that makes others with code of its own."""

    @classmethod
    def _make(cls, _: Any) -> "Run":
        raise AssertionError


class Forged(tuple[Any, ...]):
    _make = _fields = print


class Color(Enum):
    RED = "red"
    BLUE = (1, 2)


class Level(IntEnum):
    LOW = 1


class Parts(Flag):
    ONE = 1
    TWO = 2


@dataclass
class Record:
    step: int
    held: Any


class Whole(int):
    """A number of a class of its own."""


class Window(list[Any]):
    """A list of a class of its own."""


class Attributes(dict[str, Any]):
    """A dictionary whose items are its attributes."""

    def __init__(self, *args: Any, **names: Any) -> None:
        super().__init__(*args, **names)
        self.__dict__ = self


OFFSET = datetime.timezone(datetime.timedelta(hours=2), "here")
HASHABLE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.integers(0, 9).map(Whole),
    st.sampled_from([*Color, Level.LOW, Parts.ONE, Parts.ONE | Parts.TWO, Parts(0)]),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.datetimes(timezones=st.sampled_from([None, datetime.UTC, OFFSET])).map(
        lambda moment: moment.replace(fold=0)
    ),
    st.dates(),
    st.times().map(lambda time: time.replace(fold=0)),
    st.timedeltas(),
    st.sampled_from([datetime.UTC, OFFSET]),
    st.sampled_from([pathlib.Path("a/b"), pathlib.PurePath("c")]),
    st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint64, np.bool_]).flatmap(
        lambda kind: st.integers(0, 1).map(kind)
    ),
    st.sampled_from([np.str_("text"), np.complex64(1j), np.datetime64("2026-01-02"), np.bytes_()]),
    st.lists(st.integers(0, 5), max_size=3).map(torch.Size),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.strided]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")]),
    st.sampled_from([np.dtype("f4"), np.dtype("<U3"), range(3), range(9, 0, -2)]),
)
KEYS = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.tuples(inner, inner), st.frozensets(inner, max_size=2), st.builds(Pair, inner, inner)
    ),
    max_leaves=4,
)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        KEYS,
        st.sets(KEYS, max_size=3),
        st.sampled_from(["paceline:enum", "paceline:shaped"]).map(lambda tag: [tag, "a", "b", 1]),
        st.just(array.array("d", [1.0, 2.0])),
        st.binary(max_size=3).map(bytearray),
        st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(torch.tensor),
        st.lists(st.integers(0, 9), max_size=3).map(np.asarray),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(Window),
        st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 3, 8])),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
        st.dictionaries(KEYS, inner, max_size=3).map(lambda held: defaultdict(list, held)),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3).map(Attributes),
        st.dictionaries(KEYS, st.integers(0, 5), max_size=3).map(Counter),
        st.builds(Pair, inner, inner),
        st.builds(Record, st.integers(0, 5), inner),
    ),
    max_leaves=8,
)


def spelled_out(value: Any) -> Any:
    """A value with the type of each part of it."""
    kind = type(value)
    match value:
        case torch.Tensor():
            return kind, value.dtype, value.tolist()
        case np.ndarray():
            return kind, value.dtype, value.tolist()
        case dict():
            pairs = [(spelled_out(key), spelled_out(one)) for key, one in value.items()]
            factory = getattr(value, "default_factory", None)
            return kind, factory, getattr(value, "__dict__", None) is value, pairs
        case list() | tuple() | deque():
            return kind, getattr(value, "maxlen", None), [*map(spelled_out, value)]
        case set() | frozenset():
            return kind, sorted(map(str, map(spelled_out, value)))
        case Record():
            return kind, spelled_out(vars(value))
        case datetime.datetime() | datetime.time():
            return kind, repr(value), repr(value.tzinfo)
        case _:
            return kind, repr(value)


def travelled(value: Any) -> Any:
    return unpacked(packed(kinds.BY_NAME["plain"].taken(value), "it"))


@given(PLAIN)
def test_what_arrives_is_of_the_types_that_it_was(value: Any) -> None:
    expected = spelled_out(value)
    plain = kinds.BY_NAME["plain"]
    for own in (None, plain.put(None, travelled(value))):
        assert spelled_out(plain.put(own, travelled(value))) == expected
    assert spelled_out(value) == expected, "what is handed over stays as it is"


def test_containers_stay_the_objects_that_they_are() -> None:
    own = {"log": OrderedDict(a=[1]), "last": deque([1], 3), "by": defaultdict(lambda: [7], x=[1])}
    held = {name: id(one) for name, one in own.items()} | {"a": id(own["log"]["a"])}
    theirs = {"log": OrderedDict(b=1, a=[1, 2]), "last": deque([2], 3)}
    theirs["by"] = defaultdict(lambda: [7], x=[1, 2])
    became = kinds.BY_NAME["plain"].put(own, travelled(theirs))
    assert became is own and became == theirs
    assert {name: id(became[name]) for name in theirs} | {"a": id(became["log"]["a"])} == held
    assert became["by"]["new"] == [7], "what makes its items is a function of the script's"


def of_function() -> Any:
    class Inner(dict[str, int]):
        pass

    return Inner(a=1)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")), "zone UTC"),
        (datetime.time(1, 2, fold=1), "fold=1"),
        (np.zeros(1, dtype=[("a", "f4")])[0], "of several fields"),
        (np.dtype([("a", "f4")]), "of several fields"),
    ],
)
def test_what_would_lose_a_part_does_not_travel(value: Any, words: str) -> None:
    with pytest.raises(NoPlainError, match=words):
        kinds.BY_NAME["plain"].taken([value])


@pytest.mark.parametrize(
    "forged",
    [
        ["paceline:shaped", "class", ["subprocess", "Popen", ""], ["true"]],
        ["paceline:shaped", "class", ["builtins", "eval", ""], "1"],
        ["paceline:shaped", "class", ["os", "path.nothing", ""], []],
        ["paceline:shaped", "defaultdict", "eval", []],
        ["paceline:shaped", "Popen", None, []],
        ["paceline:text", "dtype", "torch.load"],
        ["paceline:number", 1, 2],
        ["paceline:record", "torch._tensor_str", "__PrinterOptions", {"precision": 1}],
    ],
)
def test_nothing_but_data_is_made_of_what_arrives(forged: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        kinds.BY_NAME["plain"].put(None, forged)


def test_nothing_is_computed_to_find_or_make_what_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, module = list[str](), ModuleType("lazy")
    module.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", module)
    put = kinds.BY_NAME["plain"].put
    with pytest.raises(ValueError, match="no Enum"):
        put(None, ["paceline:enum", "lazy", "part.Color", "RED"])
    assert put(None, ["paceline:named", "lazy", "Pair", 1, 2]) == (1, 2)
    named = ["paceline:named", __name__, "Run", 1, 2]
    assert (type(put(None, named)), type(put(None, [named])[0])) == (Run, Run)
    assert put(Run(3, 4), named) == (1, 2)
    assert type(put(None, ["paceline:named", __name__, "Forged", 1, 2])) is tuple
    assert type(put(None, [*named, 3])) is tuple, "of other parts than the class has"
    assert asked == []


def test_who_has_no_value_of_a_class_makes_one_if_it_can() -> None:
    value = of_function()
    became = kinds.BY_NAME["plain"].put(None, travelled([value]))
    assert (type(became[0]), became[0]) == (type(value), {"a": 1})
    counted = Window([1])
    counted.seen = 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="has attributes"):
        kinds.BY_NAME["plain"].put(None, travelled(counted))
    own = Window()
    assert kinds.BY_NAME["plain"].put(own, travelled(counted)) is own
    assert own == [1]
