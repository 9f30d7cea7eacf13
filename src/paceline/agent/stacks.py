"""Stacks of all threads of a training process, captured before the process is ended.

The process itself writes its Python stacks when it gets `STACKS_SIGNAL` (set up in
`paceline.runtime.process.process`), even while its main thread is stuck in C. One that cannot
(stopped, or waiting in the kernel) is described by what the kernel says of its threads.
"""

import asyncio
import contextlib
import os
import time
from pathlib import Path

from paceline.base.node_files import STACKS_SIGNAL

PATIENCE_S = 1.0
"""Seconds that a process has to write its stacks."""
QUIET_S = 0.05
"""Seconds without writing after which the stacks of a process are complete."""
MAX_BYTES = 64 << 10


async def capture_stacks(pid: int, file: Path) -> str:
    """The stacks as text.

    Args:
        pid: of the process.
        file: where it writes them.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACKS_SIGNAL)
    deadline_s = time.monotonic() + PATIENCE_S
    text = ""
    while time.monotonic() < deadline_s:
        await asyncio.sleep(QUIET_S)
        before, text = text, _read(file)
        if text and text == before:
            break
    return text or "it did not answer; the kernel says of its threads:\n" + threads_of(pid)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def threads_of(pid: int) -> str:
    """Return one line for each thread: its name, its state and where in the kernel it waits."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):
            status = dict(
                line.split(":\t", 1)
                for line in (task / "status").read_text().splitlines()
                if ":\t" in line
            )
            where = (task / "wchan").read_text() or "?"
            lines.append(f"  {task.name} {status['Name']}: {status['State']}, in {where}")
    return "\n".join(lines) or "  there are none"
