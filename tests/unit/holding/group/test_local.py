"""Members of one machine, or of a few, sum and tell by memory what they else do over sockets."""

import copy
import os
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.runtime.group import local, meeting, shared_memory
from paceline.runtime.group.board import BEGUN, DONE, MOST_NUMBERS, NUM_OPEN, Board
from paceline.runtime.group.group import BREAKING, Group
from paceline.runtime.group.local import SMALL_BYTES
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.shared_memory import BOARDS_LATER, ROOMS_LATER, GroupArena, Where, arena
from paceline.runtime.group.store import GroupOver, PeerStore
from paceline.wire.messages.group import RunGroup

from .test_reducer import in_group, members_at

ONE, TWO, MIXED = ["a"] * 3, ["a", "a", "b", "b", "b"], ["a", "b", "a"]
PLACES = [ONE, TWO, MIXED, ["a", "", "a", "c"]]
LARGE = SMALL_BYTES // 4 + 5
"""Numbers of four bytes that are no longer few."""


def numbers(rank: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A member's numbers, of which any order of adding up gives the same sum."""
    return ((torch.arange(size) * 7 + rank * 13) % 64).to(dtype)


def total(places: Sequence[str], size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.stack([numbers(rank, size, dtype) for rank in range(len(places))]).sum(0).to(dtype)


# ---------------------------------------------------------------------------- what is done


@pytest.mark.parametrize("places", PLACES)
def test_what_members_sum_and_tell_reaches_all(places: list[str]) -> None:
    def act(group: Group) -> None:
        assert group._local is not None
        for turn in range(3):
            rank, size = group.rank, group.size
            assert group.gather([rank, turn, -(1 << 62)]).wait() == [
                [k, turn, -(1 << 62)] for k in range(size)
            ]
            many = MOST_NUMBERS + turn
            assert group.gather([rank] * many).wait() == [[k] * many for k in range(size)]
            assert group.gather([]).wait() == [[]] * size
            for count in (1, 2, 1000, LARGE, 3 * LARGE):
                tensor = numbers(rank, count)
                group.sum(tensor).wait()
                assert torch.equal(tensor, total(places, count))

    in_group(len(places), act, places)


@pytest.mark.parametrize("places", [ONE, TWO])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64])
def test_numbers_of_all_kinds_are_summed(places: list[str], dtype: torch.dtype) -> None:
    def act(group: Group) -> None:
        for count in (9, LARGE):
            tensor = numbers(group.rank, count, dtype)
            group.sum(tensor).wait()
            assert torch.equal(tensor, total(places, count, dtype))

    in_group(len(places), act, places)


@pytest.mark.parametrize("places", PLACES)
def test_each_member_gets_what_each_one_gives_it(places: list[str]) -> None:
    """Some give nothing to some."""

    def part(source: int, target: int) -> Tensor:
        return torch.full(((source * 3 + target * 5) % 4,), 100.0 * source + target)

    def act(group: Group) -> None:
        rank, everybody = group.rank, range(group.size)
        for _ in range(3):
            given = [part(rank, one) for one in everybody]
            wanted = [part(one, rank) for one in everybody]
            theirs = torch.empty(sum(map(len, wanted)))
            leave, come = [*map(len, given)], [*map(len, wanted)]
            group.exchange(torch.cat(given), leave, theirs, come).wait()
            assert torch.equal(theirs, torch.cat(wanted))

    in_group(len(places), act, places)


