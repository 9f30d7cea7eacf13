"""``job.log``: what it takes, what it costs the script, and what leaves for the master."""

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.features.curves.process import (
    EVERY_S,
    MAX_PENDING,
    MAX_STEPS,
    MAX_UNKEPT,
    RESEND_S,
    LogBook,
)
from paceline.features.curves.wire import Logged, LogKept
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.process.feature_port import LogPlace
from paceline.runtime.script.logged import checked_log
from paceline.wire.codec import encode
from paceline.wire.messages.base import Attempt

NAN = float("nan")


def place(step: int, attempt: int = 1, *, between: bool = False) -> LogPlace:
    return LogPlace(Attempt(1, attempt), step, 8 * step, between)


def sent(messages: list[Logged]) -> dict[int, dict[str, tuple[float, int]]]:
    """By step and name: sum and number of values."""
    return {
        step.step: {name: (one.total, one.count) for name, one in step.values.items()}
        for message in messages
        for step in message.steps
    }


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.5, 0.5),
        (3, 3.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array(2.5), 2.5),
        (torch.tensor(0.25), 0.25),
        (torch.tensor(0.25, dtype=torch.bfloat16), 0.25),
        (torch.tensor(7), 7.0),
        (torch.tensor(0.25, requires_grad=True), 0.25),
        (float("inf"), float("inf")),
        (10**400, float("inf")),
    ],
)
def test_numbers_and_tensors_of_no_dimensions_are_taken(value: Any, number: float) -> None:
    assert checked_log({"loss": value}) == {"loss": number}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (torch.ones(3), "got a tensor of shape [3] for loss"),
        (torch.ones(1), "got a tensor of shape [1] for loss"),
        (torch.tensor(1j), "got complex numbers for loss"),
        (np.ones((2, 2)), "got an array of shape (2, 2) for loss"),
        ("0.5", "got str '0.5' for loss"),
        (None, "got NoneType 'None' for loss"),
        ([0.5], "got list '[0.5]' for loss"),
        (1j, "got complex '1j' for loss"),
    ],
)
def test_what_is_no_number_is_refused_with_the_remedy(value: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=r"log what\s+sums it up, as its mean\(\)") as caught:
        checked_log({"loss": value})
    assert str(caught.value).startswith(f"job.log: {what}")


@pytest.mark.parametrize("name", ["", "my loss", "/loss", "loss/", "a//b", "1st", "ü", "x" * 101])
def test_a_name_that_is_not_plain_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected letters, digits"):
        checked_log({name: 0.5})


@pytest.mark.parametrize("name", ["loss", "val/auc", "top-5.acc", "a/1/b_c", "x" * 100])
def test_plain_names_are_taken(name: str) -> None:
    assert checked_log({name: 0.5}) == {name: 0.5}


def test_what_is_logged_leaves_about_once_a_second() -> None:
    book = LogBook()
    for step in (1, 2):
        book.logged(place(step), {"loss": float(step)}, 100.0)
    (message,) = book.due(100.0)
    assert message.n == 1
    assert sent([message]) == {1: {"loss": (1.0, 1)}, 2: {"loss": (2.0, 1)}}
    assert message.steps[0].samples == 8
    book.logged(place(3), {"loss": 3.0}, 100.1)
    assert book.due(100.0 + EVERY_S / 2) == []
    assert sent(book.due(100.0 + EVERY_S)) == {3: {"loss": (3.0, 1)}}


def test_several_batches_of_a_step_add_up() -> None:
    book = LogBook()
    for value in (1.0, 2.0, 6.0):
        book.logged(place(1), {"loss": value}, 100.0)
    assert sent(book.due(100.0)) == {1: {"loss": (9.0, 3)}}


def test_a_step_that_comes_again_takes_the_place_of_its_former_values() -> None:
    book = LogBook()
    for step in (4, 5, 6):
        book.logged(place(step), {"loss": 1.0}, 100.0)
    book.logged(place(5, attempt=2), {"loss": 2.0}, 100.0)
    assert sent(book.due(100.0)) == {4: {"loss": (1.0, 1)}, 5: {"loss": (2.0, 1)}}


def test_a_value_between_loops_leaves_those_of_its_step() -> None:
    book = LogBook()
    book.logged(place(4), {"loss": 1.0}, 100.0)
    book.due(100.0)
    book.logged(place(4, attempt=2, between=True), {"auc": 0.5}, 100.1)
    (message,) = book.due(101.0)
    assert message.steps[0].between
    assert sent([message]) == {4: {"auc": (0.5, 1)}}


def test_messages_come_again_until_they_are_kept() -> None:
    book = LogBook()
    book.logged(place(1), {"loss": 1.0}, 100.0)
    first = book.due(100.0)
    assert book.due(100.0 + RESEND_S) == first
    assert book.due(101.0 + RESEND_S) == []
    book.told(msgspec.Raw(encode(LogKept(n=1))))
    assert book.due(100.0 + 3 * RESEND_S) == []
    assert book.rest() == []


