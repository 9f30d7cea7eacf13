"""Things that a job lacks that shares a device, found out before it starts."""

import math
import os
from collections.abc import Iterator

from paceline.base.devices import cores_of, gpu_index, named_cores, shared_name
from paceline.base.errors import ConfigError
from paceline.features.sharing.compiled import CPU_ARENA, CUDA_HOST, compiled
from paceline.features.sharing.gate_page import MINIMUM, ROOM
from paceline.features.sharing.pages import pages_of_jobs
from paceline.jobs.spec_values import show
from paceline.wire.spec import JobSpec


def lacks(spec: JobSpec) -> Iterator[str]:
    """Say why the job cannot share its device, if so."""
    if complaint := share_complaint(spec):
        yield complaint


def share_complaint(spec: JobSpec) -> str:
    """Say why the job cannot share the device that it names."""
    kind, devices = spec.share.kind, spec.share.every
    key = "share.devices" if spec.share.devices else "share.device"
    where = spec.place_of(key if devices else "share.class")
    if memory_complaint := _memory_complaint(spec):
        return memory_complaint
    if not devices:
        expected = "the cores that it shares; write e.g. --device cpu:0"
        return (
            "" if kind == "auto" else f"{where}: got {kind} without a device, expected {expected}"
        )
    if spec.share.devices and spec.share.device:
        return f"{where}: got {spec.share.device} for all workers as well; remove one of the two"
    if spec.run_as == "program" and kind != "guaranteed":
        expected = "guaranteed, or a script or a module: a program has no gates"
        return f"{spec.place_of('share.class')}: got {kind} for a program, expected {expected}"
    try:
        environment = {**os.environ, **spec.env}
        found = (_taken(spec, where, one, shared_name(one, environment)) for one in devices)
        return next(filter(None, found), "")
    except ConfigError as error:
        return f"{where}: {error}"


def _memory_complaint(spec: JobSpec) -> str:
    """Say why the job cannot share the memory of its device."""
    share = spec.share
    room_bytes, minimum_bytes = share.device_memory_bytes, share.minimum_memory_bytes
    where = spec.place_of("share.device_memory")
    if room_bytes is None:
        if minimum_bytes is None:
            return ""
        where, expected = spec.place_of("share.minimum_memory"), "share.device_memory as well"
        return f"{where}: got a part of a memory that is not shared, expected {expected}"
    if not share.every:
        return f"{where}: got a memory without a device, expected it; write e.g. --device cpu:0"
    if minimum_bytes is not None and minimum_bytes > room_bytes:
        where = spec.place_of("share.minimum_memory")
        return f"{where}: got more than the device's memory, expected a part of it"
    try:
        compiled(CPU_ARENA if gpu_index(share.every[0]) is None else CUDA_HOST)
    except (ConfigError, OSError) as error:
        return f"{where}: {error}"
    return ""


def _taken(spec: JobSpec, where: str, device: str, name: str) -> str:
    """Say which job has the device, or a part of it, in a way that leaves no room for this one."""
    cores = cores_of(device)
    for page in pages_of_jobs():
        if page.device == name:
            if page.share == spec.share.kind == "guaranteed":
                where = spec.place_of("share.class")
                expected = f"one guaranteed job on {device}, which is {page.job_id}"
                remedy = "choose another device, or opportunistic"
                return f"{where}: got guaranteed, expected {expected}; {remedy}"
        elif cores & (named_cores(page.device) or frozenset()):
            expected = f"{page.device}, which job {page.job_id} shares, or other cores"
            return f"{where}: got {device}, expected {expected}"
    return _room_taken(spec, name)


def _room_taken(spec: JobSpec, name: str) -> str:
    """Say which job of the device says another size of its memory, or leaves too little."""
    asked, left = spec.share.device_memory_bytes or 0, spec.share.device_memory_bytes or 0
    shown = show("share.device_memory", spec.share.device_memory_bytes)
    for page in pages_of_jobs():
        if page.device == name:
            if page.words[ROOM] != asked:
                expected = show("share.device_memory", int(page.words[ROOM]) or None)
                where = spec.place_of("share.device_memory")
                return f"{where}: got {shown}, expected {expected}, as job {page.job_id} says"
            left -= int(page.words[MINIMUM])
    minimum = spec.share.minimum_memory_bytes or 0
    workers = math.ceil(spec.workers.count / len(spec.share.every))
    if minimum * workers > left:
        got, each = show("share.minimum_memory", minimum), max(left, 0) // workers
        expected = f"{each >> 20}MiB at most, which other jobs leave of {shown} for each worker"
        return f"{spec.place_of('share.minimum_memory')}: got {got}, expected {expected}"
    return ""
