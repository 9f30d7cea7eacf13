"""The loop over work whose owner changes its mind, overlaps, withdraws and stops."""

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from time import sleep
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.base.samples import Span
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.data.work import StepTimes, Work
from paceline.runtime.holding.local.strategy import Local
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.port import Ids, PulledModel
from paceline.runtime.holding.servers.schedule import Schedule
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.script.job import Job
from paceline.runtime.server.store import Gradients
from paceline.wire.messages.feeds import Feed
from paceline.wire.spec import JobSpec

NUM_SAMPLES = 64


class Told(Alone):
    """Keeps what it is told, in order."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(JobSpec(script="train.py", **spec))
        self.told: list[tuple[str, int]] = []

    def start_pull(self, work: Work, ids: Mapping[int, Ids]) -> None:
        self.told.append(("pull", work.step))
        super().start_pull(work, ids)

    def push(self, works: Sequence[Work], gradients: Gradients) -> None:
        assert gradients.weight == sum(work.num_samples for work in works)
        self.told.append(("push", works[-1].step))
        super().push(works, gradients)

    def give_back(self, work: Work) -> None:
        self.told.append(("back", work.step))
        super().give_back(work)


class Overlapping(Told):
    """Pulls ahead; like servers, it forgets no pull that was asked for."""

    overlap = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[Work, Mapping[int, Ids]] = {}

    def start_pull(self, work: Work, ids: Mapping[int, Ids]) -> None:
        super().start_pull(work, ids)
        self.asked[work] = ids

    def wait_pull(self, work: Work) -> PulledModel:
        self._wanted = work, self.asked.pop(work)
        return super().wait_pull(work)


class Fickle(Told):
    """Says one thing is coming and hands out another."""

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        return super().upcoming(feed, limit + 2)[2:]


class Withdrawing(Told):
    """Withdraws each third work while its pull is under way, and deals it again later."""

    def wait_pull(self, work: Work) -> PulledModel | None:  # type: ignore[override]
        if work.step % 3 == 0 and ("withdrawn", work.step) not in self.told:
            self.told.append(("withdrawn", work.step))
            self._to_do[work.feed]._known.append(work)
            return None
        return super().wait_pull(work)


class Accumulating(Told):
    """Deals each step in three batches of different sizes, as one contribution."""

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        opened = super().open_feed(feed, growth)
        slices = self._to_do[feed.feed]
        take = slices.take

        def deal() -> Work | None:
            if not self.dealt:
                whole = take()
                if whole is None:
                    return None
                (span,) = whole.spans
                cut = [span.start, span.start + 1, span.start + 4, span.stop]
                for start, stop in pairwise(cut):
                    last = stop == span.stop
                    part = Work(
                        feed.feed, (Span(span.line, start, stop),), stop - start, whole.step
                    )
                    part.ends_contribution = part.ends_step = last
                    self.dealt.append(part)
            return self.dealt.popleft()

        self.dealt: deque[Work] = deque()
        slices.take = deal  # type: ignore[method-assign]
        return opened

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        return tuple(self.dealt)[:limit]

    def give_back(self, work: Work) -> None:
        self.told.append(("back", work.step))


class Counted(nn.Module):
    """Every applied sample takes exactly 1 from its own row and from the dense counter."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(NUM_SAMPLES, 1, sparse=True, dtype=torch.float64)
        self.count = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        nn.init.zeros_(self.rows.weight)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        # Times the number of samples, since the job means.
        return self.rows(ids % NUM_SAMPLES).sum() + self.count.sum() * len(ids)


DATA = TensorRows(ids=torch.arange(NUM_SAMPLES))


def _job(trainer: Alone) -> tuple[Job, Counted, SGD]:
    job, model = Job(OnServers(trainer)), Counted()
    optimizer = SGD(model.parameters(), lr=1.0)
    job.prepare(model, optimizer)
    return job, model, optimizer


def _assert_once(model: Counted, epochs: int) -> None:
    held = model.state_dict()
    assert held["rows.weight"].eq(-epochs).all()
    assert held["count"].item() == -NUM_SAMPLES * epochs


class Timed(Told):
    """Keeps what steps took."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[StepTimes] = []

    def record(self, times: StepTimes) -> None:
        self.times.append(times)


class SlowRows(Dataset[torch.Tensor]):
    """Each read takes 20 ms."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        sleep(0.02)
        return torch.tensor(index)


