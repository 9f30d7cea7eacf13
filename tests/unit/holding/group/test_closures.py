"""``optimizer.step(closure)`` in members: calls are turns, or the closure is called once before."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import LBFGS, SGD, Adam, Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.group.closures import check_calls, step_by
from paceline.runtime.group.group import Group
from paceline.runtime.group.loop import GroupLoop
from paceline.runtime.holding.replicas.strategy import Replicated
from paceline.runtime.holding.replicas.turns import TurnReducer
from paceline.runtime.holding.replicas.undo import Undo
from tests.parity.kinds import bits
from tests.unit.holding.group.test_reducer import in_group
from tests.unit.holding.group.test_turns import Client, X, shares

MODEL = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


class Step(SimpleNamespace):
    """A step that has begun on trial, as after clipping."""

    @property
    def changes(self) -> bool:
        return bool(self.holds or self.on_trial)


class Member:
    """One model with LBFGS, in a member or in one process."""

    def __init__(self, group: Group | None = None, **options: Any) -> None:
        self.model = copy.deepcopy(MODEL)
        self.optimizer = LBFGS(self.model.parameters(), lr=0.4, max_iter=5, **options)
        self.group, self.client, self.calls = group, Client(), 0
        self.undo = Undo([self.optimizer])
        self.reducer = TurnReducer([[*self.model.parameters()]], self.undo, by_closure={0})
        self.clears, self.runs, self.breaks_at = True, True, 0

    def begin(self, part: float) -> None:
        assert self.group is not None
        self.reducer.begin(self.group, [])
        self.reducer.expect(part, lambda: None, last=True)
        loop: Any = GroupLoop.__new__(GroupLoop)
        loop.num_optimizers, loop.accumulate, loop.has_taken, loop.num_steps = 1, 1, False, 1
        loop.excluded_s, loop._client, loop._reducer = 0.0, self.client, self.reducer
        loop._sharing, loop._shares = SimpleNamespace(blocks=0), SimpleNamespace(bodies=0)
        loop._watcher = SimpleNamespace(stepping=lambda *_, **__: None)
        self.client.state.next_step = 1
        self.client.failed = lambda *_: None  # type: ignore[attr-defined]
        step = Step(settled=True, on_trial=True, holds=False, left_out=False)
        step.stepped, step.run, step.batch_no, step.num_batches = set(), None, 0, 1
        step.is_alone = False
        step.committed, step.last, step.is_last_batch, step.closed = (), False, True, False
        step.evaluating, step.works = False, [None]
        step.counting = lambda _: part > 0
        step.data_s = step.waited_before_s = step.turns_s = step.start_s = 0.0
        loop.step, self.loop, self.calls = step, loop, 0

    def closure_of(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        def closure() -> torch.Tensor:
            self.calls += 1
            if self.calls == self.breaks_at:
                assert self.group is not None
                self.group.drop()
            if self.clears:
                self.optimizer.zero_grad()
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            if self.runs:
                loss.backward()
            return loss

        return closure

    def step(self, x: torch.Tensor) -> Any:
        return step_by(self.closure_of(x), self.optimizer, self.optimizer.step, self.loop, number=0)

    def state(self) -> list[Any]:
        return [dict(self.model.state_dict()), self.optimizer.state_dict()["state"]]


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("sizes", [[5, 7], [1, 7, 4], [12, 0], [12]])
def test_lbfgs_goes_the_way_of_one_process(sizes: list[int], line_search: str | None) -> None:
    one = Member(line_search_fn=line_search)
    losses = [float(one.optimizer.step(one.closure_of(x)).detach()) for x in X]

    def act(group: Group) -> Any:
        member = Member(group, line_search_fn=line_search)
        found = []
        for mine, part in shares(group, sizes):
            member.begin(part)
            found.append(member.step(mine))
            assert member.client.calls[-2:] == ["update", "updated"]
        return member.state(), [float(loss) for loss in found], member.calls

    members = in_group(len(sizes), act)
    for state, found, calls in members:
        assert bits(state) == bits(members[0][0])
        assert found == pytest.approx(losses, rel=1e-12)
        assert calls == one.calls - 5 * (len(X) - 1) if line_search is None else calls
        for mine, theirs in zip(state, one.state(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("breaks_at", [1, 2, 5])
def test_a_call_that_breaks_has_the_step_taken_back(breaks_at: int) -> None:
    """Torch's own step is left in the middle; the loss is one that a script can print."""

    def act(group: Group) -> None:
        member = Member(group)
        member.begin(1.0)
        member.step(X[0])
        before = bits(member.state())
        member.begin(1.0)
        member.breaks_at = breaks_at
        member.client.calls.clear()
        assert member.step(X[1]).item() > 0
        assert bits(member.state()) == before
        assert member.calls == breaks_at
        assert "updated" not in member.client.calls
        assert not member.loop.step.evaluating

    in_group(1, act)


