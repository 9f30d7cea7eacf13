"""Where Lightning writes in a job: one folder for all workers, their next lives, and resumes.

Lightning numbers the folder of a run by those that are there, and gives a checkpoint another name
if there is a file of its name. Each worker, and each life, would find other ones.
"""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger

from paceline.runtime.integrations.steps import ThisMember


class Folders:
    """The folders of a Trainer."""

    def __init__(self, member: ThisMember, trainer: Any) -> None:
        self._member, self._trainer = member, trainer

    def be_of_job(self) -> None:
        """Have the folder named by the job, where the script has not; as Lightning does on SLURM.

        What stands there is of the job's own earlier lives: it goes on, and may be written again.
        """
        named = [one for one in self._trainer.loggers if getattr(one, "_version", 0) is None]
        for logger in named:
            logger._version = self._member.job_id
            if isinstance(logger, CSVLogger) and self._trainer.is_global_zero:
                _keep_rows(logger)
        for one in self._trainer.callbacks:
            if named and hasattr(one, "save_config"):  # of LightningCLI
                one.overwrite = True
        for one in self._trainer.checkpoint_callbacks:
            if hasattr(one, "file_exists"):
                one.file_exists = partial(self._exists, one)

    def _exists(self, saver: Any, path: Any, trainer: Any) -> bool:
        """Whether there is a checkpoint of this name: decided once, before one is written."""
        return bool(self._member.job.agree(saver._fs.exists(path)))


def _keep_rows(logger: CSVLogger) -> None:
    """Begin to log behind the rows of earlier lives, which Lightning's logger would remove."""
    rows = Path(logger.log_dir) / "metrics.csv"
    kept = rows.with_suffix(".kept")
    with contextlib.suppress(FileNotFoundError):
        rows.rename(kept)
    writer = logger.experiment
    if kept.exists():
        kept.rename(rows)
        with rows.open(newline="") as file:
            writer.metrics_keys = file.readline().strip().split(",")
