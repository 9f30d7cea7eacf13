"""The loader returns each batch as asked, in order, whoever reads it, and leaves nothing behind."""

import multiprocessing
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.data import loader as loader_module
from paceline.runtime.data.batch import fetch_rows
from paceline.runtime.data.drawing import never_draws
from paceline.runtime.data.inline import AT_ONCE_BYTES, InlineLoader, takes_rows_at_once
from paceline.runtime.data.listed import Listed
from paceline.runtime.data.loader import Loader
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.sources.tensor_rows import TensorRows

IN_ORDER = EpochOrder(100, shuffle=False)


class Squares(Dataset[Any]):
    """x -> (x, x^2); record 13 cannot be read."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index == 13:
            raise KeyError("no such thing")
        return index, float(index**2)


@pytest.fixture(params=[0, 2], ids=["thread", "processes"])
def num_workers(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param
    assert not multiprocessing.active_children()
    assert "paceline-loader" not in [thread.name for thread in threading.enumerate()]


def test_batches_of_any_size_come_in_the_order_of_submission(num_workers: int) -> None:
    rows = TensorRows(x=torch.arange(100), y=torch.arange(100) * 2.0)
    order = EpochOrder(100, 8, seed=3)
    with Loader(rows, order, num_workers=num_workers) as loader:
        requests = [("a", 0, 7), ("b", 7, 8), ("c", 8, 60), ("d", 60, 100)]
        for tag, start, stop in requests:
            loader.submit(tag, [(1, start, stop)])
        for tag, start, stop in requests:
            got, batch = loader.get(timeout_s=30)
            assert got == tag
            assert batch.x.tolist() == order.indices(1, start, stop).tolist()
            assert batch.y.tolist() == [2.0 * x for x in batch.x.tolist()]


class Noisy(Squares):
    """Draws random numbers from all that can be seeded."""

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), np.random.random(), torch.rand(1).item()


Drawn = dict[tuple[int, int], tuple[float, ...]]


def drawn(loader: Loader | InlineLoader, ranges: list[tuple[int, int, int]]) -> Drawn:
    """What each record draws, by epoch and position."""
    found: Drawn = {}
    with loader:
        for one in ranges:
            loader.submit(one, [one])
        for epoch, start, stop in ranges:
            values = torch.stack(loader.get(timeout_s=30)[1]).T.tolist()
            for position, row in zip(range(start, stop), values, strict=True):
                found[epoch, position] = tuple(row)
    return found


def test_a_record_draws_by_its_place_whoever_reads_it_in_whatever_batch() -> None:
    script = random.getstate(), torch.get_rng_state(), np.random.get_state()[2]
    first = drawn(InlineLoader(Noisy(), IN_ORDER, seed=5), [(0, 0, 8), (0, 8, 9), (1, 0, 8)])
    others = Loader(Noisy(), IN_ORDER, num_workers=1, seed=5, process_seed=9)
    other = drawn(others, [(1, 3, 8), (0, 4, 9)])
    assert {place: first[place] for place in other} == other
    every = [value for row in first.values() for value in row]
    assert len(set(every)) == len(every) == 17 * 3  # nothing comes twice
    # Another feed, as of the next loop of a script, draws others.
    assert set(drawn(InlineLoader(Noisy(), IN_ORDER, seed=6), [(0, 0, 9)])).isdisjoint(every)
    # The script's own streams go on as if nothing had been read.
    assert random.getstate() == script[0]
    assert torch.equal(torch.get_rng_state(), script[1])
    assert np.random.get_state()[2] == script[2]


class Rarely(Squares):
    """Draws for some records only, and after others were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.read.append(index)
        return index, random.random() if index % 4 == 2 else 0.0


def test_a_batch_whose_records_turn_out_to_draw_is_read_again() -> None:
    rarely = Rarely()
    with InlineLoader(rarely, IN_ORDER) as loader:
        values = []
        for start in (0, 2, 4):
            loader.submit(None, [(0, start, start + 2)])
            values += loader.get()[1][1].tolist()
    assert rarely.read == [0, 1, 2, 3, 2, 3, 4, 5]  # and none again from then on
    expected = InlineLoader(Rarely(), IN_ORDER)
    expected.submit(None, [(0, 1, 4)])
    assert expected.get()[1][1].tolist() == values[1:4]


class AtOnce(Squares):
    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [(index, random.random()) for index in indices]


def test_records_that_are_read_in_one_call_draw_by_the_place_of_the_first() -> None:
    batches = []
    for ranges in ([(0, 4, 6)], [(0, 0, 4), (0, 4, 6)]):
        with InlineLoader(AtOnce(), IN_ORDER) as loader:
            for one in ranges:
                loader.submit(None, [one])
            batches.append([loader.get()[1][1].tolist() for _ in ranges][-1])
    assert batches[0] == batches[1]


def collated(records: list[Any]) -> list[float]:
    return [random.random() for _ in records]


