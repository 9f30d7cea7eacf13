"""How long does a checkpoint block training? Beside torch's own means, and DLRover's.

    python benchmarks/checkpoint.py [--quick] [--gigabytes 1 4 8] [--rounds 3] [--saves 7]
                                    [--factors 1.2 0.5] [--peers FOLDER] [--arms ARM ...]

One worker whose optimizer changes every page of its state in every step; forward and backward are
emulated by matrix products that last ``--factors`` times one memory copy of the state. Arms:
paceline (strategy allreduce), by two members of which one computes nothing: its cuts go into the
memory of both nodes, as in a job, and need 4.25 times the state (4 GiB: 20 GiB with what else
there is; 8 GiB do not fit into 24); paceline with one member, as the others are; torch.save;
torch's distributed checkpoint (DCP): ``save``, ``async_save`` by a thread, and by a process with
shared memory staged beside the compute; with ``--peers``, where `peers/install.py` has installed
them, DLRover's flash checkpoint as installed and with what it takes to run. They take turns, each
in processes of its own. Every save is restored or read back, and verified in every page; paceline's
are restored by the job itself, all of whose workers are killed for it.

Printed, in seconds, for the first save of a process and, by factor, for the others: for how long
they block (what a step takes besides its compute, over the usual), with the goal (10 ms, and what
of the copy lasts longer than the compute); how much longer the whole step is, its compute beside
the copy included (of the first save: the longest step until then, since memory may be made before);
how many times as long compute takes beside the copy, with a copy's share of the memory bandwidth.
Then compute after it until the save is on storage; how long it takes to be on storage, over a plain
write with fsync, and over one past the page cache, which is how paceline writes; of paceline until
it counts, and to restore, over a memory copy, and from where. Then what of the floors and goals is
met: blocked at most 1.05 times a memory copy, and the goal above; the first save at most twice a
warm one (of either, blocked or longer; 10 ms are never too much); on storage within 1.3 plain
writes; restored within 1.5 copies.

What does not fit into the memory or onto the disk is left out, and named; so are peers without
``--peers``. paceline, DCP and the plain writes wait for the disk (fsync).
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray
from paceline_experiments import harness
from peers import launch
from peers.install import chosen

from paceline.base.errors import PacelineError, PermanentError
from paceline.base.jobdir import JobDir
from paceline.runtime.checkpoint.cutfile import read_cut
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec

SCRIPT = Path(__file__).with_name("jobs") / "saving.py"
RESTORES = 3
"""Number of restores of each job of paceline."""
PATIENCE_S = 1800.0
GIB = 1 << 30
ALLOWED_S = 0.010
BLOCKED, FIRST, STORED, RESTORED = 1.05, 2.0, 1.3, 1.5
"""Most times: a memory copy, a warm save, a plain write, a memory copy."""
WARM_STEPS = 2
"""The first steps of a process are slow by themselves."""
SPARE_BYTES = 3 * GIB
"""Bytes for processes, and for what memory copies are measured with."""


class Arm(NamedTuple):
    saver: str
    """Its name in `saving.py`."""
    copies: float
    """Least number of times that the state is in memory."""
    peer: str | None = None
    """Name by which it is installed; None: with the benchmark."""
    members: int = 1
    """Members of a job of paceline's."""


ARMS = {
    "paceline": Arm("paceline", 4.25, members=2),
    "paceline, one member": Arm("paceline", 2.125),
    "torch.save": Arm("torch.save", 1.0),
    "dcp.save": Arm("dcp", 1.0),
    "dcp.async_save, thread": Arm("dcp-thread", 2.0),
    "dcp.async_save, process": Arm("dcp-process", 2.0),
    "dlrover": Arm("dlrover", 2.0, "dlrover"),
    "dlrover-fixed": Arm("dlrover", 2.0, "dlrover-fixed"),
}

QUICK_ARMS = ("paceline", "torch.save")


class NoRoomError(Exception):
    """An arm does not fit into this machine."""


class Save(NamedTuple):
    """Costs of one save."""

    factor: float
    blocked_s: float
    longer_s: float
    """The whole step over the usual: with what its compute takes longer beside the copy. Of the
    first save: that, or of the longest step before it."""
    beside: float
    """The compute of the step it was copied beside, over that of others."""
    writing: float | None
    """Seconds of the steps from then until it was stored; None: there was none."""
    stored_s: float


