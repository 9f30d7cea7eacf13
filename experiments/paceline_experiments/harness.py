"""Common parts of the benchmarks: flags, running jobs, reading stamps, statistics, failures.

A benchmark compares *arms*. One that fails, or brings no figure, fails the benchmark: an `ArmError`
names it and shows the end of its log, and the exit status (of `run`) is 1. With ``--quick`` all is
small and few, by the same code; goals are printed then, but do not count.
"""

import argparse
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes
from paceline.jobs.launch import ask, launch
from paceline.jobs.outcome import read_outcome
from paceline.wire.client import GetStatus, JobStatus, StopJob
from paceline.wire.spec import JobSpec, load
from paceline_experiments.outputs import commit

Result = TypeVar("Result")
TINY = Path(__file__).parents[1] / "benchmarks" / "jobs" / "tiny.py"
POLL_S = 0.02
RUN_S = 300.0
NEVER_S = 1e6
"""Seconds between cuts, where there should be none."""
NUM_LOGS, NUM_LINES = 3, 12
"""Numbers of logs, and of lines of each, that are shown of a failed arm."""


_running: list[JobDir] = []
"""Jobs that arms run now, in whichever thread."""


class ArmError(Exception):
    """An arm failed, or brought no figure."""

    def __init__(self, arm: str, what: str) -> None:
        super().__init__(f"arm {arm}: {what}")
        self.what = what


def failure(arm: str, what: str, logs: Iterable[Path] = ()) -> ArmError:
    """The error of an arm.

    Args:
        arm: its name.
        what: failed.
        logs: files; the end of those that name an error is shown, or else of the newest ones.
    """
    return ArmError(arm, f"{what}{last_lines(logs)}")


def last_lines(logs: Iterable[Path]) -> str:
    """The end of some logs, each after a line that names it."""
    texts = {
        log: text
        for log in logs
        if log.is_file() and (text := log.read_text("utf-8", "replace").strip())
    }
    newest = sorted(texts, key=lambda log: log.stat().st_mtime, reverse=True)
    # The sort is stable: among equals the newest stay first.
    chosen = sorted(newest, key=lambda log: "Error" not in texts[log])[:NUM_LOGS]
    ends = (f"\n--- {log}\n" + "\n".join(texts[log].splitlines()[-NUM_LINES:]) for log in chosen)
    return "".join(ends)


def failed_job(job: JobDir, what: str) -> ArmError:
    """The error of an arm that is a job, with how the job ended and the end of its logs."""
    outcome = read_outcome(job.outcome)
    state = f"the job {outcome.state}: {outcome.error}" if outcome else "the job still runs"
    told = f"\n{outcome.traceback.rstrip()}" if outcome and outcome.traceback else ""
    return failure(load(job.spec).name, f"{what}; {state}{told}", job.logs.iterdir())


# ---------------------------------------------------------------------------- the command


