"""Seeded chaos runs by all-reduce: ``python -m tests.chaos.grouped --seeds 0:200``.

Each seed names a number of workers, what is done to whom and when (several workers at the same moment
among it), and which of `SOLUTIONS` acts meanwhile; it asserts that every planned fault fired, that every
sample is once in the final model of all that were there at the end, that every cut holds what it says,
and that nothing is left on the machine. Where steps are whole the final models are those of one worker
to which nothing happens: but for rounding (`EXACT`), and with ``--deterministic`` bit for bit. With
``--fsdp`` they hold shards, and begin again together whoever is lost.
"""

import argparse
import bisect
import contextlib
import dataclasses
import functools
import os
import random
import shutil
import tempfile
import time
from collections.abc import Set
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from safetensors.numpy import load_file

from paceline.base.jobdir import JobDir
from paceline.jobs.history import read_events
from paceline.jobs.launch import launch
from paceline.runtime.checkpoint.assembly import model_of
from paceline.runtime.checkpoint.cutfile import read_cut
from paceline.wire.events.state import EpochEvent
from paceline.wire.spec import (
    CheckpointSpec,
    JobSpec,
    NodeSpec,
    RestartSpec,
    TimeoutSpec,
    WindowSpec,
)
from tests.chaos.faults import (
    LOST_AFTER_S,
    SILENCE_S,
    TIMED,
    Fault,
    Injector,
    own_network,
    small_disk,
    surroundings,
)
from tests.chaos.moments import (
    BALLAST,
    COPY_S,
    CUT,
    GROUP,
    SUMS,
    SYNC_S,
    WHATS,
    Moment,
    MomentInjector,
)
from tests.chaos.oracle import TOLERANCE, committed_counts, feed_of_job
from tests.chaos.run import (
    actions,
    check_clean,
    check_fired,
    check_logs,
    follow,
    run_seeds,
    slow_disk,
    survive,
)

SCRIPT = Path(__file__).parents[1] / "integration" / "jobs" / "grouped.py"
SHARDED = SCRIPT.with_name("sharded.py")
TIMEOUT_S = 90.0
NUM_SAMPLES, BATCH_SIZE, STEP_S = 4096, 64, 0.02
BLOCKS = 16
HANG_S = 1.5
"""A worker that is stopped for `SILENCE_S` and more is taken to hang, or for lost."""
KINDS = {
    "worker": ("kill", "kill", "pause", "cut", "silence", "slow"),
    "agent": ("kill", "pause", "cut"),
    "master": ("kill", "pause", "cut"),
    "supervisor": ("kill",),
}
LINK_KINDS = ("slow", "down")
DISK_KINDS = ("full", "damage")
ROLES = ("worker", "worker", "worker", "agent", "master", "supervisor")
"""Most of what can go wrong in a group is a worker's."""

Model = dict[str, np.ndarray]  # type: ignore[type-arg]
Solution = tuple[str, dict[str, str]]
WHOLE: tuple[Solution, ...] = (("none", {}), ("lb_bsp", {}), ("nd", {}), ("dd", {}))
"""No step lacks a sample: nobody acts, steps are divided anew again and again, who is slow is restarted,
too, or batches are profiled before they are divided."""
AUTO: Solution = ("auto", {"min_iterations": "8", "min_slow_s": "1"})
"""All that jobs do by default; where bits are compared its steps are whole, too."""
SOLUTIONS = (
    *WHOLE,
    AUTO,
    ("backup_workers", {"count": "1"}),
    ("partial", {"left_out": "0.4", "chunks": "2"}),
)
"""In turn; with the last three steps go on without who is late."""
RESTARTING = ("nd", "auto")
"""They have somebody to restart: a worker whose first life takes `LATE` times as long as others sleep."""
SLOW_TO_ACT, MORE_EPOCHS = ("lb_bsp", "nd", "dd", "auto"), 2
"""They look first, and what a restart brings shows when the next life is there."""
LATE = 3.0
IN_SUMS, SUM_S = 0.25, 0.003
"""The part of cases in which somebody is killed in a sum, and how long after that was seen at most."""
CORES = (1.0, 0.7)
"""Of workers by turns where classes are told apart, so that there are some to divide among."""
EXACT = 1e-10
"""Of float64: sums of a step in another order."""


@dataclasses.dataclass
class Case:
    """One seeded run."""

    seed: int
    num_workers: int
    epochs: int
    faults: list[Fault]
    solution: Solution = ("none", {})
    sharded: bool = False
    moments: list[Moment] = dataclasses.field(default_factory=list)


