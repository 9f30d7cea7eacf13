"""Sharing on a real GPU: python -m pytest tests/unit/sharing/test_on_a_gpu.py (1 min)."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from paceline.base.devices import shared_name
from paceline.base.gpus import gpu_uuids
from paceline.features.sharing.compiled import CUDA_HOST, compiled
from paceline.features.sharing.process.cuda import CHUNK_S, CudaDevice
from paceline.features.sharing.process.cuda_memory import CudaMemory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
MIB = 1 << 20
HALF = torch.bfloat16
EXPANDABLE = "expandable" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
PAGE_BYTES = 20 * MIB if EXPANDABLE else 0
"""By this much a limit may be exceeded: torch asks for less than it maps."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> CudaMemory:
    """The memory of the first GPU, with a slab."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PACELINE_HOME", str(tmp_path_factory.mktemp("home")))
        library = compiled(CUDA_HOST)
    torch.zeros(1, device="cuda")
    found = CudaMemory("cuda:0", library)
    found.set_limit(256 * MIB)
    found.set_limit(None)
    return found


@pytest.fixture
def memory(limited: CudaMemory) -> Iterator[CudaMemory]:
    """The same, without a limit; other tests find it so."""
    yield limited
    limited.set_limit(None)
    torch.cuda.empty_cache()


def lies_on_host(memory: CudaMemory, tensor: torch.Tensor) -> bool:
    assert memory._slab is not None
    return memory._slab.has(tensor.data_ptr())


def to_host(memory: CudaMemory, tensor: Any) -> Any:
    """Return the same tensor in the slab."""
    if not torch.is_tensor(tensor):
        return tensor
    assert memory._slab is not None
    with torch.cuda.use_mem_pool(memory._slab._pool):
        found = torch.empty_like(tensor)
    found.copy_(tensor)
    assert lies_on_host(memory, found)
    return found


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", generator=generator()).to(dtype)


def ints(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape, device="cuda", generator=generator())


def generator() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(3)


def with_gradients(call: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the result of a function, and the gradients of its inputs of floats."""

    def both(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = tuple(one.detach() for one in inputs)
        floats = [one.requires_grad_() for one in inputs if one.is_floating_point()]
        out = call(*inputs)
        out.float().square().sum().backward()
        return out.detach(), *(one.grad for one in floats if one.grad is not None)

    return both


def adam(parameter: torch.Tensor, gradient: torch.Tensor, *, fused: bool) -> torch.Tensor:
    moved = nn.Parameter(parameter)
    moved.grad = gradient
    torch.optim.Adam([moved], fused=fused).step()
    return moved.detach()


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "elementwise": (lambda a, b: torch.tanh(a) * b + a, lambda: (rand(1 << 20), rand(1 << 20))),
    "reduction": (lambda a: a.sum(0), lambda: (rand(1024, 1024),)),
    "softmax": (with_gradients(lambda a: a.softmax(-1)), lambda: (rand(512, 512),)),
    "gemm bf16": (
        with_gradients(torch.matmul),
        lambda: (rand(1024, 1024, dtype=HALF), rand(1024, 1024, dtype=HALF)),
    ),
    "gemm fp32": (with_gradients(torch.matmul), lambda: (rand(512, 512), rand(512, 512))),
    "gemm odd": (torch.matmul, lambda: (rand(777, 333, dtype=HALF), rand(333, 501, dtype=HALF))),
    "conv bf16": (
        with_gradients(lambda x, w: functional.conv2d(x, w, padding=1)),
        lambda: (rand(4, 64, 28, 28, dtype=HALF), rand(64, 64, 3, 3, dtype=HALF)),
    ),
    "layernorm": (
        with_gradients(lambda a, w, b: functional.layer_norm(a, (1024,), w, b)),
        lambda: (rand(256, 1024), rand(1024), rand(1024)),
    ),
    "attention": (
        with_gradients(functional.scaled_dot_product_attention),
        lambda: (rand(2, 8, 256, 64, dtype=HALF),) * 3,
    ),
    "embedding": (
        with_gradients(lambda w, i: functional.embedding(i, w)),
        lambda: (rand(5000, 64), ints(5000, 4096)),
    ),
    "cross entropy": (functional.cross_entropy, lambda: (rand(512, 1000), ints(1000, 512))),
    "sort": (lambda a: a.sort().values, lambda: (rand(1 << 18),)),
    "adam": (lambda p, g: adam(p, g, fused=False), lambda: (rand(1 << 18), rand(1 << 18))),
    "fused adam": (lambda p, g: adam(p, g, fused=True), lambda: (rand(1 << 18), rand(1 << 18))),
    "to the cpu": (lambda a: a.cpu(), lambda: (rand(1 << 18),)),
    "clone": (torch.clone, lambda: (rand(1 << 18),)),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_same_on_tensors_in_the_hosts_memory(
    memory: CudaMemory, name: str
) -> None:
    call, inputs = CASES[name]
    wanted = call(*(one.clone() for one in inputs()))
    found = call(*(to_host(memory, one) for one in inputs()))
    torch.cuda.synchronize()
    for one, other in zip(
        wanted if isinstance(wanted, tuple) else (wanted,),
        found if isinstance(found, tuple) else (found,),
        strict=True,
    ):
        if name in {"embedding", "attention"}:  # sums in no fixed order
            torch.testing.assert_close(one, other)
        else:
            assert torch.equal(one, other)


def test_copies_between_the_two_memories(memory: CudaMemory) -> None:
    here = rand(1 << 18)
    there = to_host(memory, here)
    back, pinned = torch.empty_like(here), torch.empty(1 << 18, pin_memory=True)
    back.copy_(there)
    pinned.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, here) and torch.equal(pinned.cuda(), here)
    other = to_host(memory, torch.zeros_like(here))
    other.copy_(there)
    assert torch.equal(other, here)
    other.zero_()
    other.copy_(pinned, non_blocking=True)
    assert torch.equal(other, here)
    assert not lies_on_host(memory, there.clone())


