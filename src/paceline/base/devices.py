"""Devices that jobs can share, by their names: ``cpu:0``, ``cpu:0-3``, ``cpu:0,2``."""

import os
import re

from paceline.base.errors import ConfigError

MAX_LENGTH = 48
"""Of a name."""
_CPU = re.compile(r"cpu:(\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*)")


def cores_of(device: str) -> frozenset[int]:
    """Return the cores that a device consists of.

    Raises:
        ConfigError: it is no device, or not one of this machine; got and expected, in words.
    """
    if re.fullmatch(r"cuda(:\d+)?", device):
        raise ConfigError(f"got {device!r}, which comes in a later version of paceline")
    match = _CPU.fullmatch(device)
    if match is None or len(device) > MAX_LENGTH:
        raise ConfigError(f"got {device!r}, expected cores, like cpu:0 or cpu:0-3")
    cores = set[int]()
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    own = os.sched_getaffinity(0)
    if not cores or not cores <= own:
        there = ", ".join(map(str, sorted(own)))
        raise ConfigError(f"got {device!r}, expected cores that this machine gives: {there}")
    return frozenset(cores)
