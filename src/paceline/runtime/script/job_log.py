"""The part of `Job` that tells how far training is, and takes what the script logs of it."""

from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

from torch import Tensor

from paceline.base.errors import ConfigError
from paceline.runtime.script.job_life import JobLife
from paceline.runtime.script.logged import LogBook, checked_log


class JobLog(JobLife):
    """What one worker knows, and says, of the training as a whole."""

    @property
    def num_workers(self) -> int:
        """Workers that train now: members of the step in hand; on servers those that are up.

        Raises:
            ConfigError: outside of a loop over `batches`.
        """
        count = self._strategy.num_workers
        if count is None:
            raise ConfigError("job.num_workers is known within a loop over job.batches only")
        return count

    def log(
        self, values: Mapping[str, float | Tensor] | None = None, /, **named: float | Tensor
    ) -> None:
        """Have values of this step in the curves of the job: ``job.log(loss=loss, acc=acc)``.

        Cheap enough for each batch: nothing is sent here, and tensors on a GPU are waited for once
        a second at most. A value belongs to the step whose batch is in hand, before and after
        ``optimizer.step()``; between loops it belongs to the last one. The curve has the mean of
        all values that the workers logged for a step. If a step comes again, what is logged then
        takes the place of what was logged for it, and for later steps, before.

        Without `paceline run`, and in a process that the script forks, values are checked, and
        nobody keeps them.

        Args:
            values: name -> number or tensor of no dimensions; also what is not finite. Names are
                plain, with ``/`` between parts (``{"val/auc": auc}``), at most 100 in a job.
            named: more of them.

        Raises:
            ConfigError: nothing was prepared, a name that is not plain, or a value that is no
                number.
        """
        self._check_prepared("job.log")
        numbers = checked_log({} if values is None else values) | checked_log(named)
        from paceline.runtime.process.process import current

        process = current()
        if process is None or process.is_fork:
            return
        if process.log is None:
            process.log = LogBook(process.inc)
        process.log.add(self._strategy.log_place, numbers, monotonic())

    def _settle_log(self) -> None:
        """A loop is over, or left: what was logged in it is not to wait for the next call."""
        from paceline.runtime.process.process import current

        process = current()
        if process is not None and process.log is not None:
            with suppress(RuntimeError):  # a GPU that has failed: what the loop ends with says so
                process.log.settle()
