"""Synchronous equality: what 1, 2 and 4 workers compute against what one process computes.

    python benchmarks/equality.py [--quick] [--scale-only] [--json FILE]

Each job trains six models at once (SGD, Adagrad, Adam; float64, float32), in BSP on two servers,
also with two workers killed in mid-step, with another plan every six steps of who computes how
much in how many batches, with a server replaced by a fresh one, and with servers that come and go.
Every worker writes the loss of each sample; the loss of a step is their mean over its samples,
weighted exactly. A sample that was computed twice, because its first worker died, must have the
right loss both times: whichever counted, the step's is right. And the same with all-reduce, but for
servers: its tables are dense, so that it has a process of its own to be compared with.

The yardstick for float32 is one process that sums each of its own batches in four parts: that much
two orders of summation differ, without any distribution.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import closeness
import msgspec
import numpy as np
from paceline_experiments import harness
from safetensors.numpy import load_file

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.jobs.launch import ask, launch
from paceline.policy.actions import AdjustBatch, AnyAction, Share
from paceline.wire.client import Done, Replace, Scale
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec

SCRIPT = Path(__file__).parents[2] / "tests" / "integration" / "jobs" / "equality.py"
BATCH_SIZE = 51
CASES = tuple(
    (kind, dtype) for dtype in ("float64", "float32") for kind in ("sgd", "adagrad", "adam")
)
"""Cases in the order in which the script writes their losses."""
SWITCH_EVERY = 6
NUM_PLANS = 3
"""That must have taken effect; until then steps are slow."""
THEN = (4, 1, 3)
"""Servers, after two."""


class Job(NamedTuple):
    """One run: so many workers; are two killed, do plans switch, is a server replaced?

    ``dense``: by all-reduce. ``scale``: the number of servers changes from 2 to 4, then 1, then 3.
    """

    workers: int
    die: bool = False
    switch: bool = False
    move: bool = False
    dense: bool = False
    scale: bool = False

    @property
    def name(self) -> str:
        """Name for people."""
        what = ["2 killed"] * self.die + ["plans switch"] * self.switch
        what += ["server replaced"] * self.move + ["2 -> 4 -> 1 -> 3 servers"] * self.scale
        return ", ".join([f"{self.workers} workers", *what, *["all-reduce"] * self.dense])


JOBS = (
    Job(1),
    Job(1, switch=True),
    Job(2),
    Job(4),
    Job(2, die=True),
    Job(4, die=True),
    Job(2, switch=True),
    Job(4, switch=True),
    Job(2, die=True, switch=True),
    Job(4, die=True, switch=True),
    Job(2, move=True),
    Job(4, die=True, switch=True, move=True),
    Job(2, scale=True),
)
GROUPS = (
    Job(1, dense=True),
    Job(2, dense=True),
    Job(4, dense=True),
    Job(2, die=True, dense=True),
    Job(4, die=True, dense=True),
    Job(2, switch=True, dense=True),
    Job(4, die=True, switch=True, dense=True),
)
QUICK = {
    "ps": (Job(2, die=True, switch=True, move=True),),
    "group": (Job(2, die=True, switch=True, dense=True),),
}


def _plan(*shares: tuple[int, int]) -> AdjustBatch:
    """Batches of so many samples, and how many of them, of worker-0 and so on; (0, 0): no share."""
    named = {f"worker-{k}": Share(*share) for k, share in enumerate(shares) if share[0]}
    return AdjustBatch(shares=named)


PLANS = {
    1: (_plan((17, 3)), _plan((BATCH_SIZE, 1))),
    2: (_plan((17, 1), (17, 2)), _plan((BATCH_SIZE, 1)), _plan((7, 5), (16, 1))),
    4: (
        _plan((5, 1), (23, 1), (11, 2), (1, 1)),
        _plan((0, 0), (5, 4), (0, 0), (31, 1)),
        _plan((10, 3), (7, 1), (7, 1), (7, 1)),
    ),
}
"""Plans by number of workers."""
NUM_PARTS = 4

Array = np.ndarray


class Deviation(NamedTuple):
    """Largest relative deviation of one model from the reference."""

    loss: float
    """Largest deviation of any step's loss."""
    state: float
    """Largest deviation of any value of the final model, relative to the largest of its tensor."""


def run_alone(out: Path, steps: int, num_parts: int = 1, *, dense: bool = False) -> Path:
    """Train in one process, with one thread, without services; returns ``out``."""
    out.mkdir(parents=True)
    flags = ["--out", str(out), "--steps", str(steps), "--parts", str(num_parts)]
    flags += ["--dense"] if dense else []
    harness.output_of("alone", [sys.executable, str(SCRIPT), *flags], {"OMP_NUM_THREADS": "1"})
    return out