class Found(NamedTuple):
    """Results of one process."""

    saves: list[Save]
    """Saves in their order."""
    restores_s: list[float]
    copy_s: float
    pair_s: float
    write_s: float
    direct_s: float | None
    """As `write_s`, past the page cache; None: its file system cannot."""
    counted_s: Sequence[float] = ()
    """Of paceline: from when a cut began until it counted, in the memory of two nodes if there are
    two."""
    restored_from: Sequence[str] = ()


def saves_of(rows: NDArray[np.float64], began: Sequence[tuple[int, float]]) -> list[Save]:
    """What saves cost.

    Args:
        rows: of `saving.COLUMNS`.
        began: of each save the row beside which it is copied, and when it was on storage.

    Raises:
        ArmError: there are not two of them, or no step without.
    """
    asked_s, begun_s, backward_s, updated_s, factors = rows.T
    besides_s, compute_s = (begun_s - asked_s) + (updated_s - backward_s), backward_s - begun_s
    busy = np.zeros(len(rows), bool)
    until = [max(row + 1, int(np.searchsorted(updated_s, at_s))) for row, at_s in began]
    for (row, _), stop in zip(began, until, strict=True):
        busy[row:stop] = True
    if len(began) < 2 or busy.all():
        told = f"{len(began)} saves in {len(rows)} steps: 2 are needed, and a step beside none"
        raise harness.failure("saving", told)
    copied = np.zeros(len(rows), bool)
    copied[[row for row, _ in began]] = True
    usual_s = float(np.median(besides_s[~copied]))
    unit_s = compute_s / factors
    usual_unit_s = np.median(unit_s[~busy])
    over = unit_s / usual_unit_s
    longer_s = besides_s - usual_s + compute_s - factors * usual_unit_s
    # Memory for the first may be made beside steps before it: the longest of them tells.
    longer_s[began[0][0]] = np.max(longer_s[WARM_STEPS : began[0][0] + 1], initial=0.0)
    return [
        Save(
            float(factors[row]),
            float(besides_s[row] - usual_s),
            float(longer_s[row]),
            float(over[row]),
            float(np.median(over[row + 1 : stop])) if stop > row + 1 else None,
            float(at_s - asked_s[row]),
        )
        for (row, at_s), stop in zip(began, until, strict=True)
    ]


class Cut(NamedTuple):
    """Cut of paceline."""

    row: int
    """The step beside which it was copied."""
    valid_s: float
    stored_s: float


def cuts_of(job: JobDir, num_rows: int) -> list[Cut]:
    """Return the cuts that were copied beside these steps."""
    # A cut at step 120 was copied beside the step after it, which is in place 120. Of one worker
    # alone a cut is valid when it is on disk.
    told = harness.events(job)
    stored = {e["cut_no"]: e["at_s"] for e in told if e["event"] == "cut_stored"}
    found = []
    for event in told:
        if event["event"] == "cut_valid":
            stored_s = stored.get(event["cut_no"], event["at_s"])
            found.append(Cut(event["step"], event["at_s"], stored_s))
    return [cut for cut in found if 0 < cut.row < num_rows]


def check(cuts: Path, measured: str) -> None:
    """Check that every cut on disk holds one step, in every page.

    Raises:
        ArmError: another member than the one that is measured has made it.
    """
    found = sorted(path.parent for path in cuts.glob("*/manifest.json"))
    assert found
    for path in found:
        try:
            manifest, files = read_cut(path)
        except (PermanentError, FileNotFoundError):
            assert not (path / "manifest.json").exists(), path  # the oldest has been removed
            continue
        ((name, arrays),) = files.items()
        if manifest.step and name != f"{measured}.safetensors":
            raise harness.failure(name, f"it has made {path}, and {measured} was measured")
        bulk = [array for key, array in arrays.items() if "bulk" in key]
        assert bulk
        for array in bulk:
            assert np.all(array[::1024] == manifest.step), path


def run_script(arm: Arm, python: Path, script: Sequence[str], log: Path) -> None:
    """Run one process of an arm.

    Raises:
        ArmError: it ended with an error.
    """
    if arm.peer:
        launched = launch.by_dlrover(python, 1, script, log)
    else:
        launched = launch.launched({"saving": [str(python), *script]}, log)
    with launched as (process,):
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            told = f"nothing within {PATIENCE_S:.0f} s"
            raise harness.failure(arm.saver, told, log.glob("*.log")) from None
    if status:
        raise harness.failure(arm.saver, f"exit status {status}", log.glob("*.log"))


