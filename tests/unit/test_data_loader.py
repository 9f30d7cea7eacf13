"""The loader returns each batch as asked, in order, whoever reads it, and leaves nothing behind."""

import multiprocessing
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.data import loader as loader_module
from paceline.runtime.data.batch import TensorRows, fetch_rows
from paceline.runtime.data.loader import Loader
from paceline.runtime.data.order import EpochOrder

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


def test_seeded_processes_draw_the_same_for_a_batch_whatever_they_read_before() -> None:
    def drawn(places: list[int]) -> dict[int, list[list[float]]]:
        with Loader(Noisy(), IN_ORDER, num_workers=1, seeded=True) as loader:
            for start in places:
                loader.submit(start, [(0, start, start + 3)])
            batches = [loader.get(timeout_s=30) for _ in places]
            return {start: torch.stack(batch).tolist() for start, batch in batches}

    one, other = drawn([0, 3, 6]), drawn([6, 20, 0])
    assert (one[0], one[6]) == (other[0], other[6])
    assert one[0] != one[3]


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
