"""What strategy allreduce refuses before any work starts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.data.work import Work
from paceline.runtime.group.checks import check_dense, device_of
from paceline.runtime.group.member import MemberClient
from paceline.runtime.group.strategy import Together
from paceline.runtime.holding.replicas.strategy import Replicated, _be_deterministic
from paceline.runtime.process.process import Fenced
from paceline.runtime.script.stepping import trained_by
from paceline.runtime.state.outside import Outside
from paceline.runtime.state.replica import Replica
from paceline.wire.messages.group import NO_STEP
from paceline.wire.messages.node import FeedOpened
from tests.unit.holding.group.test_group import FEED


@pytest.mark.parametrize(
    "table",
    [
        nn.Embedding(4, 2, sparse=True),
        nn.EmbeddingBag(4, 2, sparse=True),
        pl.Embedding("user", 4),
    ],
)
def test_sparse_tables_need_servers(table: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"1 is a sparse table.*--servers 1"):
        check_dense([nn.Sequential(nn.Linear(2, 2), table)])
    check_dense([nn.Sequential(nn.Linear(2, 2), nn.Embedding(4, 2))])


def test_statistics_of_all_workers_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    strategy = Replicated.__new__(Replicated)  # refused before anything of it is used
    with pytest.raises(ConfigError, match=r"1 is an nn\.SyncBatchNorm.*make it an nn\.BatchNorm"):
        strategy.prepare([net], [], [])


def test_a_parameter_belongs_to_one_optimizer() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    first = torch.optim.SGD(layer.parameters(), lr=0.1)
    assert trained_by([first]) == [layer.weight]
    with pytest.raises(ConfigError, match="in two optimizers"):
        trained_by([first, torch.optim.Adam(layer.parameters())])


def test_what_is_trained_is_on_one_device() -> None:
    here, there = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
    assert device_of([*there.parameters()]).type == "meta"
    assert device_of([]).type == "cpu"
    with pytest.raises(ConfigError, match=r"on cpu and on meta.*before its optimizer is made"):
        device_of([*here.parameters(), *there.parameters()])


def test_equal_bits_cost_no_filling_of_memory_unless_the_script_saw_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    settings: Any = torch.utils.deterministic
    try:
        _be_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert not settings.fill_uninitialized_memory
        settings.fill_uninitialized_memory = True
        _be_deterministic()
        assert settings.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = True


class Member(Together):
    """One whose steps the test takes."""

    def __init__(self) -> None:
        self._member: Any = SimpleNamespace(state=MemberState(1))
        self._loop: Any = SimpleNamespace(step=None, half_done=None)

    def take(self, num_batches: int, *, holds: bool = True) -> None:
        """A step that completes so many global batches."""
        self._loop.step = SimpleNamespace(
            holds=holds, changes=holds, num_batches=num_batches, stepped={0}
        )
        if holds:
            state = self._member.state
            state.position.advance(state.step, num_batches)
            state.step += 1


def test_a_schedule_follows_the_global_batches_in_the_model() -> None:
    member, model = Member(), nn.Linear(1, 1)
    member._member.state.step = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer._opt_called = True  # type: ignore[attr-defined]
    halving = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    schedulers: Any = [halving, plateau]
    Outside(schedulers, member._num_schedules)
    replica = Replica([model], [optimizer], [], position=member._member.state.position)
    for num_batches, holds in ((1, True), (0, True), (1, False), (2, True), (0, True)):
        member.take(num_batches, holds=holds)
        halving.step()
        plateau.step(1.0)
    assert (member.step, member.num_steps) == (3, 4)
    assert optimizer.param_groups[0]["lr"] == 0.5**3
    assert plateau.last_epoch == 4  # it has looked once at each step

    joins = Member()
    assert joins.step is None
    other = nn.Linear(1, 1)
    position = joins._member.state.position
    Replica(
        [other], [torch.optim.SGD(other.parameters(), lr=1.0)], [], position=position
    ).load_saved(replica.save())
    assert joins.step == 3


def test_a_meeting_is_known_by_the_step_in_the_model_and_by_the_batch_in_hand() -> None:
    strategy = Replicated.__new__(Replicated)
    strategy._member, state = (one := Member())._member, one._member.state
    strategy._loop = one._loop
    assert strategy.place_in_body == (0,)
    for held, batch_no in ((3, 0), (3, 1), (4, 0)):
        state.step = held
        one._loop.in_step = True
        one._loop.step = SimpleNamespace(
            works=[Work(0, (), 0, held + 1)] * 2, batch_no=batch_no, num_profiled=0
        )
        assert strategy.place_in_body == (held, batch_no)
        one._loop.in_step = False
        assert strategy.place_in_body == (held,), "its step broke, or another batch of it follows"
        state.step = held + 1
        assert strategy.place_in_body == (held + 1,)
    state.step = NO_STEP  # what it held was given up
    assert strategy.place_in_body == (4,)


def test_a_meeting_after_the_step_of_one_of_two_optimizers_is_not_the_one_before() -> None:
    strategy = Replicated.__new__(Replicated)
    strategy._member, state = (one := Member())._member, one._member.state
    strategy._loop, one._loop.in_step, state.step = one._loop, False, 3
    one._loop.step = SimpleNamespace(works=[Work(0, (), 0, 4)], batch_no=0, num_profiled=0)
    one._loop.half_done = one._loop.step
    assert strategy.place_in_body == (4,)
    one._loop.half_done, state.step = None, 4  # the other has stepped, or will not
    assert strategy.place_in_body == (4,)


def test_a_profiled_batch_is_where_others_have_their_first() -> None:
    strategy = Replicated.__new__(Replicated)
    strategy._member = (one := Member())._member
    strategy._loop, one._loop.in_step = one._loop, True
    step = one._loop.step = SimpleNamespace(works=[Work(0, (), 0, 4)] * 4, num_profiled=2)
    found = []
    for step.batch_no in range(4):
        found.append(strategy.place_in_body)
    assert found == [(3, 0), (3, 0), (3, 0), (3, 1)]


def test_a_scheduler_that_is_stepped_before_its_optimizer_is_refused() -> None:
    member, model = Member(), nn.Linear(1, 1)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1.0), 1)
    Outside([scheduler], member._num_schedules)
    member._loop.step = SimpleNamespace(holds=False, changes=False, num_batches=0, stepped=set())
    with pytest.raises(ConfigError, match=r"StepLR\.step\(\) was called before .*; call it after"):
        scheduler.step()


def test_a_cut_of_before_positions_were_kept_is_at_its_step() -> None:
    state = MemberState(1)
    assert state.position.at(7) == 7
    state.position.advance(7, 0)
    assert state.position.at(8) == 7


@pytest.mark.parametrize("held", [False, True])
def test_a_state_that_is_held_is_not_changed_to_make_room_for_that_of_others(held: bool) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    strategy: Any = object.__new__(Replicated)
    state = SimpleNamespace(joining=False)
    strategy.client = SimpleNamespace(
        is_complete=lambda _: False, joins_others=True, has_model=held, state=state
    )
    strategy._averaging, strategy._has_left = None, False
    strategy._params, strategy._optimizers = [*model.parameters()], [optimizer]
    strategy._takes = [optimizer.step]
    strategy._sharing = strategy._run = lambda *_: ()
    assert [*strategy.train(SimpleNamespace(feed=1), None, 1)] == []
    assert len(optimizer.state) == (0 if held else 2)


def test_who_has_passed_over_a_loop_that_is_to_be_done_again_ends_its_life() -> None:
    """Others had left it, and died before a cut had its end."""
    told: list[FeedOpened] = []
    edge: Any = SimpleNamespace(
        joins_others=False, _complete={}, _leases=SimpleNamespace(feed_opened=told.append)
    )
    over = FeedOpened(inc=3, feed=FEED, complete=True)
    again = FeedOpened(inc=3, feed=FEED)
    for message in (again, over, over):
        MemberClient._feed_opened(edge, message)
    assert told == [again, over, over]
    with pytest.raises(Fenced):
        MemberClient._feed_opened(edge, again)
