"""Reading the memory of a peer's process on the same machine: one copy, and none of its time.

Linux's ``process_vm_readv``; what may be read follows from the rights of the two processes, which
belong to one user. Where it is refused (another machine, a container that forbids it) the state
travels in parts instead.
"""

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

CHUNK_BYTES = 32 << 20
"""Bytes that are read with one call."""
THREADS = 2
"""Threads that read: one core alone does not use up what memory can give."""


class _Piece(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)


def read_memory(pid: int, addresses: Sequence[int], targets: Sequence[Tensor]) -> None:
    """Fill tensors with what lies at these addresses of another process.

    Args:
        pid: the process.
        addresses: of the first byte of each tensor there.
        targets: contiguous, in this machine's memory; as many bytes as must be read.

    Raises:
        OSError: it is not there, not ours to read, or too short.
    """
    chunks = [
        (address + start, target.data_ptr() + start, min(CHUNK_BYTES, size - start))
        for address, target in zip(addresses, targets, strict=True)
        for size in [target.numel() * target.element_size()]
        for start in range(0, size, CHUNK_BYTES)
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda chunk: _read(pid, *chunk), chunks):
            pass


def _read(pid: int, address: int, target: int, size: int) -> None:
    done = 0
    while done < size:
        there, here = _Piece(address + done, size - done), _Piece(target + done, size - done)
        count = _libc.process_vm_readv(
            ctypes.c_int(pid), ctypes.byref(here), 1, ctypes.byref(there), 1, 0
        )
        if count <= 0:
            number = ctypes.get_errno()
            raise OSError(number, f"memory of process {pid}: {os.strerror(number)}")
        done += count
