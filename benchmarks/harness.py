"""What the recovery and bookkeeping benchmarks share: running jobs, reading stamps, statistics."""

import contextlib
import functools
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes
from paceline.cli.launch import ask, launch
from paceline.wire.client import GetStatus, JobStatus, StopJob
from paceline.wire.spec import JobSpec

TINY = Path(__file__).with_name("jobs") / "tiny.py"
POLL_S = 0.02
RUN_S = 300.0
NEVER_S = 1e6
"""Between cuts, where there are to be none."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for stamps and jobs; ``PACELINE_HOME`` lies in it."""
    # So that an ended benchmark leaves no job behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name:
        os.environ["PACELINE_HOME"] = f"{name}/home"
        yield Path(name)


@contextlib.contextmanager
def running(spec: JobSpec) -> Iterator[JobDir]:
    """A job, ended and removed afterwards; kept, and named, where something was raised."""
    job = launch(spec)
    try:
        yield job
    except BaseException:
        kept = Path(tempfile.gettempdir()) / f"paceline-bench-failed-{job.job_id}"
        stop(job)
        shutil.copytree(job.path, kept)
        print(f"the job is kept as {kept}")
        raise
    stop(job)
    shutil.rmtree(job.path)


def stop(job: JobDir, timeout_s: float = 20.0) -> None:
    """End the job and wait until nothing of it is left."""
    if not job.outcome.exists():
        with contextlib.suppress(PacelineError, OSError):
            ask(job, StopJob(now=True))
    until(lambda: job.outcome.exists() and not job.run_dir.exists(), timeout_s)


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; whether it came."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def happens(job: JobDir, condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition as long as the job runs; whether it came."""
    until(lambda: condition() or job.outcome.exists(), timeout_s)
    return condition()


def status(job: JobDir) -> JobStatus:
    """Of a job that runs.

    Raises:
        TransientError: the master does not answer.
    """
    reply = ask(job, GetStatus())
    assert isinstance(reply, JobStatus), reply
    return reply


def stamps(path: Path) -> NDArray[np.float64]:
    """The monotonic times in a ``.f64`` file; none: it is not there."""
    if not path.exists():
        return np.empty(0)
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // 8 * 8])


def steps(path: Path) -> NDArray[np.float64]:
    """What ``jobs/stepping.py`` tells: monotonic times, and steps in the model, ``[n, 2]``."""
    found = stamps(path)
    return found[: len(found) // 2 * 2].reshape(-1, 2)


def events(job: JobDir) -> list[dict[str, Any]]:
    """The job's events so far, with their times on the monotonic clock as ``at_s``."""
    offset_s = time.time() - time.monotonic()
    found = [json.loads(line) for line in job.events.read_text().splitlines()]
    return [{**event, "at_s": event["t"] - offset_s} for event in found]


# ---------------------------------------------------------------------------- interleaved runs


class Run(NamedTuple):
    """One of several of a job."""

    seconds: float
    master_cpu_s: float


def interleaved(
    spec: Callable[[str, list[str]], JobSpec], arms: tuple[str, str], pairs: int, workers: int = 1
) -> list[tuple[Run, Run]]:
    """Runs of two jobs of ``jobs/gated.py`` side by side; one works at a time.

    Args:
        spec: the job of an arm, which has these flags.
        arms: of which the second is what the first is compared with.
        pairs: of runs; the order within them alternates.
        workers: of each job.
    """
    with scratch() as out, contextlib.ExitStack() as stack:
        gates = []
        for arm in arms:
            gate, times = out / f"{arm}.gate", out / f"{arm}.times"
            pipes = [Path(f"{gate}.worker-{number}") for number in range(workers)]
            for pipe in pipes:
                os.mkfifo(pipe)
            flags = ["--out", str(times), "--gate", str(gate), "--together", str(workers)]
            gates.append((pipes, times, stack.enter_context(running(spec(arm, flags)))))
        for gate in gates:
            for _ in range(2):
                _run_once(*gate)
        found = []
        for number in range(pairs):
            order = gates if number % 2 else gates[::-1]
            took = [_run_once(*one) for one in order]
            first, second = took if number % 2 else took[::-1]
            found.append((first, second))
        return found


def _run_once(pipes: Sequence[Path], times: Path, job: JobDir) -> Run:
    before = len(_whole_lines(times))
    cpu_s = _master_cpu_s(job)
    for pipe in pipes:
        if not until(functools.partial(_release, pipe), RUN_S):
            raise RuntimeError(f"no worker waits at {pipe}: was it restarted?")
    if not until(lambda: len(_whole_lines(times)) > before, RUN_S):
        raise RuntimeError("a run did not end")
    then_cpu_s = _master_cpu_s(job)
    return Run(float(_whole_lines(times)[before]), then_cpu_s - cpu_s)


def _release(pipe: Path) -> bool:
    """Let the worker that waits at a pipe go on; whether one does."""
    try:
        end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(end, b"g")
    os.close(end)
    return True


def _master_cpu_s(job: JobDir) -> float:
    """Of all threads that the job's master ever had."""
    pid = next(one.pid for one in find_job_processes(job.path) if one.runs("paceline.master"))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]


# ---------------------------------------------------------------------------- figures


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, extremes and number."""
    if not values:
        return {"n": 0}
    return {
        "n": len(values),
        "median": round(statistics.median(values), 6),
        "min": round(min(values), 6),
        "max": round(max(values), 6),
    }


def ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """The geometric mean of a/b over interleaved pairs, with its 95 % interval.

    By bootstrap over pairs (2,000 draws, seeded), so that no form of distribution is assumed; the
    median of the ratios stands beside it.
    """
    logs = np.array([math.log(a / b) for a, b in pairs])
    draws = np.random.default_rng(0).choice(logs, (2000, logs.size)).mean(axis=1)
    low, high = np.exp(np.quantile(draws, (0.025, 0.975)))
    return {
        "n": len(pairs),
        "ratio": round(float(np.exp(logs.mean())), 5),
        "low95": round(float(low), 5),
        "high95": round(float(high), 5),
        "median": round(float(np.exp(np.median(logs))), 5),
    }


def ratio_of_rounds(rounds: Sequence[Sequence[tuple[float, float]]]) -> dict[str, float]:
    """`ratio` of all pairs; the interval is over rounds, and over the pairs of each."""
    logs = [np.array([math.log(a / b) for a, b in pairs]) for pairs in rounds]
    rng = np.random.default_rng(0)
    means = [
        np.mean([rng.choice(logs[k], logs[k].size).mean() for k in drawn])
        for drawn in rng.integers(len(logs), size=(2000, len(logs)))
    ]
    low, high = np.exp(np.quantile(means, (0.025, 0.975)))
    found = ratio([pair for pairs in rounds for pair in pairs])
    return found | {"low95": round(float(low), 5), "high95": round(float(high), 5)}


def machine() -> dict[str, Any]:
    """Where and what was measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": commit.stdout.strip(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def report(name: str, figures: dict[str, Any]) -> None:
    """Print the JSON that a figure is quoted from."""
    print(json.dumps({"benchmark": name, **machine(), **figures}, indent=1))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
