"""The memory of cores that jobs share: torch's allocator of this process, with a limit.

The device and the host have the same RAM here. So nothing is copied: a tensor that is taken home
stays where it is, and counts for the device from then on.
"""

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch

from paceline.features.sharing.process.memory import MemoryUse

NO_LIMIT = 2**63 - 1


class CpuMemory:
    """The memory of all CPU tensors of this process that are allocated from now on.

    Processes that it forks begin with its limit, and are not counted with it.
    """

    def __init__(self, library: Path) -> None:
        """``library``: of ``cpu_arena.cpp``."""
        self._arena = _load(library)
        self._found = (ctypes.c_int64 * len(MemoryUse._fields))()

    def set_limit(self, num_bytes: int | None) -> int:
        """The limit in effect is not below what lies on the device now."""
        asked = NO_LIMIT if num_bytes is None else max(num_bytes, 0)
        return int(self._arena.paceline_set_limit(asked))

    def look(self) -> MemoryUse:
        self._arena.paceline_look(self._found)
        return MemoryUse(*self._found)

    def take_home(self, tensors: Iterable[torch.Tensor]) -> int:
        return sum(
            self._arena.paceline_take_home(tensor.untyped_storage()._cdata)
            for tensor in tensors
            if tensor.device.type == "cpu" and tensor.layout is torch.strided
        )


@cache
def _load(library: Path) -> ctypes.CDLL:
    """Put the library's allocator in place; it stays there."""
    arena = ctypes.CDLL(str(library))
    arena.paceline_set_limit.argtypes = (ctypes.c_int64,)
    arena.paceline_set_limit.restype = ctypes.c_int64
    arena.paceline_look.argtypes = (ctypes.POINTER(ctypes.c_int64),)
    arena.paceline_look.restype = None
    arena.paceline_take_home.argtypes = (ctypes.c_void_p,)
    arena.paceline_take_home.restype = ctypes.c_int64
    arena.paceline_install()
    return arena
