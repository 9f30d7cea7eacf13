"""Schedulers follow the job's steps: a worker that joins, or goes back to a cut, goes on there."""

import logging
import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.samples import Intervals, Span
from paceline.protocol.holding.servers.agreeing import odd_ones, refusal
from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.joining import Joining
from paceline.runtime.holding.servers.pulling import Pushed
from paceline.runtime.holding.servers.schedule import Schedule
from paceline.runtime.server.scripts import Scripts
from paceline.runtime.server.store import Store
from paceline.runtime.state.script_state import ScriptState
from paceline.wire.messages.data import NEWEST, Part, Pulled, Script
from paceline.wire.messages.feeds import Feed
from paceline.wire.schema import NUM_BUCKETS, ModelSchema

STEPS = 60
FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=22,
    epochs=3,
    batch_size=4,
    shard_size=22,
    shuffle=False,
    seed=0,
)

KINDS: dict[str, Callable[[Optimizer], Any]] = {
    "step": lambda o: schedulers.StepLR(o, 10, 0.5),
    "multistep": lambda o: schedulers.MultiStepLR(o, [20, 40], 0.1),
    "exponential": lambda o: schedulers.ExponentialLR(o, 0.97),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, STEPS),
    "warm restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 10, 2),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 1.0, STEPS),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 10),
    "cyclic with a scale": lambda o: schedulers.CyclicLR(
        o, 0.01, 0.1, 10, scale_fn=lambda x: 1 / (2.0 ** (x - 1))
    ),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "multiplicative": lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.98),
    "linear": lambda o: schedulers.LinearLR(o, 0.1, 1.0, 40),
    "polynomial": lambda o: schedulers.PolynomialLR(o, STEPS, 2),
    "constant": lambda o: schedulers.ConstantLR(o, 0.5, 30),
    "sequential": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 20), schedulers.CosineAnnealingLR(o, 40)], [20]
    ),
    "chained": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.5, 20), schedulers.ExponentialLR(o, 0.97)]
    ),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=3, factor=0.7),
    "averaging": lambda o: SWALR(o, 0.01, anneal_epochs=50),
}


class Life:
    """A worker's script: one optimizer, one scheduler."""

    def __init__(self, kind: str, *, adam: bool = False, in_tensor: bool = False) -> None:
        params = [nn.Parameter(torch.zeros(1))]
        rate: Any = torch.tensor(0.1) if in_tensor else 0.1
        self.optimizer: Optimizer = Adam(params, rate) if adam else SGD(params, rate, momentum=0.9)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        self.scheduler = KINDS[kind](self.optimizer)
        self.plateau = kind == "plateau"

    def take(self) -> None:
        self.scheduler.step(*([1.0] if self.plateau else []))

    @property
    def settings(self) -> list[Any]:
        group = self.optimizer.param_groups[0]
        return [float(group["lr"]), group.get("momentum"), group.get("betas")]


