"""By what the tensors of a group travel: gloo beside another, and NCCL with a stand-in for torch's.

No test here needs a device: `FakeNccl` is as much of torch's class as `Nccl` calls, on tensors in
memory, which it does not sum. What it says of its works is what torch's says (their ``wait`` is
never called).
"""

import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from paceline.runtime.group import group as group_module
from paceline.runtime.group import transports
from paceline.runtime.group.group import BREAKING, Group
from paceline.runtime.group.store import GroupOver, PeerStore
from paceline.runtime.group.transports import DIRECT, SOCKETS, Gloo, Nccl
from paceline.wire.messages.group import Member, RunGroup
from tests.unit.holding.group.test_reducer import MEMBERS, averaged, in_group

ALONE = RunGroup(epoch_no=1, inc=0, group=1, step=0, members=(Member(0, "worker-0", ""),))


class Second(Gloo):
    """Stands for what is not gloo: another gloo group, which notes what it is asked to do."""

    begun: list[int] = []
    apart = True

    def __init__(self, store: PeerStore, rank: int, size: int, device: torch.device) -> None:
        self.kept = store
        super().__init__(c10d.PrefixStore("second", store), rank, size, device)  # type: ignore[arg-type]

    @property
    def place(self) -> int:
        return self._rank + 1 if self.apart else 1

    def begin(self, act: Callable[[Any], Any]) -> Any:
        self.begun.append(self._rank)
        return super().begin(act)


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> type[Second]:
    """In place of NCCL, for tensors in memory."""
    monkeypatch.setattr(Second, "begun", [])
    monkeypatch.setitem(DIRECT, "cpu", Second)
    return Second


@pytest.mark.parametrize("apart", [True, False])
def test_facts_go_by_gloo_and_tensors_by_what_the_devices_have(
    apart: bool, second: type[Second], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where two members share a device, all goes by gloo."""
    monkeypatch.setattr(second, "apart", apart)

    def act(group: Group) -> tuple[list[list[int]], list[float], list[float]]:
        told = group.gather([group.rank]).wait()
        facts = len(second.begun)
        summed, theirs = torch.full((2,), 1.0 + group.rank), torch.empty(2)
        group.sum(summed).wait()
        group.exchange(torch.full((2,), 3.0 + group.rank), [1, 1], theirs, [1, 1]).wait()
        assert not facts or apart
        return told, summed.tolist(), theirs.tolist()

    assert in_group(2, act) == [([[0], [1]], [3.0, 3.0], [3.0, 4.0])] * 2
    assert sorted(second.begun) == ([0, 0, 1, 1] if apart else [])


def test_gradients_are_averaged_by_it(second: type[Second]) -> None:
    grads = in_group(2, lambda group: averaged(group, [5, 7]))
    assert second.begun
    assert grads[0].keys() == grads[1].keys()
    assert any(grad is not None for grad in grads[0].values())
    for name, grad in grads[0].items():
        assert (grad is None and grads[1][name] is None) or torch.equal(grad, grads[1][name]), name


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("fact", [True, False])
def test_a_drop_wakes_who_waits_in_either(fact: bool, own: bool, second: type[Second]) -> None:
    waiting, groups = threading.Event(), {}
    both = threading.Barrier(2, timeout=10.0)

    def act(group: Group) -> None:
        groups[group.rank] = group
        both.wait()
        if group.rank:
            waiting.wait(10.0)
            time.sleep(0.05)
            groups[0 if own else 1].drop()
            return
        operation = group.gather([1]) if fact else group.sum(torch.ones(4))
        waiting.set()
        with pytest.raises(BREAKING):
            operation.wait()

    in_group(2, act)


# ---------------------------------------------------------------------------- NCCL


class Work:
    """As torch's, whose tensors live as long as it does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.over = tensor, threading.Event()
        self.told: c10d.WorkResult | None = None

    def is_completed(self) -> bool:
        return self.over.is_set()

    def get_future_result(self) -> Any:
        told = self.told
        value = None if told is None else told.value
        return SimpleNamespace(done=lambda: told is not None, value=lambda: value)


class FakeNccl:
    """Torch's class."""

    class Options:
        _timeout: Any = None

    made: list["FakeNccl"] = []
    may_connect = threading.Event()
    may_abort = threading.Event()
    may_connect.set()
    may_abort.set()  # also in what ends after its test

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.store, self.rank, self.options = store, rank, options
        self.works: list[Work] = []
        self.aborted = threading.Event()
        self.made.append(self)

    def eager_connect_single_device(self, device: torch.device) -> None:
        if not self.rank:
            self.store.set("0", "id")
        assert self.store.get("0") == b"id"
        assert self.may_connect.wait(10.0)

    def allreduce(self, tensors: list[Tensor], options: Any) -> Work:
        work = Work(*tensors)
        self.works.append(work)
        return work

    def abort(self) -> None:
        assert self.may_abort.wait(10.0)
        works, self.works = self.works, []
        for work in works:
            work.over.set()  # its kernel ends
        self.aborted.set()


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeNccl]]:
    """For tensors in memory, and also for one member alone; connects, and aborts."""
    monkeypatch.setattr(group_module, "travels", lambda _: True)
    for name in transports.LEAVE_ALIVE:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", FakeNccl, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(Nccl, "place", property(lambda self: self._rank + 1))
    monkeypatch.setitem(DIRECT, "cpu", Nccl)
    monkeypatch.setattr(FakeNccl, "made", [])
    for name in ("may_connect", "may_abort"):
        event = threading.Event()
        event.set()
        monkeypatch.setattr(FakeNccl, name, event)
    yield FakeNccl
    FakeNccl.may_connect.set()
    FakeNccl.may_abort.set()


