"""Curves in Weights & Biases: each job is a run of its id, online or in files to be sent later."""

import netrc
import os
from typing import Any
from urllib.parse import urlsplit

from paceline.base.errors import ConfigError
from paceline.features.curves.sinks.sink import Sink, SinkWriter, check_folder, check_package
from paceline.jobs.curves import CurveLine

AWAY = {"offline", "dryrun", "disabled"}
"""Values of ``WANDB_MODE`` that need no account."""
PROJECT = "paceline"
"""Project of runs for which ``WANDB_PROJECT`` names none."""
HOST = "https://api.wandb.ai"
KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


class WeightsAndBiases(Sink, frozen=True, kw_only=True):
    """A run of Weights & Biases; its own variables (``WANDB_MODE``, ...) say the rest."""

    def check(self) -> None:
        check_package("wandb", self.to)
        check_folder(self.to)
        if os.environ.get("WANDB_MODE") not in AWAY and not _knows_a_key():
            raise ConfigError(
                f"got {self.to}, expected a key of Weights & Biases; run `wandb login`, or set "
                "WANDB_MODE=offline and send the files with `wandb sync`"
            )

    def open(self, job_id: str) -> SinkWriter:
        return WandbRun(self.to, job_id)


def _knows_a_key() -> bool:
    if any(os.environ.get(name) for name in KEYS):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", HOST)).hostname
    try:
        found = netrc.netrc(os.environ.get("NETRC")) if host else None
    except (OSError, netrc.NetrcParseError):
        return False
    return found is not None and host is not None and found.authenticators(host) is not None


class WandbRun:
    """One job's run. It takes each step once: what comes again is already there."""

    def __init__(self, folder: str, job_id: str) -> None:
        # A master that logs nowhere else does without.
        import wandb

        self._run: Any = wandb.init(
            dir=folder,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=job_id,
            name=job_id,
            resume="allow",
            # Nothing of the master's own process: its output, its repository, its load.
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                silent=True,
            ),
        )
        self._next_step = int(self._run.step)

    def add(self, line: CurveLine) -> None:
        if line.step < self._next_step:
            return
        self._next_step = line.step + 1
        values = {name: float(value) for name, value in line.values.items()}
        self._run.log({**values, "samples": line.samples}, step=line.step)

    def go_back(self, step: int) -> None:
        """Go on: Weights & Biases takes nothing back."""

    def flush(self) -> None:
        """Do nothing: its own process writes and sends."""

    def close(self) -> None:
        self._run.finish()
