"""How long a killed worker is missed: SIGKILL to the first step of its next life.

    python benchmarks/worker_restart.py [--quick] [--kills 20] [--torchrun-kills 5]

A job of two workers and one server (asynchronous, tiny model, 10 ms of emulated compute per step).
Every kill hits a worker that trains; the next life's first finished step is stamped by the script.
The script's own set-up (its imports, building model and dataset) is part of that time and printed
apart. Between kills a life is longer than ``backoff_max_s``, so each counts as the first in a row
and is answered without back-off. Beside it torchrun: gloo DDP, one agent, two workers, the same
model, ``--monitor-interval 0.1``; from the kill to the first step of the new group. A trial that
shows no step within the window is counted as not recovered, and fails. Prints a table and JSON.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from paceline_experiments import harness
from peers import launch

from paceline.base.jobdir import JobDir
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec

WINDOW_S = 90.0
LIFE_S = 1.0
MAX_RESTARTS = 3
"""Restarts of a group of torchrun's, as far as is looked."""
EVENTS = ("process_exited", "node_started", "process_up")
STAGES = ("noticed", "relaunched", "up", "script", "own set-up", "init", "prepare", "batch", "step")


def spec_of(out: Path) -> JobSpec:
    return JobSpec(
        script=str(harness.TINY),
        args=("--out", str(out)),
        name="restart",
        solution="none",
        mode="asp",
        workers=NodeSpec(count=2),
        servers=NodeSpec(count=1),
        restart=RestartSpec(budget=10_000, backoff_max_s=LIFE_S),
    )


def measure(kills: int) -> list[dict[str, float] | None]:
    """Return one entry per kill: seconds of each stage and ``total``; None: not recovered."""
    found: list[dict[str, float] | None] = []
    with harness.scratch() as out, harness.running(spec_of(out)) as job:
        for number in range(kills):
            wait_for_all(job, out)
            time.sleep(LIFE_S + 0.3)
            found.append(kill_one(job, out, f"worker-{number % 2}"))
    return found


def wait_for_all(job: JobDir, out: Path) -> None:
    def training() -> bool:
        workers = [n for n in harness.status(job).nodes if n.role == "worker"]
        return all(
            n.inc and harness.stamps(out / f"{n.node}.{n.inc}.steps.f64").size for n in workers
        )

    harness.require(job, training, WINDOW_S, "the workers do not train")


def kill_one(job: JobDir, out: Path, name: str) -> dict[str, float] | None:
    node = next(n for n in harness.status(job).nodes if n.node == name)
    before = {path.name for path in out.glob(f"{name}.*.steps.f64")}
    killed_s = time.monotonic()
    os.kill(node.pid, signal.SIGKILL)

    def stepped() -> list[Path]:
        fresh = [p for p in out.glob(f"{name}.*.steps.f64") if p.name not in before]
        return [path for path in fresh if harness.stamps(path).size]

    if not harness.happens(job, lambda: bool(stepped()), WINDOW_S):
        return None
    path = stepped()[0]
    inc = int(path.name.split(".")[1])
    setup = json.loads((out / f"{name}.{inc}.setup.json").read_text())
    at = {
        (event["event"], event["inc"]): event["at_s"]
        for event in harness.events(job)
        if event.get("node") == name and event["event"] in EVENTS
    }
    points = (
        killed_s,
        at["process_exited", node.inc],
        at["node_started", inc],
        at["process_up", inc],
        setup["entered_s"],
        setup["init_s"],
    )
    own_s = setup["init_s"] - setup["entered_s"]
    own_s += setup["prepare_s"] - setup["inited_s"] + setup["loop_s"] - setup["prepared_s"]
    return {
        "noticed": points[1] - points[0],
        "relaunched": points[2] - points[1],
        "up": points[3] - points[2],
        "script": points[4] - points[3],
        "own set-up": own_s,
        "init": setup["inited_s"] - setup["init_s"],
        "prepare": setup["prepared_s"] - setup["prepare_s"],
        "batch": setup["batch_s"] - setup["loop_s"],
        "step": float(harness.stamps(path)[0]) - setup["batch_s"],
        "total": float(harness.stamps(path)[0]) - killed_s,
    }


# ---------------------------------------------------------------------------- torchrun


def measure_torchrun(kills: int) -> tuple[list[float], dict[str, str]]:
    """Seconds of the recovered trials; of the others what torchrun said last."""
    found, failed = [], {}
    for number in range(kills):
        with tempfile.TemporaryDirectory(prefix="paceline-bench-torchrun-") as name:
            out = Path(name)
            took_s = torchrun_trial(out)
            if took_s is None:
                said = harness.last_lines(out.glob("*.log"))
                failed[f"torchrun, trial {number}"] = f"not recovered{said}"
            else:
                found.append(took_s)
    return found, failed


def torchrun_trial(out: Path) -> float | None:
    """A group of its own, one worker of it killed: seconds to the new group's first step."""
    flags = ["--nnodes=1", "--monitor-interval=0.1", "--rdzv-backend=c10d"]
    command = [
        *launch.torchrun(Path(sys.executable), 2, *flags, "--rdzv-endpoint=localhost:0"),
        *(str(harness.TINY.with_name("tiny_ddp.py")), "--out", str(out)),
    ]
    with launch.launched({"torchrun": command}, out) as (agent,):

        def happens(condition: Callable[[], bool]) -> bool:
            harness.until(lambda: condition() or agent.poll() is not None, WINDOW_S)
            return condition()

        if not happens(lambda: harness.stamps(out / "1.0.steps.f64").size > 10):
            return None
        killed_s = time.monotonic()
        os.kill(int((out / "1.0.pid").read_text()), signal.SIGKILL)
        if not happens(lambda: len(first_steps(out)) == 2):
            return None
        return max(first_steps(out)) - killed_s


def first_steps(out: Path) -> list[float]:
    """Return when each rank of a restarted group (any restart) ended its first step."""
    for restart in range(1, MAX_RESTARTS + 1):
        found = [harness.stamps(out / f"{rank}.{restart}.steps.f64") for rank in (0, 1)]
        if all(steps.size for steps in found):
            return [float(steps[0]) for steps in found]
    return []


def main() -> None:
    parser = harness.parser(__doc__, "2 kills, 1 of torchrun")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--torchrun-kills", type=int, default=5)
    options = parser.parse_args()
    kills, torchrun_kills = (2, 1) if options.quick else (options.kills, options.torchrun_kills)
    trials = measure(kills)
    good = [trial for trial in trials if trial is not None]
    stages = {
        stage: harness.summary([trial[stage] for trial in good]) for stage in (*STAGES, "total")
    }
    theirs, failed = measure_torchrun(torchrun_kills)
    if len(good) < len(trials):
        failed["paceline"] = f"{len(trials) - len(good)} of {len(trials)} kills not recovered"
    harness.table(
        ("stage, s", "median", "min", "max"),
        [
            (name, *(f"{of[k]:.3f}" for k in ("median", "min", "max")))
            for name, of in stages.items()
        ],
    )
    harness.report(
        "worker_restart",
        {
            "kills": kills,
            "unrecovered": len(trials) - len(good),
            "goal_s": 1.0,
            "stages_s": stages,
            "slowest_s": max(good, key=lambda trial: trial["total"], default={}),
            "torchrun": {
                "kills": torchrun_kills,
                "window_s": WINDOW_S,
                "unrecovered": len(failed),
                "total_s": harness.summary(theirs),
            },
        },
        file=options.json,
        failed=failed,
    )


if __name__ == "__main__":
    harness.run(main)