class Managed(Life):
    """One whose scheduler follows the job."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(kind, **options)
        self.schedule = Schedule([self.optimizer], [self.scheduler])

    kept: ScriptState

    def do(self, step: int) -> list[Any]:
        """A step of the job; the hyper-parameters that it is computed with."""
        work = Work(0, (Span(0, 0, 1),), 1, step)
        work.ends_step = True
        self.schedule.enter(FEED, work, None)
        used = self.settings
        self.take()
        self.schedule.leave()
        return used


def _plain(kind: str, **options: Any) -> list[list[Any]]:
    life, found = Life(kind, **options), []
    for _ in range(STEPS):
        found.append(life.settings)
        life.take()
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, {}) for kind in KINDS]
    + [("one cycle", {"adam": True}), ("exponential", {"in_tensor": True})],
)
def test_every_scheduler_goes_on_in_a_new_life(
    kind: str, options: dict[str, Any], lag: int
) -> None:
    expected = _plain(kind, **options)
    life, saved = Managed(kind, **options), [(0, b"")]
    found = []
    for step in range(1, STEPS + 1):
        if step in (7, 21, 42):
            life = Managed(kind, **options)
            life.schedule.load(*saved[-1 - lag])
        found.append(life.do(step))
        saved.append((life.schedule.position, life.schedule.save()))
    assert found == expected


def test_steps_that_a_worker_was_no_part_of_count_before_its_next() -> None:
    life, expected = Managed("exponential"), _plain("exponential")
    for step in (1, 2, 5, 6):
        assert life.do(step) == expected[step - 1]


def test_a_scheduler_that_the_last_body_did_not_step_is_not_made_up_for() -> None:
    first, second = Managed("exponential"), Managed("exponential")
    for step in (1, 2):
        first.do(step)
    work = Work(0, (Span(0, 0, 1),), 1, 3)
    work.ends_step = True
    first.schedule.enter(FEED, work, None)
    first.schedule.leave()
    second.schedule.load(2, first.schedule.save())
    assert second.do(4)[0] == first.settings[0]


def test_workers_without_steps_follow_the_samples_in_the_model_together() -> None:
    one, other = Managed("exponential"), Managed("exponential")
    expected = _plain("exponential")
    for number in range(12):  # halves of a batch, in turn
        life = (one, other)[number % 2]
        life.schedule.enter(FEED, Work(0, (Span(0, 0, 2),), 2, 0), 2 * number)
        assert life.settings == expected[FEED.steps_in(2 * number)]
        life.take()
        life.schedule.leave()


def test_the_rest_of_an_epoch_is_a_step() -> None:
    assert [FEED.steps_in(n) for n in (0, 3, 4, 20, 21, 22, 26, 44)] == [0, 0, 1, 5, 5, 6, 7, 12]


class Model:
    """What servers hold, and how steps that lack samples change it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.done, self.step, self.scripts = Intervals(), 0, Scripts()
        self.restores = 1

    @property
    def position(self) -> int:
        return FEED.steps_in(len(self.done))

    def work(self) -> tuple[Work, int, int]:
        """The next step, as `Schedule.enter` has it."""
        whole = FEED.next_slice(self.done)
        size = sum(map(len, whole))
        return Work(0, whole, size, self.step + 1), len(self.done), size

    def decide(self, *, short: bool) -> None:
        points = [p for span in FEED.next_slice(self.done) for p in range(span.start, span.stop)]
        kept = self.random.sample(points, self.random.randint(1, len(points))) if short else points
        for point in kept:
            self.done.add(point, point + 1)
        self.step += 1


class Asked:
    """What a worker that joins asks; others may go on with steps meanwhile."""

    keeps_script = True

    def __init__(self, model: Model, meanwhile: Callable[[], None]) -> None:
        self.model, self.meanwhile = model, meanwhile
        self.restores = model.restores

    def script(self, position: int | None) -> tuple[int, bytes] | None:
        self.meanwhile()
        found = self.model.scripts.at(NEWEST if position is None else position)
        return None if found is None else (found.position, found.state)


def _join(life: Managed, model: Model, meanwhile: Callable[[], None] = lambda: None) -> bool:
    trainer: Any = Asked(model, meanwhile)
    joining = Joining(trainer, life.schedule)
    work, counted, _ = model.work()
    return not joining.is_due or joining.take_over(FEED, work, counted)


