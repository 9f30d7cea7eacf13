"""A quota refuses a worker for an hour: does the job train meanwhile, and what does it say?

    python benchmarks/quota_refused.py [--quick] [--minutes 60]

Two workers are wanted, with all-reduce; the backend, a package of its own that starts processes of
this machine, refuses the second one for so long, and starts it afterwards. Each time it is asked
counts as *asked*. *lines* are what `paceline run` has printed about it; *restarts* lives that were
begun again. Floor: one line, no restart, the job trains all the time (*longest_pause_s*), both
train in the end, and the job finishes.
"""

import itertools
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import allreduce_recovery as recovery
from paceline_experiments import harness
from paceline_experiments.machines import paceline

from paceline.protocol.nodes.lives import REFUSED_MAX_S

WORKERS, START_S, AFTER_S, MOST_PAUSE_S = 2, 120.0, 20.0, 5.0
STEP_S = 0.5
WHY = "the quota of this team has room for one worker"
BACKEND = f'''
import os, time
from paceline.backends.local.backend import LocalBackend
from paceline.base.backends import BackendKind
from paceline.protocol.nodes.platform import PlaceRefused

BACKEND = BackendKind(
    name="metered",
    about="processes, as many as a quota allows",
    opened="metered:open_backend",
    transports=("auto", "shm", "ipc", "tcp"),
)


class Metered(LocalBackend):
    def launch(self, node, *args, **kwargs):
        if node != "worker-1" or time.time() > float(os.environ["METERED_UNTIL"]):
            return super().launch(node, *args, **kwargs)
        with open(os.environ["METERED_LOG"], "a") as asked:
            asked.write(f"{{time.time()}}\\n")
        self._words.put_nowait(PlaceRefused(node=node, why="{WHY}"))


def open_backend(job, spec):
    return Metered(job)
'''


def install(site: Path) -> None:
    """Leave what ``pip install`` leaves of the backend's package."""
    info = site / "metered-0.1.dist-info"
    info.mkdir(parents=True)
    (site / "metered.py").write_text(BACKEND)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: metered\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[paceline.backends]\nmetered = metered:BACKEND\n")


def measured(folder: Path, minutes: float) -> dict[str, float]:
    """Run the job; its figures."""
    out, home, log = folder / "out", folder / "home", folder / "run.log"
    out.mkdir()
    install(folder / "site")
    path = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH", "")]))
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "PACELINE_HOME": str(home),
        "METERED_UNTIL": str(time.time() + 60 * minutes),
        "METERED_LOG": str(folder / "asked"),
    }
    sets = ["--set", "solution=none", "--set", "min_workers=1"]
    steps = ("--step-s", STEP_S, "--out", out)
    command = paceline(
        *("run", recovery.SCRIPT, "--strategy", "allreduce", "--backend", "metered"),
        *("--workers", WORKERS, *sets, "--", *steps),
    )
    with log.open("wb") as file:
        run = subprocess.Popen(command, env=env, stdout=file, stderr=file)
    try:
        if not harness.until(lambda: bool(recovery.lively(out)), START_S):
            raise harness.failure("paceline", "it does not train", [log])
        patience_s = 60 * minutes + REFUSED_MAX_S + START_S
        if not harness.until(lambda: len(recovery.lively(out)) == WORKERS, patience_s):
            raise harness.failure("paceline", "the second one does not train", [log])
        time.sleep(AFTER_S)
    finally:
        run.send_signal(signal.SIGINT)
        run.wait()
    (job,) = home.glob("jobs/*")
    told = [json.loads(line) for line in (job / "events.jsonl").read_text().splitlines()]
    said = log.read_text().splitlines()
    print(*(line for line in said if WHY in line), sep="\n")
    times = sorted(at_s for one in recovery.recorded(out).values() for at_s in one[:, 0])
    return {
        "minutes": minutes,
        "asked": len((folder / "asked").read_text().split()),
        "lines": sum(WHY in line for line in said),
        "restarts": sum(line["event"] == "relaunch" for line in told),
        "longest_pause_s": max(late - early for early, late in itertools.pairwise(times)),
    }


def main() -> int:
    """Measure, and say whether it is as it should be."""
    parser = harness.parser(__doc__, "half a minute")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    with harness.scratch() as scratch:
        found = measured(scratch, 0.5 if options.quick else options.minutes)
    harness.report("quota_refused", {"paceline": found}, file=options.json)
    good = found["lines"] == 1 and not found["restarts"]
    return 0 if good and found["longest_pause_s"] < MOST_PAUSE_S else 1


if __name__ == "__main__":
    harness.run(main)