def test_the_wait_for_data_is_a_part_of_a_steps_wait() -> None:
    trainer = Timed()
    job, model, optimizer = _job(trainer)
    for ids in job.batches(SlowRows(), 2):
        model.loss(ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert trainer.times
    first = trainer.times[0]
    assert 0.04 <= first.data_s <= first.wait_s


@pytest.mark.parametrize("trainer", [Told, Overlapping, Fickle, Withdrawing])
def test_every_sample_counts_once_per_epoch(trainer: Callable[[], Told]) -> None:
    job, model, optimizer = _job(trainer())
    for batch in job.batches(DATA, 5, epochs=2):
        model.loss(batch.ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    _assert_once(model, 2)


def test_a_step_in_several_batches_is_pushed_once_and_counts_every_sample() -> None:
    trainer = Accumulating()
    job, model, optimizer = _job(trainer)
    sizes = []
    for batch in job.batches(DATA, 16):
        model.loss(batch.ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        sizes.append(len(batch.ids))
    assert sizes == [1, 3, 12] * 4
    assert [step for what, step in trainer.told if what == "push"] == [1, 2, 3, 4]
    held = model.state_dict()
    assert held["count"].item() == -(1 + 9 + 144) / 16 * 4, "the mean of what each batch saw"
    mean = {1 / 16: 4, 3 / 16: 12, 12 / 16: 48}
    rows = held["rows.weight"].squeeze(1).neg().tolist()
    assert {share: rows.count(share) for share in mean} == mean


def test_schedulers_act_once_for_each_step_and_all_its_batches_have_its_rate() -> None:
    pushed = []

    class Watched(Accumulating):
        def push(self, works: Sequence[Work], gradients: Gradients) -> None:
            pushed.append((works[-1].step, gradients.rates))
            super().push(works, gradients)

    job, model = Job(OnServers(Watched())), Counted()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    job.prepare(model, optimizer, scheduler)
    for batch in job.batches(DATA, 16):
        model.loss(batch.ids).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert [(step, rates[0]) for step, rates in pushed] == [
        (k, 0.5 ** (k - 1)) for k in (1, 2, 3, 4)
    ]


def test_schedulers_make_up_for_steps_that_this_worker_was_no_part_of() -> None:
    class Absent(Told):
        def next_work(self, feed: int) -> Work | None:
            work = super().next_work(feed)
            return super().next_work(feed) if work is not None and work.step in (2, 3) else work

    trainer = Absent()
    job, model = Job(OnServers(trainer)), Counted()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    job.prepare(model, optimizer, scheduler)
    seen = []
    for batch in job.batches(DATA, 16):
        model.loss(batch.ids).backward()
        optimizer.step()
        scheduler.step()
        pushed = [step for what, step in trainer.told if what == "push"]
        seen.append((pushed[-1], scheduler.get_last_lr()[0]))
    assert seen == [(1, 0.5), (3, 0.125), (4, 0.0625)]


def test_batches_of_a_contribution_that_is_not_whole_are_given_back() -> None:
    trainer = Accumulating()
    job, model, optimizer = _job(trainer)
    for number, batch in enumerate(job.batches(DATA, 16)):
        model.loss(batch.ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 1:
            break
    assert [told for told in trainer.told if told[0] != "pull"] == [("back", 1), ("back", 1)]


def test_the_next_pull_starts_right_after_the_push() -> None:
    trainer = Told()
    job, model, optimizer = _job(trainer)
    for step, batch in enumerate(job.batches(DATA, 16), 1):
        assert trainer.told[-1] == ("pull", step)
        model.loss(batch.ids).backward()
        optimizer.step()
    assert trainer.told == [(what, s) for s in (1, 2, 3, 4) for what in ("pull", "push")]


def test_where_pulls_overlap_the_next_one_does_not_wait_for_the_push() -> None:
    trainer = Overlapping()
    job, model, optimizer = _job(trainer)
    batches = job.batches(DATA, 4)
    for _ in range(8):
        model.loss(next(batches).ids).backward()
        optimizer.step()
    early = [
        step
        for step in range(2, 8)
        if trainer.told.index(("pull", step + 1)) < trainer.told.index(("push", step))
    ]
    # A batch that is not made in time is pulled later; most are.
    assert len(early) >= 3


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_model_that_is_called_after_a_loop_that_was_left_has_its_last_step() -> None:
    x = torch.randn(NUM_SAMPLES, 3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    job, optimizer = Job(OnServers(Told())), SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    others = len(_global_forward_pre_hooks)

    def step(batch: Any) -> None:
        model(batch.x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for call in (model, model[1], torch.compile(model, backend="eager")):
        for batch in job.batches(TensorRows(x=x), 16):
            step(batch)
            break
        held = copy.deepcopy(model)
        given = torch.ones(1, 4 if call is model[1] else 3)
        expected = (held[1] if call is model[1] else held)(given)
        assert torch.equal(call(given), expected)
        assert len(_global_forward_pre_hooks) == others
    for batch in job.batches(TensorRows(x=x), 16):
        step(batch)
        break
    for batch in job.batches(TensorRows(x=x), 16):
        assert len(_global_forward_pre_hooks) == others  # the batch has brought the newest values
        step(batch)
        break
    assert len(_global_forward_pre_hooks) == others + 1
    Job(OnServers(Told()))
    assert len(_global_forward_pre_hooks) == others  # the job is over


def test_a_loop_that_is_left_gives_back_what_was_not_stepped() -> None:
    trainer = Told()
    job, model, optimizer = _job(trainer)
    for number, batch in enumerate(job.batches(DATA, 16)):
        model.loss(batch.ids).backward()
        if number == 1:
            break
        optimizer.step()
    assert [told for told in trainer.told if told[0] != "pull"] == [("push", 1), ("back", 2)]


def test_stopped_comes_out_of_the_loop_and_a_finished_step_stays() -> None:
    class Stopping(Told):
        def next_work(self, feed: int) -> Work | None:
            if ("push", 2) in self.told:
                raise pl.Stopped
            return super().next_work(feed)

    job, model, optimizer = _job(Stopping())

    def train() -> None:
        for batch in job.batches(DATA, 16):
            model.loss(batch.ids).backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(SystemExit) as caught:
        train()
    assert caught.value.code == 0
    assert model.state_dict()["count"].item() == -32


def test_the_spec_overrides_batch_size_and_epochs_of_the_script() -> None:
    job, model, optimizer = _job(Told(batch_size=32, epochs=3))
    sizes = []
    for batch in job.batches(DATA, 7):
        model.loss(batch.ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        sizes.append(len(batch.ids))
    assert sizes == [32, 32] * 3
    _assert_once(model, 3)


def test_two_loops_see_different_orders_and_each_epoch_too() -> None:
    job, model, optimizer = _job(Told())
    orders = []
    for _ in range(2):
        for batch in job.batches(DATA, NUM_SAMPLES, epochs=2):
            model.loss(batch.ids).backward()
            optimizer.step()
            orders.append(tuple(batch.ids.tolist()))
    assert len(set(orders)) == 4


def test_after_a_loop_the_script_computes_on_what_its_last_step_made() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1, dtype=torch.float64)
    expected = copy.deepcopy(model)
    job = Job(OnServers(Alone(JobSpec(script="train.py"))))
    optimizer, expected_optimizer = SGD(model.parameters(), 0.1), SGD(expected.parameters(), 0.1)
    job.prepare(model, optimizer)
    rows = torch.randn(NUM_SAMPLES, 4, dtype=torch.float64)
    for _epoch in range(2):
        for batch in job.batches(TensorRows(x=rows), batch_size=16, shuffle=False):
            model(batch.x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        for part in rows.split(16):
            expected(part).square().mean().backward()
            expected_optimizer.step()
            expected_optimizer.zero_grad()
        with torch.no_grad():
            torch.testing.assert_close(model(rows), expected(rows))


def test_a_look_up_under_no_grad_takes_no_gradient() -> None:
    job, model, optimizer = _job(Told())
    for batch in job.batches(DATA, NUM_SAMPLES, shuffle=False):
        with torch.no_grad():
            assert model.rows(batch.ids[:4]).shape == (4, 1)
        model.loss(batch.ids[8:]).backward()
        optimizer.step()
    held = model.state_dict()["rows.weight"].squeeze(1)
    assert held[:8].eq(0).all()
    assert held[8:].eq(-1).all()


class Over(Told):
    """Others have trained all of the feed: nothing is left, but the script of the last step."""

    def __init__(self, position: int, state: bytes) -> None:
        super().__init__()
        self.kept = position, state

    def next_work(self, feed: int) -> None:
        return None

    def script(self, position: int | None) -> tuple[int, bytes]:  # type: ignore[override]
        assert position is None
        return self.kept


def test_a_life_that_begins_after_the_last_sample_has_the_last_rate() -> None:
    trained, late = Counted(), Counted()
    schedules = []
    for model in (trained, late):
        optimizer = SGD(model.parameters(), lr=1.0)
        optimizer._opt_called = True  # type: ignore[attr-defined]
        scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
        schedules.append((model, optimizer, scheduler))
    model, optimizer, scheduler = schedules[0]
    schedule = Schedule([optimizer], [scheduler])
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=NUM_SAMPLES,
        epochs=1,
        batch_size=16,
        shard_size=16,
        shuffle=False,
        seed=0,
    )
    for number in range(3):  # nobody could hand in the state of after the fourth
        schedule.enter(feed, Work(0, (Span(0, 0, 16),), 16, number + 1), 16 * number, 16)
        scheduler.step()
        schedule.leave()
    job = Job(OnServers(Over(schedule.position, schedule.save())))
    model, optimizer, scheduler = job.prepare(*schedules[1])
    with pytest.raises(ConfigError, match=r"job\.step is known from the first batch"):
        _ = job.step
    assert list(job.batches(DATA, batch_size=16)) == []
    assert (optimizer.param_groups[0]["lr"], job.step) == (0.5**4, 4)


class Keeping(Told):
    """Keeps the script's state as servers do."""

    keeps_script = True

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[int, bytes]] = []

    def keep_script(self, position: int, state: bytes) -> None:
        self.kept.append((position, state))

    def script(self, position: int | None) -> tuple[int, bytes] | None:  # type: ignore[override]
        return self.kept[-1] if self.kept else None


def test_what_a_script_keeps_is_that_of_its_last_life_on_servers_too() -> None:
    trainer = Keeping()
    job, model, optimizer = _job(trainer)
    job.state["seen"] = 0
    for batch in job.batches(DATA, batch_size=16):
        model.loss(batch.ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        job.state["seen"] += len(batch.ids)
    assert [position for position, _ in trainer.kept] == [1, 2, 3, 4]

    again = Keeping()
    again.kept = trainer.kept[2:3]
    job, model, optimizer = _job(again)
    job.state["seen"] = 0
    next(job.batches(DATA, batch_size=16))
    assert job.state["seen"] == 48


def test_where_nobody_keeps_it_job_state_may_have_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.runtime.holding.servers.schedule.MAX_SCRIPT_BYTES", 4000)
    for trainer, says in (
        (Keeping(), pytest.raises(ConfigError, match="keep up")),
        (Told(), nullcontext()),
    ):
        job, model, optimizer = _job(trainer)
        job.state["large"] = torch.zeros(1000)
        with says:
            for batch in job.batches(DATA, batch_size=16):
                model.loss(batch.ids).backward()
                optimizer.step()


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_a_loop_that_is_left_hands_in_what_its_last_body_did(where: str) -> None:
    trainer = Keeping()
    job, model = Job(OnServers(trainer)), Counted()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    job.prepare(model, optimizer, scheduler)
    for batch in job.batches(DATA, batch_size=16):
        model.loss(batch.ids).backward()
        if job.step == 2 and where == "before":
            break
        optimizer.step()
        optimizer.zero_grad()
        if job.step == 3 and where == "between":
            break
        scheduler.step()
        if job.step == 3:
            break
    positions = {"before": [1, 2], "between": [1, 2], "after": [1, 2, 3]}[where]
    assert [position for position, _ in trainer.kept] == positions
    assert job.step == (2 if where == "before" else 3)

    again = Keeping()
    again.kept = trainer.kept
    job, model = Job(OnServers(again)), Counted()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    job.prepare(model, optimizer, scheduler)
    next(job.batches(DATA, batch_size=16))
    assert optimizer.param_groups[0]["lr"] == 0.5 ** positions[-1]


def test_what_was_kept_before_a_sparse_model_was_prepared_alone_is_not_lost() -> None:
    job, model = Job(Local(JobSpec(script="train.py"))), Counted()
    job.state["best"] = 3
    job.prepare(model, SGD(model.parameters(), lr=1.0))
    assert job.state["best"] == 3


def test_a_position_is_known_on_servers_too() -> None:
    job, model, optimizer = _job(Told())
    found = []
    for batch in job.batches(DATA, batch_size=16):
        found.append(job.step)
        model.loss(batch.ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(job.step)
    assert [*found, job.step] == [0, 1, 1, 2, 2, 3, 3, 4, 4]


class Late(Alone):
    """A life that comes when all is trained: nothing is left for it."""

    def __init__(self, trained: Alone) -> None:
        super().__init__(JobSpec(script="train.py"))
        self.trained = trained

    def next_work(self, feed: int) -> Work | None:
        return None

    def dense(self) -> Mapping[str, Any]:
        return self.trained.dense()


def trained(trainer: Alone) -> nn.Linear:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    job = Job(OnServers(trainer))
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    for x in job.batches(torch.ones(NUM_SAMPLES, 1), batch_size=16):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_a_life_that_had_no_batch_goes_on_with_the_trained_model() -> None:
    trainer = Alone(JobSpec(script="train.py"))
    model = trained(trainer)
    assert torch.equal(trained(Late(trainer)).weight, model.state_dict()["weight"])


def test_a_backward_between_the_steps_of_two_optimizers_is_refused() -> None:
    generator, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [SGD(one.parameters(), lr=0.1) for one in (judge, generator)]
    job = pl.Job(OnServers(Alone(JobSpec(script="train.py"))))
    job.prepare([generator, judge], optimizers)
    batches = job.batches(TensorRows(x=torch.ones(4, 4)), 4)
    batch = next(batches)
    judge(batch.x).mean().backward()
    optimizers[0].step()
    judge(generator(batch.x)).mean().backward()
    with pytest.raises(ConfigError, match=r"call loss\.backward\(\) for all optimizers before"):
        optimizers[1].step()