def _body(life: Managed, model: Model) -> list[Any]:
    assert _join(life, model)
    if news := life.schedule.enter(FEED, *model.work()):
        model.scripts.keep(Script(life.schedule.before, news))
    model.scripts.reached(life.schedule.before)
    used = life.settings
    life.take()
    life.schedule.leave()
    model.scripts.keep(Script(life.schedule.position, life.schedule.save()))
    return used


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["exponential", "one cycle", "plateau", "sequential", "cyclic"])
def test_steps_that_lack_samples_are_worth_what_they_complete(kind: str, seed: int) -> None:
    model, expected = Model(seed), _plain(kind)
    lives = [Managed(kind) for _ in range(3)]
    while FEED.next_slice(model.done):
        if model.random.random() < 0.2 and model.step:  # in place of one that was lost
            lives[2] = Managed(kind)

            def meanwhile() -> None:  # the first takes steps while the new one asks
                for _ in range(model.random.randint(0, 3)):
                    if FEED.next_slice(model.done):
                        assert _body(lives[0], model) == expected[model.position]
                        model.decide(short=model.random.random() < 0.5)

            step = model.step
            if not _join(lives[2], model, meanwhile):
                assert model.step > step + 1 and lives[2].schedule.restores < 0
            if not FEED.next_slice(model.done):
                break
        for number, life in enumerate(lives):
            if number and model.random.random() < 0.4:
                continue  # is late: the step is decided without it
            assert _body(life, model) == expected[model.position]
            assert life.schedule.before == model.position
        model.decide(short=model.random.random() < 0.7)
    for life in (*lives, Managed(kind)):
        found = model.scripts.at(NEWEST)
        assert found is not None
        if life.schedule.restores < 0:  # it has come to nothing
            life.schedule.load(found.position, found.state)
        life.schedule.complete(FEED)
        assert life.settings == expected[18]


def test_a_whole_step_is_taken_when_the_script_takes_it() -> None:
    model, life, expected = Model(0), Managed("exponential"), _plain("exponential")
    for step in range(18):
        _body(life, model)
        assert life.settings == expected[step + 1]
        model.decide(short=False)


def test_a_rare_call_in_a_step_that_is_short_counts_with_the_next() -> None:
    model, life = Model(0), Managed("exponential")
    model.decide(short=False)
    for calls in (True, False):
        life.schedule.enter(FEED, *model.work())
        assert life.schedule.before == 1
        if calls:
            life.take()
        life.schedule.leave()
        life.schedule.save()
        model.done.add(len(model.done), len(model.done) + 2)
        model.step += 1
    life.schedule.enter(FEED, *model.work())
    assert life.settings == _plain("exponential")[1]


def test_what_the_script_sets_in_a_short_step_is_not_taken_for_a_schedule_of_it() -> None:
    model, life = Model(0), Managed("constant")
    group = life.optimizer.param_groups[0]
    for short in (True, True, False):
        life.schedule.enter(FEED, *model.work())
        group["weight_decay"] = 0.1 * life.schedule.before
        life.take()
        life.schedule.leave()
        model.scripts.keep(Script(life.schedule.position, life.schedule.save()))
        assert group["weight_decay"] == 0.1 * model.position
        model.decide(short=short)


def test_what_was_pushed_of_a_feed_that_was_left_is_not_of_the_next() -> None:
    pushed = Pushed()
    for seq, feed, size in ((1, 0, 4), (2, 0, 4), (3, 1, 3)):
        part = _part(7, 0.1)
        spans = (Span(_feed(feed).line(), 0, size),)
        pushed.add(msgspec.structs.replace(part, seq=seq, spans=spans, weight=size))
    answer = Pulled(epoch_no=1, server=1, inc=7, ticket=1, step=0, last_seq=1, counted=5)
    assert pushed.before(1, [answer]) == 8
    pushed.renumber(3, 9)
    assert pushed.before(0, [answer]) == 9
    assert pushed.before(1, [msgspec.structs.replace(answer, last_seq=9)]) == 5


def _with_state(life: Managed, **values: Any) -> Managed:
    """The same script, with values in ``job.state``."""
    state = ScriptState()
    state.update(values)
    life.schedule = Schedule([life.optimizer], [life.scheduler], script=state)
    life.kept = state
    return life


