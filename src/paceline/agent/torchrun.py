"""Environment that torchrun gives a worker, for scripts that were written for it."""

import os
from pathlib import Path

from paceline.base.interfaces import interface_of
from paceline.wire.messages.agent import Ranks, StartProcess
from paceline.wire.spec import JobSpec

CHOSEN = ("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "TORCHELASTIC_RUN_ID")
"""Variables that the user may set, by flags of torchrun or under ``env``."""
KEPT = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
"""Values of variables that the user leaves unset: by default gloo listens on every network. Between
machines it is the interface by which this one reaches the master."""


def torchrun_environment(
    start: StartProcess, spec: JobSpec, job_id: str, error_file: Path
) -> dict[str, str]:
    """The variables of one life.

    Args:
        start: the life.
        spec: of the job.
        job_id: the run's id, by default.
        error_file: for ``torch.distributed.elastic``'s ``@record``.
    """
    ranks, world = start.ranks or _only_machine(start), str(start.num_workers)
    rank = str(ranks.rank)
    ours = {
        "RANK": rank,
        "LOCAL_RANK": str(ranks.local_rank),
        "ROLE_RANK": rank,
        "GROUP_RANK": str(ranks.machine),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(ranks.local_size),
        "ROLE_WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(ranks.machines),
        "ROLE_NAME": "default",
        "MASTER_ADDR": ranks.host or spec.listen,
        "MASTER_PORT": str(start.port),
        "TORCHELASTIC_RUN_ID": job_id,
        "TORCHELASTIC_RESTART_COUNT": str(start.restart),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.restart.budget),
        # The first worker opens the store: nobody here could do so for it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(error_file),
    }
    chosen = {name: spec.env[name] for name in CHOSEN if name in spec.env}
    kept = KEPT | {"GLOO_SOCKET_IFNAME": interface_of(spec.listen)} if ranks.machines > 1 else KEPT
    mine = {**os.environ, **spec.env}
    return ours | chosen | {name: value for name, value in kept.items() if name not in mine}


def _only_machine(start: StartProcess) -> Ranks:
    """The ranks of a worker of a job on one machine."""
    return Ranks(
        rank=start.rank,
        local_rank=start.rank,
        local_size=start.num_workers,
        machine=0,
        machines=1,
        host="",
    )
