"""A limit of a GPU's memory, with a stand-in for torch.cuda and its allocator."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.base.errors import ConfigError
from paceline.features.sharing.process import cuda_memory
from paceline.features.sharing.process.cpu_memory import NO_LIMIT
from paceline.features.sharing.process.cuda_memory import STEP_BYTES, CudaMemory
from paceline.features.sharing.process.memory import MemoryUse
from tests.unit.sharing.fake_cuda import FakeBlock, FakeMemoryCuda

MIB = 1 << 20
SLAB = 256 * MIB


@pytest.fixture(autouse=True)
def small_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_memory, "LEAST_SLAB_BYTES", SLAB)
    monkeypatch.setattr(cuda_memory, "SMALL_SEGMENTS", 1)


@pytest.fixture
def cuda() -> FakeMemoryCuda:
    return FakeMemoryCuda()


@pytest.fixture
def memory(cuda: FakeMemoryCuda) -> CudaMemory:
    return CudaMemory("cuda:0", Path("host.so"), cuda, cuda.empty)


def mini_batch(cuda: FakeMemoryCuda, num_tensors: int, each: int = 50 * MIB) -> list[bool]:
    """Make tensors and drop them; which of them lay on the device."""
    blocks = [cuda.empty(each) for _ in range(num_tensors)]
    for block in blocks:
        block.free()
    return [not block.host for block in blocks]


def test_what_the_limit_leaves_no_room_for_is_spilled_and_returns(
    cuda: FakeMemoryCuda, memory: CudaMemory
) -> None:
    assert all(mini_batch(cuda, 8))
    assert memory.set_limit(200 * MIB) == 200 * MIB
    for _ in range(3):
        assert mini_batch(cuda, 8) == [True] * 4 + [False] * 4
    assert cuda.used + cuda.cached <= 200 * MIB
    assert memory.look() == MemoryUse(0, 200 * MIB, 0, 200 * MIB)
    assert memory.set_limit(None) == NO_LIMIT
    assert all(mini_batch(cuda, 8)), "in the very next mini-batch"
    assert memory.look() == MemoryUse(0, 400 * MIB, 0, 0)


def test_the_limit_in_effect_is_not_below_what_lives(
    cuda: FakeMemoryCuda, memory: CudaMemory
) -> None:
    kept = cuda.empty(300 * MIB)
    assert memory.set_limit(100 * MIB) == 300 * MIB
    other = cuda.empty(50 * MIB)
    assert other.host
    assert memory.look() == MemoryUse(300 * MIB, 300 * MIB, 50 * MIB, 50 * MIB)
    kept.free()
    other.free()
    assert memory.set_limit(100 * MIB) == 100 * MIB


def test_the_slab_has_room_for_what_lay_beyond_the_limit(
    cuda: FakeMemoryCuda, memory: CudaMemory
) -> None:
    mini_batch(cuda, 9)
    memory.look()
    memory.set_limit(50 * MIB)
    assert cuda.slab == 2 * STEP_BYTES + 2 * MIB, "400 MiB and a quarter, in whole steps"
    assert mini_batch(cuda, 9) == [True] + [False] * 8
    memory.set_limit(100 * MIB)
    assert cuda.slab == 2 * STEP_BYTES + 2 * MIB, "it is kept"
    cuda.streams.add(7)
    memory.set_limit(50 * MIB)
    assert cuda.slab == 2 * STEP_BYTES + 2 * MIB + cuda_memory.SIDE_BYTES + 2 * MIB


def test_a_limit_that_comes_before_the_script_uses_the_gpu_counts_from_then(
    cuda: FakeMemoryCuda, memory: CudaMemory
) -> None:
    cuda.is_on = False
    assert memory.set_limit(200 * MIB) == 200 * MIB
    assert memory.look() == MemoryUse(0, 0, 0, 0)
    assert not cuda.slab
    cuda.is_on = True
    memory.look()
    assert mini_batch(cuda, 8) == [True] * 4 + [False] * 4


def test_a_host_that_gives_nothing_is_told_of_once(
    cuda: FakeMemoryCuda, memory: CudaMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda.host_gives = False
    for _ in range(2):
        assert memory.set_limit(100 * MIB) == cuda.total, "no limit: it would end the job"
    assert capsys.readouterr().err.count("the host gives no memory that a GPU can use") == 1
    assert all(mini_batch(cuda, 8))


class FakeStorage:
    """A storage of the stand-in."""

    def __init__(self, cuda: FakeMemoryCuda, block: FakeBlock) -> None:
        self.cuda, self.block = cuda, block

    def nbytes(self) -> int:
        return self.block.num_bytes

    def data_ptr(self) -> int:
        return self.block.address

    def clone(self) -> "FakeStorage":
        return FakeStorage(self.cuda, self.cuda.empty(self.nbytes()))

    def resize_(self, num_bytes: int) -> None:
        self.block.free()
        self.block = self.cuda.empty(num_bytes)

    def copy_(self, _other: "FakeStorage") -> None:
        pass

    def __del__(self) -> None:
        self.block.free()


class FakeTensor:
    device = torch.device("cuda:0")

    def __init__(self, storage: FakeStorage) -> None:
        self.storage = storage

    def untyped_storage(self) -> FakeStorage:
        return self.storage


def test_tensors_are_taken_home_as_far_as_there_is_room(
    cuda: FakeMemoryCuda, memory: CudaMemory
) -> None:
    memory.set_limit(0)
    tensors: list[Any] = [FakeTensor(FakeStorage(cuda, cuda.empty(50 * MIB))) for _ in range(3)]
    cpu = torch.zeros(4)
    assert memory.look().host_bytes == 150 * MIB
    assert memory.take_home([*tensors, cpu]) == 0
    memory.set_limit(190 * MIB)
    assert memory.take_home([*tensors, cpu]) == 100 * MIB, "the move of the third needs room twice"
    use = memory.look()
    assert (use.device_bytes, use.host_bytes) == (100 * MIB, 50 * MIB)
    memory.set_limit(None)
    assert memory.take_home([*tensors, cpu]) == 50 * MIB
    assert memory.look().host_bytes == 0


def test_a_torch_that_cannot_spill_is_refused(cuda: FakeMemoryCuda) -> None:
    cuda.backend = "cudaMallocAsync"
    with pytest.raises(ConfigError, match="cudaMallocAsync on cuda:0, expected native"):
        CudaMemory("cuda:0", Path("host.so"), cuda, cuda.empty)

    class Old(FakeMemoryCuda):
        class MemPool:  # type: ignore[assignment]
            def __init__(self, cuda: Any) -> None:
                pass

    with pytest.raises(
        ConfigError, match=r"expected a torch whose MemPool has use_on_oom, as 2.11"
    ):
        CudaMemory("cuda:0", Path("host.so"), Old(), cuda.empty)
