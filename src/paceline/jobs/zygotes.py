"""Starting of a job's warm processes: the zygote of a node, and its template.

A template imports what the zygotes of its kind need, once for a job; the zygotes are forks of it.
The supervisor starts it, and so does a command that runs several workers of another machine; agents
ask it (`paceline.supervisor.templates`, `paceline.agent.zygote`).
A node that its template would not suit starts a zygote of its own.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from paceline.base.devices import ORDER, cores_of, gpu_index
from paceline.base.jobdir import JobDir, number_of, role_of
from paceline.base.processes import JOB_DIR, NODE, ROOM
from paceline.jobs.surroundings import without_foreign
from paceline.wire.spec import JobSpec

MODULE = "paceline.runtime.process.zygote"

_DETERMINISTIC = {
    # Else the bits of a product follow where in memory its factors lie.
    "MKL_CBWR": "AUTO,STRICT",
    # What torch asks for where it uses cuBLAS.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def process_environment(job: JobDir, node: str, spec: JobSpec) -> dict[str, str]:
    """The environment of every life of the node's process: this one's, as far as the run has it."""
    cores = len(bound_to(node, spec) or os.sched_getaffinity(0))
    on_gpu = any(gpu_index(device) is not None for device in spec.share.of(node))
    # A script of strategy script keeps what the user has exported, as under torchrun.
    around = without_foreign(spec, os.environ)
    exported = {} if spec.traits.trains or spec.torch_threads is not None else around
    quota = spec.of_role(role_of(node)).cpu_of(number_of(node))
    threads = exported.get("OMP_NUM_THREADS", str(spec.threads(cores, quota)))
    return {
        **around,
        # One BLAS thread: numpy would start a pool at its import, and the zygote has to fork.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": exported.get("MKL_NUM_THREADS", threads),
        **(_DETERMINISTIC if spec.deterministic else {}),
        # Else CUDA may count GPUs in another order than the driver, whose names jobs share.
        **({ORDER: "PCI_BUS_ID"} if on_gpu and ORDER not in os.environ else {}),
        **spec.env,
        **_drawn(spec),
        JOB_DIR: str(job.path),
        NODE: node,
        "PACELINE_ROLE": role_of(node),
    }


def _drawn(spec: JobSpec) -> dict[str, str]:
    """The run's hash seed, also where the spec asks for a random one."""
    seed = spec.surroundings.variables.get("PYTHONHASHSEED")
    return {} if seed is None else {"PYTHONHASHSEED": seed}


def environment_digest(environment: Mapping[str, str]) -> str:
    """Equal for environments that differ in the node alone, and where it has its files."""
    told = sorted(item for item in environment.items() if item[0] not in (NODE, ROOM, JOB_DIR))
    return hashlib.sha256(repr(told).encode()).hexdigest()


def kind_of(node: str, spec: JobSpec) -> str:
    """Return what the node's zygote imports: what its lives need, for imports take seconds."""
    if spec.traits.trains:
        return role_of(node)
    return "program" if spec.run_as == "program" else "script"


def import_arguments(node: str, spec: JobSpec) -> list[str]:
    """The arguments of a zygote, or of a template, that say what it imports."""
    traits = spec.traits
    preload = [f"--preload={traits.module}"] if traits.preloaded else []
    return ["--for", kind_of(node, spec), *preload]


def bound_to(node: str, spec: JobSpec) -> frozenset[int]:
    """The cores that a node is bound to; none: all."""
    return frozenset[int]().union(*map(cores_of, spec.share.of(node)))


def has_template(node: str, spec: JobSpec) -> bool:
    """Tell whether the node's zygote may be a fork of a template.

    Not with a memory limit, which must count all that the node has; nor on cores of its own, which
    libraries look at when they are imported; nor where there is nothing to import.
    """
    limited = spec.of_role(role_of(node)).memory_bytes is not None
    return not (limited or bound_to(node, spec) or kind_of(node, spec) == "program")


def template_socket(job: JobDir, kind: str) -> Path:
    """Return where the template listens, if the job has one on this machine."""
    return job.run_dir / f"{kind}.template"
