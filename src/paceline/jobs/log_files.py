"""Logs of a job for readers, whether they lie here or are asked of a master on another machine."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from paceline.base.errors import ConfigError, TransientError
from paceline.base.jobdir import JobDir
from paceline.jobs.far import FarJob
from paceline.jobs.launch import is_supervised
from paceline.wire.client import JobFile, JobFileList, JobFilePart, ListJobFiles, ReadJobFile

FOLLOW_S = 0.3
WAIT_S = 10.0
"""Seconds for which a master holds an answer back while no log grows."""
CUT_OFF = ".1.log"
"""Ends the name of what is kept of a log that became too long."""


class LogFiles(Protocol):
    """Files of logs by name: ``worker-0.log``, ``worker-0.1.log``, ``worker-0.times``."""

    job_id: str

    def logs(self) -> list[str]:
        """Return the names of all logs, the workers' first, without what was cut off of them."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None: there is none."""

    def changed_s(self, name: str) -> float:
        """Return the Unix time of the last change of a file that is there."""

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        """Read so many bytes of a file, fewer only where it ends."""

    def whole(self, name: str) -> bytes | None:
        """Read a small file; None: there is none."""

    def runs(self) -> bool:
        """Tell whether logs may still grow."""

    def wait(self, upto: Mapping[str, int], *, every: bool) -> bool:
        """Wait until logs may have grown; False: they grow no more.

        Args:
            upto: bytes that are known of each log.
            every: whether logs that are not among them count as well.
        """


class NearLogs:
    """Logs in a job's directory on this machine."""

    def __init__(self, job: JobDir) -> None:
        self._job, self.job_id = job, job.job_id

    def logs(self) -> list[str]:
        """Implement `LogFiles`."""
        return _in_order(path.name for path in self._job.logs.glob("*.log"))

    def size(self, name: str) -> int | None:
        """Implement `LogFiles`."""
        try:
            return os.stat(self._path(name)).st_size
        except FileNotFoundError:
            return None

    def changed_s(self, name: str) -> float:
        """Implement `LogFiles`."""
        return self._path(name).stat().st_mtime

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        """Implement `LogFiles`."""
        with self._path(name).open("rb") as file:
            file.seek(start)
            return file.read(num_bytes)

    def whole(self, name: str) -> bytes | None:
        """Implement `LogFiles`."""
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def runs(self) -> bool:
        """Implement `LogFiles`."""
        return not self._job.outcome.exists() and is_supervised(self._job)

    def wait(self, upto: Mapping[str, int], *, every: bool) -> bool:
        """Implement `LogFiles`."""
        del upto, every
        time.sleep(FOLLOW_S)  # noqa: TID251
        return self.runs()

    def _path(self, name: str) -> Path:
        return self._job.logs / name


class FarLogs:
    """Logs of a job on another machine; what comes while they are followed is kept until read."""

    def __init__(self, job: FarJob) -> None:
        self._job, self.job_id = job, job.job_id
        listed = job.get(ListJobFiles(), JobFileList)
        self._files = {file.name: file for file in listed.files}
        self._news: dict[str, JobFilePart] = {}
        self._wholes: dict[str, bytes] = {}
        self._has_ended = False

    def logs(self) -> list[str]:
        """Implement `LogFiles`."""
        return _in_order(name for name in self._files if name.endswith(".log"))

    def size(self, name: str) -> int | None:
        """Implement `LogFiles`, as of the last answer."""
        file = self._files.get(name)
        return None if file is None else file.size_bytes

    def changed_s(self, name: str) -> float:
        """Implement `LogFiles`, as of the first answer."""
        return self._files[name].changed_s

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        """Implement `LogFiles`; of a job that has ended, what was sent last."""
        data = bytearray()
        while len(data) < num_bytes:
            part = self._part(name, start + len(data), num_bytes - len(data))
            if not part:
                break
            data += part
        return bytes(data)

    def whole(self, name: str) -> bytes | None:
        """Implement `LogFiles`; what is known of the file is not asked for again."""
        known = self._wholes.get(name, b"")
        while part := self._part(name, len(known), 1 << 30):
            known += part
        self._wholes[name] = known
        return known if known or name in self._files else None

    def runs(self) -> bool:
        """Implement `LogFiles`."""
        return not self._has_ended

    def wait(self, upto: Mapping[str, int], *, every: bool) -> bool:
        """Implement `LogFiles`."""
        news = self._job.follow(dict(upto), every=every, wait_s=WAIT_S)
        self._news = {part.name: part for part in news.parts} if news else {}
        for part in self._news.values():
            upto_bytes = part.start + len(part.data)  # what lies behind comes with the next answer
            self._files[part.name] = JobFile(part.name, upto_bytes, time.time())
        self._has_ended = news is None or bool(news.outcome)
        return not self._has_ended

    def _part(self, name: str, start: int, num_bytes: int) -> bytes:
        news = self._news.get(name)
        if news is not None and news.start <= start < news.start + len(news.data):
            return news.data[start - news.start :][:num_bytes]
        if self._has_ended:
            return b""
        try:
            call = ReadJobFile(name=name, start=start, num_bytes=num_bytes)
            return self._job.get(call, JobFilePart).data
        except (ConfigError, TransientError):
            if not self._news:
                raise
            return b""  # it ends just now: what was sent last comes first


def _in_order(names: Iterable[str]) -> list[str]:
    found = [name for name in names if not name.endswith(CUT_OFF)]
    return sorted(found, key=lambda name: (not name.startswith("worker"), name[: -len(".log")]))
