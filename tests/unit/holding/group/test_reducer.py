"""Gradients of a group: the exact weighted mean, over real sockets, in threads of this process."""

import contextlib
import copy
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.runtime.group import group as group_module
from paceline.runtime.group import reducer as reducer_module
from paceline.runtime.group import transports
from paceline.runtime.group.group import BREAKING, Group
from paceline.runtime.group.reducer import Bucket, Reducer
from paceline.runtime.group.store import GroupOver, PeerStore
from paceline.wire.messages.group import Member, RunGroup

MEMBERS = tuple(Member(inc, f"worker-{inc}", "") for inc in range(3))


def members_at(places: Sequence[str]) -> tuple[Member, ...]:
    """A member at each of these places."""
    named = enumerate(places)
    return tuple(Member(Inc(k), f"worker-{k}", "", place=place) for k, place in named)


def in_group(size: int, act: Callable[[Group], Any], places: Sequence[str] = ()) -> list[Any]:
    """What ``act`` returns in each member of a connected group.

    ``places``: those of one place share memory; by default none do.
    """
    members = MEMBERS[:size] if not places else members_at(places)
    run = RunGroup(epoch_no=1, inc=0, group=1, step=0, members=members)
    stores: list[PeerStore] = []

    def teller(own: int) -> Callable[[str, bytes], None]:
        def tell(key: str, value: bytes) -> None:
            for inc, store in enumerate(stores):
                if inc != own:
                    store.put(key, value)

        return tell

    stores += [PeerStore(teller(inc), 10.0) for inc in range(size)]

    groups: list[Group] = []
    failed: list[BaseException] = []
    # A member that is connected and leaves at once may still be connecting to a slower peer.
    all_connected = threading.Barrier(size, timeout=10.0)

    def member(inc: int) -> Any:
        group = Group(run, inc, stores[inc])
        groups.append(group)
        group.begin("127.0.0.1")
        group.wait()
        all_connected.wait()
        try:
            return act(group)
        except BaseException as error:  # others would wait for us, and nobody would hear why
            failed.append(error)
            for one in groups:
                one.drop()
            raise

    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(member, range(size)))
    except Exception:
        if failed:
            raise failed[0]  # noqa: B904 - the first one
        raise
    finally:
        for group in groups:
            group.drop()