def test_what_is_drawn_while_records_are_collated_is_the_batch_s_own() -> None:
    found = []
    for size in (4, 2):
        with InlineLoader(Squares(), IN_ORDER, collate_fn=collated) as loader:
            for start in (0, 4):
                loader.submit(None, [(0, start, start + size)])
                found.append(loader.get()[1])
    assert found[0][:2] == found[2]
    assert found[1][:2] == found[3]
    assert set(found[0]).isdisjoint(found[1])


class Seeding(Squares):
    """Keeps and restores the generator of its process, as some of torchvision's do."""

    def __getitem__(self, index: int) -> float:
        state = torch.get_rng_state()
        torch.manual_seed(index)
        value = torch.rand(1).item()
        torch.set_rng_state(state)
        return value


def test_a_source_that_restores_the_generator_does_not_take_the_script_back() -> None:
    torch.manual_seed(1)
    undisturbed = torch.rand(4).tolist()
    torch.manual_seed(1)
    masks = []
    with InlineLoader(Seeding(), IN_ORDER) as loader:
        for start in range(4):
            loader.submit(None, [(0, start, start + 1)])
            loader.get()
            masks.append(torch.rand(1).item())
    assert masks == undisturbed


class Mine(TensorDataset):
    """May do anything."""


QUIET = TensorDataset(torch.arange(4))


@pytest.mark.parametrize(
    ("dataset", "collate_fn", "known"),
    [
        (QUIET, None, True),
        (QUIET, default_collate, True),
        (QUIET, collated, False),
        (Mine(torch.arange(4)), None, False),
        (Subset(QUIET, [1]), None, True),
        (Subset(Squares(), [1]), None, False),
        (ConcatDataset([QUIET, Subset(QUIET, [1])]), None, True),
        (ConcatDataset([QUIET, Squares()]), None, False),
        (TensorRows(x=torch.arange(4)), None, True),
        ([1, 2], None, True),
        (Squares(), None, False),
    ],
)
def test_what_is_known_to_draw_nothing(dataset: Any, collate_fn: Any, known: bool) -> None:
    assert never_draws(dataset, collate_fn) is known


def test_a_closed_loader_in_the_training_thread_gives_nothing() -> None:
    loader = InlineLoader(Squares(), IN_ORDER)
    for start in (0, 2, 4):
        loader.submit(start, [(0, start, start + 2)])
    loader.clear(keep=1)
    assert loader.get()[0] == 0
    loader.close()
    with pytest.raises(InternalError, match="closed loader"):
        loader.submit(6, [(0, 6, 8)])
    with pytest.raises(InternalError, match="closed loader"):
        loader.get()


def test_a_batch_is_ready_without_a_further_request(num_workers: int) -> None:
    with Loader(Squares(), IN_ORDER, num_workers=num_workers, prefetch=3) as loader:
        for step in range(20):
            loader.submit(step, [(0, 20 + step, 22 + step)])
            tag, (x, _) = loader.get(timeout_s=30)
            assert (tag, x.tolist()) == (step, [20 + step, 21 + step])


def test_one_batch_may_span_epochs(num_workers: int) -> None:
    with Loader(Squares(), IN_ORDER, num_workers=num_workers) as loader:
        loader.submit(0, [(0, 98, 100), (1, 0, 2)])
        assert loader.get(timeout_s=30)[1][0].tolist() == [98, 99, 0, 1]


def test_an_error_keeps_its_traceback_record_and_place(num_workers: int) -> None:
    with Loader(Squares(), IN_ORDER, num_workers=num_workers) as loader:
        for start in (11, 12, 14):
            loader.submit(start, [(0, start, start + 2)])
        assert loader.get(timeout_s=30)[0] == 11
        with pytest.raises(KeyError) as caught:
            loader.get(timeout_s=30)
        shown = caught.exconly() + "".join(map(str, caught.traceback)) + str(caught.value)
        assert "no such thing" in shown
        assert "__getitem__" in shown
        notes = [*getattr(caught.value, "__notes__", []), str(caught.value)]
        assert "while reading record 13" in "".join(notes)
        assert loader.get(timeout_s=30)[0] == 14


def test_cleared_requests_are_never_seen(num_workers: int) -> None:
    with Loader(Squares(), IN_ORDER, num_workers=num_workers) as loader:
        for start in range(20, 60):
            loader.submit("old", [(0, start, start + 2)])
        loader.clear()
        loader.submit("new", [(0, 0, 2)])
        tag, (x, _) = loader.get(timeout_s=30)
        assert (tag, x.tolist()) == ("new", [0, 1])


def test_what_comes_before_a_change_of_mind_is_made_once(num_workers: int) -> None:
    with Loader(Squares(), IN_ORDER, num_workers=num_workers, prefetch=4) as loader:
        for start in range(20, 30):
            loader.submit(start, [(0, start, start + 2)])
        assert loader.get(timeout_s=30)[0] == 20
        loader.clear(keep=2)
        loader.submit("new", [(0, 0, 2)])
        assert [loader.get(timeout_s=30)[0] for _ in range(3)] == [21, 22, "new"]
        loader.clear(keep=3)
        loader.submit("newer", [(0, 2, 4)])
        assert loader.get(timeout_s=30)[0] == "newer"