def alone(device: torch.device = group_module.CPU) -> Group:
    """A group of one member, which connects."""
    group = Group(ALONE, 0, PeerStore(lambda _key, _value: None, 10.0), device)
    group.begin("127.0.0.1")
    return group


def ended(group: FakeNccl) -> bool:
    return group.aborted.wait(10.0)


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "


@pytest.mark.parametrize(
    ("said", "told"),
    [
        # Ports 30000 and 12345 with their two bytes exchanged, as gloo prints them.
        ("Connection closed by peer [127.0.0.1]:12405. GLHF!", "worker-1 left the group"),
        ("Read error [10.0.0.2]:14640: Connection reset by peer.", "worker-2 left the group"),
        ("Connection closed by peer [127.0.0.1]:30000.", "worker-1 left the group"),
        ("Connection closed by peer [10.0.0.9]:30000.", "another worker left the group"),
        ("Timed out waiting 10000ms for recv operation", "another worker did not answer in time"),
        ("connectFullMesh failed: [10.0.0.2]:14640 refused", "worker-2 was not reached"),
        (
            "op.preamble.length <= op.nbytes. 60 > 20",
            GLOO + "op.preamble.length <= op.nbytes. 60 > 20",
        ),
        ("accept: Too many open files", GLOO + "accept: Too many open files"),
    ],
)
def test_a_broken_group_is_told_by_the_names_of_its_members(said: str, told: str) -> None:
    run = RunGroup(epoch_no=1, inc=0, group=1, step=0, members=MEMBERS)
    store = PeerStore(lambda _key, _value: None, 10.0)
    store.put(f"{SOCKETS}/1", b'[["127.0.0.1", 4], ["127.0.0.1", 30000]]')
    store.put(f"{SOCKETS}/2", b'[["10.0.0.2", 12345]]')
    assert str(Group(run, 0, store).over(RuntimeError(GLOO + said))) == told


def test_who_did_not_come_in_time_is_named() -> None:
    run = RunGroup(epoch_no=1, inc=0, group=1, step=0, members=MEMBERS)
    store = PeerStore(lambda _key, _value: None, 0.05)
    group = Group(run, 0, store)
    group.begin("127.0.0.1")
    with pytest.raises(GroupOver, match=r"^worker-1 was not reached in time$"):
        group.wait()
    group.drop()


def test_what_another_error_says_of_a_group_stays() -> None:
    group = alone()
    assert str(group.over(RuntimeError("CUDA error: 7"))) == "CUDA error: 7"
    group.drop()