def parser(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """The flags of a benchmark, ``--quick`` and ``--json`` among them.

    Args:
        doc: of its module.
        quick: what ``--quick`` makes of it.
    """
    found = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    found.add_argument("--quick", action="store_true", help=quick)
    found.add_argument("--json", type=Path, help="also write the figures to this file")
    return found


def run(main: Callable[[], int | None]) -> NoReturn:
    """Exit with what a benchmark's ``main`` returns; with 1, and a message, where an arm failed."""
    try:
        status = main()
    except ArmError as error:
        sys.exit(f"FAILED {error}")
    sys.exit(status)


def skipped(name: str, why: str) -> None:
    """Say that an optional peer, or data set, is left out."""
    print(f"skipped: {name}: {why}", flush=True)


# ---------------------------------------------------------------------------- processes


def output_of(arm: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run a process of an arm to its end; what it printed.

    Args:
        arm: its name.
        command: of the process.
        env: variables beyond our own.

    Raises:
        ArmError: its exit status is not 0.
    """
    done = subprocess.run(
        command, env=os.environ | dict(env or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        end = "\n".join(f"{done.stdout}{done.stderr}".strip().splitlines()[-NUM_LINES:])
        raise failure(arm, f"exit status {done.returncode}\n{end}")
    return done.stdout


class Child:
    """A process of an arm that runs beside others; its errors go into a log."""

    def __init__(self, arm: str, command: Sequence[str], log: Path) -> None:
        self.arm, self.log, self._out = arm, log, log.with_suffix(".out")
        with log.open("wb") as errors, self._out.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=errors)
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raises ArmError: it has ended."""
        if self.has_ended:
            raise failure(self.arm, f"exit status {self._process.returncode}", [self.log])

    def output(self, timeout_s: float, needs: "Sequence[Child]" = ()) -> str:
        """Wait for its end; what it printed.

        Args:
            timeout_s: the longest wait.
            needs: processes that have to live until then.

        Raises:
            ArmError: it failed, took too long, or one that it needs ended.
        """
        until(lambda: self.has_ended or any(one.has_ended for one in needs), timeout_s)
        if self._process.poll() != 0:
            for one in (*needs, self):
                one.check()
            raise failure(self.arm, f"not over after {timeout_s:.0f} s", [self.log])
        return self.printed()

    def printed(self) -> str:
        """Return what it printed so far."""
        return self._out.read_text()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def bare_job(name: str) -> Iterator[JobDir]:
    """The directory of a job that has only what a benchmark starts for it."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        job = JobDir(Path(folder) / f"{name}-{os.getpid()}")
        job.fill()
        try:
            yield job
        finally:
            shutil.rmtree(job.run_dir)


# ---------------------------------------------------------------------------- jobs


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
    """A job, ended and removed afterwards; kept, and named, where something was raised.

    Raises:
        ArmError: it has failed.
    """
    job = launch(spec)
    _running.append(job)
    try:
        yield job
        outcome = read_outcome(job.outcome)
        if outcome is not None and outcome.state == "failed":
            raise failed_job(job, "failed")
    except BaseException:
        kept = Path(tempfile.gettempdir()) / f"paceline-bench-failed-{job.job_id}"
        stop(job)
        shutil.copytree(job.path, kept)
        print(f"the job is kept as {kept}")
        raise
    finally:
        _running.remove(job)
    stop(job)
    shutil.rmtree(job.path)


def side_by_side(calls: Iterable[Callable[[], Result]], at_once: int) -> list[Result]:
    """Return the results of calls that run jobs: so many at a time as there are processors for."""
    with ThreadPoolExecutor(at_once) as pool:
        try:
            return list(pool.map(lambda call: call(), calls))
        except BaseException:
            # The others would go on, and this process would wait for them.
            pool.shutdown(wait=False, cancel_futures=True)
            for job in _running:
                stop(job)
            raise


def stop(job: JobDir, timeout_s: float = 20.0) -> None:
    """End the job and wait until nothing of it is left."""
    if not job.outcome.exists():
        with contextlib.suppress(PacelineError, OSError):
            ask(job, StopJob(now=True))
    until(lambda: job.outcome.exists() and not job.run_dir.exists(), timeout_s)


@contextlib.contextmanager
def ending(job: JobDir) -> Iterator[None]:
    """Leave nothing of the job running, whatever happens."""
    try:
        yield
    finally:
        stop(job)


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
    came = False

    def is_over() -> bool:
        nonlocal came
        came = condition()  # it may do what can be done once only
        return came or job.outcome.exists()

    until(is_over, timeout_s)
    # It may have come true before the job ended, and after it was asked.
    return came or condition()


def require(job: JobDir, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for a condition as long as the job runs.

    Args:
        job: an arm.
        condition: to become true.
        timeout_s: the longest wait.
        what: is wrong if it does not, for the message.

    Raises:
        ArmError: it did not.
    """
    if not happens(job, condition, timeout_s):
        raise failed_job(job, what)


def finish(job: JobDir, timeout_s: float, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until a job has finished.

    Args:
        job: an arm.
        timeout_s: the longest wait.
        meanwhile: is called again and again.

    Raises:
        ArmError: it ended otherwise, or not in time.
    """

    def is_over() -> bool:
        meanwhile()
        return job.outcome.exists()

    until(is_over, timeout_s)
    outcome = read_outcome(job.outcome)
    if outcome is None or outcome.state != "finished":
        raise failed_job(job, f"not finished within {timeout_s:.0f} s")


def status(job: JobDir) -> JobStatus:
    """Return the status of a job that runs.

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
    """Read what ``jobs/stepping.py`` tells: monotonic times, and steps in the model, ``[n, 2]``."""
    found = stamps(path)
    return found[: len(found) // 2 * 2].reshape(-1, 2)


def events(job: JobDir) -> list[dict[str, Any]]:
    """The job's events so far, with their times on the monotonic clock as ``at_s``."""
    offset_s = time.time() - time.monotonic()
    found = [json.loads(line) for line in job.events.read_text().splitlines()]
    return [{**event, "at_s": event["t"] - offset_s} for event in found]


# ---------------------------------------------------------------------------- interleaved runs


class Run(NamedTuple):
    """One of several runs of a job."""

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
        gates = list[tuple[list[Path], Path, JobDir]]()
        for arm in arms:
            gate, times = out / f"{arm}.gate", out / f"{arm}.times"
            pipes = [Path(f"{gate}.worker-{number}") for number in range(workers)]
            for pipe in pipes:
                os.mkfifo(pipe)
            flags = ["--out", str(times), "--gate", str(gate), "--together", str(workers)]
            gates.append((pipes, times, stack.enter_context(running(spec(arm, flags)))))
        for warm in gates:
            for _ in range(2):
                _run_once(*warm)
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
        # A worker that was started again waits there no more.
        require(job, functools.partial(_release, pipe), RUN_S, f"no worker waits at {pipe}")
    require(job, lambda: len(_whole_lines(times)) > before, RUN_S, "a run did not end")
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
    """Return the processor seconds of all threads that the job's master ever had."""
    master = (one.pid for one in find_job_processes(job.path) if one.runs("paceline.master"))
    pid = next(master, None)
    if pid is None:
        raise failed_job(job, "it has no master")
    return cpu_s(pid)


def cpu_s(pid: int) -> float:
    """Processor time of all threads that a process ever had."""
    return time.clock_gettime(~pid << 3 | 2)


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]


# ---------------------------------------------------------------------------- data, figures


def write_lines(path: Path, num_lines: int) -> None:
    """Short lines of 4 to 16 bytes."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 16, size=1 << 20)
    block = b"".join(b"123456789012345"[:length] + b"\n" for length in lengths.tolist())
    with path.open("wb") as file:
        for _ in range(num_lines >> 20):
            file.write(block)
        rest = num_lines & ((1 << 20) - 1)
        file.write(b"".join(block.splitlines(keepends=True)[:rest]))


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
    """Say where and what was measured."""
    return {
        "commit": commit(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def report(
    name: str,
    figures: dict[str, Any],
    *,
    file: Path | None = None,
    failed: Mapping[str, str] | None = None,
) -> None:
    """Print the JSON that a figure is quoted from.

    Args:
        name: of the benchmark.
        figures: by arm, or by what was measured; a `summary` of nothing is none.
        file: is written, too.
        failed: arm -> why.

    Raises:
        ArmError: an arm failed, or has no figure; raised when all is printed.
    """
    text = json.dumps({"benchmark": name, **machine(), **figures}, indent=1)
    print(text, flush=True)
    if file:
        file.write_text(text)
    bare = dict.fromkeys(without_figure(figures), "it brought no figure")
    if lost := bare | dict(failed or {}):
        if len(lost) == 1:
            raise ArmError(*lost.popitem())
        raise ArmError(", ".join(lost), "\n".join(f"\n{arm}: {why}" for arm, why in lost.items()))


def without_figure(figures: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """The places of figures that are none: a `summary` of nothing, or not a number."""
    for key, value in figures.items():
        where = f"{within}{key}"
        if isinstance(value, Mapping):
            if value.get("n") == 0:
                yield where
            yield from without_figure(value, f"{where}, ")
        elif isinstance(value, float) and math.isnan(value):
            yield where


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