class Net(nn.Module):
    """Two layers and one that is used by some members only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(5, 7).double()
        self.second = nn.Linear(7, 1).double()
        self.sometimes = nn.Linear(5, 1).double()
        self.never = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor, *, sometimes: bool) -> Tensor:
        """Return a mean over the samples."""
        y = self.second(torch.tanh(self.first(x)))
        return ((y + self.sometimes(x)) ** 2 if sometimes else y**2).mean()


NET = Net()  # made once: its random numbers are the process's, and members are threads here
X = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def averaged(
    group: Group, sizes: list[int], count: int = 1, **options: Any
) -> dict[str, Tensor | None]:
    """The gradients of a member whose share is ``sizes[rank]`` samples, in at most so many batches.

    Of the second step: gradients of the first are still there, and are zeroed in place.
    """
    net = copy.deepcopy(NET)
    reducer = Reducer(net.parameters(), **options)
    start = sum(sizes[: group.rank])
    mine = X[start : start + sizes[group.rank]]
    for _ in range(2):
        reducer.begin(group, [])
        batches = mine.tensor_split(min(count, len(mine))) if len(mine) else (X[:1],)
        for number, batch in enumerate(batches, 1):
            part = len(batch) / sum(sizes) if len(mine) else 0.0
            reducer.expect(part, lambda: None, last=number == len(batches))
            for param in net.parameters():
                if param.grad is not None:
                    param.grad.zero_()
            net(batch, sometimes=group.rank == 0).backward()
            if number < len(batches):
                reducer.take()
        reducer.finish()
    return {name: param.grad for name, param in net.named_parameters()}


def alone(sizes: list[int]) -> dict[str, Tensor | None]:
    """The same in one process."""
    net = copy.deepcopy(NET)
    first, rest = X[: sizes[0]], X[sizes[0] : sum(sizes)]
    loss = net(first, sometimes=True) * len(first)
    if len(rest):
        loss = loss + net(rest, sometimes=False) * len(rest)
    (loss / sum(sizes)).backward()
    return {name: param.grad for name, param in net.named_parameters()}


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("sizes", [[6, 6], [1, 7, 4], [12, 0], [5]])
def test_uneven_shares_weigh_what_they_are_worth(
    sizes: list[int], count: int, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducer_module, "BUCKET_BYTES", 64)
    monkeypatch.setattr(reducer_module, "FIRST_BUCKET_BYTES", 8)
    wanted = alone(sizes)
    for found in in_group(len(sizes), lambda group: averaged(group, sizes, count, early=early)):
        for name, grad in wanted.items():
            if grad is None:
                assert found[name] is None, name
            else:
                torch.testing.assert_close(found[name], grad, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("parts", [(1.0,), (0.3,), (0.3, 0.5), (0.0, 0.7)])
def test_gradients_of_several_batches_are_put_in_by_their_parts(
    dtype: torch.dtype, parts: tuple[float, ...]
) -> None:
    chance = torch.Generator().manual_seed(2)
    sizes = [(3, 2), (5,), (), (4, 1)]
    batches = [[torch.randn(size, generator=chance).to(dtype) for size in sizes] for _ in parts]

    def filled() -> Tensor:
        bucket = Bucket([torch.zeros(size, dtype=dtype) for size in sizes])
        for part, gradients in zip(parts, batches, strict=True):
            bucket.expect()
            for k, (param, gradient) in enumerate(zip(bucket.params, gradients, strict=True)):
                param.grad = gradient.clone()
                if k % 2:
                    bucket.missing.remove(k)
                    bucket.arrived.append((k, param.grad, param.grad._version))
            bucket.take(part)
            assert bucket.is_full
        return bucket.flat[: -len(sizes)]

    wanted = []
    for k in range(len(sizes)):
        counting = [(part, one[k]) for part, one in zip(parts, batches, strict=True) if part]
        (part, first), *others = counting
        total = first * part
        for part, one in others:
            total.add_(one, alpha=part)
        wanted.append(total.flatten())
    assert torch.equal(filled(), torch.cat(wanted))


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("part", [1.0, 0.5])
def test_of_a_backward_that_creates_a_graph_no_graph_stays(part: float) -> None:
    def act(group: Group) -> bool:
        net = nn.Linear(2, 1)
        reducer = Reducer(net.parameters())
        for _ in range(2):
            reducer.begin(group, [])
            reducer.expect(part, lambda: None, last=True)
            (net(torch.ones(1, 2)) ** 2).sum().backward(create_graph=True)
            reducer.finish()
        grads = [param.grad for param in net.parameters()]
        return any(grad is None or grad.requires_grad for grad in grads)

    assert in_group(1, act) == [False]


@pytest.mark.parametrize("parts", [(1.0, 1.0), (1.0, 0.5), (0.0, 1.0), (0.5, 0.5)])
def test_in_a_group_of_one_all_batches_of_a_step_count(parts: tuple[float, ...]) -> None:
    def act(group: Group) -> list[float]:
        net = nn.Linear(2, 1, bias=False)
        reducer = Reducer(net.parameters())
        reducer.begin(group, [])
        for number, part in enumerate(parts, 1):
            reducer.expect(part, lambda: None, last=number == len(parts))
            (number * net(torch.ones(1, 2))).sum().backward()
            if number < len(parts):
                reducer.take()
                reducer.forget()
        reducer.finish()
        assert net.weight.grad is not None
        return net.weight.grad.flatten().tolist()

    wanted = sum(number * part for number, part in enumerate(parts, 1))
    assert in_group(1, act) == [[wanted, wanted]]


def test_in_a_group_of_one_gradients_stay_where_they_are_and_what_is_no_sum_is_still_refused() -> (
    None
):
    def act(group: Group) -> bool:
        net = nn.Linear(2, 1)
        reducer = Reducer(net.parameters())
        reducer.begin(group, [])
        reducer.expect(1.0, lambda: None, last=True)
        net(torch.ones(1, 2)).sum().backward()
        before = [param.grad for param in net.parameters()]
        reducer.finish()
        stay = all(param.grad is grad for param, grad in zip(net.parameters(), before, strict=True))
        reducer.begin(group, [])
        reducer.expect(1.0, lambda: None, last=True)
        net.weight.grad = torch.ones(1, 2).to_sparse()
        with pytest.raises(ConfigError, match="gradients are averaged whole"):
            reducer.finish()
        return stay

    assert in_group(1, act) == [True]


def test_a_gradient_that_a_script_keeps_is_not_that_of_the_next_step() -> None:
    def act(group: Group) -> list[float]:
        net = nn.Linear(1, 1, bias=False)
        reducer, kept = Reducer(net.parameters()), list[Tensor]()
        for step in range(1, 4):
            reducer.begin(group, [])
            reducer.expect(0.5, lambda: None, last=True)
            (step * net(torch.ones(1, 1))).sum().backward()
            reducer.finish()
            assert net.weight.grad is not None
            kept.append(net.weight.grad)
            net.zero_grad()
        return [one.item() for one in kept]

    assert in_group(2, act) == [[1.0, 2.0, 3.0]] * 2


def test_gradients_that_torch_has_cut_out_of_one_are_no_edit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have one version, also in several buckets."""
    monkeypatch.setattr(reducer_module, "BUCKET_BYTES", 8)
    monkeypatch.setattr(reducer_module, "FIRST_BUCKET_BYTES", 8)

    def act(group: Group) -> list[list[float]]:
        first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        reducer = Reducer([first, second])
        reducer.begin(group, [])
        reducer.expect(0.5, reducer.finish, last=True)
        (torch.cat([first, second]) * (1.0 + group.rank)).sum().backward()
        return [one.grad.tolist() for one in (first, second) if one.grad is not None]

    assert in_group(2, act) == [[[1.5] * 4] * 2] * 2