def _differ(member: Member, group: Group) -> None:
    member.optimizer.param_groups[0]["max_iter"] = 3 + group.rank


def _pile_up(member: Member, group: Group) -> None:
    member.clears = False


def _do_nothing(member: Member, group: Group) -> None:
    member.runs = False


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_differ, r"differently: no other one in worker-0, optimizer 0 by its closure in worker-1"),
        (_pile_up, r"adds to gradients that were averaged .*zero_grad\(\) in the closure"),
        (_do_nothing, r"has left no gradient; call loss.backward\(\) in each of its calls"),
    ],
)
def test_what_would_not_be_torchs_is_refused(act: Any, said: str) -> None:
    def member(group: Group) -> None:
        one = Member(group)
        act(one, group)
        one.begin(0.5)
        with pytest.raises(ConfigError, match=said):
            one.step(X[0])

    in_group(2, member)


def test_a_script_that_goes_on_after_an_error_in_a_closure_is_refused() -> None:
    def act(group: Group) -> None:
        member = Member(group)
        member.begin(1.0)
        closure = member.closure_of(X[0])

        def fails() -> torch.Tensor:
            if member.calls == 2:
                raise OSError
            return closure()

        with pytest.raises(OSError):
            step_by(fails, member.optimizer, member.optimizer.step, member.loop, number=0)
        with pytest.raises(ConfigError, match="do not catch what a closure raises"):
            member.loop._finish(member.loop.step)

    in_group(1, act)


class Own(SGD):
    """An optimizer of the script."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class OwnLBFGS(LBFGS):
    """Another one."""

    def step(self, closure: Any) -> Any:
        return super().step(closure)


def test_where_a_closure_may_not_be_called_it_is_refused_with_the_remedy() -> None:
    params = [nn.Parameter(torch.ones(2))]
    check_calls(LBFGS(params), may_again=True)
    check_calls(Own(params, lr=0.1), may_again=False)
    with pytest.raises(ConfigError, match=r"LBFGS has .* --strategy allreduce, without determin"):
        check_calls(LBFGS(params), may_again=False)
    with pytest.raises(ConfigError, match=r"OwnLBFGS.step\(closure\) is not torch's own"):
        check_calls(OwnLBFGS(params), may_again=True)
    own, loop = Own(params, lr=0.1), GroupLoop.__new__(GroupLoop)
    with pytest.raises(ConfigError, match=r"Own.step\(closure\) .* call the closure yourself"):
        step_by(lambda: 0.0, own, own.step, loop, number=0)
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer:
            assert kind.step.__module__.startswith("torch.optim."), name
    member: Any = SimpleNamespace()
    with pytest.raises(ConfigError, match="GradScaler takes no closure, which LBFGS needs"):
        Replicated.prepare(member, [nn.Linear(2, 2)], [LBFGS(params)], (), [GradScaler("cpu")])


@pytest.mark.parametrize("make", [SGD, Adam])
def test_an_optimizer_that_calls_its_closure_once_steps_after_it(make: Any) -> None:
    model, plain = copy.deepcopy(MODEL), copy.deepcopy(MODEL)
    optimizer, other = make(model.parameters(), lr=0.1), make(plain.parameters(), lr=0.1)
    order: list[str] = []
    loop: Any = SimpleNamespace(
        may_step=lambda _: order.append("may"),
        evaluate=lambda _, closure, *, again: (order.append(f"again={again}"), closure())[1],
        on_step=lambda _: bool(order.append("averages")) or True,
        stepped=lambda: order.append("stepped"),
    )

    def closure_of(module: nn.Module) -> Callable[[], torch.Tensor]:
        def closure() -> torch.Tensor:
            module.zero_grad()
            loss: torch.Tensor = module(X[0]).square().mean()
            loss.backward()
            return loss

        return closure

    with torch.no_grad():
        loss = step_by(closure_of(model), optimizer, optimizer.step, loop, number=0)
    assert loss.item() == other.step(closure_of(plain)).item()
    assert bits(dict(model.state_dict())) == bits(dict(plain.state_dict()))
    assert order == ["may", "again=False", "averages", "stepped"]
