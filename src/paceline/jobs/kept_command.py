"""The process that a platform watches for a job: it starts the command, again if it is killed.

Ray calls a job failed as soon as the process that it has started ends with an error. The command
`paceline run` is a large process, and only watches: if it is killed, the job trains on. So
Ray starts this process, which is small and does nothing but wait. If the command dies by a signal,
it has `paceline attach` watch the job to its end, whose exit code is the job's.

It is run as a file, apart from all packages: it imports the standard library alone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from types import FrameType

KEPT = "PACELINE_KEPT"
"""Variable by which the command that a platform starts knows that it should be kept so."""
NOTE = "PACELINE_JOB_NOTE"
"""Variable with the path of a file into which the command writes the path of its job."""
MOST_BYTES = 4096
"""Most bytes of that path."""
ORDERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def keep(words: list[str]) -> int:
    """Run the command until its job has ended.

    Args:
        words: ``run``, and what follows it.

    Returns:
        The exit code for the platform.
    """
    asked: list[int] = []

    def hear(number: int, _: FrameType | None) -> None:
        # Ray tells all processes of its job, so the command hears of it, too. Told twice, it would
        # not write a last cut.
        asked.append(number)

    for number in ORDERS:
        signal.signal(number, hear)
    # Held open: what cleans the folder of temporary files takes the name away, and not the file.
    held, note = tempfile.mkstemp(prefix="paceline-kept-")
    try:
        code = _run(words, {NOTE: note})
        while code < 0 and (job := os.pread(held, MOST_BYTES, 0).decode()):
            sys.stderr.write(
                f"paceline: the command that watched the job was killed (signal {-code}); the job "
                "goes on, and another one watches it\n"
            )
            # Who was told to stop may have been killed before the order was given.
            code = _run(["stop", job] if asked else ["attach", job, "--stops"], {})
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(note)
    return code if code >= 0 else 128 - code


def _run(words: list[str], more: dict[str, str]) -> int:
    """Run a command of paceline to its end; its exit code, below 0: the signal that killed it."""
    left = {name: value for name, value in os.environ.items() if name != KEPT}
    command = [sys.executable, "-P", "-m", "paceline", *words]
    with subprocess.Popen(command, env={**left, **more}) as child:
        return child.wait()


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
