"""A script's variables: taken back after a broken step, compared among members, handed over."""

import array
import copy
import datetime
import importlib
import itertools
import random
import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.data import TensorDataset

from paceline.runtime.state.packed import pack, unpack
from paceline.runtime.variables import kinds
from paceline.runtime.variables.behind import BehindStep
from paceline.runtime.variables.large import LargeTensors
from paceline.runtime.variables.look import Besides, ScriptLook
from paceline.runtime.variables.mark import BodyMark
from paceline.runtime.variables.naming import line_of
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.feeds import Feed


class Pair(NamedTuple):
    one: int
    two: float


class Color(Enum):
    RED = "red"
    BLUE = "blue"
    BOTH = (torch.float32, torch.float64)


class Whole(int):
    """A number of a class of the script's own."""


@dataclass(frozen=True, slots=True)
class Transition:
    action: int
    state: tuple[float, ...]


class Stopper:
    def __init__(self) -> None:
        self.best, self.bad, self.seen = 9.0, 0, list[float]()

    def step(self, value: float) -> None:
        self.seen.append(value)
        self.bad += 1
        self.best = min(self.best, value)


def undo_of(frame: FrameType, change: Any, **kept: Any) -> list[Any]:
    mark = BodyMark([frame], kept)
    change()
    return mark.undo([frame])


def test_what_a_body_has_done_is_taken_back() -> None:
    count, total, losses, log = 0, 0.0, [1.0], {"a": 1}
    per_class, window, names = defaultdict[str, list[int]](list), deque([1], maxlen=3), {"x"}
    stopper, args, counts = Stopper(), Namespace(lr=0.1), Counter("aab")
    drawn, own, legacy = (
        np.random.default_rng(1),
        torch.Generator().manual_seed(1),
        random.Random(1),
    )
    mean, array, inner = torch.zeros(3), np.zeros(3), [[1], {"k": [2]}]
    weight = torch.ones((), requires_grad=True)
    summed, added = weight * 1, weight * 1
    before = [drawn.bit_generator.state["state"], own.get_state(), legacy.getstate()]

    def tick() -> int:
        nonlocal count
        count += 1
        return count

    def body() -> None:
        nonlocal total, summed, added
        summed += weight * 2  # in place
        added = added + weight * 2
        tick()
        total += 1.0
        losses.append(2.0)
        log.update(a=2, b=3)
        per_class["y"].append(1)
        window.append(5)
        names.add("z")
        stopper.step(1.0)
        args.lr = 0.5
        counts.update("b")
        drawn.random()
        torch.rand((), generator=own)
        legacy.random()
        mean.add_(1)
        array[:] = 1
        inner[0].append(3)
        inner[1]["k"].append(3)  # type: ignore[call-overload]

    assert undo_of(sys._getframe(), body) == []
    assert (count, total, losses, log) == (0, 0.0, [1.0], {"a": 1})
    assert (dict(per_class), list(window), names) == ({}, [1], {"x"})
    assert (stopper.best, stopper.bad, stopper.seen) == (9.0, 0, [])
    assert (args.lr, counts, inner) == (0.1, Counter("aab"), [[1], {"k": [2]}])
    assert drawn.bit_generator.state["state"] == before[0]
    assert torch.equal(own.get_state(), before[1])
    assert legacy.getstate() == before[2]
    assert not mean.any() and not array.any()
    assert summed.item() == added.item() == 1.0
    (summed + added).backward()


def test_a_large_tensor_that_was_changed_in_place_is_named() -> None:
    average = torch.zeros(1 << 16)

    def body() -> None:
        average.add_(1)

    (left,) = undo_of(sys._getframe(), body)
    assert left is average


@pytest.mark.parametrize("is_module", [False, True])
def test_a_large_tensor_that_each_body_changes_is_taken_back(*, is_module: bool) -> None:
    module = torch.nn.BatchNorm1d(1 << 16).requires_grad_(False)
    average = torch.zeros(1 << 16)
    changed = module.running_mean if is_module else average
    trained = torch.nn.Linear(1, 1)
    assert changed is not None
    large, frame, others = LargeTensors(), sys._getframe(), [id(trained)]
    for number in range(4):
        mark = BodyMark([frame], large=large, others=others)
        changed.add_(1)
        with torch.no_grad():
            trained.weight.add_(1)
        if number == 3:
            assert mark.undo([frame]) == []
    assert changed.mean() == 3.0
    assert trained.weight.mean() > 3


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = torch.nn.Linear(2, 2), 0


