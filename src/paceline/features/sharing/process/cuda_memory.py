"""The memory of a GPU that jobs share: torch's allocator of this process, with a limit.

The limit is torch's own fraction of the GPU. What it leaves no room for comes from a slab: memory
of the host that kernels use at its own address. It lies in a pool of torch's allocator, which is
asked when the GPU has no room. The allocator takes what is free in the pool, and never more. So the
slab is filled before a limit counts, on each stream in use. No tensor is copied until it is taken
home.

Kernels that read a tensor many times, as products of matrices do, are many times slower on a tensor
in the slab: it is read over PCIe each time (`docs/howto/sharing.md`).
"""

import contextlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import torch

from paceline.base.devices import gpu_index
from paceline.base.errors import ConfigError
from paceline.features.sharing.process.cpu_memory import NO_LIMIT
from paceline.features.sharing.process.cuda import require_gpu, say
from paceline.features.sharing.process.memory import MemoryUse

MIB = 1 << 20
LEAST_SLAB_BYTES = 1024 * MIB
"""Bytes pinned when the first limit comes, which takes 0.6 s (H100)."""
STEP_BYTES = 256 * MIB
"""The slab grows in such steps, to what lay beyond the limit at the peak and a quarter more."""
MOST_OF_HOST = 0.5
"""Part of the host's available memory that is pinned at once, at most."""
SIDE_BYTES = 256 * MIB
"""Bytes of the slab for each stream but the first: a stream has blocks of its own."""
SMALL_SEGMENTS = 32
"""Segments of 2 MiB for each stream, for tensors of 1 MiB at most."""