@contextlib.contextmanager
def switching(
    every: int, actions: Sequence[AnyAction], phases: Path | None = None
) -> Iterator[None]:
    """The masters of jobs launched meanwhile carry these out by turns; see ``jobs/switching``."""
    folder = Path(__file__).with_name("jobs") / "switching"
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), before.get("PYTHONPATH", "")])
    os.environ["PACELINE_BENCH_EVERY"] = str(every)
    os.environ["PACELINE_BENCH_ACTIONS"] = msgspec.json.encode(actions).decode()
    os.environ["PACELINE_BENCH_PHASES"] = str(phases or os.devnull)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_job(out: Path, steps: int, job: Job, *, timeout_s: float = 300.0, **fields: object) -> Path:
    """Train on two servers, or by all-reduce; returns ``out``.

    Args:
        out: gets what is compared.
        steps: of the job.
        job: what happens to it.
        timeout_s: for all of it.
        fields: others of the job's spec.

    Raises:
        ArmError: the job failed or took too long, or what was to happen did not.
    """
    out.mkdir(parents=True)
    workers, die, switch, move, dense, scale = job
    spec = JobSpec(
        script=str(SCRIPT),
        args=(
            *("--out", str(out), "--steps", str(steps), "--together", str(workers)),
            *(["--die"] if die else []),
            *(["--dense"] if dense else []),
            *(["--slow", "0.25"] if scale else []),
            *(["--slow", "0.1"] if switch and not scale else []),
        ),
        name=f"equality-{re.sub('[^0-9a-z]+', '-', job.name)}",
        strategy="allreduce" if dense else "ps",
        mode="bsp",
        solution="none",
        torch_threads=1,  # as alone: threads split sums, too
        workers=NodeSpec(count=workers),
        servers=NodeSpec(count=2),
        restart=RestartSpec(backoff_s=0.1),
    )
    spec = msgspec.structs.replace(spec, **fields)
    with switching(SWITCH_EVERY, PLANS[workers]) if switch else contextlib.nullcontext():
        folder = launch(spec)

    def go_on() -> None:
        events = folder.events.read_text() if folder.events.exists() else ""
        if move and '"works"' in events:
            # Again: it is being replaced already.
            with contextlib.suppress(PacelineError, OSError):
                ask(folder, Replace(node="server-0"), timeout_s=1.0)
        if switch and not scale and events.count('"plan"') >= NUM_PLANS:
            (out / "told").touch()

    scaling = Scaling(folder, out) if scale else None
    harness.finish(folder, timeout_s, scaling.go_on if scaling is not None else go_on)
    if die and len(list(out.glob("died-*"))) != 2:
        raise harness.failed_job(folder, "two workers were to die, but did not")
    if switch and folder.events.read_text().count('"plan"') < NUM_PLANS:
        raise harness.failed_job(folder, "plans were to switch, but did not")
    if move and '"replaced"' not in folder.events.read_text():
        raise harness.failed_job(folder, "a server was to be replaced, but was not")
    if scaling is not None and (scaling.waiting or scaling.ordered > scaling.done):
        raise harness.failed_job(folder, "servers were to change three times, but did not")
    return out


class Scaling:
    """Servers come and go while a job trains; it trains slowly until the last change is over.

    Args:
        folder: of the job.
        out: of the script, which a file named ``told`` makes quick again.
    """

    def __init__(self, folder: JobDir, out: Path) -> None:
        self._folder, self._told = folder, out / "told"
        self.waiting = list(THEN)
        self.ordered = 0

    @property
    def done(self) -> int:
        """Changes that are over."""
        return self._events().count('"servers_changed"')

    def go_on(self) -> None:
        """Order the next change when the one before is over."""
        if '"works"' not in self._events() or self.ordered > self.done:
            return
        if not self.waiting:
            self._told.touch()
            return
        with contextlib.suppress(PacelineError, OSError):  # it is asked again
            reply = ask(self._folder, Scale(servers=self.waiting[0]), timeout_s=5.0)
            if not (isinstance(reply, Done) and reply.error):
                self.waiting.pop(0)
                self.ordered += 1

    def _events(self) -> str:
        return self._folder.events.read_text() if self._folder.events.exists() else ""