def by_paceline(arm: Arm, out: Path, flags: Sequence[str], saves: int, log: Path) -> Found:
    """A job: it makes its cuts, and then goes back to the newest of them, again and again.

    Raises:
        ArmError: it ended before.
    """
    cuts = out / "cuts"
    spec = JobSpec(
        script=str(SCRIPT),
        args=(*flags, "--arm", "paceline", "--cuts", str(cuts), "--members", str(arm.members)),
        name="saving",
        strategy="allreduce",
        workers=NodeSpec(count=arm.members),
        solution="none",
        checkpoint=CheckpointSpec(every_s=1.0, share=1.0, keep=saves + 2, dir=str(cuts)),
        restart=RestartSpec(budget=1000, backoff_s=0.1, backoff_max_s=0.1),
    )
    with harness.running(spec) as job:
        told = out / "saves.json"
        harness.require(job, told.exists, PATIENCE_S, "it has not made its cuts")
        shutil.copytree(job.logs, log / "logs", dirs_exist_ok=True)
        rows = harness.stamps(out / "steps.f64").reshape(-1, 5)
        made = cuts_of(job, len(rows))
        check(cuts, (out / "measured").read_text())
        restores = [restored(job, out, number) for number in range(RESTORES)]
        (out / "enough").touch()
        harness.until(job.outcome.exists, PATIENCE_S)
    machine = json.loads((out / "machine.json").read_text())
    counted = [cut.valid_s - rows[cut.row, 0] for cut in made]
    began = [(cut.row, cut.stored_s) for cut in made]
    seconds, places = zip(*restores, strict=True)
    return Found(
        saves_of(rows, began), list(seconds), **machine, counted_s=counted, restored_from=places
    )


def restored(job: JobDir, out: Path, number: int) -> tuple[float, str]:
    """Kill all workers when there is a new cut; how long the job reads it, and from where.

    Raises:
        ArmError: it reads none, or not the state of one step.
    """
    noted = out / "restores.jsonl"

    def lines() -> list[str]:
        return noted.read_text().splitlines() if noted.exists() else []

    def works() -> bool:
        with contextlib.suppress(PacelineError, OSError):
            return all(node.state == "running" and node.pid for node in harness.status(job).nodes)
        return False

    def num_valid() -> int:
        return sum(event["event"] == "cut_valid" for event in harness.events(job))

    harness.require(job, works, PATIENCE_S, "its workers do not come back")
    before = num_valid()
    # The first one after a restore from memory goes to the disk only.
    harness.require(job, lambda: num_valid() > before + 1, PATIENCE_S, "it makes no cuts any more")
    for node in harness.status(job).nodes:
        os.kill(node.pid, signal.SIGKILL)
    harness.require(job, lambda: len(lines()) > number, PATIENCE_S, "it has restored no cut")
    found = json.loads(lines()[number])
    if len(found["steps"]) != 1 or found["steps"][0] <= 0:
        what = f"restored was no state of one step: {found['steps'][:5]}"
        raise harness.failed_job(job, what)
    return found["restore_s"], "memory" if found["place"].startswith("/dev/shm") else "disk"


def measured(name: str, python: Path, num_bytes: int, options: Any, log: Path) -> Found:
    """Measure one process, or job.

    Raises:
        ArmError: it brought nothing.
        NoRoomError: it does not fit.
    """
    arm = ARMS[name]
    check_room(arm, num_bytes, options.saves, options.disk or Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix="paceline-saving-", dir=options.disk) as folder:
        out = Path(folder)
        flags = ["--out", folder, "--bytes", str(num_bytes), "--gap", str(options.gap)]
        flags += ["--saves", str(options.saves), "--factors", *map(str, options.factors)]
        if arm.saver == "paceline":
            found = by_paceline(arm, out, flags, options.saves, log)
        else:
            run_script(arm, python, [str(SCRIPT), *flags, "--arm", arm.saver], log)
            told = json.loads((out / "saves.json").read_text())
            began = [(int(one["step"]), one["stored_s"]) for one in told]
            machine = json.loads((out / "machine.json").read_text())
            rows = harness.stamps(out / "steps.f64").reshape(-1, 5)
            restores_s = [one["restore_s"] for one in told]
            found = Found(saves_of(rows, began), restores_s, **machine)
        for path in (*out.glob("*.json*"), out / "steps.f64"):
            shutil.copy(path, log)
        return found