class Slab:
    """Memory of the host for what a GPU's limit leaves no room for; it is kept for life.

    Args:
        index: of the GPU.
        library: of ``cuda_host.cpp``.
        cuda: torch's module, or a stand-in.
        empty: `torch.empty`, or a stand-in.
    """

    def __init__(self, index: int, library: Path, cuda: Any, empty: Callable[..., Any]) -> None:
        self._index, self._cuda, self._empty = index, cuda, empty
        self._allocator = cuda.memory.CUDAPluggableAllocator(
            str(library), "paceline_host_alloc", "paceline_host_free"
        )
        self._pool = cuda.MemPool(self._allocator.allocator(), use_on_oom=True)
        self._streams = set[int]()
        self.num_bytes = self.large_bytes = 0
        self._ranges: list[tuple[int, int]] = []

    def grow(self, large_bytes: int) -> None:
        """Have so much of it for the present stream, and a part for each other stream in use.

        Raises:
            RuntimeError: torch's; the host gives no more.
        """
        cuda, missing = self._cuda, large_bytes - self.large_bytes
        known = len(self._streams)
        with cuda.device(self._index):
            present = cuda.current_stream(self._index).cuda_stream
            if missing > 0:
                missing = -(-missing // STEP_BYTES) * STEP_BYTES
                self._fill(missing, 0 if present in self._streams else SMALL_SEGMENTS)
                self.large_bytes += missing
                self._streams.add(present)
            segments = cuda.memory_snapshot(include_traces=False)
            others = {one["stream"] for one in segments if one["device"] == self._index}
            for other in others - self._streams:
                with cuda.stream(cuda.ExternalStream(other, device=self._index)):
                    self._fill(SIDE_BYTES, SMALL_SEGMENTS)
                self._streams.add(other)
        if missing > 0 or len(self._streams) > known:
            found = self._pool.snapshot(include_traces=False)
            self.num_bytes = sum(one["total_size"] for one in found)
            self._ranges = [(one["address"], one["address"] + one["total_size"]) for one in found]

    def _fill(self, large_bytes: int, num_small: int) -> None:
        """Allocate blocks and leave them: they lie in the pool from then on."""
        sizes = [large_bytes, *[MIB] * (2 * num_small)]
        with self._cuda.use_mem_pool(self._pool, device=self._index):
            blocks = [
                self._empty(size, dtype=torch.uint8, device=f"cuda:{self._index}") for size in sizes
            ]
            del blocks

    def used_bytes(self) -> int:
        """Return the bytes of tensors that lie in it."""
        if not self.num_bytes:
            return 0
        return sum(one["active_size"] for one in self._pool.snapshot(include_traces=False))

    def has(self, address: int) -> bool:
        return any(start <= address < end for start, end in self._ranges)


class CudaMemory:
    """The memory of a GPU, as one process uses it.

    Limits count from when the script first uses the GPU: nothing is begun there before.

    Args:
        device: its name.
        library: of ``cuda_host.cpp``.
        cuda: torch's module, or a stand-in.
        empty: `torch.empty`, or a stand-in.

    Raises:
        ConfigError: torch sees no such GPU, or cannot spill.
    """

    def __init__(
        self,
        device: str,
        library: Path,
        cuda: Any = torch.cuda,
        empty: Callable[..., Any] = torch.empty,
    ) -> None:
        index = gpu_index(device)
        assert index is not None
        require_gpu(device, index, cuda)
        _require_spill(device, cuda)
        self._index, self._library, self._cuda, self._empty = index, library, cuda, empty
        self._slab: Slab | None = None
        self._asked: int | None = None
        self._is_owed = self._has_failed = False
        """Whether the limit has not been applied; whether the host gave no memory."""
        self._peak_bytes = self._host_bytes = 0

    def set_limit(self, num_bytes: int | None) -> int:
        """The limit in effect is not below what torch holds on the device and cannot give back."""
        self._asked, self._is_owed = num_bytes, True
        if not self._cuda.is_initialized():
            return NO_LIMIT if num_bytes is None else num_bytes
        return self._apply()

    def _apply(self) -> int:
        cuda, index, asked = self._cuda, self._index, self._asked
        self._is_owed = False
        cuda.set_per_process_memory_fraction(1.0, index)
        if asked is None:
            return NO_LIMIT
        total = int(cuda.get_device_properties(index).total_memory)
        beyond = max(self._peak_bytes, self._stat("allocated_bytes", "peak")) - asked
        if not self._has_slab(max(LEAST_SLAB_BYTES, beyond * 5 // 4)):
            return total
        slab_bytes = 0 if self._slab is None else self._slab.num_bytes
        if self._stat("reserved_bytes", "current") - slab_bytes > asked:
            cuda.empty_cache()
        # Torch counts the slab. It rounds down, and 1.0 would be no limit at all.
        counted = min(asked + slab_bytes, total - 1)
        cuda.set_per_process_memory_fraction((counted + 0.5) / total, index)
        kept = self._stat("reserved_bytes", "current") - slab_bytes
        return max(counted - slab_bytes, kept)

    def _has_slab(self, large_bytes: int) -> bool:
        """Have a slab; tell whether there is one, if not as large as it should be."""
        if self._slab is None:
            self._slab = Slab(self._index, self._library, self._cuda, self._empty)
        bound = int(psutil.virtual_memory().available * MOST_OF_HOST) + self._slab.large_bytes
        try:
            self._slab.grow(min(large_bytes, bound))
        except RuntimeError as error:
            if not self._has_failed:
                say(f"the host gives no memory that a GPU can use ({error}): less is spilled")
            self._has_failed = True
        return self._slab.num_bytes > 0

    def look(self) -> MemoryUse:
        """Spilled bytes are those that were beyond the device at the peak, or more: at least so.

        Begins torch's own count of peaks again.
        """
        if not self._cuda.is_initialized():
            return MemoryUse(0, 0, 0, 0)
        if self._is_owed:
            self._apply()
        slab = self._slab
        slab_bytes, host = (0, 0) if slab is None else (slab.num_bytes, slab.used_bytes())
        stats = self._cuda.memory_stats_as_nested_dict(self._index)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        device, room = allocated["current"] - host, max(reserved["peak"] - slab_bytes, 0)
        peak = max(device, min(allocated["peak"], room))
        spilled = max(host - self._host_bytes, allocated["peak"] - room, 0)
        self._peak_bytes, self._host_bytes = allocated["peak"], host
        self._cuda.reset_peak_memory_stats(self._index)
        return MemoryUse(device, peak, host, spilled if slab_bytes else 0)

    def _stat(self, name: str, kind: str) -> int:
        return int(self._cuda.memory_stats_as_nested_dict(self._index)[name]["all"][kind])

    def take_home(self, tensors: Iterable[torch.Tensor]) -> int:
        """Tensors keep their storages, so views of them move along."""
        slab, moved = self._slab, 0
        if slab is None or not slab.num_bytes:
            return 0
        self._cuda.synchronize(self._index)
        for tensor in tensors:
            if tensor.device.type != "cuda" or hasattr(tensor, "__tensor_flatten__"):
                continue
            storage = tensor.untyped_storage()
            if slab.has(storage.data_ptr()):
                with contextlib.suppress(RuntimeError):  # no room: it stays
                    moved += _move(storage, slab)
        if moved and self._cuda is torch.cuda:
            # Those of cuBLAS live as long as the process, and may lie in the slab, too.
            torch._C._cuda_clearCublasWorkspaces()
        return moved


def _move(storage: torch.UntypedStorage, slab: Slab) -> int:
    """Give a storage memory of the device; the bytes moved."""
    num_bytes, copy, room = storage.nbytes(), storage.clone(), storage.clone()
    if slab.has(copy.data_ptr()) or slab.has(room.data_ptr()):
        return 0
    del room  # torch keeps the block, and gives it to the storage: that cannot fail now
    storage.resize_(0)
    storage.resize_(num_bytes)
    storage.copy_(copy)
    return num_bytes


def _require_spill(device: str, cuda: Any) -> None:
    """Raise ConfigError if torch cannot take memory of the host for memory of a GPU."""
    pool = getattr(cuda, "MemPool", None)
    if pool is None or "use_on_oom" not in inspect.signature(pool).parameters:
        raise ConfigError(
            f"share.device_memory: got {device} with torch {torch.__version__}, expected a torch "
            "whose MemPool has use_on_oom, as 2.11 has; install it, or leave device_memory out"
        )
    backend = cuda.get_allocator_backend()
    if backend != "native":
        raise ConfigError(
            f"share.device_memory: got torch's allocator {backend} on {device}, expected native; "
            "take `backend` out of PYTORCH_ALLOC_CONF, or leave device_memory out"
        )