def test_what_the_script_keeps_beside_its_model_goes_with_its_schedule() -> None:
    average = nn.Linear(1, 1)
    first = _with_state(Managed("step"), best=1.0, average=average, mine=[1])
    first.do(1)
    states = [first.schedule.save()]
    assert first.schedule.save() == states[0]
    first.kept["mine"].append(2)
    first.kept["best"] = 0.5
    nn.init.constant_(average.weight, 7.0)
    states.append(first.schedule.save())
    other = nn.Linear(1, 1)
    joins = _with_state(Managed("step"), best=9.0, average=other)
    joins.schedule.load(1, states[0])
    assert (joins.kept["best"], dict(joins.kept).keys()) == (1.0, {"best", "average"})
    joins.schedule.load(1, states[1])
    assert (joins.kept["best"], float(other.weight.detach())) == (0.5, 7.0)
    joins.kept["mine"] = []
    assert joins.kept["mine"] == [1, 2]


def test_what_the_script_keeps_is_not_taken_back_with_a_step_that_is_short() -> None:
    model, life = Model(0), _with_state(Managed("exponential"), batches=0)
    for _ in range(3):
        life.schedule.enter(FEED, *model.work())
        life.kept["batches"] += 1
        life.take()
        life.schedule.leave()
        life.schedule.save()
        model.done.add(len(model.done), len(model.done) + 1)
        model.step += 1
    assert (life.schedule.before, life.kept["batches"]) == (0, 3)


def test_more_than_servers_keep_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.runtime.holding.servers.schedule.MAX_SCRIPT_BYTES", 4000)
    life = _with_state(Managed("step"), small=1)
    life.schedule.save()
    life.kept["large"] = torch.zeros(1000)
    with pytest.raises(ConfigError, match=r"job\.state\['large'\] 4,0.* keep up to 4,000: leave"):
        life.schedule.save()


def test_after_a_feed_that_was_left_all_go_on_from_what_the_model_has_of_it() -> None:
    counts = {0: 9}
    one, other = Managed("exponential"), Managed("exponential")
    for life in (one, other):
        life.schedule = Schedule([life.optimizer], [life.scheduler], counts.__getitem__)
    work = Work(0, (Span(0, 0, 4),), 4, 1)
    one.schedule.enter(FEED, work, 8, 4)  # its last step comes to nothing
    other.schedule.enter(FEED, work, 4, 4)
    for life in (one, other):
        life.schedule.end()
        life.schedule.enter(_feed(1), Work(0, (Span(0, 0, 4),), 4, 4), 0, 4)
    assert one.schedule.before == other.schedule.before == 2


def _share(step: int) -> Work:
    work = Work(0, (Span(0, 0, 4),), 4, step)
    work.ends_step = True
    return work


def _left_after_a_short_step() -> Managed:
    """Two whole steps of a feed, and one of which 2 of 4 samples come into the model."""
    life = Managed("exponential")
    life.schedule = Schedule([life.optimizer], [life.scheduler], lambda _: 10)
    for number in range(3):
        life.schedule.enter(FEED, _share(number + 1), 4 * number, 4)
        life.take()
        if number < 2:
            life.schedule.leave()
            life.schedule.save()
    life.schedule.end()
    life.schedule.break_off(pushed=True)
    life.schedule.save()
    return life


def test_a_feed_after_a_short_step_and_a_loop_left_early_counts_its_own_steps() -> None:
    life, expected = _left_after_a_short_step(), _plain("exponential")
    for number in range(3):
        life.schedule.enter(_feed(1), _share(4 + number), 4 * number, 4)
        assert (life.schedule.before, life.settings) == (2 + number, expected[2 + number])
        life.take()
        life.schedule.leave()
        life.schedule.save()