@pytest.mark.parametrize("places", [ONE, TWO])
def test_members_may_be_far_apart_in_what_they_have_begun(places: list[str]) -> None:
    """More is begun than the board has places for, and waited for in any order, or not at all."""
    count = 2 * NUM_OPEN + 3

    def act(group: Group) -> None:
        chance = random.Random(group.rank)
        tensors = [numbers(group.rank + k, 50 if k % 3 else LARGE) for k in range(count)]
        begun = []
        for tensor in tensors:
            if chance.random() < 0.1:
                time.sleep(0.002)
            begun.append(group.sum(tensor))
        order = list(range(count))
        chance.shuffle(order)
        for k in order[: count // 2]:
            begun[k].wait()
            assert begun[k].is_over
            assert torch.equal(
                tensors[k],
                sum(numbers(rank + k, len(tensors[k])) for rank in range(group.size)),
            )
        begun[-1].wait()

    in_group(len(places), act, places)


def test_one_who_runs_ahead_does_not_change_what_others_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients of the next step come where those of this one lie."""
    given = local._Sum._given

    def slowly(self: Any) -> Any:
        if self._local.rank:
            time.sleep(0.02)
        return given(self)

    monkeypatch.setattr(local._Sum, "_given", slowly)
    model = nn.Linear(150, 120, bias=False)

    def act(group: Group) -> None:
        net = copy.deepcopy(model)
        reducer = Reducer(net.parameters())
        for step in range(1, 6):
            reducer.begin(group, [])
            reducer.expect(0.5, lambda: None, last=True)
            net.weight.grad = None
            (net.weight.sum() * step * (group.rank + 1)).backward()
            reducer.finish(0.75)
            assert net.weight.grad is not None
            assert net.weight.grad.unique().tolist() == [step * 1.5 / 0.75]

    in_group(2, act, ["a", "a"])


class Deep(nn.Module):
    """Of several buckets, large and small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(300, 300) for _ in range(6))
        self.last = nn.Linear(300, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        mean: Tensor = (self.last(x.double()) ** 2).mean()
        return mean


@pytest.mark.parametrize("places", [["a", "a"], ONE, TWO])
def test_gradients_are_the_mean_and_equal_in_all(places: list[str]) -> None:
    model, x = Deep(), torch.randn(30, 300)

    def act(group: Group) -> list[Tensor]:
        net = copy.deepcopy(model)
        reducer = Reducer(net.parameters())
        shares = x.tensor_split(group.size)
        for _ in range(3):
            reducer.begin(group, [])
            mine = shares[group.rank]
            reducer.expect(len(mine) / len(x), lambda: None, last=True)
            net.zero_grad()
            net(mine).backward()
            reducer.finish()
        return [one.grad for one in net.parameters() if one.grad is not None]

    found = in_group(len(places), act, places)
    model(x).backward()
    wanted = [one.grad for one in model.parameters()]
    for grads in found:
        assert all(torch.equal(a, b) for a, b in zip(grads, found[0], strict=True))
        assert all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-7)
            for a, b in zip(grads, wanted, strict=True)
            if b is not None
        )


# ---------------------------------------------------------------------------- who comes together


def carriers(group: Group) -> tuple[bool, list[int]]:
    group.sum(torch.ones(3)).wait()
    return group._local is not None, [*group._wired]


@pytest.mark.parametrize(
    ("places", "shares", "wired"),
    [
        (["a", "a"], True, []),
        (["a", "b", "a", "b"], True, [0, 1]),
        (["a", "b", "c"], False, [0, 1, 2]),
        (["", ""], False, [0, 1]),
    ],
)
def test_only_the_first_of_each_machine_is_connected(
    places: list[str], shares: bool, wired: list[int]
) -> None:
    assert in_group(len(places), carriers, places) == [(shares, wired)] * len(places)


