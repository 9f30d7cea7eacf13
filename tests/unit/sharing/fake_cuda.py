"""A stand-in for `torch.cuda`: one GPU that works through its queue in a time of its own."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


class FakeEvent:
    """Done when the GPU has come to it; each look at it lets time pass."""

    def __init__(self, cuda: "FakeCuda") -> None:
        self._cuda = cuda
        self.at_s = 0.0

    def record(self, _stream: object) -> None:
        self._cuda.num_records += 1
        self.at_s = max(self._cuda.now_s, self._cuda.done_s)

    def query(self) -> bool:
        done = self._cuda.now_s >= self.at_s
        if not done:
            self._cuda.now_s += self._cuda.look_s
        return done

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert end.query()
        return (end.at_s - self.at_s) * 1e3


class FakeCuda:
    """What `CudaDevice` asks torch for."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.now_s = self.done_s = 0.0
        """Now, and when all that is queued will be done."""
        self.look_s = 1e-4
        self.is_on, self.captures = True, False
        self.num_records = 0

    def launch(self, work_s: float, launch_s: float = 1e-5) -> None:
        """Give the GPU work, which takes this thread a moment."""
        self.now_s += launch_s
        self.done_s = max(self.done_s, self.now_s) + work_s

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def is_initialized(self) -> bool:
        return self.is_on

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def current_stream(self, _index: int) -> object:
        return None

    def Event(self, **_options: Any) -> FakeEvent:  # noqa: N802 - torch's name
        return FakeEvent(self)


class FakeBlock:
    """Memory that a tensor has."""

    def __init__(self, cuda: "FakeMemoryCuda", num_bytes: int, *, host: bool) -> None:
        self.cuda, self.num_bytes, self.host = cuda, num_bytes, host
        self.address = HOST if host else 4096

    def free(self) -> None:
        self.cuda.free(self)


HOST = 1 << 40
"""Where the slab lies."""


class FakeMemoryCuda(FakeCuda):
    """A GPU of 1,000 MiB with torch's allocator: every block is a segment of its own."""

    class MemPool:
        def __init__(self, cuda: Any, use_on_oom: bool = False) -> None:
            assert use_on_oom
            self.cuda = cuda

        def snapshot(self, *, include_traces: bool) -> list[dict[str, int]]:
            total, used = self.cuda.slab, self.cuda.slab_used
            return [{"address": HOST, "total_size": total, "active_size": used}]

    def __init__(self) -> None:
        super().__init__()
        self.memory = self
        self.total, self.fraction = 1000 << 20, 1.0
        self.used = self.cached = self.slab = self.slab_used = 0
        self.peaks = {"allocated_bytes": 0, "reserved_bytes": 0}
        self.fills = False
        self.host_gives, self.backend = True, "native"
        self.streams = {0}

    # ------------------------------------------------------------------ torch.cuda

    def CUDAPluggableAllocator(self, *_names: str) -> Any:  # noqa: N802 - torch's name
        return SimpleNamespace(allocator=lambda: self)

    def get_allocator_backend(self) -> str:
        return self.backend

    def set_per_process_memory_fraction(self, fraction: float, _index: int) -> None:
        self.fraction = fraction

    def get_device_properties(self, _index: int) -> Any:
        return SimpleNamespace(total_memory=self.total)

    def device(self, _index: int) -> Any:
        return contextlib.nullcontext()

    def current_stream(self, _index: int) -> Any:
        return SimpleNamespace(cuda_stream=0)

    def memory_snapshot(self, *, include_traces: bool) -> list[dict[str, int]]:
        return [{"stream": stream, "device": 0} for stream in self.streams]

    def ExternalStream(self, stream: int, device: int) -> Any:  # noqa: N802 - torch's name
        return stream

    def stream(self, _stream: Any) -> Any:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def use_mem_pool(self, _pool: Any, device: int) -> Iterator[None]:
        self.fills = True
        try:
            yield
        finally:
            self.fills = False

    def empty_cache(self) -> None:
        self.cached = 0

    def synchronize(self, _index: int) -> None:
        pass

    def memory_stats_as_nested_dict(self, _index: int) -> dict[str, Any]:
        current = {"allocated_bytes": self.used + self.slab_used}
        current["reserved_bytes"] = self.used + self.cached + self.slab
        return {
            name: {"all": {"current": value, "peak": max(value, self.peaks[name])}}
            for name, value in current.items()
        }

    def reset_peak_memory_stats(self, _index: int) -> None:
        self.peaks = dict.fromkeys(self.peaks, 0)

    # ------------------------------------------------------------------ the allocator

    def empty(self, num_bytes: int, **_options: Any) -> FakeBlock:
        if self.fills:
            if not self.host_gives:
                raise RuntimeError("out of memory")
            self.slab += num_bytes
            return FakeBlock(self, 0, host=True)
        if self.cached >= num_bytes:
            self.cached -= num_bytes
        elif (self.used + self.cached + self.slab + num_bytes) > int(self.fraction * self.total):
            if self.slab_used + num_bytes > self.slab:
                raise RuntimeError("out of memory")
            self.slab_used += num_bytes
            return self._noted(FakeBlock(self, num_bytes, host=True))
        self.used += num_bytes
        return self._noted(FakeBlock(self, num_bytes, host=False))

    def free(self, block: FakeBlock) -> None:
        if block.host:
            self.slab_used -= block.num_bytes
        else:
            self.used -= block.num_bytes
            self.cached += block.num_bytes

    def _noted(self, block: FakeBlock) -> FakeBlock:
        for name, found in self.memory_stats_as_nested_dict(0).items():
            self.peaks[name] = found["all"]["peak"]
        return block