@pytest.mark.parametrize("in_tensor", [False, True])
def test_what_is_set_between_two_loops_outlives_a_step_that_is_taken_back(in_tensor: bool) -> None:
    life = _left_after_a_short_step()
    group, rate = life.optimizer.param_groups[0], life.settings[0] / 0.97
    group["weight_decay"] = torch.tensor(0.5) if in_tensor else 0.5
    life.take()
    group["mine"] = [3]
    life.schedule.enter(_feed(1), _share(4), 0, 4)
    assert group["lr"] == pytest.approx(rate * 0.97, rel=1e-12)  # the step between the loops
    assert (float(group["weight_decay"]), group["mine"]) == (0.5, [3])
    group["weight_decay"] = 0.25
    life.take()
    life.schedule.leave()
    life.schedule.enter(_feed(1), _share(5), 2, 4)  # a body of the loop is taken back as it was
    assert float(group["weight_decay"]) == 0.5


@pytest.mark.parametrize("life", ["the same", "a new one"])
def test_what_is_set_between_two_loops_outlives_the_state_of_before(life: str) -> None:
    first = _with_state(Managed("exponential"), phase=[0])
    first.schedule.begin_loop(0)
    first.do(1)
    ended = first.schedule.save()
    first.schedule.end()
    one = first
    if life == "a new one":  # passes over the loop
        one = _with_state(Managed("exponential"), phase=[0])
        one.schedule.begin_loop(0)
        one.schedule.load(1, ended)
    one.optimizer.param_groups[0]["lr"] = 0.5
    one.kept["phase"].append(1)
    one.schedule.begin_loop(1)
    one.schedule.load(1, ended)
    assert (one.settings[0], one.kept["phase"]) == (0.5, [0, 1])
    other = _with_state(Managed("exponential"), phase=[0, 2])
    other.schedule.enter(_feed(1), _share(2), 0, 4)
    one.schedule.load(1, other.schedule.save())  # of a worker that is in the loop
    assert (one.settings[0], one.kept["phase"]) == (0.1, [0, 2])


def test_a_share_of_the_same_step_that_is_granted_later_begins_where_the_step_does() -> None:
    life, expected = Managed("exponential"), _plain("exponential")
    for step, counted in ((1, 0), (1, 0), (2, 4), (2, 4), (3, 8)):
        life.schedule.enter(FEED, _share(step), counted, 4)
        assert (life.schedule.before, life.settings) == (step - 1, expected[step - 1])
        life.take()
        life.schedule.leave()
        assert life.settings == expected[step]
        life.schedule.save()


@pytest.mark.parametrize("step", [0, 5])
def test_feeds_of_which_a_worker_had_no_batch_count_for_it_too(step: int) -> None:
    feeds = [_feed(0), _feed(1, num_samples=None), _feed(3)]  # left early; a stream
    one, other = Managed("exponential"), Managed("exponential")
    for life in (one, other):
        life.schedule = Schedule([life.optimizer], [life.scheduler], {0: 8, 1: 12}.__getitem__)
    for number, batches in ((0, 2), (1, 3)):
        for life in (one, other):
            life.schedule.opened(feeds[number])
        for batch in range(batches):
            one.schedule.enter(feeds[number], Work(0, (Span(0, 0, 4),), 4, 0), 4 * batch)
            one.take()
            one.schedule.leave()
        for life in (one, other):
            life.schedule.end()
    for life in (one, other):
        life.schedule.opened(feeds[2])
        life.schedule.enter(feeds[2], Work(0, (Span(0, 0, 4),), 4, step), 0, 4)
        assert life.schedule.before == 5


def test_a_worker_that_joins_a_step_that_is_over_gives_it_back_once() -> None:
    model, life, late = Model(0), Managed("exponential"), Managed("exponential")
    while model.step < 4:
        _body(life, model)
        model.decide(short=False)

    def meanwhile() -> None:
        for _ in range(2):
            _body(life, model)
            model.decide(short=False)

    assert not _join(late, model, meanwhile)
    for _ in range(2):
        assert _body(late, model) == _plain("exponential")[model.position]
        _body(life, model)
        model.decide(short=False)


