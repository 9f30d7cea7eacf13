"""Environment that torchrun gives a worker, for scripts that were written for it."""

import os
from pathlib import Path

from paceline.wire.messages.agent import StartProcess
from paceline.wire.spec import JobSpec

CHOSEN = ("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "TORCHELASTIC_RUN_ID")
"""Variables that the user may set, by flags of torchrun or under ``env``."""
KEPT = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
"""Values of variables that the user leaves unset: by default gloo listens on every network."""


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
    rank, world = str(start.rank), str(start.num_workers)
    ours = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "ROLE_WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": spec.listen,
        "MASTER_PORT": str(start.port),
        "TORCHELASTIC_RUN_ID": job_id,
        "TORCHELASTIC_RESTART_COUNT": str(start.restart),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.restart.budget),
        # The first worker opens the store: nobody here could do so for it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(error_file),
    }
    chosen = {name: spec.env[name] for name in CHOSEN if name in spec.env}
    kept = {name: value for name, value in KEPT.items() if name not in {**os.environ, **spec.env}}
    return ours | chosen | kept
