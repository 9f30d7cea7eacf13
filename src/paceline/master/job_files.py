"""Files of the job that people read on other machines: logs, when they grew, and events.

They are read in threads and beside the master's task: neither a slow disk nor a person who reads
much holds up a job. All readers together get `BYTES_PER_S`.
"""

import asyncio
import contextlib
import os
import re
import time
from pathlib import Path
from typing import assert_never

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.wire.client import (
    FileCall,
    FollowJobFiles,
    JobFile,
    JobFileList,
    JobFileNews,
    JobFilePart,
    ListJobFiles,
    ReadJobFile,
    Reply,
)

CHUNK_BYTES = 256 << 10
"""Most bytes of one answer."""
LAST_BYTES = 4 << 20
"""Most bytes of the answer that tells of the job's end: after it nobody answers."""
BYTES_PER_S = 16 << 20
"""Bytes of all answers together in a second, which cost the master some percent of a core."""
LOOK_S = 0.25
"""Seconds between looks at how large the files are that somebody follows."""
LOOK_SHARE = 0.05
"""Most that looks of one follower take of the time: thousand logs are looked at less often."""
MOST_S = 60.0
"""Most seconds that an answer may be waited for."""
MOST_FOLLOWERS = 64
"""Most followers that wait at the same time; any further one is refused, and may try later."""
EVENTS = "events.jsonl"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(log|times)")


class JobFiles:
    """Answers calls about the files of one job.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDir) -> None:
        self._job = job
        self._ended = asyncio.Event()
        self._num_followers = 0
        #: When, by the monotonic clock, what was read so far is paid for.
        self._free_s = 0.0

    async def answer(self, call: FileCall) -> Reply:
        """Answer a call.

        Raises:
            ConfigError: no file of the job that people read has this name, or too many follow.
        """
        match call:
            case ListJobFiles():
                return JobFileList(await asyncio.to_thread(self._list))
            case ReadJobFile(name=name, start=start, num_bytes=num_bytes):
                return await self._read(name, start, num_bytes)
            case FollowJobFiles():
                return await self._follow(call)
            case _:
                assert_never(call)

    def close(self) -> None:
        """Tell all followers what came last: the job has ended, and its outcome is written."""
        self._ended.set()

    async def _read(self, name: str, start: int, num_bytes: int) -> JobFilePart:
        path = self._path(name)
        num_bytes = max(0, min(num_bytes, CHUNK_BYTES))
        await self._pay(num_bytes)
        return await asyncio.to_thread(_read, path, max(0, start), num_bytes)

    async def _follow(self, call: FollowJobFiles) -> JobFileNews:
        if self._num_followers >= MOST_FOLLOWERS:
            raise ConfigError(f"{MOST_FOLLOWERS} others follow this job; try again later")
        for name in call.upto:
            self._path(name)
        self._num_followers += 1
        try:
            return await self._await_news(call)
        finally:
            self._num_followers -= 1

    async def _await_news(self, call: FollowJobFiles) -> JobFileNews:
        until_s = time.monotonic() + min(call.wait_s, MOST_S)
        while True:
            is_last = self._ended.is_set()
            begun_s = time.monotonic()
            most = LAST_BYTES if is_last else CHUNK_BYTES
            parts = await asyncio.to_thread(self._grown, call, most)
            now_s = time.monotonic()
            if parts or is_last or now_s >= until_s:
                if not is_last:
                    await self._pay(sum(len(part.data) for part in parts))
                return JobFileNews(parts, self._outcome() if is_last else "")
            pause_s = min(max(LOOK_S, (now_s - begun_s) / LOOK_SHARE), until_s - now_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), pause_s)

    def _grown(self, call: FollowJobFiles, most: int) -> tuple[JobFilePart, ...]:
        """Read what is new of the files that are followed."""
        upto = dict(call.upto)
        if call.every:
            logs = (each for each in os.listdir(self._job.logs) if each.endswith(".log"))
            upto |= {name: 0 for name in logs if name not in upto and _NAME.fullmatch(name)}
        parts: list[JobFilePart] = []
        for name, start in upto.items():
            path = self._path(name)
            size = _size(path)
            if size == start or (not size and name not in call.upto):
                continue
            # A file that is shorter than before was begun again.
            part = _read(path, start if start < size else 0, most)
            parts.append(part)
            most -= len(part.data)
            if most <= 0:
                break
        return tuple(parts)

    def _outcome(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self._job.outcome.read_text()
        return ""

    async def _pay(self, num_bytes: int) -> None:
        """Wait until so many bytes may be read."""
        now_s = time.monotonic()
        begin_s = max(now_s, self._free_s)
        self._free_s = begin_s + num_bytes / BYTES_PER_S
        if begin_s > now_s:
            await asyncio.sleep(begin_s - now_s)

    def _path(self, name: str) -> Path:
        if name == EVENTS:
            return self._job.events
        if not _NAME.fullmatch(name):
            raise ConfigError(f"got {name!r}, expected the name of a log")
        return self._job.logs / name

    def _list(self) -> tuple[JobFile, ...]:
        found = [self._job.events] + [
            self._job.logs / name for name in os.listdir(self._job.logs) if _NAME.fullmatch(name)
        ]
        files = []
        for path in found:
            with contextlib.suppress(OSError):
                facts = path.stat()
                files.append(JobFile(path.name, facts.st_size, facts.st_mtime))
        return tuple(sorted(files, key=lambda file: file.name))


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read(path: Path, start: int, num_bytes: int) -> JobFilePart:
    """Read a part; a file that cannot be read is as none."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(start)
            return JobFilePart(path.name, start, file.read(num_bytes), size)
    except OSError:
        return JobFilePart(path.name, start, b"", 0)
