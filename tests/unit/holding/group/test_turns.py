"""Several optimizers that step in turn: each on the mean of its own gradients, or taken back."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.optim.swa_utils import AveragedModel

from paceline.base.errors import ConfigError
from paceline.base.samples import SampleSet
from paceline.protocol.holding.group.position import Position
from paceline.runtime.group.group import Group
from paceline.runtime.group.loop import GroupLoop
from paceline.runtime.group.reducer import ALL
from paceline.runtime.group.strategy import Together
from paceline.runtime.holding.replicas.turns import TurnReducer
from paceline.runtime.holding.replicas.undo import Undo
from tests.parity.kinds import bits
from tests.unit.holding.group.test_reducer import in_group

X = torch.randn(4, 12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
"""Of each step."""
MAKER, JUDGE = nn.Linear(4, 4).double(), nn.Linear(4, 1).double()


class Pair:
    """Two models that train each other, in one member or in one process."""

    def __init__(self, group: Group | None = None, **options: Any) -> None:
        self.maker, self.judge = copy.deepcopy(MAKER), copy.deepcopy(JUDGE)
        self.models = [self.maker, self.judge]
        self.optimizers: list[Optimizer] = [Adam(one.parameters(), lr=0.1) for one in self.models]
        self.group, self.stepped, self.over = group, set[int](), False
        self.undo = Undo(self.optimizers)
        params = [[*one.parameters()] for one in self.models]
        self.reducer = TurnReducer(params, self.undo, **options)

    def begin(self, part: float = 1.0, *, last: bool = True) -> None:
        if self.group is not None:
            self.reducer.begin(self.group, [])
            self.stepped.clear()
            self.over = False
        self.expect(part, last=last)

    def expect(self, part: float, *, last: bool = True) -> None:
        self.reducer.expect(part, lambda: None, last=last)

    def step(self, number: int) -> bool:
        """As the loop does; whether it was for good."""
        if self.group is not None:
            if self.reducer.is_due(number) and not self.over:
                self.reducer.wants(number)
                self.reducer.finish()
            self.over |= self.reducer.is_last_turn(self.stepped, number)
            if self.over:
                self.reducer.check_over(number)
            else:
                self.reducer.keep(number)
            self.stepped.add(number)
        self.optimizers[number].step()
        return self.over

    def end_batch(self) -> None:
        """As the loop does when the next batch is asked for."""
        if self.group is not None:
            missing = {0, 1} - self.stepped
            if missing and not self.over:
                self.reducer.no_more()
            self.reducer.skip(missing) if missing else None
            self.reducer.update()

    def judge_loss(self, x: Tensor, *, detach: bool = True) -> Tensor:
        made = self.maker(x)
        return (
            self.judge(x) ** 2 + (self.judge(made.detach() if detach else made) - 1) ** 2
        ).mean()

    def maker_loss(self, x: Tensor) -> Tensor:
        return (self.judge(self.maker(x)) ** 2).mean()

    def train_judge(self, x: Tensor, *, detach: bool = True, clips: bool = False) -> bool:
        self.optimizers[1].zero_grad()
        self.judge_loss(x, detach=detach).backward()
        if clips:
            self.clip(1)
        return self.step(1)

    def train_maker(self, x: Tensor, *, clears: bool = True, clips: bool = False) -> bool:
        if clears:
            self.optimizers[0].zero_grad()
        self.maker_loss(x).backward()
        if clips:
            self.clip(0)
        return self.step(0)

    def clip(self, number: int) -> None:
        """Clip the mean gradient of what one optimizer trains."""
        if self.group is not None and self.reducer.is_due(number):
            self.reducer.wants(number)
            self.reducer.finish()
        nn.utils.clip_grad_norm_(self.models[number].parameters(), 0.05)

    def state(self) -> list[Any]:
        return [one.state_dict() for one in (*self.models, *self.optimizers)]


def shares(group: Group, sizes: list[int]) -> Iterator[tuple[Tensor, float]]:
    start = sum(sizes[: group.rank])
    for x in X:
        mine = x[start : start + sizes[group.rank]]
        yield (mine, len(mine) / sum(sizes)) if len(mine) else (x[:2], 0.0)


class Client:
    """What a loop asks of its member."""

    def mark(self, *, computing: bool) -> None: ...

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.state = SimpleNamespace(step=0, position=Position(), done=SampleSet())

    def begin_update(self, _: object) -> bool:
        self.calls.append("update")
        return True

    def begin_trial(self, _: object) -> bool:
        self.calls.append("trial")
        return True

    def updated(self, *_: object, **__: object) -> None:
        self.calls.append("updated")

    def unmark(self) -> None: ...


def test_a_batch_that_is_left_out_after_clipping_is_done() -> None:
    """`job.clip_grad_norm_` averages all gradients on trial; then the script passes the batch."""

    def act(group: Group) -> list[str]:
        pair, client = Pair(group), Client()
        mine, part = next(shares(group, [5, 7]))
        pair.begin(part)
        pair.judge_loss(mine).backward()
        loop: Any = GroupLoop.__new__(GroupLoop)
        loop.num_optimizers, loop.accumulate, loop.has_taken, loop.num_steps = 2, 1, False, 1
        loop._client, loop._reducer = client, pair.reducer
        loop._sharing, loop._shares = SimpleNamespace(blocks=0), SimpleNamespace(bodies=0)
        step = SimpleNamespace(settled=True, on_trial=False, holds=False, left_out=False)
        step.evaluating = False
        step.stepped, step.run, step.batch_no, step.num_batches = set(), None, 0, 1
        step.committed, step.last, step.changes, step.is_last_batch = (), False, False, True
        loop.step = step
        pair.reducer.wants(ALL)
        pair.reducer.finish()
        loop._hold(step, ALL)
        for optimizer in pair.optimizers:
            optimizer.zero_grad()
        loop._finish(step)
        return client.calls

    assert in_group(2, act) == [["trial", "update", "updated"]] * 2


@pytest.mark.parametrize("breaks", [False, True])
def test_a_batch_is_done_when_the_script_evaluates_after_it(breaks: bool) -> None:
    def act(group: Group) -> list[str]:
        pair, client = Pair(group), Client()
        mine, part = next(shares(group, [5, 7]))
        pair.begin(part)
        assert not pair.train_judge(mine)
        loop: Any = GroupLoop.__new__(GroupLoop)
        loop.num_optimizers, loop._client, loop._reducer = 2, client, pair.reducer
        loop._sharing, loop._shares = SimpleNamespace(blocks=0), SimpleNamespace(bodies=0)
        loop._watcher = SimpleNamespace(stepping=lambda *_, **__: None)
        client.state.next_step = 1
        step = SimpleNamespace(on_trial=True, holds=False, left_out=False, closed=False)
        step.evaluating = False
        step.stepped, step.run, step.turns_s, step.num_batches = {1}, None, 0.0, 1
        step.committed, step.last, step.is_last_batch = (), False, True
        loop.step = step
        if breaks:
            client.begin_update = lambda _: False  # type: ignore[method-assign]
            client.calls.append(str(bits(pair.state()) == bits(Pair().state())))
        assert loop.half_done is step
        loop.close_step()
        assert loop.half_done is None
        loop.close_step()
        if breaks:
            client.calls.append(str(bits(pair.state()) == bits(Pair().state())))
        with pytest.raises(
            ConfigError, match=r"after job\.evaluate, before .*; call job\.evaluate after"
        ):
            loop.on_step(0)
        return client.calls

    expected = ["False", "True"] if breaks else ["update", "updated"]
    assert in_group(2, act) == [expected] * 2


@pytest.mark.parametrize(("detach", "clears"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("sizes", [[5, 7], [1, 7, 4], [12, 0], [12]])
def test_two_models_that_train_in_turn_are_those_of_one_process(
    sizes: list[int], detach: bool, clears: bool
) -> None:
    one = Pair()
    for x in X:
        one.train_judge(x, detach=detach)
        one.train_maker(x, clears=clears)
        one.optimizers[0].zero_grad()

    def act(group: Group) -> list[Any]:
        pair = Pair(group)
        for mine, part in shares(group, sizes):
            pair.begin(part)
            assert not pair.train_judge(mine, detach=detach)
            assert pair.train_maker(mine, clears=clears)
            pair.optimizers[0].zero_grad()
            pair.reducer.update()
        return pair.state()

    for found in in_group(len(sizes), act):
        for mine, theirs in zip(found[:2], one.state()[:2], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)


def test_optimizers_that_step_together_are_summed_once_and_soon_not_copied() -> None:
    def act(group: Group) -> list[bool]:
        pair, found = Pair(group), []
        for mine, part in shares(group, [5, 7]):
            pair.begin(part)
            (pair.judge_loss(mine) + pair.maker_loss(mine)).backward()
            found += [pair.step(0), pair.step(1)]
            for optimizer in pair.optimizers:
                optimizer.zero_grad()
            pair.reducer.update()
        # Now it is too late for turns: the first has stepped for good.
        pair.begin(part)
        (pair.judge_loss(mine) + pair.maker_loss(mine)).backward()
        pair.step(0)
        pair.judge_loss(mine).backward()
        with pytest.raises(ConfigError, match="in the batches before all optimizers stepped"):
            pair.step(1)
        return found

    assert in_group(2, act) == [[False, True, True, True, True, True, True, True]] * 2


def test_gradients_that_are_wanted_before_a_step_are_those_of_all() -> None:
    """For clipping: the first that steps finds them there."""

    def act(group: Group) -> list[float]:
        pair = Pair(group)
        ((mine, part), *_) = shares(group, [5, 7])
        pair.begin(part)
        pair.judge_loss(mine).backward()
        pair.reducer.wants(ALL)
        pair.reducer.finish()
        assert not pair.reducer.is_due(1)
        assert pair.reducer.is_due(0)
        assert pair.judge.weight.grad is not None
        return pair.judge.weight.grad.flatten().tolist()

    one = Pair()
    one.judge_loss(X[0]).backward()
    assert one.judge.weight.grad is not None
    for found in in_group(2, act):
        assert found == pytest.approx(one.judge.weight.grad.flatten().tolist(), rel=1e-12)


def test_a_member_that_leaves_its_batch_out_leaves_it_out_for_all() -> None:
    def act(group: Group) -> bool:
        pair = Pair(group)
        pair.begin(0.5)
        if group.rank:
            pair.reducer.leave_out()
        else:
            pair.judge_loss(X[0]).backward()
        pair.reducer.wants(ALL if group.rank else 1)
        pair.reducer.finish()
        assert pair.judge.weight.grad is None or not group.rank
        return pair.reducer.left_out

    assert in_group(2, act) == [True, True]


@pytest.mark.parametrize("both", [[True, False, False, True], [False, False, True, False]])
@pytest.mark.parametrize("clips", [False, True])
def test_one_optimizer_may_step_on_some_batches_only(both: list[bool], clips: bool) -> None:
    def train(pair: Pair, x: Tensor, *, maker_too: bool) -> None:
        pair.train_judge(x, clips=clips)
        if maker_too:
            pair.train_maker(x, clips=clips)
        pair.end_batch()

    one = Pair()
    for x, maker_too in zip(X, both, strict=True):
        train(one, x, maker_too=maker_too)

    def act(group: Group) -> list[Any]:
        pair = Pair(group)
        for (mine, part), maker_too in zip(shares(group, [5, 7]), both, strict=True):
            pair.begin(part)
            train(pair, mine, maker_too=maker_too)
        return pair.state()

    for found in in_group(2, act):
        for mine, theirs in zip(found, one.state(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)


def test_a_batch_that_lacks_a_step_is_taken_back_if_it_breaks() -> None:
    def act(group: Group) -> None:
        pair = Pair(group)
        before = bits(pair.state())
        pair.begin()
        assert not pair.train_judge(X[0])
        pair.reducer.no_more()
        pair.reducer.take_back()
        assert bits(pair.state()) == before

    in_group(1, act)


def test_workers_that_do_not_step_the_same_optimizers_are_named() -> None:
    def act(group: Group) -> None:
        pair = Pair(group)
        pair.begin(0.5)
        pair.train_judge(X[0])
        with pytest.raises(ConfigError, match=r"optimizer 0 in worker-0, no other one in worker-1"):
            pair.end_batch() if group.rank else pair.train_maker(X[0])

    in_group(2, act)


def test_workers_that_step_in_another_order_are_named() -> None:
    def act(group: Group) -> None:
        pair = Pair(group)
        pair.begin(0.5)
        (pair.judge_loss(X[0]) + pair.maker_loss(X[0])).backward()
        with pytest.raises(
            ConfigError, match="optimizer 0 in worker-0, optimizer 1 in worker-1; have all"
        ):
            pair.step(group.rank)

    in_group(2, act)


def _not_cleared(pair: Pair) -> None:
    pair.train_judge(X[0])
    pair.train_maker(X[0])
    pair.reducer.update()
    pair.begin()
    pair.judge_loss(X[1]).backward()


def _left_without_step(pair: Pair) -> None:
    (pair.judge_loss(X[0]) + pair.maker_loss(X[0])).backward()
    pair.step(1)
    pair.end_batch()
    pair.begin()
    pair.maker_loss(X[1]).backward()


def _edited(pair: Pair) -> None:
    pair.judge_loss(X[0]).backward()
    torch.nn.utils.clip_grad_norm_(pair.judge.parameters(), 1.0)
    pair.step(1)


def _in_parts(pair: Pair) -> None:
    pair.expect(0.5)
    pair.train_judge(X[0])
    pair.train_maker(X[0])


def _stepped_on_a_part(pair: Pair) -> None:
    pair.begin(0.5, last=False)
    pair.judge_loss(X[0]).backward()
    pair.reducer.take()
    pair.maker_loss(X[0]).backward()
    pair.reducer.take()


def _scaled(pair: Pair) -> None:
    pair.reducer = TurnReducer([[*one.parameters()] for one in pair.models], pair.undo, scaled=True)
    pair.begin()
    (pair.judge_loss(X[0]) + pair.maker_loss(X[0])).backward()
    assert pair.step(1)
    pair.maker_loss(X[0]).backward()
    pair.step(0)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_not_cleared, r"this worker alone, or of a batch before; call zero_grad\(\) of that opt"),
        (_left_without_step, r"that an optimizer has not stepped on.*; call zero_grad\(\) of that"),
        (_edited, r"clip with job.clip_grad_norm_\(max_norm, optimizer\) before it steps"),
        (_in_parts, "need the whole share as one batch; leave out accumulate"),
        (_stepped_on_a_part, "need the whole share as one batch; leave out accumulate"),
        (_scaled, "GradScaler, which does not know .* compute in bfloat16"),
    ],
)
def test_what_would_be_of_one_worker_alone_is_refused(act: Any, said: str) -> None:
    def member(group: Group) -> None:
        pair = Pair(group)
        pair.begin()
        with pytest.raises(ConfigError, match=said):
            act(pair)

    in_group(1, member)


def test_a_batch_that_does_not_count_takes_turns_that_come_to_nothing() -> None:
    def member(group: Group) -> None:
        pair = Pair(group)
        pair.begin(0.0, last=False)
        pair.judge_loss(X[0]).backward()
        pair.reducer.take()
        pair.optimizers[0].zero_grad()
        pair.maker_loss(X[0]).backward()
        pair.reducer.take()
        pair.expect(1.0)
        assert not pair.train_judge(X[1])
        assert pair.train_maker(X[1])
        one = Pair()
        one.train_judge(X[1])
        one.train_maker(X[1])
        torch.testing.assert_close(pair.state()[:2], one.state()[:2], rtol=1e-12, atol=1e-14)

    in_group(1, member)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda params: SGD(params, lr=0.1, momentum=0.9),
        lambda params: AdamW(params, lr=torch.tensor(0.1), amsgrad=True),
    ],
)
def test_what_is_taken_back_is_as_it_was_bit_for_bit(steps: int, make: Any) -> None:
    model = nn.Linear(4, 2)
    optimizer = make(model.parameters())
    other = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedulers = [CosineAnnealingLR(optimizer, 10), LambdaLR(optimizer, lambda step: 0.9**step)]
    undo = Undo([other, optimizer], schedulers)

    def step() -> None:
        model(torch.ones(1, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for one in schedulers:
            one.step()

    def state() -> Any:
        return bits(
            {
                "model": dict(model.state_dict()),
                "optimizer": optimizer.state_dict(),
                "schedulers": [one.state_dict() for one in schedulers],
            }
        )

    for _ in range(steps):
        undo.keep(1)
        step()
        undo.drop()
    before = state()
    for _ in range(2):
        undo.keep(1)
        step()
        assert state() != before
        undo.restore()
        assert state() == before
    undo.restore()
    step()
    assert state() != before


def test_an_average_between_two_optimizers_steps_leaves_the_second_its_step() -> None:
    """As in a GAN: the generator steps, its average follows, then the discriminator steps."""
    kept: list[AveragedModel] = []
    loop: Any = GroupLoop.__new__(GroupLoop)
    loop.num_optimizers, loop.num_steps = 2, 5
    loop._reducer = SimpleNamespace(keep_average=kept.append)

    def attempt() -> SimpleNamespace:
        """A new attempt at the step, in which the first optimizer has stepped on trial."""
        loop.num_steps += 1
        loop.step = SimpleNamespace(on_trial=True, holds=False, stepped={0}, changes=True)
        loop.step.is_last_batch, loop.step.evaluating = True, False
        return cast("SimpleNamespace", loop.step)

    member = SimpleNamespace(_loop=loop, num_steps=7)
    model = nn.Linear(1, 1)
    average = AveragedModel(model)
    Together._follow_average(cast("Any", member), average)
    attempt()
    for _ in range(2):  # a second call at the same place does nothing
        average.update_parameters(model)
        assert average.n_averaged == 1
    step = attempt()  # the step broke, and comes again, with what the average held before
    average.update_parameters(model)
    assert (average.n_averaged, set(kept)) == (2, {average})
    step.stepped, step.holds, step.on_trial = {0, 1}, True, False
    member.num_steps = 8
    for _ in range(2):
        average.update_parameters(model)
        assert average.n_averaged == 3, "again, since all have stepped"
    step = attempt()
    step.on_trial = step.changes = False
    average.update_parameters(model)
    assert average.n_averaged == 3, "nothing of this step counts"


def test_an_average_of_what_is_undone_is_undone() -> None:
    pair = Pair()
    average = AveragedModel(pair.maker, use_buffers=True)
    average.update_parameters(pair.maker)
    before = bits(copy.deepcopy(average.state_dict()))
    pair.undo.keep(0)
    with torch.no_grad():
        for param in pair.maker.parameters():
            param += 1.0
    for _ in range(2):
        pair.undo.keep_average(average)
        average.update_parameters(pair.maker)
    assert bits(average.state_dict()) != before
    pair.undo.restore()
    assert bits(average.state_dict()) == before
    pair.undo.keep(0)
    average.update_parameters(pair.maker)
    after = bits(copy.deepcopy(average.state_dict()))
    pair.undo.restore()
    assert bits(average.state_dict()) == after, "of another step"
