"""How long a process uses a GPU, with a stand-in for torch.cuda."""

import pytest

from paceline.base.errors import ConfigError
from paceline.features.sharing.process.cuda import AHEAD, CHUNK_S, CudaDevice
from tests.unit.sharing.fake_cuda import FakeCuda


def test_the_queue_is_kept_short_and_its_time_is_counted() -> None:
    cuda = FakeCuda()
    device = CudaDevice("cuda:0", cuda)
    device.busy_s()
    longest_s = 0.0
    for number in range(400):
        cuda.launch(0.1e-3)
        busy_s = device.busy_s()
        if number > 50:
            longest_s = max(longest_s, cuda.done_s - cuda.now_s)
    assert longest_s <= (AHEAD + 1) * 1.5 * CHUNK_S, "else the launches would be 36 ms ahead"
    assert busy_s == pytest.approx(400 * 0.1e-3, abs=(AHEAD + 1) * 1.5 * CHUNK_S)
    assert cuda.num_records < 400 / 3, "most passages record nothing"


def test_points_with_much_work_are_chunks_of_their_own() -> None:
    cuda = FakeCuda()
    device = CudaDevice("cuda:0", cuda)
    for _ in range(20):
        cuda.launch(0.05)
        device.busy_s()
    assert cuda.done_s - cuda.now_s <= AHEAD * 0.05 + 1e-3
    assert device.busy_s() == pytest.approx((20 - 1 - AHEAD) * 0.05, abs=0.051)


def test_a_time_away_is_not_counted() -> None:
    cuda = FakeCuda()
    device = CudaDevice("cuda:0", cuda)
    device.busy_s()
    for _ in range(10):
        cuda.launch(0.004)
        device.busy_s()
        cuda.launch(0.001)
        device.leave()
        cuda.now_s += 1.0
        assert device.busy_s() < 0.06, "a passage in between, of another thread"
        device.enter()
    cuda.launch(0.004)
    assert device.busy_s() == pytest.approx(10 * 0.005, abs=1e-3)


def test_nothing_piles_up_while_no_order_is_there() -> None:
    cuda = FakeCuda()
    device = CudaDevice("cuda:0", cuda)
    device.busy_s()
    for _ in range(100):
        cuda.launch(0.001)
        device.leave()
        cuda.now_s += 0.01
        device.enter()
    assert len(device._queued) <= 1


def test_a_job_that_is_never_held_records_nothing() -> None:
    cuda = FakeCuda()
    device = CudaDevice("cuda:0", cuda)
    device.leave()
    device.enter()
    assert not cuda.num_records


def test_without_a_context_and_in_a_graph_nothing_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cuda = FakeCuda()
    device = CudaDevice("cuda:0", cuda)
    cuda.is_on = False
    assert device.busy_s() == 0.0 and device.work() is None
    cuda.is_on = cuda.captures = True
    for _ in range(3):
        assert device.busy_s() == 0.0 and device.work() is None
    assert not cuda.num_records
    assert capsys.readouterr().err.count("CUDA graphs have no gates inside") == 1


def test_work_is_asked_for_as_long_as_it_is_not_done() -> None:
    cuda = FakeCuda()
    device = CudaDevice("cuda:0", cuda)
    assert device.work() is None
    cuda.launch(0.01)
    query = device.work()
    assert query is not None and not query()
    cuda.now_s += 0.01
    assert query()


@pytest.mark.parametrize(
    ("count", "complaint"),
    [
        (0, "got cuda:3, but torch .* sees no GPU"),
        (2, "got cuda:3, expected one .* cuda:0 to cuda:1"),
    ],
)
def test_a_gpu_that_torch_does_not_see_is_refused(count: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        CudaDevice("cuda:3", FakeCuda(count))
