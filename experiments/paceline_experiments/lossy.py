"""A cable that is long and loses packets: ``python -m paceline_experiments.lossy PID NAME ...``.

It ends in a network namespace, where it is the interface ``port``, and on the switch. This process
carries each frame from one end to the other, later, or not at all. It ends with its standard input.
"""

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

_SET_TAP = 0x400454CA
"""TUNSETIFF of linux/if_tun.h."""
_TAP, _BARE = 0x0002, 0x1000
_NEW_NETWORK = 0x40000000
FRAME_BYTES = 65_600
QUEUED = 20_000
"""Frames on their way; more are lost, as in a switch."""


def tap(name: str) -> int:
    """Make a TAP interface in this process's network; its descriptor."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _SET_TAP, struct.pack("16sH", name.encode(), _TAP | _BARE))
    return file


def enter_network(pid: int) -> None:
    """Go into the network namespace of a process, for good.

    Raises:
        OSError: it cannot be entered.
    """
    file = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, _NEW_NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.close(file)


def carry(ends: tuple[int, int], delay_s: float, loss: float) -> None:
    """Carry frames until the standard input ends."""
    chance = random.Random(0)
    others = dict(zip(ends, reversed(ends), strict=True))
    queue: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        wait_s = max(0.0, queue[0][0] - time.monotonic()) if queue else None
        ready, _, _ = select.select([*ends, sys.stdin], [], [], wait_s)
        if sys.stdin in ready:
            return
        now_s = time.monotonic()
        for end in [each for each in ends if each in ready]:
            frame = os.read(end, FRAME_BYTES)
            if chance.random() >= loss and len(queue) < QUEUED:
                number += 1
                heapq.heappush(queue, (now_s + delay_s, number, others[end], frame))
        while queue and queue[0][0] <= now_s:
            _, _, end, frame = heapq.heappop(queue)
            try:
                os.write(end, frame)
            except OSError:  # an end that is down, or full
                continue


def main() -> None:
    """Make the cable, say ``up``, and carry."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pid", type=int, help="a process in the namespace")
    parser.add_argument("name", help="of the interface on the switch")
    parser.add_argument("delay_s", type=float, help="one way")
    parser.add_argument("loss", type=float, help="part of the frames, each way")
    options = parser.parse_args()
    here = tap(options.name)
    subprocess.run(["ip", "link", "set", options.name, "master", "switch", "up"], check=True)
    enter_network(options.pid)
    carry_between = (here, tap("port"))
    print("up", flush=True)
    carry(carry_between, options.delay_s, options.loss)


if __name__ == "__main__":
    main()
