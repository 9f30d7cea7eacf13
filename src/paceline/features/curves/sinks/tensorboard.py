"""Curves in TensorBoard's files: ``tensorboard --logdir DIR`` shows each job under its id."""

from pathlib import Path
from typing import Any

from paceline.features.curves.sinks.sink import Sink, SinkWriter, check_folder, check_package
from paceline.jobs.curves import CurveLine


class TensorBoard(Sink, frozen=True, kw_only=True):
    """TensorBoard's event files, in a folder for each job."""

    def check(self) -> None:
        check_package("tensorboard", self.to)
        check_folder(self.to)

    def open(self, job_id: str) -> SinkWriter:
        return TensorBoardFiles(Path(self.to) / job_id)


class TensorBoardFiles:
    """One job's event files. Each time that steps come again another one is begun."""

    def __init__(self, folder: Path) -> None:
        # A master that logs nowhere else does without.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._events, self._summaries = event_pb2, summary_pb2
        self._make, self._folder = EventFileWriter, str(folder)
        self._writer: Any = None

    def add(self, line: CurveLine) -> None:
        summary, event = self._summaries.Summary, self._events.Event
        values = [
            summary.Value(tag=name, simple_value=float(value))
            for name, value in line.values.items()
        ]
        self._write(event(wall_time=line.t, step=line.step, summary=summary(value=values)))

    def go_back(self, step: int) -> None:
        self.close()
        log = self._events.SessionLog
        start = log(status=log.START)
        self._write(self._events.Event(step=step, session_log=start))

    def _write(self, event: Any) -> None:
        if self._writer is None:
            self._writer = self._make(self._folder)
        self._writer.add_event(event)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
