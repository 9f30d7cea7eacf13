"""Run a script without a job, as ``python script`` does, with the notes of a rehearsal.

``python -m paceline.features.rehearse.process.alone SCRIPT ARGS``. Ends with the exit code that
Python would give.
"""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from torch import distributed, nn
from torch._C import _distributed_c10d as _torch

from paceline.base.errors import ConfigError
from paceline.features.rehearse.plan import RefusedCall, ScriptDied
from paceline.features.rehearse.process.looking import Looking, plan_here
from paceline.features.rehearse.process.watched_job import RehearsedJob
from paceline.runtime.group.checks import check_dense, check_movable, check_own_statistics
from paceline.runtime.holding.local.strategy import Local
from paceline.runtime.process import main_module
from paceline.runtime.script import job
from paceline.runtime.script.strategy import Strategy

REPLICAS = ("allreduce", "fsdp")


def main() -> None:
    """Run the script that the arguments name."""
    plan, script = plan_here(), sys.argv[1]
    sys.argv = sys.argv[1:]
    looking = Looking(plan, "servers" if plan.on_servers else "alone", 1, lambda: False)
    looking.begin(script)
    RehearsedJob.looking = looking
    job.kind = RehearsedJob
    if plan.on_servers:
        job.kind = RehearsedOnServers
    elif plan.checks:
        RehearsedJob.on_prepared.append(_Checks(looking).on_prepared)
    if "fully_shard" in Path(script).read_text(errors="replace"):
        # A job of strategy fsdp makes a group of its workers, so such scripts make none.
        store = _torch.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        main_module.run_file(script)
    except Exception as error:
        _note_error(looking, error)
        raise


class RehearsedOnServers(RehearsedJob):
    """A lone job whose model is held as parameter servers hold it, within this process."""

    def __init__(self, strategy: Strategy) -> None:
        if type(strategy) is Local:
            # Their kernels are compiled with numba, which is of an extra.
            from paceline.runtime.holding.servers.in_process import Alone
            from paceline.runtime.holding.servers.strategy import OnServers

            strategy = OnServers(Alone(strategy.spec), strategy.script_state)
        super().__init__(strategy)


class _Checks:
    """Checks for what workers that each hold the model would refuse of it."""

    def __init__(self, looking: Looking) -> None:
        self._looking = looking

    def on_prepared(self, modules: Sequence[nn.Module]) -> None:
        for check in (check_dense, check_movable, check_own_statistics):
            try:
                check(modules)
            except ConfigError as error:
                file, line = self._looking.place()
                self._looking.note(RefusedCall(REPLICAS, str(error), file, line))


def _note_error(looking: Looking, error: Exception) -> None:
    """Note what ended the script, and the line of its own that led there."""
    file, line = "", 0
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(looking.plan.root):
            file = frame.filename.removeprefix(looking.plan.root).lstrip("/")
            line = frame.lineno or 0
    if isinstance(error, ConfigError):
        held = ("ps",) if looking.plan.on_servers else ("alone", "allreduce", "fsdp", "ps")
        looking.note(RefusedCall(held, str(error), file, line))
    else:
        looking.note(ScriptDied(f"{type(error).__name__}: {error}", file, line))


if __name__ == "__main__":
    main()
