"""The quick check of a node before its first step: how fast it multiplies, and copies memory.

Runs in the training process, when everything is prepared and nothing else runs in it: under the
same limits, threads and libraries as the training that follows. Takes some 0.4 s. Links to
peers are the holder's to measure (`Links`).

Rates are per second that the threads ran, and beside them stands which part of the time that was:
workers that share cores take turns, and how the turns fall would else pass for speed.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from paceline.base.cgroups import cpu_quota, memory_headroom
from paceline.features.failslow.wire import NodeSpeed

MULTIPLY_S = 0.2
"""Seconds of products. With `COPY_S` three periods of a cpu quota: within one, a node may seem to
have none."""
COPY_S = 0.1
CPU_ROWS = 512
"""Rows of a square matrix, whose product takes some milliseconds of one core."""
DEVICE_ROWS = 4096
"""Rows of the matrix on any other device."""
COPY_BYTES = 32 << 20
"""Bytes of a copy: more than a core's share of any cache."""
SHARE_OF_FREE = 8
"""Divisor of the memory that is left: where memory is limited, no more than this part is used."""


class _Done(NamedTuple):
    """What came of repeating something."""

    times: int
    took_s: float
    ran_s: float
    """Part of ``took_s`` for which each thread ran, in the mean; on another device all of it."""


def measure_node(device: torch.device) -> NodeSpeed:
    """Measure what this process gets of its node.

    Args:
        device: that holds the model.
    """
    size = CPU_ROWS if device.type == "cpu" else DEVICE_ROWS
    matrix = torch.full((size, size), 1.0 / size, dtype=torch.float32, device=device)
    product = torch.empty_like(matrix)
    source = torch.ones(_copy_bytes(), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    with torch.no_grad():
        multiplied = _repeat(lambda: torch.mm(matrix, matrix, out=product), MULTIPLY_S, device)
        copied = _repeat(lambda: target.copy_(source), COPY_S, device)
    took_s, ran_s = multiplied.took_s + copied.took_s, multiplied.ran_s + copied.ran_s
    return NodeSpeed(
        device=device.type,
        threads=torch.get_num_threads(),
        matmul_flops=2 * size**3 * multiplied.times / multiplied.ran_s,
        copy_bytes_per_s=2 * source.numel() * copied.times / copied.ran_s,
        cpu_share=min(1.0, ran_s / took_s),
        cpu_quota=cpu_quota(),
    )


def _copy_bytes() -> int:
    free = memory_headroom()
    return COPY_BYTES if free is None else max(1, min(COPY_BYTES, free // SHARE_OF_FREE))


def _repeat(act: Callable[[], object], window_s: float, device: torch.device) -> _Done:
    """Do it for so long, after once to warm up."""
    act()
    _finish(device)
    start_s, cpu_s, times = time.monotonic(), time.process_time(), 0
    while (took_s := time.monotonic() - start_s) < window_s or not times:
        act()
        _finish(device)
        times += 1
    ran_s = took_s
    if device.type == "cpu":
        ran_s = (time.process_time() - cpu_s) / torch.get_num_threads()
    return _Done(times, took_s, max(ran_s, 1e-6))


def _finish(device: torch.device) -> None:
    """Wait until another device than the CPU has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