@pytest.mark.parametrize(
    "make",
    [
        lambda one: ExponentialLR(one, 0.9),
        lambda one: OneCycleLR(one, 0.1, total_steps=20),  # momentum, too
        lambda one: LambdaLR(one, lambda k: 0.5**k),
        lambda one: CosineAnnealingWarmRestarts(one, 2),
        lambda one: SequentialLR(one, [ConstantLR(one), ExponentialLR(one, 0.9)], [2]),
        lambda one: ReduceLROnPlateau(one, patience=0),
    ],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_scheduler_that_is_not_the_jobs_is_taken_back(make: Any, *, as_tensor: bool) -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=torch.tensor(0.1) if as_tensor else 0.1, momentum=0.9)
    scheduler = make(optimizer)
    measure = () if not isinstance(scheduler, ReduceLROnPlateau) else (1.0,)

    def held() -> Any:
        group = {key: one for key, one in optimizer.param_groups[0].items() if key != "params"}
        state = {key: one for key, one in scheduler.state_dict().items() if key != "_schedulers"}
        return copy.deepcopy((group, state))

    optimizer.step()
    scheduler.step(*measure)
    before, others = held(), {id(model), id(optimizer)}
    mark = BodyMark([sys._getframe()], others=others)
    scheduler.step(*measure)
    after = held()
    assert after != before
    assert not mark.undo([sys._getframe()])
    assert held() == before
    scheduler.step(*measure)
    assert held() == after, "it goes on from there"


def test_rates_by_hand_are_taken_back_unless_they_have_become_anothers() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.5)
    rate = optimizer.param_groups[0]
    for becomes, expected in ((False, 0.5), (True, 0.25)):
        variables = Variables(found=True)
        variables.others = {id(optimizer)}
        variables.waits_in(sys._getframe())
        variables.mark()
        rate["lr"] *= 0.5
        rate["new"] = 1
        if becomes:
            variables.become(None)
        variables.undo()
        assert rate["lr"] == expected


def test_an_optimizer_that_is_not_the_jobs_is_taken_back_with_its_state() -> None:
    own = nn.Parameter(torch.ones(3))
    optimizer = SGD([own], lr=0.1, momentum=0.9)
    for _ in range(2):
        own.grad = torch.ones(3)
        optimizer.step()
    before = own.detach().clone(), optimizer.state[own]["momentum_buffer"].clone()
    mark = BodyMark([sys._getframe()])
    optimizer.step()
    assert not mark.undo([sys._getframe()])
    assert torch.equal(own, before[0])
    assert torch.equal(optimizer.state[own]["momentum_buffer"], before[1])


def test_modules_are_taken_back_but_for_those_of_the_job() -> None:
    average, prepared, plain = Net().requires_grad_(False), Net(), torch.nn.BatchNorm1d(3)
    both = torch.nn.ModuleList([average, prepared])
    before = [one.clone() for one in (*average.parameters(), *plain.buffers())]
    trained = [one.detach() + 1 for one in prepared.parameters()]
    mark = BodyMark([sys._getframe()], others={id(one) for one in prepared.modules()})
    with torch.no_grad():
        for param in both.parameters():
            param.add_(1)
    average.seen = 5
    plain(torch.randn(4, 3))
    assert mark.undo([sys._getframe()]) == []
    after = (*average.parameters(), *plain.buffers())
    assert all(map(torch.equal, after, before)) and average.seen == 0
    assert all(map(torch.equal, prepared.parameters(), trained))


def test_a_large_average_is_named_by_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    member, average = Variables(found=True), torch.nn.Sequential(torch.nn.Linear(300, 300))
    member.begin_loop(loop())
    member.waits_in(sys._getframe())
    member.mark()
    with torch.no_grad():
        average[0].weight.add_(1)
    member.undo()
    assert member.missed
    told = capsys.readouterr().err
    assert "`average` (test_variables.py:" in told and "changes twice" in told


