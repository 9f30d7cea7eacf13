"""The cases of `tests.parity.cases`, or every n-th, in one job; a worker may die once, at a step of its choice."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

import paceline as pl

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.parity.cases import BATCH, Training, cases, runs, samples
from tests.parity.kinds import bits

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--every", type=int, default=1)
parser.add_argument("--die", default="")
parser.add_argument("--step-s", type=float, default=0.0)
args = parser.parse_args()

job = pl.init()
trainings = [Training(case) for case in cases()[:: args.every] if runs(case)]
job.prepare(
    [one.model for one in trainings],
    [one.optimizer for one in trainings],
    [one.schedule for one in trainings if one.schedule is not None],
)
for one in trainings:
    if one.case.edit == "ema":
        job.state[str(one.case)] = one.ema
for batch in job.batches(pl.TensorRows(x=samples()), batch_size=BATCH, shuffle=False):
    step = job.step
    if f"{job.rank}:{step}" == args.die and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    for one in trainings:
        one.backward(batch.x, step)
    for one in trainings:
        one.step(step)
    if job.step > 25:
        (args.out / "under way").touch()
    time.sleep(args.step_s)
found = {
    str(one.case): (
        repr(bits(one.state())),
        [value.double().tolist() for value in one.model.state_dict().values()],
    )
    for one in trainings
}
(args.out / f"{job.rank}-{os.getpid()}.end").write_bytes(msgspec.json.encode(found))