@pytest.mark.parametrize("unable", [0, 1, 2, 4])
def test_all_connect_over_sockets_if_one_member_cannot_share(
    unable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = meeting._joined

    def joined(store: Any, ours: Sequence[int], rank: int) -> Board | None:
        if rank == unable:
            raise OSError("no memory")
        return join(store, ours, rank)

    monkeypatch.setattr(meeting, "_joined", joined)
    assert in_group(5, carriers, TWO) == [(False, [0, 1, 2, 3, 4])] * 5


def test_all_connect_over_sockets_if_one_member_cannot_read_anothers_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only one of them finds it, when all have joined."""
    asked: list[Where] = []

    def mapped(where: Where) -> Tensor:
        asked.append(where)
        if len(asked) == 7:
            raise OSError("no")
        return shared_memory.mapped(where)

    monkeypatch.setattr(meeting, "mapped", mapped)
    assert in_group(3, carriers, ONE) == [(False, [0, 1, 2])] * 3


def test_who_is_not_there_is_named() -> None:
    run = RunGroup(epoch_no=1, inc=0, group=1, step=0, members=members_at(["a", "a"]))
    for inc, missing in ((0, "worker-1"), (1, "worker-0")):
        group = Group(run, run.members[inc].inc, PeerStore(lambda _key, _value: None, 0.1))
        group.begin("127.0.0.1")
        with pytest.raises(GroupOver, match=rf"^{missing} was not reached in time$"):
            group.wait()
        group.drop()


def test_a_board_is_known_for_what_it_is(tmp_path: Path) -> None:
    own = GroupArena()
    board, where = Board.create(own, 2)
    other = Board.at(where, 2, 1)
    other.join(own.where)
    assert board.where(1) == own.where
    pid, file, size, sign, offset = where.split()
    with pytest.raises(OSError, match="descriptor"):
        Board.at(f"{pid} {file} {size} {int(sign) ^ 1} {offset}", 2, 1)
    with pytest.raises(OSError, match="No such"):
        Board.at(f"{1 << 22} {file} {size} {sign} {offset}", 2, 1)
    with (tmp_path / "short").open("w+b") as short:
        os.ftruncate(short.fileno(), 100)
        with pytest.raises(OSError, match="is not of"):
            Board.at(f"{pid} {short.fileno()} {size} {sign} {offset}", 2, 1)


def test_who_waits_is_woken_when_the_other_has_written() -> None:
    board, where = Board.create(GroupArena(), 2)
    other = Board.at(where, 2, 1)
    threading.Timer(0.1, other.publish, (1, 0, 0, 0, [7, -8])).start()
    begun_s = time.monotonic()
    assert board.wait_for(1, BEGUN, 1)
    assert time.monotonic() - begun_s < 0.9, "it did not look for itself"
    assert board.numbers(1, 1, 2) == [7, -8]
    assert not board.wait_for(1, DONE, 1, timeout_s=0.01)
    # A counter of more than four bytes.
    other.mark(DONE, (1 << 40) + 5)
    assert board.wait_for(1, DONE, 1 << 40)
    assert not board.wait_for(1, DONE, (1 << 40) + 6, timeout_s=0.01)


# ---------------------------------------------------------------------------- the end


@pytest.mark.parametrize("places", [ONE, TWO])
@pytest.mark.parametrize("who", [0, 2, -1])
@pytest.mark.parametrize("large", [True, False])
def test_a_drop_wakes_who_waits(places: list[str], who: int, large: bool) -> None:
    """The last member begins nothing; the others wait, and are dropped one after the other."""
    waiting = threading.Barrier(len(places), timeout=10.0)
    who %= len(places)

    def act(group: Group) -> float:
        group.gather([1]).wait()
        waiting.wait()
        if group.rank == who:
            time.sleep(0.1)
            return 0.0
        threading.Timer(0.1, group.drop).start()
        begun_s = time.monotonic()
        operation = group.sum(torch.ones(LARGE if large else 4))
        with pytest.raises(BREAKING):
            operation.wait()
        with pytest.raises(BREAKING):
            group.sum(torch.ones(4))
        return time.monotonic() - begun_s

    assert max(in_group(len(places), act, places)) < 0.6


@pytest.mark.parametrize("places", [ONE, TWO, MIXED])
@pytest.mark.parametrize("who", [0, 2])
def test_who_leaves_ends_the_group_for_all(places: list[str], who: int) -> None:
    """What it has begun before is completed by the others."""

    def act(group: Group) -> str:
        group.gather([1]).wait()
        if group.rank == who:
            time.sleep(0.1)
            before = group.sum(torch.ones(4))
            before.wait()
            group.drop()
            return ""
        before = group.sum(torch.ones(4))
        begun_s = time.monotonic()
        before.wait()
        with pytest.raises(BREAKING) as caught:
            group.sum(torch.ones(4)).wait()
        assert time.monotonic() - begun_s < 0.8
        group.drop()
        return str(caught.value)

    told = in_group(len(places), act, places)
    if places is ONE:
        assert [one for one in told if one] == [f"worker-{who} left the group"] * 2


@pytest.mark.parametrize("places", [ONE, ["a", "a", "b"]])
def test_members_whose_scripts_are_apart_do_not_take_one_thing_for_another(
    places: list[str],
) -> None:
    def act(group: Group) -> None:
        group.gather([1]).wait()
        begun = group.gather([1, 2]) if group.rank == 1 else group.sum(torch.ones(4))
        with pytest.raises(BREAKING, match=r"different operations|left the group"):
            begun.wait()
        group.drop()

    in_group(3, act, places)


def test_who_is_dropped_as_it_adds_up_more_than_is_open_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then its own call completes the oldest operation, and gives back what it lent."""
    monkeypatch.setattr(local, "NUM_OPEN", 4)
    add, groups = local._Sum._add_all, list[Group]()

    def dropped(self: Any, given: Sequence[Tensor]) -> None:
        add(self, given)
        groups[0].drop()

    def act(group: Group) -> None:
        group.gather([0]).wait()
        if group.rank:
            for _ in range(3):
                group.sum(torch.ones(4))
            return
        groups.append(group)
        monkeypatch.setattr(local._Sum, "_add_all", dropped)
        with pytest.raises(BREAKING):
            begin_often(group)

    in_group(2, act, ["a", "a"])


def begin_often(group: Group) -> None:
    for _ in range(8):
        group.sum(torch.ones(4))


def test_a_board_that_nobody_uses_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        shared_memory.GroupArena,
        "give_back_later",
        lambda _, rooms, boards=(): given.extend(boards),
    )
    run = RunGroup(epoch_no=1, inc=0, group=1, step=0, members=members_at(["a", "a"]))
    group = Group(run, run.members[0].inc, PeerStore(lambda _key, _value: None, 0.1))
    group.begin("127.0.0.1")
    with pytest.raises(GroupOver):
        group.wait()
    group.drop()
    assert len(given) == 1


