"""How long does a checkpoint block training? Beside torch.save and torch's distributed checkpoint.

    python benchmarks/checkpoint.py [--quick] [--gigabytes 1] [--rounds 6]

One worker by strategy allreduce whose optimizer changes every page of its state in every step;
forward and backward are emulated by matrix products of about ``--compute-s``. paceline makes its
cuts while it trains; in turns with them the same process saves by each of the others, and copies
its state once in memory (warm). All that was written is loaded and compared. Printed: seconds for
which each blocks training; of paceline, what a step that was copied beside takes longer than others
(the first cut told apart, which finds no memory to copy into), and how much longer the compute of a
step takes while a cut is on its way to the disk.
"""

import argparse
import json
import statistics
from pathlib import Path

import harness
import numpy as np

from paceline.base.jobdir import JobDir
from paceline.runtime.checkpoint.cutfile import read_cut
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

SCRIPT = Path(__file__).with_name("jobs") / "saving.py"
JOB_S = 3600.0


def blocked(job: JobDir, out: Path) -> dict[str, object]:
    """What cuts cost the steps beside which they were copied, and written."""
    given_s, begun_s, backward_s, updated_s = harness.stamps(out / "steps.f64").reshape(-1, 4).T
    # What a step takes besides its compute: until its batch is there, and its update.
    besides_s = updated_s - backward_s
    besides_s[1:] += given_s[1:] - updated_s[:-1]
    told = [(*event.get("reason", "").split(), event) for event in harness.events(job)]
    # "cut 3 at step 120": copied beside the step after it, which is in place 120.
    steps = {word[1]: int(word[4]) for *word, one in told if one["event"] == "cut_valid"}
    # Of one worker alone a cut is valid when it is on disk.
    stored = {word[1]: one["at_s"] for *word, one in told if word and word[0] == "cut"}
    beside = [step for step in steps.values() if 0 < step < len(given_s)]
    usual_s = float(np.median(np.delete(besides_s, beside)))
    cost_s = [float(besides_s[step] - usual_s) for step in beside]
    writing = np.zeros(len(given_s), bool)
    for no, at_s in stored.items():
        if no in steps and at_s < updated_s[-1]:
            writing[steps[no] : int(np.searchsorted(updated_s, at_s))] = True
    compute_s = backward_s - begun_s
    alone, while_writing = compute_s[~writing], compute_s[writing]
    return {
        "first_s": round(cost_s[0], 4),
        "blocked_s": harness.summary(cost_s[1:]),
        "usual_update_s": round(usual_s, 4),
        "step_while_writing": round(float(np.median(while_writing) / np.median(alone)), 4)
        if len(while_writing)
        else None,
    }


def check(job: JobDir) -> None:
    """The newest cut on disk holds one step, in every page."""
    newest = max(path for path in job.cuts.iterdir() if (path / "manifest.json").exists())
    manifest, files = read_cut(newest)
    (arrays,) = files.values()
    bulk = [array for name, array in arrays.items() if "bulk" in name]
    assert bulk
    for array in bulk:
        assert np.all(array[::1024] == manifest.step), newest


def measured(num_bytes: int, rounds: int, steps: int, compute_s: float) -> dict[str, object]:
    """One job."""
    with harness.scratch() as out:
        flags = ["--out", str(out), "--bytes", str(num_bytes), "--compute-s", str(compute_s)]
        flags += ["--rounds", str(rounds), "--steps", str(steps)]
        spec = JobSpec(
            script=str(SCRIPT),
            args=tuple(flags),
            name="saving",
            strategy="allreduce",
            workers=NodeSpec(count=1),
            solution="none",
            checkpoint=CheckpointSpec(every_s=1.0, share=1.0),
        )
        with harness.running(spec) as job:
            harness.until(job.outcome.exists, JOB_S)
            found = json.loads((out / "peers.json").read_text())
            check(job)
            ours = blocked(job, out)
        means = {name: [one[name] for one in found] for name in found[0]}
        copy_s = statistics.median(means["memcpy"])
        return {
            "paceline": ours,
            **{name: harness.summary(seconds) for name, seconds in means.items()},
            "blocked_over_memcpy": {
                name: round(statistics.median(seconds) / copy_s, 3)
                for name, seconds in means.items()
            }
            | {"paceline": round(ours["blocked_s"]["median"] / copy_s, 3)},
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--compute-s", type=float, default=0.25)
    parser.add_argument("--quick", action="store_true", help="two rounds of 128 MB, no figures")
    options = parser.parse_args()
    num_bytes = 128 << 20 if options.quick else int(options.gigabytes * (1 << 30))
    rounds, steps = (2, 20) if options.quick else (options.rounds, 40)
    compute_s = 0.05 if options.quick else options.compute_s
    print(json.dumps(measured(num_bytes, rounds, steps, compute_s), indent=1))


if __name__ == "__main__":
    main()
