"""Output of a training process into a log whose disk may be full."""

import io
import os
import sys
from typing import Any, TextIO

from paceline.base.disk import is_refusal


class LossyFile(io.FileIO):
    """A file that drops what its disk refuses: a line that is lost must not end training."""

    def write(self, data: "bytes | memoryview", /) -> int:  # type: ignore[override]
        """Write some of it, or drop all of it."""
        try:
            return super().write(data)
        except OSError as error:
            if not is_refusal(error):
                raise
            return memoryview(data).nbytes


def open_lossy(stream: TextIO, descriptor: int) -> "io.TextIOWrapper[Any]":
    """A stream to a descriptor, line by line, that encodes as another one does."""
    raw: Any = LossyFile(descriptor, "w", closefd=False)  # typeshed demands more of a raw stream
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


def print_to(log: str) -> None:
    """Have descriptors 1 and 2 of this process append to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def replace_streams() -> None:
    """Have this process print lossily to descriptors 1 and 2."""
    sys.stdout = sys.__stdout__ = open_lossy(sys.stdout, 1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open_lossy(sys.stderr, 2)  # type: ignore[misc]
