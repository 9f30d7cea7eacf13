"""Devices that jobs can share, by their names: ``cpu:0``, ``cpu:0-3``, ``cpu:0,2``, ``cuda:0``."""

import os
import re
from collections.abc import Callable, Mapping

from paceline.base.errors import ConfigError
from paceline.base.gpus import gpu_uuids, has_driver

MAX_LENGTH = 48
"""Most characters of a device's name."""
ORDER = "CUDA_DEVICE_ORDER"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_CPU = re.compile(r"cpu:(\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*)")
_CUDA = re.compile(r"cuda:(\d{1,3})")


def gpu_index(device: str) -> int | None:
    """Return the number by which a process knows a GPU; None: the device is no GPU."""
    match = _CUDA.fullmatch(device)
    return None if match is None else int(match[1])


def cores_of(device: str) -> frozenset[int]:
    """Return the cores that a device consists of; none: it is a GPU, which binds to no cores.

    Raises:
        ConfigError: it is no device, or not one of this machine; got and expected, in words.
    """
    if gpu_index(device) is not None:
        return frozenset()
    cores, own = named_cores(device), os.sched_getaffinity(0)
    if cores is None:
        raise ConfigError(
            f"got {device!r}, expected cores, like cpu:0 or cpu:0-3, or a GPU, like cuda:0"
        )
    if not cores or not cores <= own:
        there = ", ".join(map(str, sorted(own)))
        raise ConfigError(f"got {device!r}, expected cores that this machine gives: {there}")
    return cores


def named_cores(device: str) -> frozenset[int] | None:
    """Return the cores that a name says, whether we may use them or not; None: it says none."""
    match = _CPU.fullmatch(device)
    if match is None or len(device) > MAX_LENGTH:
        return None
    cores = set[int]()
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def shared_name(
    device: str,
    environment: Mapping[str, str],
    uuids: Callable[[], tuple[str, ...] | None] = gpu_uuids,
) -> str:
    """Return the name of a device that is the same for all jobs of the machine.

    Cores are called alike everywhere. Of GPUs, a process sees those that ``CUDA_VISIBLE_DEVICES``
    lists, and counts them from 0: the name is the one that the driver has for the GPU.

    Args:
        device: as the job's spec has it.
        environment: of the job's processes.
        uuids: asks the driver.

    Raises:
        ConfigError: the job's processes have no such GPU; got and expected, in words.
    """
    index = gpu_index(device)
    if index is None:
        return device
    found = uuids()
    if found is None and not has_driver():
        raise ConfigError(
            f"got {device!r}, expected a GPU, but this machine has no NVIDIA driver; install it, "
            "or share cores, e.g. cpu:0"
        )
    listed = environment.get(VISIBLE)
    if listed is None and found is None:
        return device
    names = list(found or ()) if listed is None else _visible(listed, found)
    if index >= len(names):
        given = "" if listed is None else f" by {VISIBLE}={listed}"
        there = ", ".join(f"cuda:{number}" for number in range(len(names))) or "none"
        raise ConfigError(f"got {device!r}, expected a GPU that the job is given{given}: {there}")
    return names[index]


def _visible(listed: str, found: tuple[str, ...] | None) -> list[str]:
    """Return the GPUs of a list, as far as CUDA reads it: up to the first that is not there."""
    names = []
    for entry in map(str.strip, listed.split(",")):
        if entry.isdecimal():
            number = int(entry)
            if found is not None and number >= len(found):
                break
            names.append(f"cuda:{number}" if found is None else found[number])
        elif entry.startswith("GPU-"):
            fitting = [uuid for uuid in found or (entry,) if uuid.startswith(entry)]
            if len(fitting) != 1:
                break
            names.append(fitting[0])
        elif entry.startswith("MIG-"):
            names.append(entry)
        else:
            break
    return names
