"""What a job stands on, checked before it starts: folders, room on disks, addresses, ports."""

import math
import os
import tempfile
from pathlib import Path

from paceline.base import features
from paceline.base.compiled import CPU_ARENA, CUDA_HOST, compiled
from paceline.base.devices import cores_of, gpu_index, named_cores, shared_name
from paceline.base.disk import room_bytes
from paceline.base.errors import ConfigError
from paceline.base.interfaces import bind_error
from paceline.base.jobdir import SHARED_MEMORY, home, run_place
from paceline.base.optional import complaint
from paceline.jobs.past.place import history_place
from paceline.jobs.sharing import pages_of_jobs
from paceline.jobs.spec_values import show
from paceline.wire.gate_page import MINIMUM, ROOM
from paceline.wire.spec import JobSpec

FEATURE_KEYS = ("log_to", "metrics_port")
"""Keys of the spec that mean nothing without the feature that takes them."""
LEAST_BYTES = 1 << 20
"""Room without which no job begins: its journal alone soon needs as much."""
LITTLE_BYTES = 256 << 20
"""Shared memory of a machine that has no more is that of a container which was given none."""


def check_ground(spec: JobSpec) -> None:
    """Try what the job will need of this machine.

    Raises:
        ConfigError: one line for each thing that is missing: the thing, the value, the remedy.
    """
    folder = spec.checkpoint.folder
    complaints = [
        _folder_complaint("PACELINE_HOME", home(), "set PACELINE_HOME to another folder"),
        _room_complaint(run_place(), "free some memory there, or set TMPDIR"),
        folder and _folder_complaint(spec.place_of("checkpoint.dir"), Path(folder), "name another"),
        _listen_complaint(spec),
        _share_complaint(spec),
        _library_complaint(spec),
        _history_complaint(spec),
        _feature_complaint(spec),
    ]
    found = [complaint for complaint in complaints if complaint]
    if found:
        raise ConfigError("\n".join(found))


def note_on_memory(spec: JobSpec) -> str:
    """Say that this machine has little shared memory for a job that runs on it; empty: enough."""
    found = os.statvfs(run_place())
    total_bytes = found.f_blocks * found.f_frsize
    if spec.backend != "local" or run_place() != SHARED_MEMORY or total_bytes >= LITTLE_BYTES:
        return ""
    return (
        f"note: {SHARED_MEMORY} has {total_bytes >> 20} MiB in all. Without more, tensors go "
        "through sockets, and cuts count when they are on disk; give a container more with e.g. "
        "`docker run --shm-size 4g`"
    )


def _folder_complaint(where: str, folder: Path, remedy: str) -> str:
    """Make the folder, and a file in it that is gone at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"paceline")
            file.flush()
    except OSError as error:
        expected = f"a folder to write to ({error.strerror})"
        return f"{where}: got {folder}, expected {expected}; {remedy}"
    return _room_complaint(folder, f"make room there, or {remedy}")


def _room_complaint(folder: Path, remedy: str) -> str:
    room = room_bytes(folder)
    if room >= LEAST_BYTES:
        return ""
    got = f"{room >> 10} KiB are free, a job needs {LEAST_BYTES >> 10} KiB to begin"
    return f"no space left on {folder}: {got}; {remedy}"


def _library_complaint(spec: JobSpec) -> str:
    """Find out whether an optional library is missing that the job would need in its course."""
    found = []
    if spec.traits.has_servers:
        found.append(complaint("a model on servers", "numba", "llvmlite"))
    if spec.resources.policy != "none":
        found.append(complaint(spec.place_of("resources.policy"), "scipy"))
    return "\n".join(filter(None, found))


def _history_complaint(spec: JobSpec) -> str:
    """Try the history that somebody has named; the usual one is no condition of a job."""
    try:
        place = history_place(spec)
        if place is not None and place.named:
            from paceline.jobs.past.book import PastJobs  # few jobs name one, and it imports slowly

            PastJobs(place).check()
    except ConfigError as error:
        return str(error)
    return ""


def _feature_complaint(spec: JobSpec) -> str:
    """Ask the features what they lack, and find keys of the spec that no feature takes."""
    found = list[str]()

    def fail(name: str, error: Exception) -> None:
        found.append(f"feature {name} failed ({type(error).__name__}: {error}); uninstall it")

    taken = {key for one in features.installed() if one.feature for key in one.feature.keys}
    for key in FEATURE_KEYS:
        if features.is_set(getattr(spec, key)) and key not in taken:
            found.append(f"{spec.place_of(key)}: no installed feature takes it; remove it")
    for name, lacks in features.parts_of("lacks", fail, spec):
        try:
            found += lacks(spec)
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            fail(name, error)
    return "\n".join(found)


def _listen_complaint(spec: JobSpec) -> str:
    error = bind_error(spec.listen, 0)
    if error is None:
        return ""
    where, expected = spec.place_of("listen"), "an IPv4 address of this machine"
    return f"{where}: got {spec.listen} ({error}), expected {expected}; `hostname -I` lists them"


def _share_complaint(spec: JobSpec) -> str:
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
