"""Gradients and buffers summed by blocks: equal bits in any group, over real sockets."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from paceline.base.errors import ConfigError
from paceline.base.samples import Span
from paceline.protocol.holding.group.division import Sharing
from paceline.runtime.group import reducer as reducer_module
from paceline.runtime.group.group import Group
from paceline.runtime.holding.replicas.blocks import BlockReducer
from paceline.runtime.holding.replicas.buffers import Buffers
from paceline.runtime.process.seeding import seed_of
from paceline.wire.messages.group import Division, MemberPart
from tests.unit.holding.group.test_reducer import in_group

BATCH, BLOCKS = 40, 9


class Rough(nn.Module):
    """Whose sums show their order, in several dtypes, and which not every block uses alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 11), nn.BatchNorm1d(11)
        self.second = nn.Linear(11, 1)
        self.brief = nn.Parameter(torch.randn(11, dtype=torch.bfloat16))
        self.phase = nn.Parameter(torch.randn(11, dtype=torch.complex64))
        self.sometimes = nn.Linear(6, 1)
        self.never = nn.Parameter(torch.ones(2))
        self.register_buffer("was_used", torch.tensor([False, True]))
        self.register_buffer("mask", torch.tensor([float("-inf"), float("nan"), 0.1]))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor, *, sometimes: bool) -> Tensor:
        """Return a mean over the samples."""
        self.was_used[0] = True
        self.scratch += 1.0
        y = torch.relu(self.norm(self.first(x))) * self.brief.float() * self.phase.abs()
        y = self.second(y) + (self.sometimes(x) if sometimes else 0.0)
        return y.pow(2).mean()


NET = Rough()
X = torch.randn(BATCH, 6)


def trained(
    group: Group, sizes: Sequence[int], *, profiles: bool = False, **options: bool
) -> dict[str, Tensor]:
    """What a member holds after three steps of SGD, gradients of the last one included.

    ``profiles``: each with a batch before it that does not count.
    """
    net = copy.deepcopy(NET)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    reducer = BlockReducer([*net.parameters()], Buffers([net]), **options)
    sharing, division = Sharing(BATCH, BLOCKS), Division(1, tuple(map(MemberPart, sizes)))
    for whole in [(Span(0, 0, BATCH),), (Span(0, 0, BATCH),), (Span(0, 4, 19),)]:
        runs = sharing.runs(whole, group.size, division)
        mine = sharing.batches(whole, runs[group.rank] or sharing.stand_in(whole), 1)
        reducer.begin(group, runs)
        for number, (span,) in enumerate(mine, 1):
            part = len(span) / sum(map(len, whole)) if runs[group.rank] else 0.0
            if profiles and number == 1:
                reducer.expect(0.0, lambda: None, last=False)
                net(3.0 * X, sometimes=True).backward()
                reducer.take()
            reducer.expect(part, lambda: None, last=number == len(mine))
            net(X[span.start : span.stop], sometimes=span.start > 12).backward()
            assert not reducer.called_twice
            if number < len(mine):
                reducer.take()
        reducer.finish()
        optimizer.step()
        reducer.update()
        net(X, sometimes=False)  # what the script does besides leaves no trace
        reducer.end()
        if sizes[0] % 2:
            optimizer.zero_grad(set_to_none=False)
    held = dict(net.state_dict())
    if not sizes[0] % 2:
        grads = {f"{name}.grad": one.grad for name, one in net.named_parameters()}
        held |= {name: grad for name, grad in grads.items() if grad is not None}
    return held


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 1), (2, 1), (1, 1, 1), (9, 1, 30), (2, 30, 1)])
def test_the_bits_are_those_of_one_member(
    sizes: tuple[int, ...], early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducer_module, "BUCKET_BYTES", 64)
    monkeypatch.setattr(reducer_module, "FIRST_BUCKET_BYTES", 8)
    (alone,) = in_group(1, lambda group: trained(group, [2]))
    members = in_group(
        len(sizes), lambda group: trained(group, sizes, profiles=group.rank == 0, early=early)
    )
    for found in members:
        for name, values in found.items():
            assert alone[name].dtype == values.dtype
            bits, wanted = (
                one.contiguous().view(-1).view(torch.uint8) for one in (values, alone[name])
            )
            assert torch.equal(bits, wanted), name


def test_the_sum_is_the_mean_over_all_samples() -> None:
    net = copy.deepcopy(NET)
    for start, stop in [(0, 4), (4, 8)]:
        (net(X[start:stop], sometimes=False) * 0.5).backward()

    def act(group: Group) -> dict[str, Tensor | None]:
        own = copy.deepcopy(NET)
        reducer = BlockReducer([*own.parameters()], Buffers([own]))
        reducer.begin(group, [range(2)])
        for start, last in [(0, False), (4, True)]:
            reducer.expect(0.5, lambda: None, last=last)
            own(X[start : start + 4], sometimes=False).backward()
            if not last:
                reducer.take()
        reducer.finish()
        reducer.update()
        reducer.end()
        assert own.norm.num_batches_tracked == 1
        means = torch.stack([NET.first(X[k : k + 4]).mean(dim=0) for k in (0, 4)]).mean(dim=0)
        torch.testing.assert_close(own.norm.running_mean, 0.1 * means.detach())
        assert own.was_used.all()
        return {name: one.grad for name, one in own.named_parameters()}

    (found,) = in_group(1, act)
    for name, one in net.named_parameters():
        if one.grad is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], one.grad)


def test_what_a_broken_step_did_to_buffers_is_undone() -> None:
    def act(group: Group) -> None:
        net = copy.deepcopy(NET)
        reducer = BlockReducer([*net.parameters()], Buffers([net]))
        reducer.begin(group, [range(2)])
        reducer.expect(0.5, lambda: None, last=False)
        net(X[:4], sometimes=False).backward()
        reducer.drop()
        reducer.end()
        assert torch.equal(net.norm.running_mean, NET.norm.running_mean)
        net.norm.running_mean.fill_(7.0)  # as a peer's state that is copied between two steps
        reducer.drop()
        reducer.end()
        assert net.norm.running_mean[0] == 7.0

    in_group(1, act)


def test_a_second_backward_for_a_block_is_noticed() -> None:
    def act(group: Group) -> None:
        first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        reducer = BlockReducer([first, second], Buffers([]), early=False)
        reducer.begin(group, [range(2)])
        reducer.expect(0.5, lambda: None, last=False)
        first.sum().backward()
        reducer.take()
        assert not reducer.called_twice
        second.sum().backward()
        assert reducer.called_twice

    in_group(1, act)


def test_a_buffer_that_changes_its_form_is_refused() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3))
    buffers = Buffers([net])
    net[0].running_mean = torch.zeros(4)
    with pytest.raises(ConfigError, match=r"0.running_mean has become .*\(4,\)"):
        buffers.begin()


def test_seeds_are_told_apart() -> None:
    places = [(seed, line, start) for seed in (0, 1, 2**62) for line in (0, 1) for start in (0, 7)]
    assert len({seed_of(*place) for place in places}) == len(places)
    assert all(0 <= seed_of(*place) < 2**63 for place in places)
