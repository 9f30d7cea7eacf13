"""Several trainings in one script: what a job, its state and its master make of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.base.samples import Span
from paceline.protocol.holding.group.position import Position
from paceline.protocol.samples.ledger import Ledger
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.group.watcher import Watcher
from paceline.runtime.holding.local.strategy import Local
from paceline.runtime.process.process import Fenced
from paceline.runtime.script import job as job_module
from paceline.runtime.script.job import Job
from paceline.runtime.state.outside import Outside
from paceline.runtime.state.replica import Replica
from paceline.runtime.state.script_state import ScriptState
from paceline.wire.messages.feeds import Feed
from paceline.wire.spec import JobSpec
from tests.unit.holding.group.test_replica import write_cut

X = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
DATA = TensorRows(x=X, y=X.sum(1, keepdim=True))


def trained(job: Job) -> list[Any]:
    """Train a fresh model; what it ends with, and what the job says of it."""
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    seen = [job.step, job.samples]
    for epoch in job.epochs(2):
        for batch in job.batches(DATA, batch_size=32):
            seen += [epoch, job.step, job.samples, batch.x.sum().item()]
            nn.functional.mse_loss(model(batch.x), batch.y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [*seen, job.step, job.samples, model.weight.tolist()]


@pytest.mark.proves(form="folds", strategy="alone")
def test_alone_each_training_is_that_of_a_job_of_its_own() -> None:
    job = pl.init()
    expected = trained(job)
    assert expected[:2] == [0, 0]
    assert trained(job) == expected
    assert trained(pl.init()) == expected


def test_a_training_begins_between_loops_and_ends_the_one_before() -> None:
    job, models = pl.init(), [nn.Linear(4, 1), nn.Linear(4, 1)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    job.prepare(models[0], optimizers[0])
    within = r"job\.prepare was called within a loop over job\.epochs or job\.batches"
    next(epochs := job.epochs(2))
    with pytest.raises(ConfigError, match=within):
        job.prepare(models[1], optimizers[1])
    del epochs
    next(batches := job.batches(DATA, batch_size=32))
    with pytest.raises(ConfigError, match=within):
        job.prepare(models[1], optimizers[1])
    batches.close()
    job.prepare(models[1], optimizers[1])
    with pytest.raises(ConfigError, match=r"SGD\.step\(\) was called after .* the next training"):
        optimizers[0].step()


# ---------------------------------------------------------------------------- pl.init again


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Local:
    """A strategy that all calls of ``pl.init`` get, as those of a job do."""
    strategy = Local(JobSpec(script="train.py"))
    monkeypatch.setattr(strategy, "is_alone", False)
    monkeypatch.setattr(job_module, "strategy_here", lambda before: before or strategy)
    monkeypatch.setattr(job_module, "_newest", None)
    return strategy


def test_the_next_job_object_goes_on_with_places_and_has_no_state(shared: Local) -> None:
    first = pl.init()
    expected = trained(first)
    first.state["best"] = 1.0
    second = pl.init()
    assert dict(second.state) == {}
    assert trained(second) == expected
    assert second._course.place == (3, -1)
    with pytest.raises(ConfigError, match=r"job\.batches was called of a job that is over"):
        first.batches(DATA, batch_size=32)
    with pytest.raises(ConfigError, match=r"job\.prepare was called of a job that is over"):
        first.prepare(nn.Linear(4, 1))


def test_in_a_loop_there_is_no_next_job_object(shared: Local) -> None:
    job, model = pl.init(), nn.Linear(4, 1)
    job.prepare(model, SGD(model.parameters(), lr=0.1))
    next(_batches := job.batches(DATA, batch_size=32))
    with pytest.raises(ConfigError, match=r"pl\.init was called within a loop over"):
        pl.init()


# ---------------------------------------------------------------------------- what is held


class Holder:
    """A worker's state, over several trainings."""

    def __init__(self) -> None:
        self.position, self.script = Position(), ScriptState()
        self.script["losses"] = []
        self._make(0)
        prepared = self.model, self.optimizer, self.scheduler
        self.replica = Replica(
            *([one] for one in prepared),  # type: ignore[arg-type]
            script=self.script,
            position=self.position,
        )

    def _make(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = nn.Sequential(nn.Linear(4, 4 + seed), nn.Linear(4 + seed, 1))
        self.optimizer = Adam(self.model.parameters(), lr=0.1)
        self.scheduler = StepLR(self.optimizer, 1, 0.5)

    def train(self, steps: int) -> None:
        self.replica.enter_loop()
        for step in range(steps):
            self.model(X).square().mean().backward()
            self.optimizer.step()
            self.position.advance(step, 1, held=self.position.samples or 0, more=96)
        self.replica.leave_loop()
        self.script["losses"].append(float(steps))
        self.scheduler.step()

    def next(self, seed: int) -> None:
        self._make(seed)
        outside = Outside([self.scheduler], lambda _: None)
        held = [self.model], [self.optimizer], [self.scheduler]
        self.replica.next_training(*held, (), outside)

    def values(self) -> list[Any]:
        states = self.model.state_dict().values(), self.optimizer.state_dict()["state"].values()
        tensors = [one.tolist() for one in states[0]]
        moments = [{key: one.tolist() for key, one in each.items()} for each in states[1]]
        return [tensors, moments, list(self.script["losses"])]


def test_a_worker_that_comes_later_ends_each_training_as_the_others(tmp_path: Path) -> None:
    first, late = Holder(), Holder()
    first.train(3)
    ended = first.values()
    first.next(1)
    first.train(2)
    write_cut(tmp_path, first.replica)
    late.replica.load_what_fits(tmp_path)
    assert late.values()[:2] == ended[:2]
    assert late.script["losses"] == []  # as the loop ended: what comes after it is done again
    assert (late.position.value, late.position.samples) == (3, 288)
    late.script["losses"].append(3.0)
    late.next(1)
    assert late.position.of_training(3, 288) == (0, 0)
    late.replica.load_cut(tmp_path)
    assert late.values() == [*first.values()[:2], [3.0]]
    assert late.position.of_training(5, 480) == (2, 192)


def test_what_a_script_does_between_loops_that_are_passed_over_counts_once(tmp_path: Path) -> None:
    first, late = Holder(), Holder()
    first.train(1)
    first.train(2)
    first.next(1)
    write_cut(tmp_path, first.replica)
    late.replica.load_what_fits(tmp_path)
    late.script["losses"].append(7.0)
    late.replica.end_again()
    assert late.script["losses"] == [1.0]


@pytest.mark.parametrize(
    ("place", "losses"),
    [((0, -1), []), ((0, 2), []), ((1, -1), []), ((0, 3), [3.0]), ((1, 0), [3.0])],
)
def test_a_cut_after_a_loop_is_of_its_end_unless_another_epoch_has_begun(
    place: tuple[int, int], losses: list[float], tmp_path: Path
) -> None:
    first, late = Holder(), Holder()
    first.replica._outside.place = (0, 2) if place != (0, -1) else place
    first.train(3)
    first.replica._outside.place = place
    write_cut(tmp_path, first.replica)
    late.replica.load_cut(tmp_path)
    assert late.values() == [*first.values()[:2], losses]
    assert late.scheduler.last_epoch == len(losses)


def test_a_training_begins_as_it_was_built_after_a_cut_of_the_one_before(tmp_path: Path) -> None:
    first, late = Holder(), Holder()
    first.train(3)
    write_cut(tmp_path, first.replica)
    late.replica.load_what_fits(tmp_path)
    late.next(1)
    built = late.values()
    late.replica.load_cut(tmp_path)
    assert late.values() == built
    assert late.position.at(3) == 3


def test_a_script_that_is_further_than_the_cut_begins_again(tmp_path: Path) -> None:
    first, late = Holder(), Holder()
    first.train(2)
    write_cut(tmp_path, first.replica)
    late.train(3)
    late.next(1)
    with pytest.raises(Fenced):
        late.replica.load_cut(tmp_path)


def test_what_a_training_ended_with_is_kept_whatever_becomes_of_its_model() -> None:
    one = Holder()
    one.train(2)
    expected = one.model[0].weight.detach().clone()  # type: ignore[index]
    model = one.model
    one.next(1)
    with torch.no_grad():
        model[0].weight.zero_()  # type: ignore[index]
    assert torch.equal(one.replica.over[0]["modules"][0]["0.weight"], expected)


# ---------------------------------------------------------------------------- among workers


def test_workers_in_different_trainings_are_named() -> None:
    members = [SimpleNamespace(node=f"worker-{k}") for k in range(2)]
    group: Any = SimpleNamespace(run=SimpleNamespace(members=members), rank=1)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    watcher = Watcher([model], [torch.optim.SGD(model.parameters(), lr=0.1)])
    watcher.trains([*model.parameters()])
    watcher.check_trained([(1, 2, 7), (1, 2, 7)], group)
    with pytest.raises(ConfigError, match="training 1 in worker-0, training 0 in worker-1"):
        watcher.check_trained([(1, 2, 7), (0, 2, 7)], group)
    with pytest.raises(ConfigError, match="the workers train different parameters"):
        watcher.check_trained([(1, 2, 7), (1, 2, 8)], group)
    watcher.trains([*model[1].parameters()])
    with pytest.raises(ConfigError, match=r"; worker-1 trains all but 0\.weight, 0\.bias\."):
        watcher.check_trained([(1, 4, 7), (1, 2, 8)], group)


def test_a_feed_has_the_order_of_its_place_in_its_training() -> None:
    sizes: dict[str, Any] = {"num_samples": 9, "batch_size": 3, "shard_size": 9, "epochs": 1}
    feed = Feed(feed=1, purpose="train", shuffle=True, seed=41, training=2, **sizes)
    known = feed.numbered(7, 6)
    assert (known.feed, known.seed) == (7, 41)
    assert known.numbered(7, 6) == known
    assert feed.numbered(8, 6).seed == 42


def test_a_loop_that_was_left_is_over_once_its_end_is_on_disk() -> None:
    ledger = Ledger()
    sizes: dict[str, Any] = {"num_samples": 9, "batch_size": 3, "shard_size": 9, "epochs": 1}
    left = Feed(feed=0, purpose="train", shuffle=True, seed=0, **sizes)
    ledger.open(left)
    assert not ledger.is_left(left, 100)
    later = replace(left, training=1, after=5)
    numbered = ledger.numbered(later, 1)
    assert (numbered.feed, numbered.first_feed, numbered.seed) == (1, 1, 0)
    ledger.open(numbered)
    assert [ledger.is_left(left, stored) for stored in (4, 5, 6)] == [False, True, True]
    assert not ledger.is_left(numbered, 6)
    assert not ledger.is_left(replace(left, purpose="evaluate"), 6)


def two_loops() -> tuple[Feed, Feed]:
    sizes: dict[str, Any] = {"num_samples": 9, "batch_size": 3, "shard_size": 9, "epochs": 1}
    first = Feed(feed=0, purpose="train", shuffle=True, seed=0, place=(0, -1, 0), **sizes)
    return first, replace(first, feed=1, place=(0, -1, 1))


def test_a_loop_that_was_left_for_another_one_of_the_same_training_is_passed_over() -> None:
    ledger = Ledger()
    left, later = two_loops()
    ledger.open(left)
    assert not ledger.is_passed(left)
    ledger.open(replace(later, purpose="evaluate"))
    assert not ledger.is_passed(left)
    ledger.open(later)
    assert ledger.is_passed(left)
    assert not ledger.is_passed(later)
    ledger.open(replace(later, training=1))
    assert not ledger.is_passed(left)


def test_a_loop_that_was_left_after_the_newest_cut_is_done_again() -> None:
    ledger = Ledger()
    left, later = two_loops()
    ledger.open(left)
    ledger.open(later)
    ledger.restore([Span(left.line(), 0, 3)])
    assert not ledger.is_passed(left)
    ledger.restore([Span(left.line(), 0, 3), Span(later.line(), 0, 3)])
    assert ledger.is_passed(left)
