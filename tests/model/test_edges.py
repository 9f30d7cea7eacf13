"""Whole workers, loop and edge included, get on whatever arrives when; see `edges`."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.base.samples import Span
from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.client import ServerTrainer
from paceline.wire.messages.base import Message, Server, ServerMap
from paceline.wire.messages.data import Pulled
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import FeedOpened, Grant, NewEpoch, Recall

from .cells import MASTER
from .edges import Life, Town, Worker, substitute

LIVES = {
    "plans": Life(),
    "plans, and workers die": Life(deaths=2),
    "plans, and all servers are fresh ones": Life(epochs=2),
    "plans, and servers are replaced": Life(moves=3),
    "plans, and short steps": Life(shorts=6),
    "plans, short steps, servers are replaced, all dies": Life(
        shorts=4, moves=2, deaths=2, epochs=1
    ),
    "the same, over and over": Life(
        shorts=4, moves=2, deaths=2, epochs=1, restarts=2, passes=3, steps=4
    ),
    "the same, and messages are lost": Life(
        shorts=4, moves=2, deaths=2, epochs=1, restarts=2, loss=0.05
    ),
}
INC, SERVER = 11, 1


@pytest.fixture(autouse=True)
def edge(monkeypatch: pytest.MonkeyPatch) -> None:
    substitute(monkeypatch.setattr)


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 8))]
)
def test_in_no_schedule_anybody_waits_for_good(life: Life, seed: int) -> None:
    Town(life, seed).run()


class Waits:
    """A worker of one server in steps of 4 samples; what arrives is what a test says."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        #: What arrives while the training thread waits, a call for each time.
        self.arrives: list[Callable[[], None]] = []
        town: Any = SimpleNamespace(life=Life(), send=lambda _, sent: self.sent.extend(sent))
        worker = Worker(town, INC, "worker-0")
        worker.thread.kill()
        worker.thread = self  # type: ignore[assignment]
        self.trainer: ServerTrainer = worker.trainer
        self.hear: Callable[[int, Message | None], None] = worker.exchange.turn
        feed = Feed(
            feed=0,
            purpose="train",
            num_samples=40,
            epochs=1,
            batch_size=4,
            shard_size=1,
            shuffle=False,
            seed=0,
        )
        self.hear(MASTER, FeedOpened(inc=INC, feed=feed))
        self.epoch_no = 0
        self.new_epoch()

    def new_epoch(self) -> None:
        self.epoch_no += 1
        servers = ServerMap(version=1, servers=(Server(SERVER, "server-0", ""),), owners=(0,))
        self.hear(MASTER, NewEpoch(epoch_no=self.epoch_no, inc=INC, map=servers, step=0))

    def pause(self) -> None:
        """The training thread waits."""
        assert self.arrives, "it waits for good"
        self.arrives.pop(0)()

    def grant(self, *spans: Span) -> None:
        self.trainer.leases.want(0)
        n = self.trainer.leases.last_n + 1
        self.hear(MASTER, Grant(epoch_no=self.epoch_no, inc=INC, n=n, feed=0, spans=spans))

    def recall(self, start: int) -> None:
        n = self.trainer.leases.last_n
        self.hear(MASTER, Recall(epoch_no=self.epoch_no, inc=INC, n=n, feed=0, start=start))

    def decided(self, step: int) -> None:
        """The server answers the pull that is open, if it may now."""
        pull = self.trainer.state.pulling
        if pull is not None and pull.min_step <= step:
            answer = Pulled(
                epoch_no=self.epoch_no,
                server=SERVER,
                inc=INC,
                ticket=pull.ticket,
                step=step,
                last_seq=0,
                slice=(Span(0, 4 * step, 4 * step + 4),),
            )
            self.hear(SERVER, answer)

    def compute_first(self) -> Work:
        """Take, pull and push the first step; stage the next work that is known."""
        self.arrives = [lambda: self.decided(0)]  # what the first step consists of
        work = self.trainer.next_work(0)
        assert work is not None
        self.trainer.start_pull(work, {})
        self.decided(0)
        assert self.trainer.wait_pull(work)
        self.trainer.push((work,), gradients())
        (staged,) = self.trainer.upcoming(0, 2)
        self.trainer.start_pull(staged, {})
        return staged


def gradients() -> Any:
    return SimpleNamespace(dense={}, sparse={}, rates=(), changed=(), lacking=(), position=0)


@pytest.fixture
def waits() -> Iterator[Waits]:
    waits = Waits()
    yield waits
    assert not waits.arrives


def test_what_was_given_back_and_granted_again_is_computed(waits: Waits) -> None:
    # It was staged; its pull was answered, and made way for one that tells of the next step.
    waits.grant(Span(0, 0, 2), Span(0, 4, 6))
    staged = waits.compute_first()
    waits.recall(4)
    waits.decided(1)
    waits.arrives = [lambda: waits.grant(Span(0, 4, 6))]

    work = waits.trainer.next_work(0)
    assert work is not None
    while waits.trainer.wait_pull(work) is None:
        work = waits.trainer.next_work(0)
        assert work is not None
        waits.trainer.start_pull(work, {})
        waits.decided(1)

    assert (work.step, work.spans) == (2, staged.spans)


def test_a_pull_for_a_later_step_does_not_hide_the_next_one(waits: Waits) -> None:
    # Nothing of step 2 was ours when that of step 3 was staged; then it was.
    waits.grant(Span(0, 0, 4), Span(0, 8, 10))
    staged = waits.compute_first()
    waits.grant(Span(0, 4, 6))
    waits.arrives = [lambda: waits.decided(1)]

    work = waits.trainer.next_work(0)

    assert staged.step == 3
    assert work is not None
    assert (work.step, work.spans) == (2, (Span(0, 4, 6),))


def test_who_has_work_of_later_steps_asks_for_more_of_this_one_if_it_lasts(waits: Waits) -> None:
    waits.grant(Span(0, 0, 2), Span(0, 4, 6))
    waits.compute_first()
    starves: list[bool] = []

    def waited() -> None:
        request = waits.trainer.leases.request
        starves.append(request is not None and request.starving)

    waits.arrives = [waited, waited, waited, lambda: waits.decided(1)]
    assert waits.trainer.next_work(0) is not None
    assert starves == [False, False, True]


def test_a_pull_for_a_later_step_does_not_hide_what_the_first_one_consists_of(waits: Waits) -> None:
    # The loop opens the pull of work that it has staged when the epoch is a new one already.
    waits.grant(Span(0, 0, 2), Span(0, 4, 6))
    staged = waits.compute_first()
    waits.new_epoch()
    waits.trainer.start_pull(staged, {})
    waits.grant(Span(0, 0, 2))
    waits.arrives = [lambda: waits.decided(0)]

    work = waits.trainer.next_work(0)

    assert work is not None
    assert (work.step, work.spans) == (1, (Span(0, 0, 2),))


def test_work_of_before_a_new_epoch_is_not_waited_for(waits: Waits) -> None:
    # Its batch is made while the epoch begins, from a cut of some steps before it.
    waits.grant(Span(0, 8, 10))
    waits.arrives = [lambda: waits.decided(2)]
    work = waits.trainer.next_work(0)
    assert work is not None
    assert work.step == 3
    waits.new_epoch()

    waits.trainer.start_pull(work, {})

    assert waits.trainer.wait_pull(work) is None