class Training:
    """A model with Adam."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.GELU())]
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.losses: list[float] = []

    def step(self) -> None:
        batch = rand(4096, 1024)
        loss = (self.model(batch) - batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.optimizer.zero_grad()

    def tensors(self) -> list[torch.Tensor]:
        states = (value for state in self.optimizer.state.values() for value in state.values())
        return [*self.model.parameters(), *(one for one in states if torch.is_tensor(one))]


def test_a_limit_holds_spills_and_all_returns(memory: CudaMemory) -> None:
    free = Training()
    memory.look()
    for _ in range(12):
        free.step()
    needs = memory.look().peak_bytes
    del free.model, free.optimizer
    job = Training()
    in_effect = memory.set_limit(needs // 2)
    spilled = 0
    for _ in range(6):
        job.step()
        assert memory._slab is not None
        reserved = torch.cuda.memory_reserved() - memory._slab.num_bytes
        assert reserved <= in_effect + PAGE_BYTES
        spilled += memory.look().spilled_bytes
    assert spilled
    memory.set_limit(None)
    memory.take_home(job.tensors())
    for _ in range(2):
        job.step()
    assert memory.look().host_bytes == 0
    for _ in range(4):
        job.step()
    assert job.losses == free.losses


def test_parameters_that_began_in_the_hosts_memory_are_taken_home(memory: CudaMemory) -> None:
    memory.set_limit(0)
    job = Training()
    job.step()
    # With expandable segments, some may lie in what was left of a page that is in use.
    away = [one for one in job.tensors() if one.is_cuda and lies_on_host(memory, one)]
    assert sum(one.nbytes for one in away) >= (24 if EXPANDABLE else 48) * MIB
    weight = max(away, key=torch.Tensor.numel)
    view, before = weight.data.view(-1)[:10], weight.detach().clone()
    assert memory.take_home(job.tensors()) == 0, "the limit leaves no room"
    memory.set_limit(None)
    assert memory.take_home(job.tensors()) >= sum(one.nbytes for one in away)
    assert not any(lies_on_host(memory, one) for one in job.tensors() if one.is_cuda)
    assert torch.equal(weight, before)
    assert view.data_ptr() == weight.data_ptr(), "views go along"
    job.step()


def test_another_stream_spills_once_it_is_known(memory: CudaMemory) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    memory.set_limit(0)
    with torch.cuda.stream(stream):
        other = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert lies_on_host(memory, other) and not lies_on_host(memory, kept)


def test_the_queue_is_kept_short_and_busy_time_is_that_of_the_gpu() -> None:
    device = CudaDevice("cuda:0")
    square = rand(1024, 1024)
    torch.cuda.synchronize()
    device.busy_s()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    longest_s = 0.0
    for number in range(600):
        square = torch.tanh(square @ square)
        device.busy_s()
        if number % 50 == 49:
            start_s = time.perf_counter()
            torch.cuda.synchronize()
            longest_s = max(longest_s, time.perf_counter() - start_s)
    end.record()
    device.leave()
    torch.cuda.synchronize()
    device.leave()
    took_s = begin.elapsed_time(end) / 1e3
    device.enter()
    for _ in range(3):
        device.busy_s()
        torch.cuda.synchronize()
    assert longest_s < 10 * CHUNK_S
    assert device.busy_s() == pytest.approx(took_s, rel=0.2)


def test_a_captured_graph_is_left_alone() -> None:
    device = CudaDevice("cuda:0")
    ones, graph = torch.ones(16, device="cuda"), torch.cuda.CUDAGraph()
    device.busy_s()
    with torch.cuda.graph(graph):
        twice = ones * 2
        device.busy_s()
        device.leave()
        device.enter()
        assert device.work() is None
    graph.replay()
    torch.cuda.synchronize()
    assert twice.sum().item() == 32.0


def test_the_driver_and_torch_name_the_same_gpu() -> None:
    uuids = gpu_uuids()
    assert uuids
    name = shared_name("cuda:0", os.environ)
    assert name == f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def test_all_works_with_expandable_segments(tmp_path: Path) -> None:
    if EXPANDABLE:
        pytest.skip("these are the tests within")
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    chosen = "a_limit_holds or taken_home or another_stream"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", chosen, __file__]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