def records(out: Path) -> Array:
    """[records, 1 + cases]: the index of a sample and its loss in each model, per file in order."""
    width = 1 + len(CASES)
    files = sorted(out.glob("*.losses"))
    # A killed process may leave a row cut short.
    whole = [path.read_bytes()[: path.stat().st_size // (8 * width) * 8 * width] for path in files]
    return np.concatenate([np.frombuffer(data).reshape(-1, width) for data in whole])


def step_losses(arm: str, found: Array, order: Array) -> tuple[Array, Array]:
    """[steps, cases]: the lowest and highest loss of each step that the records of an arm allow.

    ``order``: the samples in the order of the steps, from a run that computed each once.
    """
    low = np.full((order.size, len(CASES)), np.inf)
    high = np.full((order.size, len(CASES)), -np.inf)
    index = found[:, 0].astype(np.int64)
    np.minimum.at(low, index, found[:, 1:])
    np.maximum.at(high, index, found[:, 1:])
    missing = np.flatnonzero(np.isinf(low[:, 0]))
    if missing.size:
        what = f"{missing.size} samples were computed by nobody: {missing[:5]} ..."
        raise harness.failure(arm, what)
    starts = np.arange(0, order.size, BATCH_SIZE)
    sizes = np.diff([*starts, order.size])[:, None]
    return tuple(np.add.reduceat(side[order], starts) / sizes for side in (low, high))  # type: ignore[return-value]


def deviations(reference: Path, other: Path) -> dict[tuple[str, str], Deviation]:
    """Return how far the models of one run are from those of the reference."""
    expected = records(reference)
    order = expected[:, 0].astype(np.int64)
    right, _ = step_losses(reference.name, expected, order)
    sides = step_losses(other.name, records(other), order)
    loss = np.max([np.abs(side - right) / np.abs(right) for side in sides], axis=(0, 1))
    ours, theirs = (
        load_file(other / "model.safetensors"),
        load_file(reference / "model.safetensors"),
    )
    state = [0.0] * len(CASES)
    for name, value in theirs.items():
        case = int(name.split(".")[0])
        if name.endswith("keys"):
            if not np.array_equal(ours[name], value):
                raise harness.failure(other.name, f"{name} differ: rows appeared for other keys")
            continue
        state[case] = max(state[case], closeness.apart(ours[name], value))
    return {case: Deviation(float(loss[i]), state[i]) for i, case in enumerate(CASES)}


def limits(drift: dict[tuple[str, str], Deviation]) -> dict[tuple[str, str], float]:
    """The largest deviation of the loss that each model may show."""
    return {case: closeness.limit(*case, drift[case].loss) for case in CASES}


class Table(NamedTuple):
    """The rows of one strategy, and what each model may show."""

    what: str
    rows: list[tuple[str, dict[tuple[str, str], Deviation]]]
    allowed: dict[tuple[str, str], float]

    def exceeded(self) -> dict[str, str]:
        """Runs that are beyond that, and by how much; the first row is the yardstick."""
        return {
            f"{name}, {' '.join(case)}": f"{found[case].loss:.1e}, allowed {self.allowed[case]:.1e}"
            for name, found in self.rows[1:]
            for case in CASES
            # Nor may it be no number.
            if not found[case].loss <= self.allowed[case]
        }

    def show(self) -> None:
        """Print it."""
        print(f"largest relative deviation of a step's loss from one process, {self.what}")
        print(_line("", [f"{kind} {dtype[5:]}" for kind, dtype in CASES]))
        for name, found in self.rows:
            print(_line(name, [f"{found[case].loss:.1e}" for case in CASES]))
        print(_line("allowed", [f"{self.allowed[case]:.1e}" for case in CASES]))
        print("of a value of the final model, relative to the largest of its tensor")
        for name, found in self.rows:
            print(_line(name, [f"{found[case].state:.1e}" for case in CASES]))

    def told(self) -> dict[str, object]:
        """Return what goes into the file."""
        return {
            "what": self.what,
            "allowed": {" ".join(case): limit for case, limit in self.allowed.items()},
            "runs": {
                name: {" ".join(case): dev._asdict() for case, dev in found.items()}
                for name, found in self.rows
            },
        }


def compared(folder: Path, steps: int, jobs: Sequence[Job], *, dense: bool) -> Table:
    """Run these jobs, and one process beside them."""
    folder.mkdir()
    reference = run_alone(folder / "alone", steps, dense=dense)
    drift = deviations(reference, run_alone(folder / "parts", steps, NUM_PARTS, dense=dense))
    rows = [(f"1 process, {NUM_PARTS} parts", drift)]
    for job in jobs:
        run = run_job(folder / re.sub("[^0-9a-z]+", "-", job.name), steps, job)
        rows.append((job.name, deviations(reference, run)))
    how = "all-reduce" if dense else "BSP, 2 servers"
    return Table(f"{steps} steps of {BATCH_SIZE}, {how}", rows, limits(drift))


def main() -> None:
    """Print the tables."""
    parser = harness.parser(__doc__, "40 steps, 2 workers, once by each path")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--scale-only", action="store_true", help="the run in which servers change")
    args = parser.parse_args()
    kinds = {"ps": JOBS, "group": GROUPS}
    if args.quick:
        args.steps, kinds = 40, QUICK
    elif args.scale_only:
        kinds = {"ps": tuple(job for job in JOBS if job.scale)}
    tables = []
    with harness.scratch() as folder:
        for name, jobs in kinds.items():
            dense = name == "group"
            tables.append(compared(folder / name, args.steps, jobs, dense=dense))
    for table in tables:
        table.show()
    figures = {"tables": [table.told() for table in tables]}
    exceeded = {arm: why for table in tables for arm, why in table.exceeded().items()}
    harness.report("equality", figures, file=args.json, failed=exceeded)


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:46s}" + "".join(f"{cell:>12s}" for cell in cells)


if __name__ == "__main__":
    harness.run(main)