def test_an_average_of_weights_follows_also_beside_the_jobs_model() -> None:
    def look_of(scale: float, others: set[int]) -> dict[str, Any]:
        average, prepared = Net(), Net()
        torch.nn.init.constant_(average.inner.weight, scale)
        both = torch.nn.ModuleDict({"average": average, "prepared": prepared})
        others.update(id(one) for one in prepared.modules())
        return {
            path.rpartition("look_of.")[2]: leaf
            for path, leaf in ScriptLook([sys._getframe()], others).leaves.items()
            if both is not None and leaf.kind.name == "state"
        }

    (own,), (theirs,) = (look_of(scale, set()).items() for scale in (0.0, 1.0))
    assert own[0] == theirs[0] == "average"
    own[1].kind.put(own[1].value, theirs[1].kind.taken(theirs[1].value))
    assert own[1].value.inner.weight.eq(1).all()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library that drives loops; it lies where installed ones do."""
    jobs = Path(__file__).parents[2] / "integration" / "jobs"
    monkeypatch.syspath_prepend(jobs / "site-packages")
    return importlib.import_module("engines")


def test_what_a_library_holds_is_taken_back_and_handed_over(engines: Any) -> None:
    meter, engine = engines.Mean(), engines.Engine(None)
    engine.on_epoch(engines.Stopper(2))
    engine.held = memoryview(b"of its own")

    def body() -> None:
        meter.update(2.0)
        engine.state.metrics["loss"] = 1.0
        engine._handlers[0](engine)
        engine.late, engine.held = 1, None

    assert undo_of(sys._getframe(), body) == []
    assert (meter.count, engine.state.metrics, engine._handlers[0].best) == (0, {}, float("inf"))
    assert not hasattr(engine, "late")
    assert engine.held is None, "what is not plain data is the library's"
    look = ScriptLook([sys._getframe()])
    names = {path.partition("handed_over.")[2].removeprefix("body.") for path in look.of_libraries}
    assert {"meter.total", "engine.state.epoch", "engine._handlers[0].best"} <= names


def test_what_an_agent_acts_in_follows_and_what_nobody_can_look_into_is_named(
    engines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    handed = dict[str, Any]()

    def ask(variables: Variables, step: int) -> None:
        variables.begin_loop(loop((0, -1, 0)))
        variables.waits_in(sys._getframe(1))
        if handed:
            variables.become(unpack(pack(handed)))
            assert variables.take()
        elif step < 2:
            variables.compare([variables.table()])
        else:
            handed.update(variables.state_of() or {})

    for steps in (3, 1):
        variables, environment = Variables(found=True), engines.Environment()
        for step in range(steps):
            environment.step(1.0)
            ask(variables, step)
    assert environment.at == 3.0
    told = capsys.readouterr().err
    assert "`environment.memory` of the script is a Renderer, and begins as" in told


def test_an_engine_that_has_left_its_epoch_is_set_back_into_it(engines: Any) -> None:
    variables, counts = Variables(found=True), list[int]()

    left, again = bytearray([3]), bytearray([0])  # no kind that is taken back

    class Batches:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            variables.begin_loop(loop())
            return self

        def __next__(self) -> int:
            variables.waits_in(sys._getframe(1))
            if left[0]:
                variables.mark()
            elif again[0]:
                left[0], again[0] = 3, 0
                raise StopIteration
            else:  # the last step comes again
                variables.undo()
                left[0], again[0] = 1, 1
            left[0] -= 1
            return left[0]

    engine = engines.Engine(lambda engine, _: counts.append(engine.state.iteration))
    ends = list[tuple[int, int]]()
    engine.on_epoch(lambda engine: ends.append((engine.state.epoch, engine.state.iteration)))
    engine.run(Batches(), 2)
    assert counts == [1, 2, 3, 4, 5, 6]
    assert ends == [(1, 3), (2, 6)]


def test_job_state_is_taken_back() -> None:
    held = {"best": 1.0, "history": [1]}

    def body() -> None:
        held["best"] = 2.0
        held["history"].append(2)  # type: ignore[attr-defined]

    mark = BodyMark([sys._getframe()], held)
    body()
    mark.undo([sys._getframe()])
    assert held == {"best": 1.0, "history": [1]}


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n,
        lambda n: 1 << 70 | n,
        lambda n: float(n) if n else float("inf"),
        lambda n: f"text {n}",
        lambda n: [n, [n, {"k": (n, None)}]],
        lambda n: {n: [1.5], "x": {n}},
        lambda n: Pair(n, 2.0),
        lambda n: deque([n], maxlen=4),
        lambda n: frozenset([n]),
        np.float32,
        lambda n: np.full(3, n),
        lambda n: [np.full(3, n), np.full(2, n)],
        lambda n: [*Color][n],
        lambda n: {"color": [*Color][n], "at": Decimal(n)},
        lambda n: datetime.timedelta(days=n, microseconds=3),
        lambda n: datetime.datetime(2026, 1, 1 + n, tzinfo=datetime.UTC),
        Fraction,
        lambda n: Path(str(n)),
        lambda n: bytearray([n, 2]),
        lambda n: array.array("d", [n, 2.0]),
        Whole,
        lambda n: deque([Transition(n, (0.5, n))]),
        lambda n: OrderedDict([(n, 1), (2, n)]),
        lambda n: torch.full((2, 2), n),
        lambda n: torch.Generator().manual_seed(n),
        np.random.default_rng,
        np.random.RandomState,
        random.Random,
        lambda n: TensorDataset(torch.full((3, 1), n), torch.zeros(3)),
        lambda n: torch.nn.Linear(1, 1).requires_grad_(bool(n)),
    ],
)
def test_each_kind_of_value_becomes_what_a_peer_has(make: Any) -> None:
    own, theirs = make(0), make(1)
    kind = kinds.kind_of(own)
    assert kind is not None
    travelled = unpack(pack(kind.taken(theirs)))
    became = kind.put(own, travelled)
    assert type(became) is type(theirs)
    assert kinds.digest_of(kind.seen(became)) == kinds.digest_of(kind.seen(theirs))
    if isinstance(own, list | dict | deque | np.ndarray | torch.Tensor | TensorDataset):
        assert became is own


class Batches:
    """Three batches of a loop. Who goes through them when something was handed over takes it."""

    def __init__(self, handed: dict[str, Any]) -> None:
        self.variables, self.handed, self.left = Variables(found=True), handed, 3
        self.follows = bool(handed)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        self.variables.begin_loop(loop((0, -1, 0)))
        self.variables.waits_in(sys._getframe(1))
        if self.follows and self.left == 2:
            self.variables.become(unpack(pack(self.handed)))
            assert self.variables.take()
        elif self.left:
            self.variables.compare([self.variables.table()])
        elif not self.follows:
            self.handed.update(self.variables.state_of() or {})
        return self.left


def held_of(make: Any, change: Any) -> Any:
    """What a script holds that takes over what another one has changed twice."""
    handed = dict[str, Any]()
    for follows in (False, True):
        held, batches = make(), Batches(handed)
        for _ in batches:
            if follows:
                break
            held = change(held)
    return held


class Counted(list[int]):
    """A list of a class of the script's own, whose objects have attributes."""

    def __init__(self) -> None:
        super().__init__([1])
        self.size = 1


