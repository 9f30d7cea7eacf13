"""What paceline puts into a process before its script runs.

A watch for steps, parts of features, and threads by its quota.
"""

import os
import sys
from importlib import import_module

from paceline.runtime.process.feature_parts import ProcessParts, here_of
from paceline.runtime.process.process import Process

LOOK_ON = "PACELINE_LOOK_ON"
"""Variable that names a module whose ``add(process)`` looks on; not set in an ordinary job."""


def add(process: Process) -> None:
    """Have the script watched, and features begin; see `QuotaThreads`.

    Raises:
        ConfigError: this machine lacks what a feature needs.
    """
    spec = process.spec
    if spec.run_as == "program":
        return
    parts = process.features = ProcessParts(here_of(process), process.told)
    if not spec.traits.trains and parts.by_steps:
        _watch(process, parts)
    parts.begin(process)
    if spec.traits.trains:
        from paceline.runtime.process.quota_threads import follow_quota  # with torch

        follow_quota(process)
    if name := os.environ.get(LOOK_ON):
        import_module(name).add(process)


def _watch(process: Process, parts: ProcessParts) -> None:
    """Watch steps of the script that is about to run; if that cannot be, say so and let it run."""
    try:
        from paceline.runtime.probe.script_steps import ScriptSteps  # its part of torch may change

        steps = ScriptSteps(process, parts)
        steps.install()
        process.script_steps = steps
    except Exception as error:  # noqa: BLE001 - of a part of torch, whatever it is
        needed = ", ".join(parts.by_steps)
        sys.stderr.write(f"paceline: steps of the script are not seen (for {needed}): {error!r}\n")