def test_members_meet_in_the_store(nccl: type[FakeNccl]) -> None:
    in_group(2, lambda _: None)
    assert {one.rank for one in nccl.made} == {0, 1}
    assert all(ended(one) for one in nccl.made)
    assert nccl.made[0].options._timeout.total_seconds() == transports.LONGEST_S
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"


def test_a_sum_is_waited_for_until_the_device_has_done_it(nccl: type[FakeNccl]) -> None:
    group = alone()
    group.wait()
    operation = group.sum(torch.ones(2))
    (work,) = nccl.made[0].works
    threading.Timer(0.1, work.over.set).start()
    begun_s = time.monotonic()
    operation.wait()
    assert time.monotonic() - begun_s >= 0.09
    group.drop()


def test_what_has_failed_is_raised(nccl: type[FakeNccl]) -> None:
    group = alone()
    group.wait()
    operation = group.sum(torch.ones(2))
    (work,) = nccl.made[0].works
    work.told = c10d.WorkResult.COMM_ERROR
    work.over.set()
    with pytest.raises(GroupOver, match="lost a member"):
        operation.wait()
    group.drop()


@pytest.mark.parametrize("waits", [True, False])
def test_a_sum_that_says_it_is_completed_once_its_group_was_dropped_is_none(
    waits: bool, nccl: type[FakeNccl]
) -> None:
    group = alone()
    group.wait()
    operation = group.sum(torch.ones(2))
    if waits:
        threading.Timer(0.05, group.drop).start()
    else:
        group.drop()
        assert ended(nccl.made[0])
        assert operation.is_over
    with pytest.raises(GroupOver):
        operation.wait()
    assert ended(nccl.made[0])
    with pytest.raises(GroupOver):
        group.sum(torch.ones(2))


def test_an_abort_that_hangs_holds_up_nobody_and_lets_go_of_no_tensor(
    nccl: type[FakeNccl],
) -> None:
    nccl.may_abort.clear()
    group = alone()
    group.wait()
    operation = group.sum(torch.ones(2))
    tensor = weakref.ref(nccl.made[0].works[0])
    group.drop()
    with pytest.raises(GroupOver):
        operation.wait()
    del operation, group
    (torch_group,) = nccl.made
    over = torch_group.works.pop().over
    gc.collect()
    assert tensor() is not None, "its kernel may still write"
    nccl.may_abort.set()
    assert ended(torch_group)
    time.sleep(0.01)
    assert tensor() is not None, "its kernel may still write"
    over.set()
    deadline_s = time.monotonic() + 5.0
    while tensor() is not None and time.monotonic() < deadline_s:
        time.sleep(0.01)
        gc.collect()
    assert tensor() is None


def test_connecting_that_does_not_return_is_left_behind(nccl: type[FakeNccl]) -> None:
    nccl.may_connect.clear()
    group = alone()
    threading.Timer(0.2, group.drop).start()
    with pytest.raises(GroupOver, match="dropped"):
        group.wait()
    assert not nccl.made[0].aborted.is_set(), "it would not notice"
    nccl.may_connect.set()
    assert ended(nccl.made[0])


def test_connecting_that_takes_too_long_is_given_up(
    nccl: type[FakeNccl], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "GIVE_UP_S", 0.3)
    nccl.may_connect.clear()
    group = alone()
    with pytest.raises(GroupOver, match="not connected within"):
        group.wait()
    group.drop()


def test_what_lies_elsewhere_than_on_the_device_goes_by_gloo(
    second: type[Second], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DIRECT, "meta", Second)
    group = alone(torch.device("meta"))
    group.wait()
    tensor = torch.ones(2)
    group.sum(tensor).wait()
    group.drop()
    assert not second.begun


def test_a_device_has_a_number_wherever_it_is_seen_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(uuid: str) -> int:
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=uuid)
        )
        return Nccl(PeerStore(lambda _key, _value: None, 1.0), 0, 1, torch.device("cuda:0")).place

    monkeypatch.delattr(c10d, "ProcessGroupNCCL", raising=False)
    assert place("a") == 0, "this torch cannot"
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", FakeNccl, raising=False)
    assert 0 < place("a") == place("a") != place("b") < 2**63