@pytest.mark.parametrize("kind", ["exponential", "one cycle", "plateau", "sequential", "cyclic"])
@pytest.mark.parametrize("joins_after", [0, 3])
def test_a_job_that_goes_back_to_the_model_before_any_sample_begins_again(
    kind: str, joins_after: int
) -> None:
    model = Model(0)
    first, second = (_with_state(Managed(kind), seen=0) for _ in range(2))
    while model.step < 5:
        for life in (first, second) if model.step >= joins_after else (first,):
            _body(life, model)
            life.kept["seen"] = model.step + 1
        model.decide(short=False)
    # Its only server was lost before there was another cut than that of the beginning.
    model = Model(0)
    model.restores = 2
    expected = _plain(kind)
    while model.step < 7:
        for life in (first, second):
            assert _body(life, model) == expected[model.position]
            assert life.kept["seen"] == 0
        model.decide(short=False)


def test_a_cut_that_counted_more_steps_than_global_batches_is_taken_over() -> None:
    model, life, late = Model(0), Managed("exponential"), Managed("exponential")
    for step in (1, 2, 3):
        life.do(step)
    model.scripts.keep(Script(9, life.schedule.save()))
    for _ in range(3):
        model.decide(short=False)
    trainer: Any = Asked(model, lambda: None)
    joining, (work, counted, _) = Joining(trainer, late.schedule), model.work()
    assert [joining.take_over(FEED, work, counted) for _ in range(2)] == [False, True]
    assert (late.settings, late.schedule.position) == (life.settings, 3)


def test_a_feed_that_follows_one_that_was_left_goes_on_from_its_last_step() -> None:
    life = Managed("exponential")
    life.schedule = Schedule([life.optimizer], [life.scheduler], lambda _: 12)
    for number, feed in enumerate((FEED, _feed(1))):
        for batch in range(3):
            life.schedule.enter(feed, Work(0, (Span(0, 0, 4),), 4, 0), 4 * batch)
            assert life.schedule.position == 3 * number + batch + 1
            life.schedule.leave()


def test_workers_without_steps_begin_every_feed_together() -> None:
    feeds = [_feed(number, num_samples=22, epochs=1) for number in (0, 2, 3)]  # 1: an evaluation
    one, other, late = (Managed("exponential") for _ in range(3))
    expected = _plain("exponential")
    for number, feed in enumerate(feeds):
        for batch in range(6):  # the other computes the first two only, the late one none
            for life in (one, other) if batch < 2 else (one,):
                size = min(4, 22 - 4 * batch)
                life.schedule.enter(feed, Work(0, (Span(0, 0, size),), size, 0), 4 * batch)
                assert life.settings == expected[6 * number + batch]
                life.take()
                life.schedule.leave()
        for life in (one, other, late):
            life.schedule.complete(feed)
        if number == 1:
            late.schedule.load(other.schedule.position, other.schedule.save())
    late.schedule.enter(_feed(4), Work(0, (Span(0, 0, 4),), 4, 0), 0)
    other.schedule.enter(_feed(4), Work(0, (Span(0, 0, 4),), 4, 0), 0)
    assert late.settings == other.settings == expected[18]
    assert late.schedule.position == other.schedule.position == 19


def _feed(number: int, **changes: Any) -> Feed:
    return msgspec.structs.replace(FEED, feed=number, **changes)


def test_hyper_parameters_that_the_script_set_are_kept() -> None:
    first, second = Managed("constant"), Managed("constant")
    first.optimizer.param_groups[0].update(weight_decay=0.5, mine=object())
    second.schedule.load(1, first.schedule.save())
    assert second.optimizer.param_groups[0]["weight_decay"] == 0.5