def test_a_request_cleared_on_its_way_leaves_the_loader_waiting(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "CLOSE_TIMEOUT_S", 5.0)
    with Loader(Squares(), IN_ORDER, num_workers=num_workers) as loader:
        wait, armed, cleared = loader._requests.wait, threading.Event(), threading.Event()

        def wait_and_clear() -> bool:
            is_open = wait()
            if armed.is_set() and not cleared.is_set():
                loader.clear()
                cleared.set()
            return is_open

        monkeypatch.setattr(loader._requests, "wait", wait_and_clear)
        loader.submit("before", [(0, 0, 2)])
        assert loader.get(timeout_s=30)[0] == "before"
        armed.set()
        loader.submit("old", [(0, 2, 4)])
        assert cleared.wait(timeout=30)


def test_close_does_not_wait_for_requests_that_nobody_takes(num_workers: int) -> None:
    loader = Loader(Squares(), IN_ORDER, num_workers=num_workers)
    for start in range(20, 60):
        loader.submit(start, [(0, start, start + 2)])
    loader.close()
    with pytest.raises(InternalError, match="closed"):
        loader.submit(0, [(0, 0, 1)])
    with pytest.raises(InternalError, match="closed"):
        loader.get()


def test_a_collate_fn_gets_the_samples(num_workers: int) -> None:
    with Loader(Squares(), IN_ORDER, num_workers=num_workers, collate_fn=len) as loader:
        loader.submit(0, [(0, 0, 5)])
        assert loader.get(timeout_s=30) == (0, 5)


def test_get_gives_up_after_its_timeout() -> None:
    with Loader(Squares(), IN_ORDER) as loader, pytest.raises(TimeoutError, match=r"0\.01 s"):
        loader.get(timeout_s=0.01)


def test_the_random_numbers_of_the_script_are_left_alone(num_workers: int) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with Loader(Squares(), IN_ORDER, num_workers=num_workers) as loader:
        loader.submit(0, [(0, 0, 2)])
        loader.get(timeout_s=30)
        assert torch.equal(torch.rand(3), expected)


def test_a_new_length_holds_for_later_requests() -> None:
    rows = TensorRows(x=torch.arange(25))
    growing, known = (EpochOrder(n, 10, seed=1, window_shards=1) for n in (None, 25))
    with Loader(rows, growing) as loader:
        loader.submit(0, [(0, 0, 10)])
        loader.order = known
        loader.submit(1, [(0, 10, 25)])
        seen = [x for _ in range(2) for x in loader.get(timeout_s=30)[1].x.tolist()]
    assert seen == known.indices(0, 0, 25).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": -1}, "num_workers is -1"),
        ({"prefetch": 0}, "prefetch 0"),
        ({"dataset": iter([])}, "needs __len__ and __getitem__"),
        ({"order": None}, "is no StreamSource"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {"dataset": Squares(), "order": IN_ORDER}
    with pytest.raises(ConfigError, match=message):
        Loader(**(valid | arguments))


def test_a_tensor_dataset_gives_what_torch_would_give() -> None:
    dataset = TensorDataset(torch.arange(10), torch.randn(10, 3))
    got = fetch_rows(dataset, np.array([3, 1, 3]), None)
    wanted = torch.utils.data.default_collate([dataset[i] for i in (3, 1, 3)])
    assert type(got) is type(wanted)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_finished_batch_of_getitems_is_passed_through() -> None:
    class Ready(Squares):
        def __getitems__(self, indices: list[int]) -> dict[str, Any]:
            return {"x": np.array(indices)}

    assert fetch_rows(Ready(), np.array([5, 2]), None)["x"].tolist() == [5, 2]


def test_a_sequence_of_tensors_is_a_dataset() -> None:
    rows = [torch.full((2,), float(i)) for i in range(5)]
    assert fetch_rows(rows, np.array([4, 0]), None).tolist() == [[4, 4], [0, 0]]


def test_a_few_rows_in_memory_are_taken_at_once() -> None:
    rows, labels = torch.zeros(100, 8), torch.zeros(100)
    few, many = 32, AT_ONCE_BYTES // 36 + 1
    for dataset in (TensorDataset(rows, labels), TensorRows(x=rows, y=labels)):
        assert takes_rows_at_once(dataset, None, few)
        assert takes_rows_at_once(Listed(dataset, range(7)), None, few)
        assert not takes_rows_at_once(dataset, None, many)
        assert not takes_rows_at_once(dataset, list, few), "a function of the user's"
    assert not takes_rows_at_once(Subset(TensorDataset(rows), [1]), None, few)
    assert not takes_rows_at_once([1, 2, 3], None, few)
    drawn = InlineLoader(TensorRows(x=torch.arange(9)), EpochOrder(9, seed=1))
    with drawn, Loader(TensorRows(x=torch.arange(9)), EpochOrder(9, seed=1)) as other:
        for loader in (drawn, other):
            loader.submit("a", [(0, 0, 5), (1, 2, 3)])
        assert torch.equal(drawn.get()[1].x, other.get()[1].x)
