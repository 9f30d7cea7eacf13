"""Folder in which Lightning writes in a job: one for all workers, their next lives, and resumes.

Lightning numbers the folder of a run by those that are there, and gives a checkpoint another name
if there is a file of its name. Each worker, and each life, would find other ones.
"""

import contextlib
import csv
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger

from paceline.runtime.integrations.steps import ThisMember


class Folders:
    """The folders of a Trainer."""

    def __init__(self, member: ThisMember, trainer: Any) -> None:
        self._member, self._trainer = member, trainer
        self._written = set[str]()

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
        """Tell whether there is a checkpoint of this name: decided once, before one is written.

        One that an earlier life wrote after the cut from which the job goes on is none: it is
        written again.
        """
        found = saver._fs.exists(path) and not self._is_undone(saver, str(path))
        found = bool(self._member.job.agree(found))
        if not found:
            self._written.add(str(path))
        return found

    def _is_undone(self, saver: Any, path: str) -> bool:
        """Tell whether the job was set back to before a checkpoint in its own folder.

        No saver knows it, though its name says when it was made, or is that of the newest one.
        """
        if path in self._written or self._member.job_id not in Path(path).parts:
            return False
        for one in self._trainer.checkpoint_callbacks:
            held = (getattr(one, name, "") for name in ("best_model_path", "last_model_path"))
            if path in (*held, *getattr(one, "best_k_models", ())):
                return False
        name = saver.filename or "{epoch}-{step}"
        is_of_time = "{epoch" in name or "{step" in name
        return is_of_time or Path(path).name.startswith(saver.CHECKPOINT_NAME_LAST)


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
            writer.metrics_keys = next(csv.reader(file), [])