def clears(param: Tensor) -> None:
    param.grad = None


def clamps(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.clamp_(-1, 1)


@pytest.mark.parametrize("hook", [clears, clamps])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("k", range(4))  # one of them fills the bucket
def test_a_hook_that_changes_a_gradient_in_mid_backward_is_an_error(
    hook: Callable[[Tensor], None], last: bool, k: int
) -> None:
    def act(group: Group) -> None:
        net = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
        reducer = Reducer(net.parameters())
        [*net.parameters()][k].register_post_accumulate_grad_hook(hook)
        reducer.begin(group, [])
        reducer.expect(1.0, lambda: None, last=last)
        net(torch.ones(1, 2)).sum().backward()
        if last:
            reducer.finish()
        else:
            reducer.take()

    with pytest.raises(ConfigError, match="a hook has changed the gradient of"):
        in_group(1, act)


def test_gradients_of_half_precision_are_summed_in_that_of_their_parameters() -> None:
    shares = X.float().split([5, 7])

    def backward(net: nn.Module, rank: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(shares[rank], sometimes=True)
        loss.backward()

    def act(group: Group) -> list[Tensor]:
        net = copy.deepcopy(NET).float()
        reducer = Reducer(net.parameters())
        reducer.begin(group, [])
        reducer.expect(len(shares[group.rank]) / len(X), lambda: None, last=True)
        backward(net, group.rank)
        reducer.finish()
        return [param.grad for param in net.parameters() if param.grad is not None]

    nets = [copy.deepcopy(NET).float() for _ in shares]
    for rank, net in enumerate(nets):
        backward(net, rank)
    wanted = [
        (5 * one.grad + 7 * other.grad) / 12
        for one, other in zip(*(net.parameters() for net in nets), strict=True)
        if one.grad is not None and other.grad is not None
    ]
    for found in in_group(2, act):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def test_what_is_not_finite_and_does_not_count_is_left_out() -> None:
    def act(group: Group) -> Tensor:
        param = nn.Parameter(torch.ones(2))
        reducer = Reducer([param])
        weight = 1 - group.rank
        reducer.begin(group, [])
        reducer.expect(weight, lambda: None, last=True)
        (param * (1.0 if weight else float("nan"))).sum().backward()
        reducer.finish()
        assert param.grad is not None
        return param.grad

    for grad in in_group(2, act):
        assert grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("hands_in", [False, True])
def test_the_mean_is_there_when_backward_ends_also_where_nothing_left_before(
    hands_in: bool,
) -> None:
    """So that whoever clips it after that clips the same as the others."""

    def act(group: Group) -> list[float]:
        param = nn.Parameter(torch.ones(2))
        reducer = Reducer([param])
        joins = hands_in and group.rank == 1
        reducer.begin(group, [], whole=False)
        if joins:
            reducer.hand_in()
        reducer.expect(0.0 if joins else 0.5, reducer.finish, last=True)
        (param * (1.0 + group.rank)).sum().backward()
        assert param.grad is not None
        assert not reducer.called_twice
        return param.grad.tolist()

    mean = 0.5 if hands_in else 1.5
    assert in_group(2, act) == [[mean] * 2] * 2


def test_a_second_backward_for_one_batch_is_noticed() -> None:
    def act(group: Group) -> bool:
        param = nn.Parameter(torch.ones(2))
        reducer = Reducer([param])
        reducer.begin(group, [])
        reducer.expect(1, lambda: None, last=True)
        param.sum().backward()
        assert not reducer.called_twice
        param.sum().backward()
        return reducer.called_twice

    assert in_group(1, act) == [True]


@pytest.mark.parametrize("last", [True, False])
def test_a_backward_after_the_first_optimizers_step_is_noticed(last: bool) -> None:
    def act(group: Group) -> bool:
        first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        reducer = Reducer([first, second], early=False)
        reducer.begin(group, [])
        reducer.expect(1, lambda: None, last=last)
        (first.sum() + second.sum()).backward()
        assert not reducer.called_twice
        if last:
            reducer.finish()
        else:
            reducer.take()
        second.sum().backward()
        return reducer.called_twice

    assert in_group(1, act) == [True]


def test_a_dropped_group_fails_whoever_waits_in_it() -> None:
    waiting = threading.Event()

    def act(group: Group) -> str:
        if group.rank:
            waiting.wait(10.0)
            group.drop()
            return ""
        work = group.sum(torch.ones(4))
        waiting.set()
        with pytest.raises(BREAKING) as caught:
            work.wait()
        return type(caught.value).__name__

    assert in_group(2, act)[0]


def test_nobody_waits_for_what_torch_forgets_when_its_sockets_are_shut() -> None:
    rng = random.Random(7)
    connected = threading.Barrier(2, timeout=10.0)

    def act(group: Group) -> None:
        connected.wait()
        over = threading.Timer(rng.random() * 0.004, group.drop)
        over.start()
        tensor = torch.ones(50_000, dtype=torch.float64)
        with contextlib.suppress(*BREAKING):
            while True:
                group.sum(tensor).wait()
        over.join()

    begun_s = time.monotonic()
    for _ in range(30):
        in_group(2, act)
    assert time.monotonic() - begun_s < 60.0, "torch's timeout is a day"


@pytest.mark.parametrize("deaf", [0, 1])
def test_who_connects_to_a_peer_that_gave_up_is_woken(
    deaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It depends on torch's choice who waits for whom: either comes to its end."""
    monkeypatch.setattr(transports, "CONNECT_S", 0.3)
    run = RunGroup(epoch_no=1, inc=0, group=1, step=0, members=MEMBERS[:2])
    waits = PeerStore(lambda _key, _value: None, 10.0)
    gives_up = PeerStore(waits.put, 0.1)
    group, peer = Group(run, 1 - deaf, waits), Group(run, deaf, gives_up)

    def connect() -> None:
        with contextlib.suppress(GroupOver):
            group.begin("127.0.0.1")
            group.wait()

    thread = threading.Thread(target=connect)
    thread.start()
    peer.begin("127.0.0.1")
    with pytest.raises(GroupOver):
        peer.wait()
    thread.join(0.1)
    group.drop()
    peer.drop()
    thread.join(5.0)
    assert not thread.is_alive()
    for left in [one for one in threading.enumerate() if one.name == "paceline-connect"]:
        left.join(5.0)  # torch gives up, too, which must not fall into the end of the process
        assert not left.is_alive()


def test_who_connects_does_not_wait_for_a_peer_that_has_left_before() -> None:
    """Such a peer has heard of the next group between two steps, and never began to connect."""
    run = RunGroup(epoch_no=1, inc=0, group=1, step=0, members=MEMBERS[:2])
    store = PeerStore(lambda _key, _value: None, 60.0)
    group = Group(run, 0, store)
    group.begin("127.0.0.1")
    threading.Timer(0.2, store.leave, (1,)).start()
    begun_s = time.monotonic()
    with pytest.raises(GroupOver, match=f"{MEMBERS[1].node} left the group"):
        group.wait()
    assert time.monotonic() - begun_s < 30.0, "it would wait for a minute"
    group.drop()
    for left in [one for one in threading.enumerate() if one.name == "paceline-connect"]:
        left.join(5.0)
        assert not left.is_alive()


def test_who_waits_for_a_peer_that_does_not_come_gives_up() -> None:
    store = PeerStore(lambda _key, _value: None, 0.05)
    with pytest.raises(GroupOver, match="no 0/1 within"):
        store.get("0/1")
    store.end()
    with pytest.raises(GroupOver, match="dropped"):
        store.get("0/1")


def test_a_member_that_leaves_in_mid_operation_is_no_text_of_torch_s() -> None:
    def act(group: Group) -> str:
        if group.rank:
            group.drop()
            return ""
        with pytest.raises(GroupOver) as over:
            group.sum(torch.ones(2)).wait()
        return str(over.value)

    assert in_group(2, act)[0].endswith(" left the group")


@pytest.mark.parametrize("ends", ["comes", "is dropped"])
def test_a_long_wait_costs_no_exceptions_and_ends_at_once(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait of gloo's that runs out is an exception in C++, which takes half a millisecond."""
    look_s, late_s, pauses = 30.0, 0.2, list[float]()
    monkeypatch.setattr(group_module, "LONG_LOOK_S", look_s)

    def act(group: Group) -> float:
        for _ in range(5 if ends == "comes" else 0):
            if group.rank:
                time.sleep(late_s)
            begun_s = time.monotonic()
            group.sum(torch.ones(2)).wait()
            assert time.monotonic() - begun_s < look_s / 2, "gloo has not woken it"
        if group.rank:
            time.sleep(late_s)
            begun_s = time.monotonic()
            if ends == "comes":
                group.sum(torch.ones(2)).wait()
            return begun_s
        operation = group.sum(torch.ones(2))
        carrier = operation._carrier
        pause = carrier.pause

        def counted(work: Any, limit_s: float) -> None:
            pauses.append(limit_s)
            pause(work, limit_s)

        carrier.pause = counted  # type: ignore[method-assign]
        if ends == "comes":
            operation.wait()
        else:
            threading.Timer(late_s, group.drop).start()
            with pytest.raises(GroupOver):
                operation.wait()
        return time.monotonic()

    ended_s, begun_s = in_group(2, act)
    assert len(pauses) == 1
    assert ended_s - begun_s < look_s / 2, "nobody has woken it"


def test_numbers_of_all_members_are_told_to_all() -> None:
    told = in_group(3, lambda group: group.gather([group.rank, 7]).wait())
    assert told == [[[0, 7], [1, 7], [2, 7]]] * 3
