"""The environment of a run belongs to the run: fixed when the job is created, kept from then on.

What the shell of ``--resume`` has exported, or another machine, changes nothing of it. Nor do
torchrun's variables reach a script from outside: a library that finds a ``RANK`` would form a
process group of its own, which waits for members that never come.
"""

import os
import random
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from paceline.wire.spec import JobSpec
from paceline.wire.surroundings import Surroundings

OF_TORCHRUN = re.compile(
    r"((LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE))|ROLE_NAME|MASTER_ADDR|MASTER_PORT"
    r"|TORCHELASTIC_.*"
)
"""Variables that torchrun sets; those of a shell, or of another launcher, reach no worker."""

_HASH_SEED = "PYTHONHASHSEED"
_MOST_HASH_SEED = 2**32 - 1
_ZONE = "TZ"
_LOCALE = (
    *("LC_ALL", "LANG", "LANGUAGE", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LC_COLLATE"),
    *("LC_MONETARY", "LC_MESSAGES", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE"),
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables kept for a script that trains on its own; other workers have the numbers that the job
computes."""
_OTHER_THREADS = ("OMP_DYNAMIC", "MKL_DYNAMIC", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")
_LOCALTIME = Path("/etc/localtime")


def fixed(spec: JobSpec) -> JobSpec:
    """The spec with what the run keeps of this shell and machine; one that has it stays."""
    if spec.surroundings.variables:
        return spec
    around = {**os.environ, **spec.env}
    names = (*_LOCALE, *_OTHER_THREADS, *(() if spec.traits.trains else _THREADS))
    variables = {name: around.get(name) for name in names}
    variables[_HASH_SEED] = _hash_seed(around.get(_HASH_SEED, ""), spec.seed)
    variables[_ZONE] = around.get(_ZONE) or _zone_of_machine()
    # Nodes of other backends are on other machines than the one that starts the job.
    cores = len(os.sched_getaffinity(0)) if spec.is_on_one_machine else None
    return replace(spec, surroundings=Surroundings(variables, cores))


def without_foreign(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment as the run has it: its own variables, and none of torchrun's."""
    kept = spec.surroundings.variables
    others = {
        name: value
        for name, value in environment.items()
        if name not in kept and not OF_TORCHRUN.fullmatch(name)
    }
    return others | {name: value for name, value in kept.items() if value is not None}


def _hash_seed(exported: str, seed: int) -> str:
    """Return the shell's hash seed; for ``random``, and what Python would refuse, draw one."""
    if exported.isdecimal() and int(exported) <= _MOST_HASH_SEED:
        return exported
    if exported:
        return str(random.SystemRandom().randint(1, _MOST_HASH_SEED))
    return str(seed % (_MOST_HASH_SEED + 1))


def _zone_of_machine() -> str | None:
    """Return the zone's name, which other machines understand; None: the zone has no name."""
    if not _LOCALTIME.exists():
        return "UTC"  # what the C library takes then
    _, found, name = str(_LOCALTIME.resolve()).partition("/zoneinfo/")
    return name if found else None