def check_room(arm: Arm, num_bytes: int, saves: int, disk: Path) -> None:
    """Raises NoRoomError: this arm does not fit."""
    need = int(arm.copies * num_bytes) + SPARE_BYTES
    room = psutil.virtual_memory().available
    if need > room:
        raise NoRoomError(f"needs {need / GIB:.1f} GiB of memory, {room / GIB:.1f} GiB are free")
    # Of paceline's two more than are measured are kept to be verified, one is being written, and
    # after a restore the next one is copied onto the disk where memory is full; one is to spare.
    # Others keep one, and write the next beside it.
    need = (saves + 5 if arm.saver == "paceline" else 3) * num_bytes
    room = shutil.disk_usage(disk).free
    if need > room:
        raise NoRoomError(f"needs {need / GIB:.1f} GiB of disk, {room / GIB:.1f} GiB are free")


class Machine(NamedTuple):
    """Medians over processes."""

    copy_s: float
    write_s: float
    direct_s: float | None


def machine_of(found: Sequence[Found]) -> Machine:
    """Return the machine that it was measured with."""
    direct_s = [one.direct_s for one in found if one.direct_s is not None]
    return Machine(
        statistics.median(one.copy_s for one in found),
        statistics.median(one.write_s for one in found),
        statistics.median(direct_s) if direct_s else None,
    )


def row_of(arm: Arm, found: Sequence[Found], machine: Machine) -> dict[str, Any]:
    """Make a row of the table, by medians over all processes of an arm."""
    copy_s, write_s, direct_s = machine.copy_s, machine.write_s, machine.direct_s
    saves = [save for one in found for save in one.saves[1:]]
    share = statistics.median(one.pair_s / (2 * one.copy_s) for one in found)
    by_factor, verdicts = {}, {}
    for factor in sorted({save.factor for save in saves}):
        these = [save for save in saves if save.factor == factor]
        blocked_s = [save.blocked_s for save in these]
        name, goal_s = f"compute {factor} x copy", max(0.0, copy_s * (1 - factor)) + ALLOWED_S
        by_factor[name] = {
            "blocked_s": harness.summary(blocked_s),
            "blocked / memcpy": round(statistics.median(blocked_s) / copy_s, 3),
            "goal_s": round(goal_s, 4),
            "longer_s": harness.summary([save.longer_s for save in these]),
            "compute beside the copy": harness.summary([save.beside for save in these]),
            "a copy's share of the bandwidth": round(share, 3),
        }
        blocked = statistics.median(blocked_s)
        verdicts |= {
            f"{name}: blocked": verdict(blocked, BLOCKED * copy_s, f"{BLOCKED} copies"),
            f"{name}: blocked, goal": verdict(blocked, goal_s, "the goal"),
        }
    stored_s = statistics.median(save.stored_s for save in saves)
    restores_s = [seconds for one in found for seconds in one.restores_s]
    restore_s = statistics.median(restores_s)
    writing = [save.writing for save in saves if save.writing is not None]
    counted_s = [seconds for one in found for seconds in one.counted_s]
    first = first_of(found)
    verdicts |= first.pop("verdicts")
    return {
        "members": "two nodes, one of which computes nothing" if arm.members > 1 else "one process",
        **by_factor,
        **first,
        # Maybe no step fell into the writing; of peers it is not known when a save counts.
        "compute while writing": harness.summary(writing) if writing else None,
        "counts after_s": harness.summary(counted_s) if counted_s else None,
        "stored_s": harness.summary([save.stored_s for save in saves]),
        "stored / plain write": round(stored_s / write_s, 2),
        "stored / direct write": round(stored_s / direct_s, 2) if direct_s else None,
        "restore_s": harness.summary(restores_s),
        "restored from": sorted({place for one in found for place in one.restored_from}),
        "restore / memcpy": round(restore_s / copy_s, 2),
        "verdicts": verdicts
        | {
            "stored": verdict(stored_s, STORED * write_s, f"{STORED} plain writes"),
            "restored": verdict(restore_s, RESTORED * copy_s, f"{RESTORED} copies"),
        },
    }