def test_the_end_of_the_process_sends_all_that_is_not_kept() -> None:
    book = LogBook()
    book.logged(place(1), {"loss": 1.0}, 100.0)
    book.due(100.0)
    book.logged(place(2), {"loss": 2.0}, 100.1)
    assert sent(book.rest()) == {1: {"loss": (1.0, 1)}, 2: {"loss": (2.0, 1)}}


def test_a_master_that_never_answers_costs_bounded_memory() -> None:
    book = LogBook()
    for second in range(3 * MAX_UNKEPT):
        book.logged(place(second), {"loss": 1.0}, float(second))
        book.due(float(second))
    assert len(book.rest()) == MAX_UNKEPT


def test_a_quick_loop_sends_a_bounded_number_of_steps_and_all_rare_values() -> None:
    book = LogBook()
    for step in range(1, 2001, 2):
        book.logged(place(step), {"loss": 1.0} | ({"auc": 0.5} if step == 333 else {}), 100.0)
    found = sent(book.due(100.0))
    steps = [step for step, values in found.items() if "loss" in values]
    assert MAX_STEPS // 2 <= len(steps) <= MAX_STEPS
    assert len({later - sooner for sooner, later in pairwise(steps)}) == 1
    assert found[333]["auc"] == (0.5, 1)


def test_what_nobody_takes_is_bounded() -> None:
    book = LogBook()
    for step in range(10 * MAX_PENDING):
        book.logged(place(step), {"loss": 1.0}, 100.0)
    assert len(book._steps) <= MAX_PENDING
    assert book._steps[max(book._steps)].values["loss"] == (1.0, 1)


def test_a_script_of_a_thousand_names_keeps_a_hundred_and_says_so_once() -> None:
    book = LogBook()
    for _ in range(2):
        book.logged(place(1), {f"m{k}": 1.0 for k in range(1000)}, 100.0)
    (message,) = book.due(100.0)
    assert len(message.steps[0].values) == 100
    assert message.left_out == "m100"
    book.logged(place(2), {"m0": 1.0}, 101.0)
    assert [one.left_out for one in book.due(101.0)] == [""]


class Counted(torch.Tensor):
    """A tensor that stands for one on a GPU: it counts how often its value is waited for."""

    reads = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__):
            cls.reads += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_of_a_device_are_read_together_and_at_most_once_a_second() -> None:
    Counted.reads = 0
    book = LogBook()
    value = torch.tensor(1.0).as_subclass(Counted)
    for step in range(50):
        book.logged(place(step), {"loss": value, "grad": value + 1.0}, 100.0 + step * 0.01)
    assert Counted.reads == 1, "the first call has read what was there"
    assert sent(book.due(100.5)) == {0: {"loss": (1.0, 1), "grad": (2.0, 1)}}
    book.settle()
    assert Counted.reads == 2
    (message,) = book.due(102.0)
    assert all(one.values["grad"].total == 2.0 for one in message.steps)


def test_what_is_logged_last_waits_for_no_later_call() -> None:
    value = torch.tensor(1.0)  # stands for one on a GPU
    book = LogBook()
    book.logged(place(1), {"loss": 1.0}, 100.0)
    book.logged(place(1), {"loss": value}, 100.1)
    assert sent(book.due(100.2)) == {}, "its sum is still there"
    assert sent(book.rest()) == {1: {"loss": (2.0, 2)}}
    book.logged(place(1, between=True), {"auc": value}, 100.3)
    assert sent(book.due(101.3))[1]["auc"] == (1.0, 1)


@pytest.fixture
def alone() -> Any:
    job = pl.init()
    model = nn.Linear(2, 1)
    return job, *job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_alone_values_are_checked_and_the_script_knows_how_far_it_is(alone: Any) -> None:
    job, model, optimizer = alone
    with pytest.raises(ConfigError, match="num_workers is known within a loop"):
        _ = job.num_workers
    data = TensorRows(x=torch.ones(10, 2))
    seen = []
    for batch in job.batches(data, batch_size=4, epochs=2):
        before = job.samples
        loss = model(batch.x).mean()
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        seen.append((before, job.samples, job.num_workers))
        with pytest.raises(ConfigError, match="got a tensor of shape"):
            job.log(loss=model(batch.x))
    assert seen == [(0, 4, 1), (4, 8, 1), (8, 10, 1), (10, 14, 1), (14, 18, 1), (18, 20, 1)]


def test_names_that_python_does_not_take_come_in_a_dict(alone: Any) -> None:
    job, *_ = alone
    job.log({"val/auc": 0.5}, loss=0.1)
    job.log({})
    with pytest.raises(ConfigError, match=r"got float '0\.5', expected names with their values"):
        job.log(0.5)
    with pytest.raises(ConfigError, match="got the name 'val auc'"):
        job.log({"val auc": 0.5})
    with pytest.raises(ConfigError, match="got str 'high' for val/auc"):
        job.log({"val/auc": "high"})


def test_before_prepare_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"job\.log was called before job\.prepare"):
        pl.init().log(loss=0.5)