def case_of(seed: int) -> Case:
    """A pure function of the seed."""
    rng = random.Random(f"group {seed}")
    num_workers, epochs = rng.choice([1, 2, 2, 3, 4]), rng.choice([1, 2])
    num_samples = NUM_SAMPLES * epochs
    faults: list[Fault] = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        role = rng.choice(ROLES)
        kind = rng.choice(KINDS[role])
        timed = rng.random() < TIMED
        fault = Fault(
            kind=kind,
            role=role,
            index=rng.randrange(8),
            at_committed=None if timed else rng.randrange(num_samples // 10, num_samples * 3 // 4),
            at_s=rng.uniform(0.0, 0.75 * num_samples / BATCH_SIZE * STEP_S) if timed else 0.0,
            for_s=rng.uniform(0.2, 0.8) + (SILENCE_S if kind == "silence" else 0.0),
        )
        faults.append(fault)
        if role == "worker" and kind == "kill" and num_workers > 1 and rng.random() < 0.4:
            # At the same moment, as near as two signals can be.
            faults.append(dataclasses.replace(fault, index=fault.index + 1))
    return Case(seed, num_workers, epochs, faults)


def with_solution(case: Case, *, deterministic: bool = False) -> Case:
    """The same under the next solution in turn; with what is slow to act it goes on for longer."""
    known = (*WHOLE, AUTO) if deterministic else SOLUTIONS
    solution = known[case.seed % len(known)]
    epochs = case.epochs + (MORE_EPOCHS if solution[0] in SLOW_TO_ACT else 0)
    return dataclasses.replace(case, solution=solution, epochs=epochs)


def with_shards(case: Case) -> Case:
    """The same where members hold shards: nobody acts, and their number divides a step."""
    return dataclasses.replace(
        case, sharded=True, num_workers=4 if case.num_workers == 3 else case.num_workers
    )


def with_moment(case: Case) -> Case:
    """The same where a worker is killed besides while its group forms, or while it makes a cut."""
    rng = random.Random(f"moment {case.seed}")
    whats = [
        what for what in WHATS if what != "copies" or case.num_workers > 1
    ]  # alone it is not seen
    num_samples = NUM_SAMPLES * case.epochs
    what, index = rng.choice(whats), rng.randrange(8)
    since = rng.randrange(num_samples // 10, num_samples // 2)
    if what in GROUP and rng.random() < 0.3:
        since = 0  # the first group
    after_s = rng.uniform(0.0, 0.15) if what in CUT else rng.choice([0.0, 0.0, 0.01])
    moment = Moment(what, index, since, after_s)
    # Who is lost is what a group forms for.
    lost = (
        []
        if what in CUT or not since
        else [Fault("kill", "worker", rng.randrange(8), since, 0.0, 0.0)]
    )
    return dataclasses.replace(case, moments=[moment], faults=[*case.faults, *lost])


def with_sum(case: Case) -> Case:
    """The same where, in one of four, a worker is killed besides in the middle of a sum."""
    rng = random.Random(f"sum {case.seed}")
    if rng.random() >= IN_SUMS or case.num_workers == 1 or case.sharded:
        return case
    since = rng.randrange(NUM_SAMPLES * case.epochs // 2)
    moment = Moment(SUMS, rng.randrange(8), since, rng.uniform(0.0, SUM_S))
    return dataclasses.replace(case, moments=[*case.moments, moment])


def with_surroundings(case: Case, *, links: bool, disk: bool) -> Case:
    """The same where network and disk fail besides."""
    num_samples = NUM_SAMPLES * case.epochs
    added: list[Fault] = []
    epochs = case.epochs
    if links:
        added += surroundings(case.seed, "link", LINK_KINDS, num_samples=num_samples, count=2)
    if disk:
        added += surroundings(case.seed, "disk", DISK_KINDS, num_samples=num_samples, count=1)
        # Who damages a cut waits for another one to go back to; an epoch ends with one.
        epochs = max(epochs, 3) if added[-1].kind == "damage" else epochs
    return dataclasses.replace(case, epochs=epochs, faults=[*case.faults, *added])


def run(case: Case, *, deterministic: bool = False) -> dict[str, object]:
    """Run one case to its end and assert what must hold; the facts of the run."""
    out = Path(tempfile.mkdtemp(prefix=f"paceline-grouped-{case.seed}-"))
    # A batch is a block then, of which a member has several in each step.
    batch_s = STEP_S * case.num_workers / BLOCKS if deterministic else STEP_S
    late = case.solution[0] in RESTARTING and case.num_workers > 1
    classes = case.solution[0] == "dd" and case.num_workers > 1
    cores = tuple(CORES[rank % len(CORES)] for rank in range(case.num_workers)) if classes else None
    sums = any(moment.what == SUMS for moment in case.moments)
    spec = JobSpec(
        script=str(SHARDED if case.sharded else SCRIPT),
        args=(
            *arguments(out, case.epochs, batch_s, kind_of(case, deterministic=deterministic)),
            *(
                ["--late", f"worker-{case.seed % case.num_workers}:{LATE * batch_s}"]
                if late
                else []
            ),
            *(["--mark-sums", "--ballast", str(BALLAST)] if sums else []),
        ),
        name=f"grouped-{case.seed}",
        strategy="fsdp" if case.sharded else "allreduce",
        preflight=False,
        deterministic=deterministic,
        blocks=BLOCKS,
        workers=NodeSpec(count=case.num_workers, cpu=cores),
        solution=case.solution[0],
        solution_args=case.solution[1],
        decide_every_s=0.2,
        windows=WindowSpec(short_steps=10, long_steps=20),
        checkpoint=CheckpointSpec(every_s=0.4, share=0.5, keep=1000),
        restart=RestartSpec(budget=100, backoff_s=0.1),
        timeouts=TimeoutSpec(heartbeat_s=0.1, lost_after_s=LOST_AFTER_S, hang_s=HANG_S),
    )
    wanted = None
    if deterministic or case.solution in WHOLE:
        wanted = undisturbed(case.epochs, kind_of(case, deterministic=deterministic))
    start_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        if any(fault.role == "disk" for fault in case.faults):
            stack.enter_context(small_disk(out / "disk"))
            spec = with_cuts(spec, out / "disk")
        return _run(case, spec, out, start_s, wanted)


def with_cuts(spec: JobSpec, folder: Path) -> JobSpec:
    """The same with its cuts there."""
    checkpoint = msgspec.structs.replace(spec.checkpoint, dir=str(folder))
    return msgspec.structs.replace(spec, checkpoint=checkpoint)


def _run(
    case: Case, spec: JobSpec, out: Path, start_s: float, wanted: Model | None
) -> dict[str, object]:
    slow = any(moment.what in CUT for moment in case.moments)
    with slow_disk(SYNC_S, COPY_S) if slow else contextlib.nullcontext():
        job = launch(spec)
    injector = MomentInjector(job, case.faults, case.moments, out)
    where = f"seed {case.seed} ({job.path}; {[str(f) for f in (*case.faults, *case.moments)]})"
    status = survive(job, injector, start_s + TIMEOUT_S, where)
    folder = Path(spec.checkpoint.folder or job.cuts)
    waiting = [*injector.waiting, *injector.moments]
    if len([*folder.glob("*/manifest.json")]) < 2:  # cut off from its master nobody makes any
        waiting = [one for one in waiting if isinstance(one, Moment) or one.kind != "damage"]
    check_fired(waiting, where)
    check_clean(job, where)
    check_finals(job, out, case, where, wanted, bits=spec.deterministic)
    check_cuts(job, case, where, folder, injector.damaged)
    # Shards cannot do without a lost peer: the others end by gloo's error, and all begin again.
    excused = ["gloo"] * case.sharded + ["checksum differs"] * bool(injector.damaged)
    # A solution's way to say that it leaves the division as it is.
    check_logs(job, where, *excused, "NoExactSum")
    acted, seconds = actions(job), time.monotonic() - start_s
    shutil.rmtree(out, ignore_errors=True)  # a disk is taken out after this
    if not os.environ.get("CHAOS_KEEP"):
        shutil.rmtree(job.path)
    return {
        "seed": case.seed,
        "workers": case.num_workers,
        "epochs": case.epochs,
        "solution": spec.solution,
        "actions": acted,
        "faults": [*(str(fault) for fault, _ in injector.fired), *injector.hit],
        "missed": [str(moment) for moment in injector.missed],
        "epoch_no": status.epoch_no if status else None,
        "seconds": round(seconds, 2),
    }


Kind = Literal["counted", "rough", "sharded"]
"""What is trained: in float64, by all-reduce and as shards; or what bits are compared of."""


def kind_of(case: Case, *, deterministic: bool) -> Kind:
    """Of a case."""
    return "sharded" if case.sharded else "rough" if deterministic else "counted"


def arguments(out: Path, epochs: int, batch_s: float, kind: Kind) -> tuple[str, ...]:
    """Of the script."""
    return (
        *("--out", str(out), "--num-samples", str(NUM_SAMPLES)),
        *("--batch-size", str(BATCH_SIZE), "--epochs", str(epochs)),
        *("--step-s", str(batch_s)),
        *{"counted": ["--by-updates"], "rough": ["--rough"], "sharded": []}[kind],
    )


@functools.cache
def undisturbed(epochs: int, kind: Kind) -> Model:
    """What one worker ends with to which nothing happens: its data and weights are those of any seed."""
    out = Path(tempfile.mkdtemp(prefix="paceline-grouped-alone-"))
    spec = JobSpec(
        script=str(SHARDED if kind == "sharded" else SCRIPT),
        args=arguments(out, epochs, 0.0, kind),
        name="grouped-alone",
        strategy="fsdp" if kind == "sharded" else "allreduce",
        preflight=False,
        deterministic=kind == "rough",
        blocks=BLOCKS,
        solution="none",
    )
    job = launch(spec)
    follow(job, Injector(job, []), time.monotonic() + TIMEOUT_S)
    check_clean(job, f"undisturbed ({job.path})")
    (final,) = out.glob("*.final")
    found = load_file(final)
    shutil.rmtree(out)
    shutil.rmtree(job.path)
    return found


def check_finals(
    job: JobDir, out: Path, case: Case, where: str, wanted: Model | None, *, bits: bool
) -> None:
    """Assert that all that came to the end hold the same model, with every sample in it.

    If the last cut was damaged the others have trained anew, maybe in another order of sums, after
    some had come to the end: then all that are of one epoch hold the same. All of them hold what is
    ``wanted``, with ``bits`` to the last one.
    """
    held = {path: load_file(path) for path in sorted(out.glob("*.final"))}
    assert len(held) >= case.num_workers, f"{where}: only {sorted(held)} came to the end"
    starts_s = [one.t for one in read_events(job.events) if isinstance(one, EpochEvent)]
    firsts: dict[int, Model] = {}
    for path, final in held.items():
        wrong = np.flatnonzero(np.abs(final["seen"] - case.epochs) > TOLERANCE)
        assert not wrong.size, (
            f"{where}: samples {wrong[:5]} count {final['seen'][wrong[:5]]} times"
        )
        epoch_no = bisect.bisect(starts_s, path.stat().st_mtime)
        first = firsts.setdefault(0 if bits else epoch_no, wanted if bits and wanted else final)
        for name, values in first.items():
            same = values.tobytes() == final[name].tobytes()
            assert same, f"{where}: {path.name} differs from others in {name}"
        for name, values in (wanted or {}).items():
            apart = np.abs(values - final[name]).max()
            assert apart < EXACT, f"{where}: {path.name} is {apart} from undisturbed in {name}"


def check_cuts(job: JobDir, case: Case, where: str, root: Path, damaged: Set[Path]) -> None:
    """Assert that every cut that is there holds the samples that it says, and the last one all."""
    feed = feed_of_job(job)
    cuts = sorted({path.parent for path in root.glob("*/manifest.json")} - damaged)
    assert cuts, f"{where}: no cut"
    for directory in cuts:
        manifest, files = read_cut(directory)
        values = model_of(manifest.schema, files)
        seen = values["seen"].array
        said = committed_counts(feed, manifest.committed, NUM_SAMPLES)
        wrong = np.flatnonzero(np.abs(seen - said) > TOLERANCE)
        assert not wrong.size, (
            f"{where}: {directory.name}: samples {wrong[:5]} count {seen[wrong[:5]]} times, the "
            f"ledger says {said[wrong[:5]]}"
        )
        if "ballast" in values:
            steps = np.unique(values["ballast"].array)
            assert steps.tolist() == [manifest.step], f"{where}: {directory.name}: torn {steps[:5]}"
    assert np.all(said == case.epochs), f"{where}: the last cut lacks samples"


def main() -> None:
    """Run a range of seeds; resumable, since each seed stands alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:10", help="a:b, b excluded")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--deterministic", action="store_true", help="compare bits, too")
    parser.add_argument("--fsdp", action="store_true", help="members hold shards")
    parser.add_argument("--no-moments", action="store_true", help="kill at no special moments")
    parser.add_argument("--links", action="store_true", help="break the network, too; needs root")
    parser.add_argument("--disk", action="store_true", help="fill and damage the disk, too; root")
    options = parser.parse_args()
    if options.links:
        own_network()

    def run_seed(seed: int) -> dict[str, object]:
        case = with_solution(case_of(seed), deterministic=options.deterministic)
        case = with_shards(case_of(seed)) if options.fsdp else case
        case = case if options.no_moments else with_sum(with_moment(case))
        case = with_surroundings(case, links=options.links, disk=options.disk)
        return run(case, deterministic=options.deterministic)

    run_seeds(options.seeds, run_seed, keep_going=options.keep_going)


if __name__ == "__main__":
    main()