def test_what_groups_lend_is_lent_again() -> None:
    def act(group: Group) -> None:
        for count in (LARGE, 10, 100):
            begun = [group.sum(torch.ones(count)) for _ in range(3)]
            if count != 10:
                begun[-1].wait()

    def used() -> int:
        in_group(3, act, ONE)
        return arena()._used

    for _ in range(BOARDS_LATER // 3 + 3):  # each of three members here counts a group
        used()
    before = used()
    for _ in range(5):
        used()
    assert used() == before


def test_what_was_lent_in_a_group_that_broke_is_lent_after_two_more() -> None:
    own = GroupArena()
    room = own.lend(100)
    assert len(room.memory) == 128
    board = own.lend(1000)
    own.give_back_later([room], [board])
    own.note_group()
    own.give_back_later([])
    assert own.lend(100).offset != room.offset
    own.note_group()
    assert own.lend(100).offset == room.offset
    for _ in range(BOARDS_LATER - ROOMS_LATER):
        assert own.lend(1000).offset != board.offset
        own.note_group()
    assert own.lend(1000).offset == board.offset
    with pytest.raises(OSError, match="shared memory"):
        own.lend(len(own.memory) + 1)


def test_members_share_if_they_are_of_one_user_network_and_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def place() -> str:
        shared_memory.this_place.cache_clear()
        return shared_memory.this_place()

    here = place()
    assert here == place()
    assert len(here) == 12
    readlink = os.readlink
    with monkeypatch.context() as patched:
        patched.setattr(os, "readlink", lambda path: readlink(path) + "0")
        assert place() not in (here, "")
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: 77)
        assert place() not in (here, "")
    with monkeypatch.context() as patched:
        patched.delattr(os, "memfd_create")
        assert not place()
    place()