@pytest.mark.parametrize("value", ["\udc80", np.array([1.0, 2.0])])
def test_odd_values_in_a_group_do_no_harm(value: object) -> None:
    first, second = Managed("constant"), Managed("constant")
    for life in (first, second):
        life.optimizer.param_groups[0]["mine"] = value
        life.schedule = Schedule([life.optimizer], [])
    second.schedule.load(1, first.schedule.save())
    assert str(second.optimizer.param_groups[0]["mine"]) == str(value)


def test_a_scheduler_whose_text_cannot_travel_is_refused() -> None:
    life = Life("step")
    life.scheduler.extra = "\udc80"
    with pytest.raises(ConfigError, match=r"\['extra'\] cannot be handed .* no valid Unicode"):
        Schedule([life.optimizer], [life.scheduler])


def test_a_script_that_begins_otherwise_is_told_of_and_the_jobs_values_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, third = Managed("step"), Managed("step"), Managed("step")
    first.do(1)
    second.optimizer.param_groups[0]["lr"] = 0.5
    second.schedule = Schedule([second.optimizer], [])
    third.schedule = Schedule([third.optimizer], [])
    first.schedule = Schedule([first.optimizer], [])
    with caplog.at_level(logging.WARNING):
        third.schedule.load(1, first.schedule.save())
        assert not caplog.records
        second.schedule.load(1, first.schedule.save())
    assert "value=groups.0.0.lr script=0.5 job=0.1" in caplog.text
    assert second.optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_written_again_only_when_something_changed(kind: str) -> None:
    life = Managed(kind)
    group = life.optimizer.param_groups[0]
    life.do(1)
    states = [life.schedule.save()]
    assert life.schedule.save() is states[0]
    for change in (
        lambda: life.do(2),
        lambda: group.update(lr=0.3),
        lambda: group.update(lr=torch.tensor(0.4)),
        lambda: group["lr"].fill_(0.5),
        lambda: group.update(mine=[1, [2]]),
        lambda: group["mine"][1].append(3),
        lambda: group.update(mine=np.zeros(2)),
        lambda: group["mine"].fill(1),
        lambda: vars(life.scheduler).update(last_epoch=0),
        lambda: vars(life.scheduler).update(mine=[1]),
        lambda: life.scheduler.mine.append(2),
    ):
        change()
        states.append(life.schedule.save())
        assert states[-1] != states[-2]
    other = Managed(kind)
    other.schedule.load(1, states[0])
    assert other.schedule.save() == states[0]


@pytest.mark.parametrize("kinds", [[], ["exponential", "cosine"], ["cosine"]])
def test_other_schedulers_than_the_state_is_of_are_refused(kinds: list[str]) -> None:
    first, second = Managed("exponential"), Life("constant")
    made = [KINDS[kind](second.optimizer) for kind in kinds]
    schedule = Schedule([second.optimizer], made)
    given = ", ".join(type(one).__name__ for one in made) or "no scheduler"
    said = f"job.prepare got {given}, but the job goes on with the state of ExponentialLR; give"
    with pytest.raises(ConfigError, match=said):
        schedule.load(1, first.schedule.save())


def test_schedulers_of_other_parts_than_the_state_is_of_are_refused() -> None:
    first, second = Managed("sequential"), Life("constant")
    parts = [schedulers.ExponentialLR(second.optimizer, 0.9) for _ in range(2)]
    schedule = Schedule(
        [second.optimizer], [schedulers.SequentialLR(second.optimizer, parts, [20])]
    )
    with pytest.raises(ConfigError, match=r"state of SequentialLR\(LinearLR, CosineAnnealingLR\)"):
        schedule.load(1, first.schedule.save())


def test_a_scheduler_whose_state_cannot_travel_is_refused() -> None:
    life = Life("step")
    life.scheduler.extra = object()
    with pytest.raises(ConfigError, match=r"scheduler\['schedulers'\]\[0\]\['extra'\] is a object"):
        Schedule([life.optimizer], [life.scheduler])


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x92\x90\xc4\x00"])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(PermanentError, match="state of schedulers cannot be read"):
        Managed("step").schedule.load(1, data)


