"""Random scripts that declare nothing, under random kills: each ends as its plain run, or says why not.

    python -m tests.chaos.scripts --seeds 0:20

A script is put together of shapes that people write: loops in functions, classes and at the top; epochs
by ``range``, ``while`` or ``job.epochs``; meters, patience, rates by hand, generators. It writes what it
holds at its end. A job of two workers runs it while workers and the master are killed, or it is stopped
and resumed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline.base.errors import PacelineError
from paceline.jobs.launch import ask, launch
from paceline.wire.client import StopJob
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.chaos.shapes import drawn
from tests.integration.running import RunningJob

SAMPLES, BATCH = 320, 16
OTHERS = 0.4
"""The share of scripts of `tests.chaos.shapes`."""

HEAD = """
import faulthandler, json, os, random, sys, time
from collections import Counter, defaultdict, deque
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline as pl

faulthandler.dump_traceback_later(75)
OUT, STEP_S = sys.argv[1], float(sys.argv[2])
generator = torch.Generator().manual_seed(1)
x = torch.randn({samples}, 4, generator=generator, dtype=torch.float64)
y = x.sum(1, keepdim=True)
job = pl.init()
model = nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
loader = DataLoader(TensorDataset(x, y), batch_size={batch}, shuffle={shuffle})
model, optimizer, loader = job.prepare(model, optimizer, loader)

class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total += value
        self.count += 1

    @property
    def mean(self):
        return self.total / self.count

class Stopper:
    def __init__(self, patience):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def over(self, value):
        self.bad = 0 if value < self.best * 0.3 else self.bad + 1
        self.best = min(self.best, value)
        return self.bad > self.patience

def bar(given):
    for one in given:
        yield one

def whole(net):
    weight = net.weight.detach()
    return (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).flatten()

def validate():
    with torch.no_grad():
        return float(((model(x) - y) ** 2).mean())
