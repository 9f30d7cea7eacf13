"""A job that finds its size, run twice: without a history, and with that of the first run.

    python benchmarks/warm_settle.py [--epochs 12] [--cores 1.5] [--quick]

Prints JSON: for each run the size that it begins with, its changes of size, the seconds from the
first batch until the last of them took effect, and all its time of training. Wide & Deep on a
click log, mode asp, policy rm, with short windows. Both runs have the same script, data and bounds.
"""

import time
from pathlib import Path
from typing import Any

from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.features.data.ctr import CtrSettings
from paceline.features.data.make_ctr import make_ctr
from paceline.features.history.beginning import warm_started
from paceline.features.sizes.events import SizeChangedEvent, read
from paceline.features.sizes.log import size_words
from paceline.features.sizes.spec import sized
from paceline.jobs.history import read_events
from paceline.policy.job_size import size_of
from paceline.wire.events.state import FeedOpenedEvent
from paceline.wire.spec import JobSpec, ResourcesSpec

SCRIPT = Path(__file__).parents[2] / "examples" / "02_wide_deep.py"
ROWS = 200_000
RUN_S, END_S = 600.0, 30.0


def run(spec: JobSpec) -> dict[str, Any]:
    spec, warm = warm_started(spec)
    spec = sized(spec)
    with harness.running(spec) as job:
        harness.finish(job, RUN_S)
        ended_s = time.time()
        return {"is_warm": warm is not None, "begins": size_words(size_of(spec))} | seen(
            job, ended_s
        )


def seen(job: JobDir, ended_s: float) -> dict[str, Any]:
    told = read(read_events(job.events))
    begun_s = next(event.t for event in told if isinstance(event, FeedOpenedEvent))
    changes = [event for event in told if isinstance(event, SizeChangedEvent)]
    return {
        "changes": [f"{event.t - begun_s:.1f} s: {event.size}" for event in changes],
        "settled_s": changes[-1].t - begun_s if changes else 0.0,
        "trained_s": ended_s - begun_s,
    }


def main() -> int:
    parser = harness.parser(__doc__, "3 epochs, no figures")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--cores", type=float, default=1.5)
    options = parser.parse_args()
    epochs = 3 if options.quick else options.epochs
    with harness.scratch() as out:
        make_ctr(out / "data", ROWS, CtrSettings())
        spec = JobSpec(
            script=str(SCRIPT),
            args=("--data", str(out / "data"), "--epochs", str(epochs)),
            mode="asp",
            solution="none",
            preflight=False,
            history=f"sqlite:///{out}/history.sqlite",
            resources=ResourcesSpec(
                policy="rm",
                cores=options.cores,
                workers=4,
                servers=2,
                window_s=1.5,
                settle_s=2.0,
                between_s=4.0,
            ),
        )
        figures = {name: run(spec) for name in ("cold", "warm")}
    harness.report("warm_settle", figures, file=options.json)
    return int(figures["cold"]["is_warm"] or not figures["warm"]["is_warm"])


if __name__ == "__main__":
    harness.run(main)