# ---------------------------------------------------------------------- at the servers


def _store() -> Store:
    return Store(ModelSchema(), [0] * NUM_BUCKETS, 0)


def test_the_newest_state_is_kept_and_in_every_save() -> None:
    store = _store()
    assert store.scripts.at(NEWEST) is None
    for position, state in ((3, b"old"), (5, b"new"), (4, b"late")):
        store.scripts.keep(Script(position, state))
    store.scripts.reached(6)
    saved = {name: np.array(array) for name, array in store.save().items()}
    older = _store()
    older.scripts.keep(Script(2, b"older"))
    fresh = _store()
    fresh.load([older.save(), saved, older.save()])
    assert fresh.scripts.at(NEWEST) == Script(6, b"new")
    # A worker with a part of step 6 still needs it as it was before.
    assert [fresh.scripts.at(position) for position in (4, 5)] == [
        Script(4, b"late"),
        Script(5, b"new"),
    ]
    assert fresh.scripts.at(3) is None


def test_a_worker_that_joins_a_step_gets_the_script_before_it_though_another_is_through() -> None:
    scripts = Scripts()
    for position, state in ((24, b"before"), (25, b"after"), (25, b"after, by another")):
        scripts.keep(Script(position, state))
    assert scripts.at(24) == Script(24, b"before")
    assert scripts.at(25) == Script(25, b"after, by another")
    assert scripts.at(26) == Script(25, b"after, by another")  # not yet handed in


def test_a_script_that_did_not_change_is_that_of_every_step_since() -> None:
    scripts = Scripts()
    for position, state in ((1, b"constant"), (30, b"changed")):
        scripts.keep(Script(position, state))
        scripts.reached(position + 20)
    assert [scripts.at(position) for position in (0, 1, 21, 29, 30, 45, 60)] == [
        None,
        Script(1, b"constant"),
        Script(21, b"constant"),
        Script(29, b"constant"),
        Script(30, b"changed"),
        Script(45, b"changed"),
        Script(50, b"changed"),
    ]


def _part(inc: int, rate: float, changed: Any = ()) -> Part:
    return Part(
        epoch_no=1,
        inc=inc,
        seq=1,
        map_version=1,
        spans=(),
        weight=1,
        step=60,
        rates=(0.5, rate),
        changed=changed,
    )


def test_workers_of_one_mind_are_not_told_apart() -> None:
    assert odd_ones([_part(3, 0.1), _part(4, 0.1), _part(4, 0.1)], 1) == []
    assert odd_ones([], 1) == []


def test_of_two_the_one_that_joined_last_is_the_odd_one() -> None:
    (odd,) = odd_ones([_part(9, 1.0), _part(4, 0.01)], 1)
    assert (odd.inc, odd.step, odd.others) == (9, 60, (4,))
    assert odd.what == "lr of group 1 is 1.0, not 0.01"


def test_a_worker_in_another_loop_is_an_odd_one_whatever_its_rates() -> None:
    loops = [
        msgspec.structs.replace(_part(inc, 0.1), slice=(Span(line, 0, 8),))
        for inc, line in ((3, 0), (5, 1))
    ]
    (odd,) = odd_ones(loops, 1)
    assert (odd.inc, odd.others) == (5, (3,))
    assert "by job.step" in str(refusal(odd))


def test_the_majority_is_right_and_all_others_are_named() -> None:
    changed = ((1, "momentum", 0.5),)
    parts = [_part(2, 0.1), _part(5, 0.1, changed), _part(6, 0.1, changed), _part(7, 0.3)]
    found = {one.inc: one.what for one in odd_ones(parts, 1)}
    assert found == {
        2: "momentum of group 1 is as at job.prepare, not 0.5",
        7: "lr of group 1 is 0.3, not 0.1",
    }
