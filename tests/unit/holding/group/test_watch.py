"""Members compare what they hold: who differs, in what, and when it is looked at."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from paceline.base.errors import ConfigError
from paceline.protocol.holding.group.watch import (
    FIRST_EVERY,
    LEAST_EVERY,
    MOST_EVERY,
    REPEAT_STEPS,
    Difference,
    Watch,
    Word,
    differences,
    in_words,
    judge,
)
from paceline.runtime.group.watcher import Diverged, OptimizerSettings, Watcher, sum_by_place

# ---------------------------------------------------------------------------- the machine


def words(*values: tuple[int, int]) -> list[Word]:
    return [Word(settings, checksum, 0, 1) for settings, checksum in values]


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ([(5, 7), (5, 7)], None),
        ([(0, 0), (0, 0)], None),
        ([(5, 0), (0, 7), (5, 0)], None),  # who joins tells nothing
        ([(5, 7), (6, 7)], Difference(True, ())),
        ([(5, 7), (5, 8)], Difference(False, ())),
        ([(5, 7), (6, 7), (5, 7)], Difference(True, (1,))),
        ([(5, 7), (5, 8), (5, 7)], Difference(False, (1,))),
        ([(1, 0), (2, 0), (3, 0)], Difference(True, ())),
        ([(1, 0), (1, 0), (2, 0), (2, 0)], Difference(True, ())),
        ([(1, 0), (1, 0), (1, 0), (2, 0), (3, 0)], Difference(True, (3, 4))),
        ([(1, 0), (1, 0), (2, 0), (0, 0)], Difference(True, (2,))),
        ([(1, 5), (2, 6), (1, 5)], Difference(True, (1,))),  # what is known first
    ],
)
def test_most_members_are_right(told: list[tuple[int, int]], verdict: Difference | None) -> None:
    assert judge(words(*told)) == verdict


@pytest.mark.parametrize(
    ("checksums", "minority"),
    [((7, 7), None), ((7, 8), (1,)), ((7, 8, 8), (1, 2)), ((0, 8, 7), (2,))],
)
def test_the_first_member_is_right_where_a_training_begins(
    checksums: tuple[int, ...], minority: tuple[int, ...] | None
) -> None:
    told = words(*((0, checksum) for checksum in checksums))
    expected = None if minority is None else Difference(False, minority, begins=True)
    assert judge(told, begins=True) == expected


def test_all_members_look_after_the_same_step() -> None:
    members = [Watch() for _ in range(3)]
    looked: list[tuple[int, int]] = []
    members[1].every, members[2].every = 20, 70
    for step in range(300):
        if step == 90:
            members[0] = Watch()  # a new life
            members[0].every = 10
        due = [one.is_due(step) for one in members]
        looked += [(step, sum(due))] if any(due) else []
        told = [one.word(step, 1) for one in members]
        for one in members:
            one.agree(step, told)
        assert len({one.check_at for one in members}) == 1
    assert looked == [(0, 3), (70, 3), (90, 1), (140, 3), (210, 3), (280, 3)]


def test_a_check_that_not_all_have_agreed_on_comes_again() -> None:
    one, other = Watch(), Watch()
    one.agree(0, [one.word(0, 1), other.word(0, 1)])  # then the group broke
    assert (one.is_due(0), other.is_due(0)) == (False, True)
    told = [one.word(0, 0), other.word(0, 1)]
    assert judge(told) is None
    for each in (one, other):
        each.agree(0, told)
    assert one.check_at == other.check_at == FIRST_EVERY


def test_checksums_take_a_thousandth_of_the_time() -> None:
    watch = Watch()
    for checksum_s, step_s, every in [
        (0.1, 1.0, 100),
        (0.1, 0.3, 334),
        (1e-6, 1.0, LEAST_EVERY),
        (5.0, 0.1, MOST_EVERY),
        (0.1, 0.0, MOST_EVERY),
    ]:
        watch.timed(checksum_s, step_s)
        assert watch.every == every


def test_only_who_made_the_last_update_tells_its_settings() -> None:
    watch = Watch()
    watch.updating(7, 99)
    assert [watch.word(step, 0).settings for step in (6, 7, 8)] == [0, 99, 0]
    watch.copied()
    assert watch.word(7, 0).settings == 0


def test_who_differs_again_soon_is_not_healed() -> None:
    watch = Watch()
    assert watch.heal(10)
    assert not watch.heal(11)
    assert watch.heal(12 + REPEAT_STEPS)


def test_what_differs_is_told_in_words() -> None:
    names = {1: "lr", 2: "momentum", 3: "nesterov"}
    tables = [{1: "0.1", 2: "0"}, {1: "0.1", 2: "0.9"}, {1: "0.1", 2: "0", 3: "True"}]
    assert differences(tables, names) == ["momentum", "nesterov"]
    assert in_words(["c", "a", "b"], ["1", "2", "1"]) == "2 in a, 1 in b and c"
    assert in_words(["a", "b"], ["", "1"]) == "none in a, 1 in b"


# ---------------------------------------------------------------------------- its edge


class Meeting:
    """A group whose members tell each other the same numbers, one call after the other."""

    def __init__(self, *tables: Any) -> None:
        self.run = SimpleNamespace(members=[SimpleNamespace(node=f"worker-{k}") for k in range(3)])
        self.tables = tables

    def of(self, rank: int) -> Any:
        """As one member sees it: all gather what is asked of it."""

        def gather(values: Any) -> Any:
            mine = list(values)
            everybody = [one(mine) if callable(one) else mine for one in self.tables]
            return SimpleNamespace(wait=lambda: everybody)

        return SimpleNamespace(run=self.run, gather=gather)


def prepared(lr: float = 0.1, kind: Any = SGD) -> tuple[Watcher, nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=lr)
    return Watcher([model], [optimizer]), model, optimizer


def test_hyper_parameters_are_hashed_as_they_are_used() -> None:
    (watcher, _, optimizer), (other, _, _) = prepared(), prepared()
    watcher.stepping(0, 1)
    other.stepping(0, 1)
    assert watcher.word(1, joins=True) == other.word(1, joins=True)
    optimizer.param_groups[0]["lr"] = 0.2
    assert watcher.word(1, joins=True) == other.word(1, joins=True), "not used so far"
    watcher.stepping(0, 2)
    other.stepping(0, 2)
    assert watcher.word(2, joins=True) != other.word(2, joins=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lr", 0.1 + 1e-17 + 1e-16),
        ("lr", torch.tensor(0.3)),
        ("momentum", 0.9),
        ("nesterov", None),
        ("lr", torch.tensor([0.1, 0.1])),
        ("lr", np.array([0.1, 0.1])),
        ("big", 1 << 80),
        ("maximize", True),
        ("weight_decay", float("nan")),
        ("betas", (0.9, 0.99)),
        ("mine", "text"),
    ],
)
def test_every_value_of_a_group_counts(key: str, value: object) -> None:
    _, _, optimizer = prepared()
    settings = OptimizerSettings(optimizer)
    before = settings.digest()
    assert before == settings.digest() == OptimizerSettings(prepared()[2]).digest() > 0
    optimizer.param_groups[0][key] = value
    assert settings.digest() == OptimizerSettings(optimizer).digest() != before


def test_text_that_no_message_can_carry_is_refused_by_name() -> None:
    _, _, optimizer = prepared()
    settings = OptimizerSettings(optimizer)
    optimizer.param_groups[0]["mine"] = "\udc80"
    with pytest.raises(
        ConfigError, match=r"'mine' of SGD, group 0: the text '\\udc80' is no valid"
    ):
        settings.digest()


def test_equal_values_of_other_types_are_equal() -> None:
    _, _, optimizer = prepared()
    settings = OptimizerSettings(optimizer)
    before = settings.digest()
    optimizer.param_groups[0] |= {"lr": np.float64(0.1), "momentum": 0.0, "nesterov": 0}
    assert settings.digest() == before
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.1, dtype=torch.float64)
    assert settings.digest() == OptimizerSettings(optimizer).digest() == before
    rate.fill_(0.2)
    assert settings.digest() == OptimizerSettings(optimizer).digest() != before


def test_a_checksum_sees_one_bit_of_weights_and_of_state() -> None:
    (watcher, model, optimizer), (other, twin, follower) = prepared(kind=Adam), prepared(kind=Adam)
    for one, opt in ((model, optimizer), (twin, follower)):
        one(torch.ones(1, 3)).sum().backward()
        opt.step()
    assert watcher.word(0, joins=False) == other.word(0, joins=False)
    assert watcher.word(0, joins=False).checksum > 0
    for value in (twin.bias.data, follower.state[twin.weight]["exp_avg_sq"]):
        flat = value.view(torch.int32).view(-1)
        flat[0] ^= 1
        assert watcher.word(0, joins=False).checksum != other.word(0, joins=False).checksum
        flat[0] ^= 1
    twin.register_buffer("running", torch.ones(1))
    assert watcher.word(0, joins=False).checksum == other.word(0, joins=False).checksum


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn],
    ids=str,
)
def test_tensors_of_every_dtype_and_layout_have_a_checksum(dtype: torch.dtype) -> None:
    values = [torch.ones(3), torch.ones(2, 3).t(), torch.ones(()), torch.ones(0), torch.ones(9)[1:]]
    sums = set()
    for value in values:
        model = nn.Module()
        model.p = nn.Parameter(value.to(dtype), requires_grad=False)
        optimizer = SGD([model.p], lr=0.1)
        sums.add(Watcher([model], [optimizer]).word(0, joins=False).checksum)
    assert len(sums) >= 3 and all(sums)


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [6, 5000])
@pytest.mark.parametrize("on_device", [False, True])
def test_signs_and_places_of_values_show(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch, *, on_device: bool
) -> None:
    if on_device:
        monkeypatch.setattr(
            "paceline.runtime.group.watcher._hash", lambda t: sum_by_place(t.reshape(-1))
        )
    before = (torch.arange(size) % 7 + 1).to(dtype)

    def changed(*places: int, by: int) -> torch.Tensor:
        """Signs turned, or values swapped by pairs."""
        bits = before.view(torch.uint8).clone().view(size, -1)
        for one, other in zip(places[::2], places[1::2], strict=True):
            if by:
                bits[[one, other], -1] ^= 0x80
            else:
                bits[[one, other]] = bits[[other, one]]
        return bits.view(-1).view(dtype)

    values = [before, changed(0, 1, by=0), changed(1, 3, by=0), changed(0, 1, by=1)]
    values += [changed(0, size - 1, by=1), changed(0, 1, 2, 3, by=1), changed(0, 2, 1, 3, by=0)]
    sums = set()
    for value in values:
        model = nn.Module()
        model.p = nn.Parameter(value, requires_grad=False)
        sums.add(Watcher([model], [SGD([model.p], lr=0.1)]).word(0, joins=False).checksum)
    assert len(sums) == len(values)


def test_the_value_is_named_and_who_has_which() -> None:
    watcher, _, optimizer = prepared()
    told = [Word(5, 0, 0, 1), Word(6, 0, 0, 1), Word(5, 0, 0, 1)]
    optimizer.param_groups[0]["lr"] = 0.2
    theirs = _record(watcher, told)
    optimizer.param_groups[0]["lr"] = 0.1
    group = Meeting(None, lambda _: next(theirs), None).of(0)
    with pytest.raises(Diverged) as found:
        watcher.judge(16, told, group)
    assert str(found.value) == (
        "the workers' hyper-parameters differ after step 16: lr of SGD 0, group 0: 0.1 in worker-0 "
        "and worker-2, 0.2 in worker-1"
    )
    assert found.value.found.minority == (1,)


def _record(watcher: Watcher, told: list[Word]) -> Any:
    """What this member would tell the others if it were asked now, call by call."""
    calls: list[list[int]] = []

    def note(values: list[int]) -> list[int]:
        calls.append(values)
        return values

    with pytest.raises(Diverged):
        watcher.judge(16, told, Meeting(note, note, note).of(0))
    return iter(calls[::3])


def test_other_kernels_for_a_processor_are_named_before_the_weights_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher, model, _ = prepared()
    told = [Word(0, 5, 0, 1), Word(0, 6, 0, 1), Word(0, 5, 0, 1)]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    next(model.parameters()).data.neg_()
    theirs = _record(watcher, told)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    next(model.parameters()).data.neg_()
    with pytest.raises(
        Diverged, match=r"AVX512 in worker-0 and worker-2, AVX2 in worker-1; weight"
    ):
        watcher.judge(16, told, Meeting(None, lambda _: next(theirs), None).of(0))


def test_no_majority_ends_the_job_with_the_remedy() -> None:
    watcher, _, _ = prepared()
    with pytest.raises(Diverged) as found:
        watcher.judge(3, [Word(5, 0, 0, 1), Word(6, 0, 0, 1)], Meeting(None, None).of(0))
    with pytest.raises(ConfigError, match=r"no more than half of them agree.*job\.step"):
        watcher.heal(3, found.value.found, gave_up=False)


def test_a_member_is_healed_once() -> None:
    watcher, _, _ = prepared()
    told = [Word(5, 0, 0, 1), Word(6, 0, 0, 1), Word(5, 0, 0, 1)]
    with pytest.raises(Diverged) as found:
        watcher.judge(3, told, Meeting(None, None, None).of(1))
    watcher.heal(3, found.value.found, gave_up=False)
    watcher.heal(3, found.value.found, gave_up=True)
    with pytest.raises(ConfigError, match=r"for the second time.*job\.step"):
        watcher.heal(4, found.value.found, gave_up=True)


def test_a_member_is_healed_where_a_training_begins_but_not_without_end() -> None:
    watcher, told = Watcher([], []), words((0, 7), (0, 8))
    for step in (3, 4, 4):
        with pytest.raises(Diverged) as raised:
            watcher.judge(step, told, Meeting(None, None).of(1), begins=True)
        watcher.heal(step, raised.value.found, gave_up=True)
    with pytest.raises(ConfigError, match="again and again"):
        watcher.heal(4, raised.value.found, gave_up=True)


def test_shards_cannot_be_copied() -> None:
    model = nn.Linear(3, 2)
    watcher = Watcher([model], [SGD(model.parameters(), lr=0.1)], checks=False)
    assert watcher.word(0, joins=False).checksum == 0
    told = [Word(5, 0, 0, 1), Word(6, 0, 0, 1), Word(5, 0, 0, 1)]
    with pytest.raises(Diverged) as found:
        watcher.judge(3, told, Meeting(None, None, None).of(1))
    with pytest.raises(ConfigError, match="hyper-parameters differ after step 3"):
        watcher.heal(3, found.value.found, gave_up=False)