"""

SHARD = "from torch.distributed.fsdp import fully_shard\nfully_shard(model)"
"""What a script of fsdp has before its optimizer."""

TAIL = "\nopen(f'{OUT}/{job.rank}-{os.getpid()}.end', 'w').write(json.dumps(found))\n"

AT_ENDS = 0.35
"""The share of faults that strike at the end of an epoch."""

STATES = {
    "steps": ("steps = 0", "steps += 1", "", "steps"),
    "seen": (
        "seen = Counter()",
        "seen['batch'] += 1",
        "seen['epoch'] += 1",
        "sorted(seen.items())",
    ),
    "window": (
        "window, drawn = deque(maxlen=5), np.random.default_rng(3)",
        "window.append(float(drawn.random()))",
        "",
        "list(window)",
    ),
    "noise": (
        "noise, noises = torch.Generator().manual_seed(5), []",
        "noises.append(float(torch.rand((), generator=noise)))",
        "noises.append(-1.0)",
        "noises",
    ),
    "dice": (
        "dice, thrown = random.Random(7), {}",
        "thrown[len(thrown)] = dice.random()",
        "",
        "list(thrown.values())",
    ),
    "log": ("log = defaultdict(list)", "", "log['loss'].append(validate())", "log['loss']"),
    "best": (
        "best, weights = float('inf'), None",
        "",
        "loss = validate()\nif loss < best: best, weights = loss, whole(model).clone()",
        "[best, *weights.tolist()]",
    ),
    "average": (
        "average = torch.zeros(4, dtype=torch.float64)",
        "average.mul_(0.9).add_(0.1 * whole(model))",
        "",
        "average.tolist()",
    ),
}


def indented(text: str, depth: int) -> str:
    return "\n".join("    " * depth + line for line in text.splitlines() if line)


def sharded(text: str) -> str | None:
    """The same script for fsdp; ``None`` for one that prepares several models."""
    if "job.prepare(net" in text:
        return None
    text = text.replace("\noptimizer = torch", "\n" + SHARD + "\noptimizer = torch", 1)
    return text.replace("copy.deepcopy(model.state_dict())", '{"weight": whole(model).clone()}')


def script_of(seed: int) -> tuple[str, bool]:  # noqa: PLR0915 - one statement for each shape
    """The text of a script; and whether it leaves its loops."""
    pick = random.Random(seed)
    if pick.random() < OTHERS:
        shuffle = pick.random() < 0.5
        text = drawn(pick, SAMPLES, BATCH)
        return HEAD.format(samples=SAMPLES, batch=BATCH, shuffle=shuffle) + text + TAIL, False
    names = pick.sample([*STATES], k=pick.randint(2, 5))
    if pick.random() < 0.5 and "steps" not in names:
        names.append("steps")
    rate = "steps" in names and pick.random() < 0.6
    epochs, stops, leaves = pick.randint(3, 6), pick.random() < 0.5, pick.random() < 0.2
    how, where = (
        pick.choice(["range", "range", "while", "epochs"]),
        pick.choice(["top", "function", "two", "class"]),
    )
    counted, meter = pick.random() < 0.6, pick.random() < 0.6
    source = (
        "loader" if pick.random() < 0.6 else f"job.batches(TensorDataset(x, y), batch_size={BATCH})"
    )
    if pick.random() < 0.2:
        source = "bar(" + source + ")"

    def own(text: str) -> str:
        if where != "class":
            return text
        for name in (
            "steps",
            "seen",
            "window",
            "drawn",
            "noises",
            "noise",
            "dice",
            "thrown",
            "log",
            "best",
            "weights",
            "average",
            "meter",
            "stopper",
            "bad",
        ):
            text = "\n".join(_attribute(line, name) for line in text.splitlines())
        return text

    begin = [STATES[name][0] for name in names] + (["meter = Meter()"] if meter else [])
    begin += [f"stopper = Stopper({pick.randint(0, 2)})"] if stops else []
    step = "loss_ = nn.functional.mse_loss(model(a), b)\nloss_.backward()\noptimizer.step()\noptimizer.zero_grad()\n"
    if rate:
        step = "for group in optimizer.param_groups: group['lr'] = 0.03 * 0.98 ** steps\n" + step
    step += "time.sleep(STEP_S)\n" + "\n".join(STATES[name][1] for name in names)
    step += "\nmeter.add(loss_.item())" if meter else "\ntotal += loss_.item(); count += 1"
    if leaves and "steps" in names:
        step += "\nif steps % 20 == 13: break"
    after = "\n".join(STATES[name][2] for name in names)
    after += "\nmean = meter.mean" if meter else "\nmean = total / count"
    ends = "\nif stopper.over(validate()): break" if stops else ""
    head = {
        "range": f"for epoch in range({epochs}):",
        "while": f"epoch = -1\nwhile epoch < {epochs - 1}:",
        "epochs": f"for epoch in job.epochs({epochs}):",
    }[how]
    first = "epoch += 1\n" if how == "while" else ""
    first += "meter.reset()" if meter else "total, count = 0.0, 0"
    target = "i, (a, b)" if counted else "a, b"
    over = f"enumerate({source})" if counted else source
    loop = f"for {target} in {over}:\n" + indented(own(step), 1)
    found = ", ".join(f"'{name}': {own(STATES[name][3])}" for name in names)
    found += ", 'weight': whole(model).tolist(), 'epoch': epoch"
    body = own(first) + "\n" + loop + "\n" + own(after) + own(ends)
    if counted:
        body = body.replace("\nmean = ", "\nlast = i\nmean = ", 1)
        found += ", 'last': last"
    whole = own("\n".join(begin)) + "\n" + head + "\n" + indented(body, 1)
    if where == "top":
        text = whole + "\nfound = {" + found + "}"
    elif where == "function":
        text = "def main():\n" + indented(whole, 1) + "\n    return {" + found + "}\nfound = main()"
    elif where == "two":
        shared = sorted({name for line in begin for name in line.split(" = ")[0].split(", ")})
        inner = (
            "def one_epoch(epoch):\n    global "
            + ", ".join([*shared, "mean", "last"])
            + "\n"
            + indented(
                first.replace("epoch += 1\n", "")
                + "\n"
                + loop
                + "\n"
                + after.replace("mean = ", "last = i\nmean = ")
                if counted
                else first.replace("epoch += 1\n", "") + "\n" + loop + "\n" + after,
                1,
            )
        )
        outer = (
            head
            + "\n"
            + indented(("epoch += 1\n" if how == "while" else "") + "one_epoch(epoch)" + ends, 1)
        )
        text = "\n".join(begin) + "\n" + inner + "\n" + outer + "\nfound = {" + found + "}"
    else:
        text = (
            "class Trainer:\n    def fit(self):\n"
            + indented(whole, 2)
            + "\n        return {"
            + found
            + "}\nfound = Trainer().fit()"
        )
    shuffle = pick.random() < 0.5
    return HEAD.format(samples=SAMPLES, batch=BATCH, shuffle=shuffle) + text + TAIL, leaves


def _attribute(line: str, name: str) -> str:
    import re

    return re.sub(rf"(?<![\w.']){name}\b(?!')(?!\s*=\s*generator)", f"self.{name}", line)


def plain(script: Path, out: Path) -> dict[str, Any]:
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    done = subprocess.run(
        [sys.executable, str(script), str(out), "0"],
        env=env,
        timeout=100,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    (found,) = ends(out).values()
    return found


def ends(out: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.end")}


def close(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return abs(one - other) <= 1e-9 * max(1.0, abs(one))
    return bool(one == other)


def disturb(job: RunningJob, pick: random.Random) -> list[str]:
    """Kill, or stop and resume; what was done."""
    done = list[str]()
    for _ in range(pick.randint(1, 3)):
        at = pick.uniform(0.3, 4.0) * SAMPLES
        if pick.random() < AT_ENDS:
            at = round(at / SAMPLES) * SAMPLES
        kind = pick.choice(["worker-0", "worker-1", "worker-1", "master", "stop"])
        try:
            job.until_committed(int(at))
            if kind == "stop":
                ask(job.job, StopJob())
                job.end()
                job.resume()
            elif kind == "master":
                job.kill_master()
            else:
                os.kill(job.pid_of(kind), signal.SIGKILL)
            done.append(f"{kind} at {at / SAMPLES:.1f}")
        except (AssertionError, PacelineError, ProcessLookupError, OSError) as error:
            done.append(f"{kind} not ({str(error)[:60]})")
            break
    return done


def run(seed: int, folder: Path, strategy: str) -> tuple[str, str]:
    """The verdict on one script: equal, named, failed, silent or left out; and why."""
    text, _ = script_of(seed)
    script = folder / f"script{seed}.py"
    script.write_text(text)
    expected = plain(script, folder / f"plain{seed}")
    if strategy == "fsdp":
        shards = sharded(text)
        if shards is None:
            return "left out", "several models"
        script.write_text(shards)
    out = folder / f"job{seed}"
    out.mkdir()
    spec = JobSpec(
        script=str(script),
        args=(str(out), "0.03"),
        strategy=strategy,
        workers=NodeSpec(count=2),
        checkpoint=CheckpointSpec(every_s=0.5, share=0.5),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
    )
    job = RunningJob(launch(spec), out)
    try:
        done = disturb(job, random.Random(f"kills {seed}"))
        outcome = job.end(120.0)
        if outcome.state != "finished":
            return "failed", f"{done}: {outcome.error[:300]}"
        differ = {
            f"{life}:{name}": (values, held.get(name))
            for life, held in ends(out).items()
            for name, values in expected.items()
            if not close(values, held.get(name))
        }
        if not differ:
            return "equal", f"{done}"
        logs = "".join(path.read_text() for path in job.job.logs.glob("worker-*.log"))
        named = "does not follow" in logs or " of the script " in logs or "differ from here" in logs
        said = "named" if named or job.events("left_loop") else "silent"
        return said, f"{done}: " + "; ".join(
            f"{name} {str(a)[:60]} / {str(b)[:60]}" for name, (a, b) in list(differ.items())[:4]
        )
    except AssertionError as error:
        return "hung", f"{done}: {error}"
    finally:
        job.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--strategy", default="allreduce", choices=["allreduce", "fsdp"])
    parser.add_argument("--keep", type=Path, help="a folder for scripts and jobs")
    args = parser.parse_args()
    low, high = map(int, args.seeds.split(":"))
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        os.environ["PACELINE_HOME"] = str(folder / "home")
        for seed in range(low, high):
            start_s = time.monotonic()
            verdict, why = run(seed, folder, args.strategy)
            counts[verdict] = counts.get(verdict, 0) + 1
            print(f"{seed}: {verdict} ({time.monotonic() - start_s:.0f} s) {why}", flush=True)
    print(counts)
    return int(bool(counts.get("silent") or counts.get("hung")))


if __name__ == "__main__":
    sys.exit(main())