@pytest.mark.parametrize("make", [lambda: defaultdict(lambda: 0, a=1), Counted])
@pytest.mark.parametrize("which", ["leaves", "last"])
def test_what_a_new_life_cannot_make_is_named(
    make: Any, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = kinds.BY_NAME["plain"].taken(make())
    overflows = ["paceline:text", "timedelta", f"{10**12} 0 0"]

    handed, seen = dict[str, Any](), -1
    for follows in (False, True):
        if follows:
            frame = sys._getframe().f_code.co_name
            paths = {f"{frame}.later_one": taken, f"{frame}.later_two": overflows}
            leaves = {path: ["plain", one] for path, one in paths.items()}
            handed[which] |= leaves if which == "leaves" else paths
        batches = Batches(handed)
        for number in batches:
            if follows:
                break
            seen = number
    assert seen == 1
    said = capsys.readouterr().err
    assert all(f"`{name}`" in said for name in ("later_one", "later_two")), said
    assert said.count("could not be made: ") == 2


class Best(NamedTuple):
    epoch: int
    color: Color
    model: torch.nn.Module


def test_a_named_tuple_of_the_scripts_follows_part_by_part() -> None:
    became = held_of(
        lambda: Best(0, Color.RED, torch.nn.Linear(1, 1)),
        lambda best: best._replace(epoch=best.epoch + 1, color=Color.BOTH),
    )
    assert (type(became), became.epoch, became.color) == (Best, 2, Color.BOTH)


def test_iterators_go_on_or_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    def step(one: Any) -> Any:
        next(one)
        return one

    assert next(held_of(lambda: iter([1, 2, 3, 4]), step)) == 3
    assert next(held_of(itertools.count, step)) == 2
    assert capsys.readouterr().err == ""
    makes: list[Any] = [lambda: itertools.cycle("abc"), lambda: (n for n in range(9))]
    for make in makes:
        held_of(make, step)
        told = capsys.readouterr().err
        assert "of the script does not follow to a new life, or over a resume" in told
        assert told.startswith("paceline: `held` (test_variables.py:")
        assert type(make()).__qualname__ in told


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("for", ""),
        ("next", ""),
        ("sum", "is in a call (sum, map, a comprehension)"),
    ],
)
def test_a_call_that_goes_through_the_loop_is_named(
    how: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handed = dict[str, Any]()
    for _ in range(2):
        batches = Batches(handed)
        if how == "for":
            for _batch in batches:
                pass
        elif how == "next":
            for _number in range(3):
                next(batches)
        else:
            sum(batches)
    told = capsys.readouterr().err
    assert words in told and ("loop at" in told) == bool(words)


def test_an_ordered_dictionary_is_told_by_its_own_order() -> None:
    moved = OrderedDict([(0, 1), (1, 1)])
    moved.move_to_end(0)
    (kind,) = {kinds.kind_of(moved)}
    assert kind is not None
    assert kind.seen(moved) == kind.seen(OrderedDict([(1, 1), (0, 1)]))
    mark = BodyMark([sys._getframe()])
    moved.move_to_end(1)
    mark.undo([sys._getframe()])
    assert [*moved] == [1, 0]


def test_a_life_whose_model_came_alone_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    for step, words in ((0, ""), (3, "since the model came without it")):
        variables = Variables(found=True)
        variables.begin_loop(loop())
        variables.waits_in(sys._getframe())
        variables.comes_to(step)
        variables.comes_to(step)
        told = capsys.readouterr().err
        assert told.count("does not follow to this life") == bool(words)
        assert words in told
        assert variables.missed == bool(words)


def test_named_tuples_arrive_as_such_where_there_were_none() -> None:
    (kind,) = {kinds.kind_of(one) for one in ([], {})}
    assert kind is not None
    inner = namedtuple("inner", "a")
    theirs = [Pair(1, 2.0), {"best": Pair(3, 4.0)}, inner(5)]
    became = kind.put([], unpack(pack(kind.taken(theirs))))
    assert became == theirs
    assert (type(became[0]), became[1]["best"].two, became[2].a) == (Pair, 4.0, 5)
    elsewhere = kind.put([], [["paceline:named", "os", "path", 1]])
    assert elsewhere == [(1,)], "a class that is not there is no class of this process"


def loop(place: tuple[int, ...] = (0, -1, 0)) -> Feed:
    return Feed(
        feed=0,
        purpose="train",
        num_samples=8,
        epochs=1,
        batch_size=4,
        shard_size=8,
        shuffle=False,
        seed=0,
        place=place,
        site="here",
    )


class Member:
    """A worker's script, as far as its variables go."""

    def __init__(self, rank: int, epochs: int = 0) -> None:
        self.variables = Variables(found=True)
        self.rank, self.epochs = rank, epochs

    def run(self, at_entry: Any) -> dict[str, Any]:
        """Go through some epochs; ``at_entry`` is called where it asks for a batch."""
        rank, best, history = self.rank, 9.0, list[float]()
        stopper, noise = Stopper(), random.Random(rank)
        shared = np.random.default_rng(3)
        for epoch in range(self.epochs):
            total = 0.0
            for batch in range(2):
                self.variables.begin_loop(loop((0, -1, epoch)))
                self.variables.waits_in(sys._getframe())
                at_entry(self, epoch, batch)
                self.variables.goes_on()
                total += rank + epoch + 1
                history.append(float(shared.random()))
            best = min(best, history[-1])
            noise.random()
            stopper.step(best)
        return {
            "best": best,
            "history": history,
            "bad": stopper.bad,
            "shared": shared.random(),
            "noise": noise.random(),
            "total": total,
        }


def test_a_joiner_takes_over_what_is_equal_in_all_and_keeps_its_own() -> None:
    tables: dict[tuple[int, int], list[Any]] = {}
    handed: dict[str, Any] = {}

    def note(member: Member, epoch: int, batch: int) -> None:
        tables.setdefault((epoch, batch), []).append(member.variables.table())

    Member(0, 6).run(note)
    undisturbed = Member(1, 6)

    def follow(member: Member, epoch: int, batch: int) -> None:
        note(member, epoch, batch)
        assert member.variables.compare(tables[epoch, batch]) == []
        if (epoch, batch) == (4, 0):
            state = member.variables.state_of()
            assert state is not None
            handed.update(unpack(pack(state)))

    joiner = Member(1, 6)

    def join(member: Member, epoch: int, batch: int) -> None:
        if (epoch, batch) == (0, 0):
            member.variables.begin_loop(loop((0, -1, 4)))
            member.variables.waits_in(sys._getframe(1))
            member.variables.become(handed)
            assert member.variables.take()

    scripts = (undisturbed, follow), (joiner, join)
    expected, became = [member.run(at_entry) for member, at_entry in scripts]
    assert "Member.run.best" in handed["leaves"]
    assert "Member.run.rank" not in handed["leaves"]
    assert "Member.run.noise" not in handed["leaves"]

    same = ("best", "history", "bad", "shared")
    assert {name: became[name] for name in same} == {name: expected[name] for name in same}


class Epochs:
    """A worker's script that goes on with what the last body of each loop has left."""

    def __init__(self, rank: int) -> None:
        self.variables, self.rank = Variables(found=True), rank

    def run(self, has_batch: Any) -> list[dict[str, Any]]:
        history, weight = list[dict[str, Any]](), torch.ones(2, requires_grad=True)
        for epoch in range(3):
            running: Any = 0.0
            meters = defaultdict[str, Stopper](Stopper)
            for number in range(3):
                self.variables.begin_loop(loop((0, -1, epoch)))
                self.variables.waits_in(sys._getframe())
                if not has_batch(self.variables, number):
                    break
                output = weight * (self.rank + 1)
                loss = output.sum() * (number + epoch + 1)
                running += loss
                meters["loss"].step(loss.item())
            mine = {"epoch": epoch, "loss": running.item() / 2, "at": f"{epoch}:00"}
            mine["best"] = meters["loss"].best
            history.append(mine | {"last": loss.item(), "shape": list(output.shape)})
        return history


def test_a_life_that_has_no_batch_of_a_loop_has_what_the_last_body_left() -> None:
    handed: dict[str, Any] = {}

    def follow(variables: Variables, number: int) -> bool:
        mine = variables.table()
        variables.compare([mine, [(path, value + 1) for path, value in mine]])
        if number == 2:
            state = variables.state_of(ended=True)
            assert state is not None
            handed.update(unpack(pack(state)))
        return number < 2

    def come_in(variables: Variables, _number: int) -> bool:
        variables.begin_loop(loop((0, -1, 2)))
        variables.become(handed)
        assert variables.take(ended=True)
        return False

    peer, joiner = Epochs(0), Epochs(1)
    expected, found = [one.run(how) for one, how in ((peer, follow), (joiner, come_in))]
    assert found == expected


def test_a_variable_that_was_shared_and_differs_is_named_with_its_line() -> None:
    member = Variables(found=True)
    count = 0
    for number in range(4):
        member.begin_loop(loop())
        member.waits_in(sys._getframe())
        mine = member.table()
        theirs = mine
        if number == 3:
            theirs = [(path, value + 1) for path, value in mine]
        found = member.compare([mine, theirs])
        count += 1
    named = {one.path.rpartition(".")[2]: one.line for one in found}
    assert named["count"].startswith("test_variables.py:")
    assert "member" not in named
    assert count == 4


def test_what_one_worker_alone_had_was_shared_with_nobody() -> None:
    member = Variables(found=True)
    loss = 0.5
    for number in range(5):
        member.begin_loop(loop())
        member.waits_in(sys._getframe())
        mine = member.table()
        others = [[(path, value + 1) for path, value in mine]] if number >= 3 else []
        assert not member.compare([mine, *others])
        loss *= 0.7
    assert loss < 0.1


class Chance:
    """Batches at which two workers compare what they hold: each gives values by its rank."""

    def __init__(self, looks: int) -> None:
        self.members = [Variables(found=True) for _ in range(2)]
        self.looks, self.named = looks, set[str]()

    def run(self, script: Any) -> set[str]:
        tables = list[list[Any]]()
        for rank, member in enumerate(self.members):
            script(rank, self._batches(member, rank, tables))
        return self.named

    def _batches(self, member: Variables, rank: int, tables: list[list[Any]]) -> Any:
        return Looking(self, member, rank, tables)


class Looking:
    def __init__(
        self, chance: Chance, member: Variables, rank: int, tables: list[list[Any]]
    ) -> None:
        self._chance, self._member, self._rank, self._tables = chance, member, rank, tables
        self._at = -1
        member.begin_loop(loop())

    def __iter__(self) -> "Looking":
        return self

    def __next__(self) -> Any:
        self._at += 1
        if self._at == self._chance.looks:
            raise StopIteration
        self._member.waits_in(sys._getframe(1))
        table = self._member.table()
        if self._rank == 0:
            self._tables.append(table)
        else:
            found = self._member.compare([self._tables[self._at], table])
            self._chance.named.update(one.name.rpartition(".")[2] for one in found)
        differs = self._at >= 3
        return torch.full((2,), float(self._at + (self._rank if differs else 0)))


def test_what_was_equal_by_chance_is_not_said_to_have_been_shared() -> None:
    def script(rank: int, batches: Any) -> None:
        explained, line, note, loss = float("nan"), "", None, 2.3026
        x = None
        for number, x in enumerate(batches):  # noqa: B007
            own = rank if number >= 3 else 0
            explained = float("nan") if number < 1 else 0.0 if number < 3 else 0.5 + own
            line = f"step {number} took {number + own / 10:.2f} s"
            note = None if number < 3 else f"of {rank}"
            loss = 2.3026 if number < 3 else 2.0 + own
        assert x is not None and str(explained) and line and note and loss

    assert Chance(6).run(script) == set()


TIMES = """\
took 1.{} s|1.{}s|at 0.{} ms|[1.{}it/s]|12.{} samples/s|0.{} steps/s|in 1.{} min|2.{} seconds
12:00:0{}|9:15:3{}, loss|[12:01:02.{}]|2026-11-29T10:11:1{}Z|2026-11-29 10:11:12,{}|1 day, 1:00:0{}
time:1.{}s|1.5e-{} s|2026-11-2{}T10:11""".replace("\n", "|")
OTHERS = """\
lr 0.{}|fold 1.{}|v1.2.{}|model-10.{}|phase 3:{}|step {} s|loss 1e-{}|0.{} nats|v1.2.{} s|x-1.{} s
2026-11-2{}|0.{} speed|12:0{}|epoch {} took 1.0 s|1:2:3:{}|1.{} step""".replace("\n", "|")


@pytest.mark.parametrize(
    ("text", "is_named"),
    [(one, False) for one in TIMES.split("|")] + [(one, True) for one in OTHERS.split("|")],
)
def test_a_text_that_differs_is_named_unless_it_does_in_times_alone(
    text: str, *, is_named: bool
) -> None:
    def script(rank: int, batches: Any) -> None:
        line = ""
        for number, _ in enumerate(batches):
            line = text.format(number + rank if number >= 3 else number)
        assert line

    assert Chance(6).run(script) == ({"line"} if is_named else set())


def test_what_was_shared_and_differs_is_named_whatever_its_type() -> None:
    def script(rank: int, batches: Any) -> None:
        drawn, phase, stops, best, seen = np.random.default_rng(1), "", False, float("inf"), [0]
        for number, _ in enumerate(batches):
            own = rank if number >= 3 else 0
            phase = f"phase {number + own} of 9"
            stops = bool((number + own) % 2)
            best = 1.0 / (number + 1 + own)
            seen.append(number + own)
            drawn.random(1 + own)
            count = number * 2 + own
        assert phase and best and seen and count is not stops

    expected = {"drawn", "phase", "stops", "best", "seen", "count"}
    assert Chance(6).run(script) == expected


def test_a_message_names_the_line_that_sets_a_variable() -> None:
    module = sys.modules[__name__]
    assert line_of("main.stopper.best", [module]).startswith("test_variables.py:")
    assert line_of("main.nothing_of_the_kind", [module]) == ""


class Watched:
    """Batches that tell the variables when they are asked for, and when they are let go of."""

    def __init__(self, variables: Variables, handed: list[Any]) -> None:
        self._variables, self._handed = variables, handed
        self._left, self._first = 4, dict[int, int]()
        variables.begin_loop(loop())

    def __iter__(self) -> "Watched":
        return self

    def __next__(self) -> int:
        self._variables.waits_in(sys._getframe(1))
        self._variables.compare([self._variables.table()])
        self._variables.goes_on()
        self._left -= 1
        return self._left

    def __del__(self) -> None:
        self._variables.leaves_loop(sys._getframe(1))
        self._handed.append(self._variables.state_of(ended=True))
        self._variables.goes_on()


def leaving(variables: Variables, handed: list[Any], how: str) -> int:
    count = 0
    for epoch in range(3):
        if how == "next":
            batches = Watched(variables, handed)
            while count < 3:
                next(batches)
                count += 1
            count += 10
            return epoch
        for _ in Watched(variables, handed):
            count += 1
            if count == 3:
                if how == "error":
                    raise RuntimeError
                break
        return epoch
    return -1


def test_what_a_script_holds_as_it_leaves_its_loop_is_handed_over() -> None:
    handed = list[Any]()
    assert leaving(Variables(found=True), handed, "break") == 0
    (state,) = handed
    assert state is not None
    assert state["leaves"]["leaving.count"] == ["plain", 3]
    assert state["left"]
    assert state["ended"]
    # Of the `for` statement around the loop; that of the loop is over.
    assert [one for one in state["iterators"][0] if one is not None] == [["range", 1]]


@pytest.mark.parametrize("how", ["error", "next"])
def test_nothing_is_if_nobody_knows_why_or_when(how: str) -> None:
    handed = list[Any]()
    if how == "error":
        with pytest.raises(RuntimeError):
            leaving(Variables(found=True), handed, how)
    else:
        leaving(Variables(found=True), handed, how)
    assert handed == [None]


def test_what_is_drawn_between_loops_is_handed_over_as_of_the_newest_loop() -> None:
    variables = Variables(found=True)

    def drawn() -> Any:
        state = variables.state_of()
        assert state is not None
        return state["draws"]

    variables.begin_loop(loop())
    variables.waits_in(sys._getframe())
    variables.compare([variables.table()])
    torch.rand(3)
    variables.draws = {"torch": torch.default_generator.get_state()}  # its first batch comes
    kept = variables.draws["torch"]
    torch.rand(3)
    assert torch.equal(drawn()["torch"], kept)
    variables.begin_loop(loop((0, -1, 1)))
    assert torch.equal(drawn()["torch"], torch.default_generator.get_state())
    variables.draws_alone = True
    assert drawn() is None


@pytest.mark.parametrize("how", ["data", "numpy", "storage"])
def test_a_change_that_torch_does_not_count_is_taken_back_or_named(how: str) -> None:
    average = torch.zeros(300, 300)
    large, frame = LargeTensors(), sys._getframe()

    def body() -> None:
        if how == "data":
            average.data.add_(1)
        elif how == "numpy":
            average.numpy()[:] += 1
        else:
            average.data = average + 1

    for number in range(3):
        mark = BodyMark([frame], large=large)
        body()
        if number == 2:
            assert mark.undo([frame]) == []
    assert average.mean() == 2.0
    mark = BodyMark([frame])
    body()
    (left,) = mark.undo([frame])
    assert left is average


def test_a_first_change_is_taken_back_where_each_tensor_is_copied_at_once() -> None:
    average, frame = torch.zeros(300, 300), sys._getframe()
    mark = BodyMark([frame], large=LargeTensors(at_once=True))
    average.add_(1)
    assert mark.undo([frame]) == []
    assert not average.any()


class Slotted:
    __slots__ = ("count", "seen")

    def __init__(self) -> None:
        self.count, self.seen = 0, [1]


def test_slots_and_large_arrays_are_taken_back_or_named() -> None:
    meter, sums = Slotted(), np.zeros(1 << 15)

    def body() -> None:
        meter.count += 1
        meter.seen.append(2)
        sums[:] += 1

    (left,) = undo_of(sys._getframe(), body)
    assert left is sums
    assert (meter.count, meter.seen) == (0, [1])


def test_parameters_of_the_job_are_left_alone_by_whatever_name() -> None:
    model, frame = torch.nn.Linear(300, 300), sys._getframe()
    params = list(model.parameters())
    mark = BodyMark([frame], others={id(one) for one in (model, *params)})
    with torch.no_grad():
        params[0].fill_(3.0)
    assert mark.undo([frame]) == []
    assert params[0].mean() == 3.0


def test_a_data_set_that_goes_on_behind_its_loop_is_handed_over() -> None:
    variables, handed = Variables(found=True), list[Any]()
    noise = np.random.default_rng(3)
    for place in range(2):
        data = TensorDataset(torch.as_tensor(noise.normal(size=(4, 2))))
        variables.begin_loop(loop((0, -1, place)), data)
        variables.waits_in(sys._getframe())
        variables.compare([variables.table()])
        handed.append(variables.state_of(ended=True))
        variables.goes_on()
    name = f"{sys._getframe().f_code.co_name}.data"
    assert handed[1]["leaves"][name][0] == "TensorDataset"


def test_what_has_arrived_is_the_state_until_the_script_takes_it_or_goes_on_without() -> None:
    variables, handed = Variables(found=True), {"site": [], "place": (0, -1, 2), "leaves": {}}
    variables.become(handed)
    assert variables.state_of() is handed, "a cut that is made at once holds it, too"
    variables.comes_to(7)
    assert variables.state_of() is None, "the script counts on its own"
    variables.become(handed)
    variables.given()
    assert variables.arrived_at is None, "the model is further on than that"


def test_a_group_of_parameters_is_the_optimizers_and_not_a_variable() -> None:
    def look_of(others: Callable[[torch.nn.Module], set[int]]) -> set[str]:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        look = ScriptLook([sys._getframe()], {id(optimizer), *others(model)})
        return {path for path in look.leaves if "look_of.group" in path}

    assert look_of(lambda model: {id(one) for one in model.parameters()}) == set()
    assert any("lr" in path for path in look_of(lambda _: set()))


class Lazy(OrderedDict[str, int]):
    """A mapping that makes a value when it is asked for, and cannot make these."""

    def __getitem__(self, key: str) -> int:
        raise ValueError(f"no {key}")

    def __len__(self) -> int:
        raise ValueError("not known")

    keys = values = items = __iter__ = __len__  # type: ignore[assignment]


def test_a_mapping_that_makes_its_values_on_demand_is_asked_for_none() -> None:
    lazy = Lazy(one=1)

    def body() -> None:
        dict.__setitem__(lazy, "two", 2)

    assert undo_of(sys._getframe(), body) == []
    assert [*OrderedDict.items(lazy)] == [("one", 1)]
    ScriptLook([sys._getframe()])


class Blocks:
    """Three bodies for each step, of which the last one counts."""

    def __init__(self) -> None:
        self.behind, self.number = BehindStep(), -1
        self.mark: BodyMark | None = None

    @property
    def is_last(self) -> bool:
        return self.number % 3 == 2

    def ask(self, frame: FrameType) -> int:
        if self.mark is not None and not self.is_last:
            self.mark.undo([frame])
        self.number += 1
        self.mark = BodyMark([frame])
        self.behind.asks(self.mark, [frame])
        return 4 + self.number // 3 % 2

    def step(self, frame: FrameType) -> None:
        assert self.mark is not None
        (self.behind.note if self.is_last else self.behind.put)(self.mark, [frame])


@pytest.mark.parametrize("at_top", [False, True])
def test_a_body_that_counts_for_nothing_does_not_count_enough_to_leave(*, at_top: bool) -> None:
    def script(ask: Callable[[FrameType], int], take: Callable[[FrameType], None]) -> None:
        step, trainer = 0, Namespace(step=0, size=0)
        while step < 6 and trainer.step < 6:
            size = trainer.size = expected = ask(sys._getframe())
            if at_top:
                step, trainer.step = step + 1, trainer.step + 1
            take(sys._getframe())
            if not at_top:
                step, trainer.step = step + 1, trainer.step + 1
            assert size == trainer.size == expected, "it is no counter"

    blocks = Blocks()
    script(partial(Blocks.ask, blocks), partial(Blocks.step, blocks))  # not looked into
    assert blocks.number == 6 * 3 - 1


def test_other_loops_and_lives_have_no_batch_before() -> None:
    frame, behind, count = sys._getframe(), BehindStep(), Namespace(n=1)
    behind.note(BodyMark([frame]), [frame])
    behind.asks(BodyMark([frame]), [frame])
    behind.forget()
    count.n = 5
    behind.put(BodyMark([frame]), [frame])
    assert count.n == 5


def in_blocks(variables: Variables, steps: int) -> Iterator[bool]:
    """One pass of two bodies for each step: whether they count."""
    variables.begin_loop(loop())
    try:
        for number in range(2 * steps + 1):
            variables.waits_in(sys._getframe(1))
            (variables.undo if number % 2 else variables.mark)()
            variables.goes_on()
            if number < 2 * steps:
                yield number % 2 == 1
    except GeneratorExit:
        variables.leaves_loop(sys._getframe(1))
        variables.goes_on()
        raise


@pytest.mark.parametrize("steps", [4, 9])
def test_a_pass_counts_from_where_the_script_has_begun_it(steps: int) -> None:
    variables, held, step, counts = Variables(found=True), list[Any](), 0, False
    for epoch in range(3):
        seen = 0
        for counts in in_blocks(variables, steps):
            variables.stepped(counts=counts)
            seen, step = seen + 1, step + 1
            held.append((epoch, seen, step))
            if seen >= 4 or step % 4 == 0:
                break
        assert (seen, step, counts) == (4, 4 * epoch + 4, True)
    assert held == [(at // 4, at % 4 + 1, at + 1) for at in range(12)]


@pytest.mark.parametrize("steps", [3, 7])
def test_a_loop_that_counts_has_its_last_step_in_full_in_another_pass(steps: int) -> None:
    def again() -> Iterator[bool]:
        while True:
            yield from in_blocks(variables, 3)

    variables, step, counts, passes = Variables(found=True), 0, False, again()
    while step < steps:
        counts = next(passes)
        variables.stepped(counts=counts)
        step += 1
    assert (step, counts) == (steps, True)
    step = epoch = 0
    variables.leaves_loop(sys._getframe())
    while step < steps:
        for counts in in_blocks(variables, 3):
            variables.stepped(counts=counts)
            step += 1
            if step >= steps:
                break
        epoch += 1
    assert (step, epoch, counts) == (steps, (steps + 2) // 3, True)


def of_object(look: ScriptLook, name: str) -> set[str]:
    """Attributes of an object; the program that runs the tests has variables, too."""
    return {one.removeprefix(f"{name}.") for one in look.leaves if one.startswith(f"{name}.")}


def test_attributes_of_one_process_are_not_looked_at() -> None:
    held = Namespace(best=1.0, bar=7)
    look = ScriptLook([], objects={"Saver": Besides(held, frozenset(["bar"]))})
    assert of_object(look, "Saver") == {"best"}


def test_one_number_that_two_variables_have_is_of_both() -> None:
    found = torch.tensor(0.5)
    saver = Namespace(current=found, best=found, color=Color.RED, former=Color.RED, one=np.int64(1))
    saver.two = saver.one
    look = ScriptLook([], objects={"saver": saver})
    assert of_object(look, "saver") == vars(saver).keys()
