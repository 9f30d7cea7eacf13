"""A real job under test: started, watched, hurt, judged, and ended whatever happens."""

import contextlib
import fcntl
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes, kill_quietly
from paceline.jobs.history import read_events
from paceline.jobs.launch import AS_BEFORE, ask, is_supervised, launch, resume
from paceline.jobs.outcome import Outcome, read_outcome
from paceline.jobs.resize import Resize
from paceline.wire.client import Call, Done, GetStatus, JobStatus, NodeStatus, StopJob
from paceline.wire.events.base import Event, FeatureEvent, known_by
from paceline.wire.events.nodes import Verdict
from paceline.wire.spec import CheckpointSpec, DataSpec, JobSpec, NodeSpec, RestartSpec
from tests.chaos.faults import supervisor_pid
from tests.chaos.oracle import check_cut, feed_of_job, leftovers

SCRIPT = Path(__file__).with_name("jobs") / "counted.py"
PATIENCE_S = 45.0
"""For one thing to happen; a loaded machine needs a multiple of what a quiet one does."""
POLL_S = 0.05
"""The job that is asked needs the processors as well."""
E = TypeVar("E", bound=Event)


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for a condition to become true; what it returned."""
    deadline_s = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what}: not within {patience_s:.0f} s"
        time.sleep(POLL_S)
    return found


@contextlib.contextmanager
def devices(*, every: bool) -> Iterator[None]:
    """Keep other tests, which run at the same time, from the devices that this one shares.

    Args:
        every: it uses all devices of the machine, not only the core of its own worker of xdist.
    """
    with (Path(tempfile.gettempdir()) / f"paceline-test-devices.{os.geteuid()}").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if every else fcntl.LOCK_SH)
        yield


def install(site: Path, name: str, code: str, group: str, entry: str) -> Path:
    """What ``pip install`` leaves of a package of one module with one entry point; the site."""
    info = site / f"{name}-0.1.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    return site


def without_waits(said: str) -> str:
    """What a command says, without the lines by which it tells that a loaded machine takes long."""
    return re.sub(
        r"^job \S+: waiting for [\w ]+, \d+ s so far; logs: .*\n", "", said, flags=re.MULTILINE
    )


class RunningJob:
    """A planted-count job, by what can be seen of it from outside."""

    def __init__(self, job: JobDir, out: Path) -> None:
        self.job, self.out = job, out

    # ------------------------------------------------------------------ what it does

    def status(self) -> JobStatus:
        """As the master says; waits for a master that answers."""

        def answer() -> JobStatus | None:
            with contextlib.suppress(PacelineError, OSError):
                reply = ask(self.job, GetStatus(), timeout_s=1.0)
                return reply if isinstance(reply, JobStatus) else None
            assert not self.job.outcome.exists(), f"the job has ended: {self.job.outcome}"
            return None

        found: JobStatus = until(answer, "an answer of the master")
        return found

    def node(self, name: str) -> NodeStatus:
        """One node, as the master sees it."""
        return next(node for node in self.status().nodes if node.node == name)

    def living(self, name: str) -> NodeStatus:
        """One node as soon as it has a process; until then its number is 0."""

        def found() -> NodeStatus | None:
            node = self.node(name)
            return node if node.pid else None

        node: NodeStatus = until(found, f"a process of {name}")
        return node

    def pid_of(self, name: str) -> int:
        """The process of a node; waits for one that is being started."""
        return self.living(name).pid

    def tell(self, call: Call) -> None:
        """Have the master do something."""
        reply = ask(self.job, call)
        assert isinstance(reply, Done)
        assert not reply.error, reply.error

    def until_committed(
        self, count: int, *, cuts: int = 0, patience_s: float = PATIENCE_S
    ) -> JobStatus:
        """Wait until so many samples are in the model, and cuts beside the first are valid."""
        return until(  # type: ignore[no-any-return]
            lambda: (
                (now := self.status()).committed >= count
                and sum(cut > 0 for cut in now.valid_cuts) >= cuts
                and now
            ),
            f"{count} samples and {cuts} cuts",
            patience_s,
        )

    def end(self, patience_s: float = PATIENCE_S) -> Outcome:
        """Wait for the end."""
        found: Outcome = until(
            lambda: read_outcome(self.job.outcome), "the end of the job", patience_s
        )
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        """All events of this name, in order."""
        with contextlib.suppress(FileNotFoundError):
            lines = [json.loads(line) for line in self.job.events.read_text().splitlines()]
            return [line for line in lines if line["event"] == name]
        return []

    def told(self, kind: type[E]) -> list[E]:
        """All events of this kind, in order, with their fields."""
        events: list[Event] = list(read_events(self.job.events))
        if issubclass(kind, FeatureEvent):
            events = known_by(events, msgspec.json.Decoder(kind).decode)
        return [event for event in events if isinstance(event, kind)]

    def deaths(self) -> list[dict[str, Any]]:
        """Ends of training processes that were not in order."""
        orderly = (Verdict.FINISHED, Verdict.STOPPED)
        return [e for e in self.events("process_exited") if e["verdict"] not in orderly]

    # ------------------------------------------------------------------ who computed what

    def samples(self) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        """Per life (``worker-0.3``) the samples that its loop was given, in order."""
        return {path.stem: np.fromfile(path, np.int64) for path in self.out.glob("*.ids")}

    def times(self) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        """Per life the unix times of its batches."""
        return {path.stem: np.fromfile(path) for path in self.out.glob("*.times")}

    def num_lives(self) -> int:
        """That were given anything."""
        return sum(len(times) > 0 for times in self.times().values())

    def num_batches(self) -> int:
        """Over all lives."""
        return sum(len(times) for times in self.times().values())

    # ------------------------------------------------------------------ what is done to it

    def kill_nodes(self) -> None:
        """SIGKILL to the process of each node, as soon as all have one."""
        pids = [self.pid_of(node.node) for node in self.status().nodes]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def kill_master(self) -> None:
        """SIGKILL to the master; its supervisor starts another one."""
        os.kill(self.status().master_pid, signal.SIGKILL)

    def kill_everything(self) -> None:
        """SIGKILL to every process of the job; none gets to run in between."""
        # Stopped first: a supervisor or an agent would replace who died before it.
        first = supervisor_pid(self.job)
        pids = ([first] if first else []) + [p.pid for p in find_job_processes(self.job.path)]
        for pid in pids:
            kill_quietly(pid, signal.SIGSTOP)
        pids += [p.pid for p in find_job_processes(self.job.path) if p.pid not in pids]
        for pid in pids:
            kill_quietly(pid)
        until(lambda: not find_job_processes(self.job.path), "everybody's death")

    def resume(self, sizes: Resize = AS_BEFORE) -> None:
        """Go on from the newest cut."""
        # The killed hold their locks a little longer than they can be seen.
        until(
            lambda: supervisor_pid(self.job) is None and not is_supervised(self.job),
            "the supervisor's end",
        )
        resume(self.job, sizes)

    # ------------------------------------------------------------------ how it is judged

    def cuts(self) -> list[Path]:
        """The directories of all sealed cuts, oldest first."""
        return sorted(path.parent for path in self.job.cuts.glob("*/manifest.json"))

    def check_counts(self) -> None:
        """Every sample is in the final model once, and every cut holds what it says."""
        feed = feed_of_job(self.job)
        for cut in self.cuts():
            check_cut(cut, feed, "exactly-once", 1, final=cut == self.cuts()[-1])

    def check_finished(self) -> None:
        """Wait for the end, which must be a good one that leaves nothing behind."""
        outcome = self.end()
        assert outcome.state == "finished", outcome
        self.check_counts()
        until(lambda: not leftovers(self.job), "a clean machine")

    def close(self) -> None:
        """End what is left of a failed test."""
        if leftovers(self.job):
            with contextlib.suppress(PacelineError, OSError):
                ask(self.job, StopJob(now=True), timeout_s=2.0)
            with contextlib.suppress(AssertionError):
                until(lambda: not leftovers(self.job), "an orderly end", 10.0)
            self.kill_everything()


def run_group(
    script: Path,
    out: Path,
    *args: str,
    workers: int = 3,
    deaths: int = 1,
    master_dies_at: int | None = None,
) -> None:
    """Run a job of members, so many of which die, to the end that it should come to.

    Args:
        script: of jobs/.
        out: its folder for what each life writes.
        args: its others.
        workers: how many.
        deaths: of workers, each by its own hand.
        master_dies_at: samples in the model at which the master is killed; None: it is not.
    """
    spec = JobSpec(
        script=str(script),
        args=("--out", str(out), *args),
        name=script.stem,
        strategy="allreduce",
        workers=NodeSpec(count=workers),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
    )
    with contextlib.closing(RunningJob(launch(spec), out)) as job:
        if master_dies_at is not None:
            job.until_committed(master_dies_at)
            job.kill_master()
        outcome = job.end()
        assert outcome.state == "finished", outcome
        assert len(job.events("master_started")) == 1 + (master_dies_at is not None)
        assert len(job.events("relaunch")) == deaths
        assert not job.events("diverged")


def planted(out: Path, *flags: str, workers: int | NodeSpec = 2, **spec: Any) -> JobSpec:
    """The spec of a planted-count job on two servers, with a cut every half second.

    Nothing is done to it but by the test: no solution acts on stragglers unless it is named.

    Args:
        out: a folder for its notes.
        flags: of jobs/counted.py.
        workers: how many, or more about them.
        spec: other fields of the job's spec.
    """
    nodes = NodeSpec(count=workers) if isinstance(workers, int) else workers
    synchronous = ["--synchronous"] if spec.get("mode", "asp") == "bsp" else []
    together = ["--together", str(nodes.count)]
    fields: dict[str, Any] = {
        "script": str(SCRIPT),
        "args": ("--out", str(out), *together, *synchronous, *flags),
        "name": "recovery",
        "mode": "asp",
        "workers": nodes,
        "servers": NodeSpec(count=2),
        "data": DataSpec(shard_size=256),
        "checkpoint": CheckpointSpec(every_s=0.5, share=0.5, keep=3),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    return JobSpec(**(fields | spec))


@contextlib.contextmanager
def running(
    out: Path, *flags: str, workers: int | NodeSpec = 2, **spec: Any
) -> Iterator[RunningJob]:
    """The same job, which runs meanwhile."""
    started = launch(planted(out, *flags, workers=workers, **spec))
    with contextlib.closing(RunningJob(started, out)) as job:
        yield job