def first_of(found: Sequence[Found]) -> dict[str, Any]:
    """Return what first saves cost beside the others of their processes."""
    row: dict[str, Any] = {"verdicts": {}}
    for name, key in (("first", "blocked_s"), ("first longer", "longer_s")):
        first_s = [getattr(one.saves[0], key) for one in found]
        warm_s = statistics.median(getattr(save, key) for one in found for save in one.saves[1:])
        median_s = statistics.median(first_s)
        row[f"{name}_s"] = harness.summary(first_s)
        row[f"{name} / warm"] = round(median_s / warm_s, 2) if warm_s > 0 else None
        bound_s = max(FIRST * warm_s, ALLOWED_S)
        row["verdicts"][name] = verdict(median_s, bound_s, f"{FIRST:g} warm ones, or 10 ms")
    return row


def verdict(seconds: float, bound_s: float, what: str) -> str:
    """Say whether it is within a bound."""
    met = "met" if seconds <= bound_s else "missed"
    return f"{met}: {seconds:.4f} s of {bound_s:.4f} s ({what})"


def table_of(found: dict[str, list[Found]], failed: dict[str, str]) -> dict[str, Any]:
    """Make all rows of one size; memory copies and plain writes are those of all processes."""
    every = [one for several in found.values() for one in several]
    if not every:
        return {"failed": failed} if failed else {}
    machine = machine_of(every)
    share = statistics.median(one.pair_s / (2 * one.copy_s) for one in every)
    direct_s = [one.direct_s for one in every if one.direct_s is not None]
    return {
        "memcpy_s": harness.summary([one.copy_s for one in every]),
        "a copy's share of the bandwidth": round(share, 3),
        "plain write_s": harness.summary([one.write_s for one in every]),
        "direct write_s": harness.summary(direct_s) if direct_s else None,
        **{name: row_of(ARMS[name], several, machine) for name, several in found.items()},
        "failed": failed,
    }


def main() -> None:
    parser = harness.parser(__doc__, "one round of 64 MB, 3 saves, two arms, no figures")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1.0])
    parser.add_argument("--rounds", type=int, default=3, help="processes of each arm")
    parser.add_argument("--saves", type=int, default=7, help="of each process, the first included")
    parser.add_argument("--gap", type=int, default=8, help="steps from save to save, of peers")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.2, 0.5])
    parser.add_argument("--peers", type=Path, default=None, help="where they are installed")
    parser.add_argument("--arms", nargs="+", choices=ARMS, help="default: all that are installed")
    parser.add_argument("--disk", type=Path, default=None, help="folder on the disk to measure")
    parser.add_argument("--log", type=Path, default=None, help="keep logs here")
    options = parser.parse_args()
    if options.quick:
        options.gigabytes, options.rounds, options.saves = [0.0625], 1, 3
        options.factors, options.arms = [1.2], options.arms or list(QUICK_ARMS)
    pythons = chosen({name: arm.peer for name, arm in ARMS.items()}, options.peers, options.arms)
    report: dict[str, Any] = {}
    lost: dict[str, str] = {}
    with harness.scratch() as scratch:
        for gigabytes in options.gigabytes:
            size = f"{gigabytes:g} GiB"
            found, failed = rounds(pythons, gigabytes, options, options.log or scratch)
            report[size] = table_of(found, failed)
            lost |= {f"{arm}, {size}": why for arm, why in failed.items()}
            print(json.dumps({size: report[size]}), flush=True)
    if not any(report.values()):
        lost["paceline"] = "nothing was measured"
    harness.report("checkpoint", report, file=options.json, failed=lost)


def rounds(
    pythons: dict[str, Path], gigabytes: float, options: argparse.Namespace, log: Path
) -> tuple[dict[str, list[Found]], dict[str, str]]:
    """Take turns at one size; of which that brought nothing, why."""
    arms = list(pythons)
    found: dict[str, list[Found]] = defaultdict(list)
    failed: dict[str, str] = {}
    for number in range(options.rounds):
        for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
            if arm in failed:
                continue
            folder = log / f"{arm}-{gigabytes:g}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            try:
                one = measured(arm, pythons[arm], int(gigabytes * GIB), options, folder)
            except NoRoomError as error:
                harness.skipped(f"{arm}, {gigabytes:g} GiB", str(error))
                continue
            except harness.ArmError as error:
                failed[arm] = error.what
                told = f"nothing: {error.what}"
            else:
                found[arm].append(one)
                told = json.dumps(row_of(ARMS[arm], [one], machine_of([one])))
            # A run of many hours that is ended leaves what it has found.
            print(f"{arm}, {gigabytes:g} GiB, round {number + 1}: {told}", flush=True)
    return found, failed


if __name__ == "__main__":
    harness.run(main)
