"""Checks of what a job stands on, before it starts: folders, room on disks, addresses, ports."""

import ipaddress
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from paceline.base import descriptors, features
from paceline.base.disk import room_bytes
from paceline.base.errors import ConfigError
from paceline.base.interfaces import bind_error
from paceline.base.jobdir import SHARED_MEMORY, home, run_place
from paceline.base.optional import complaint
from paceline.wire.spec import JobSpec

FEATURE_KEYS = (
    "decide_every_s",
    "history",
    "log_to",
    "metrics_port",
    "preflight",
    "resources",
    "servers.max_memory",
    "share",
    "solution",
    "solution_args",
    "watch",
    "windows",
    "workers.max_memory",
)
"""Keys of the spec that mean nothing without the feature that takes them. The value ``none`` asks
for nothing, also where another one is the default."""
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
        _descriptors_complaint(spec),
        _library_complaint(spec),
        _feature_complaint(spec),
    ]
    found = [complaint for complaint in complaints if complaint]
    if found:
        raise ConfigError("\n".join(found))


def note_on_memory(spec: JobSpec) -> str:
    """Say that this machine has little shared memory for a job that runs on it; empty: enough."""
    found = os.statvfs(run_place())
    total_bytes = found.f_blocks * found.f_frsize
    if not spec.is_on_one_machine or run_place() != SHARED_MEMORY or total_bytes >= LITTLE_BYTES:
        return ""
    return (
        f"note: {SHARED_MEMORY} has {total_bytes >> 20} MiB in all. Without more, tensors go "
        "through sockets, and cuts count when they are on disk; give a container more with e.g. "
        "`docker run --shm-size 4g`"
    )


def note_on_clear(spec: JobSpec) -> str:
    """Say what of a job crosses the network in clear; empty: nothing."""
    traits = spec.traits
    if not spec.spans_machines or ipaddress.ip_address(spec.listen).is_loopback:
        return ""
    clear = list[str]()
    if spec.control_plane.encryption == "off":
        clear.append("messages (control_plane.encryption: off)")
    if traits.trains and spec.data_plane.encryption == "off":
        clear.append("parameters, records and files of cuts (data_plane.encryption: off)")
    if traits.is_group:
        sums = "parameters and sums" if traits.holder == "shards" else "sums"
        clear.append(f"{sums} of gradients (neither torch's gloo nor NCCL encrypts)")
    if not traits.trains:
        clear.append("what the script's torch.distributed sends (neither gloo nor NCCL encrypts)")
    if not clear:
        return ""
    return (
        f"note: between machines these cross the network in clear: {', '.join(clear)}; use a "
        "network that you trust, or one that encrypts, as WireGuard does"
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
    return complaint("a model on servers", "numba", "llvmlite") if spec.traits.has_servers else ""


def _feature_complaint(spec: JobSpec) -> str:
    """Ask the features what they lack, and find keys of the spec that no feature takes."""
    found = list[str]()

    def fail(name: str, error: Exception) -> None:
        found.append(f"feature {name} failed ({type(error).__name__}: {error}); uninstall it")

    taken = {key for one in features.installed() if one.feature for key in one.feature.keys}
    asked, usual = (msgspec.to_builtins(one) for one in (spec, JobSpec(script=spec.script)))
    for key in FEATURE_KEYS:
        if key not in taken and _asks_for(spec, key, _value(asked, key), _value(usual, key)):
            found.append(f"{_place_of(spec, key)}: no installed feature takes it; remove it")
    for name, lacks in features.parts_of("lacks", fail, spec):
        try:
            missing = [*lacks(spec)]
            if not all(isinstance(one, str) for one in missing):
                raise TypeError(f"it lacks {missing!r:.100}, and no lines of text")
            found += missing
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            fail(name, error)
    return "\n".join(found)


def _place_of(spec: JobSpec, key: str) -> str:
    """Say where a key was set, or the first one of its section."""
    inside = (one for one in spec.sources if one.startswith(f"{key}."))
    return spec.place_of(key if key in spec.sources else next(inside, key))


def _asks_for(spec: JobSpec, key: str, value: object, usual: object) -> bool:
    """Tell whether a person wants what a key is about; a default is no wish."""
    if isinstance(value, bool):
        return value and key in spec.sources
    return value not in (usual, "none")


def _value(tree: Any, key: str) -> object:
    for part in key.split("."):
        tree = tree[part]
    return tree


def _descriptors_complaint(spec: JobSpec) -> str:
    num_nodes = spec.workers.count + spec.num_servers
    return descriptors.complaint(num_nodes, on_this_machine=spec.is_on_one_machine)


def _listen_complaint(spec: JobSpec) -> str:
    error = bind_error(spec.listen, 0)
    if error is None:
        return _advertise_complaint(spec)
    where, expected = spec.place_of("listen"), "an IPv4 address of this machine"
    return f"{where}: got {spec.listen} ({error}), expected {expected}; `hostname -I` lists them"


def _advertise_complaint(spec: JobSpec) -> str:
    port = int((spec.advertise or "").rpartition(":")[2] or 0)
    error = bind_error(spec.listen, port)
    if error is None:
        return ""
    got = f"port {port} of {spec.listen} ({error})"
    return f"{spec.place_of('advertise')}: got {got}, expected a free port; name another"
