"""Seeded chaos runs whose model is compared: ``python -m tests.chaos.models --seeds 0:50``.

Each seed names who holds the model, what is done to whom and when. The job trains with what a life of
a worker may lose (`INGREDIENTS`: a schedule, momentum, dropout, augmentation), beside planted counts.
Under the faults it must end with the model of the same job to which nothing happened: with all-reduce,
which is deterministic here, bit for bit; on servers in bsp, whose sums have any order, as near as
`closeness` allows. Jobs on servers that are not deterministic are compared with the script alone, which
is torch's own loop.
"""

import argparse
import dataclasses
import functools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from safetensors.numpy import load_file

from experiments.benchmarks.closeness import FLOAT64_LIMIT, Model, farthest
from paceline.jobs.launch import launch
from paceline.wire.spec import (
    CheckpointSpec,
    JobSpec,
    NodeSpec,
    RestartSpec,
    TimeoutSpec,
)
from tests.chaos import grouped
from tests.chaos.faults import LOST_AFTER_S, Fault, Injector, moves, plan
from tests.chaos.learned import INGREDIENTS
from tests.chaos.moments import CUT, Moment, MomentInjector
from tests.chaos.oracle import TOLERANCE
from tests.chaos.run import (
    check_clean,
    check_fired,
    check_logs,
    run_seeds,
    slow_disk,
    survive,
)

Strategy = Literal["allreduce", "ps"]
SCRIPT = Path(__file__).with_name("learned.py")
STRATEGIES: tuple[Strategy, ...] = ("allreduce", "ps")
HOLD: dict[Strategy, tuple[str, ...]] = {
    "allreduce": INGREDIENTS,
    "ps": INGREDIENTS,
}
"""What ends with the undisturbed model."""
TIMEOUT_S = 90.0
NUM_SAMPLES, BATCH_SIZE, STEP_S = 4096, 64, 0.02
MORE_EPOCHS = 2
"""After the last fault: a next life takes a second to start, and has to train for a while then."""
BLOCKS = 8


class Recipe(NamedTuple):
    """What is trained, and so with which model it ends."""

    strategy: Strategy
    epochs: int
    ingredients: tuple[str, ...]

    @property
    def deterministic(self) -> bool:
        """Whether the job is: on servers only where what is random depends on who computes it."""
        return self.strategy == "allreduce" or "dropout" in self.ingredients

    @property
    def bits(self) -> bool:
        """Whether all bits must be the same; in float32 then, where an order of a sum shows."""
        return self.strategy == "allreduce"

    def arguments(self, out: Path, batch_s: float) -> tuple[str, ...]:
        """Of the script."""
        return (
            *("--out", str(out), "--num-samples", str(NUM_SAMPLES)),
            *("--batch-size", str(BATCH_SIZE), "--epochs", str(self.epochs)),
            *("--step-s", str(batch_s), "--dtype", "float32" if self.bits else "float64"),
            *("--with", *self.ingredients),
        )


@dataclasses.dataclass(frozen=True)
class Case:
    """One seeded run."""

    seed: int
    recipe: Recipe
    num_workers: int
    num_servers: int
    faults: tuple[Fault, ...]
    moments: tuple[Moment, ...] = ()


def case_of(
    seed: int, strategy: Strategy | None = None, ingredients: tuple[str, ...] | None = None
) -> Case:
    """A pure function of the seed.

    Args:
        seed: of everything.
        strategy: None: they take turns.
        ingredients: None: what is known to hold.
    """
    strategy = strategy or STRATEGIES[seed % len(STRATEGIES)]
    ingredients = HOLD[strategy] if ingredients is None else ingredients
    if strategy == "allreduce":
        group = grouped.with_moment(grouped.case_of(seed))
        recipe = Recipe(strategy, group.epochs + MORE_EPOCHS, ingredients)
        return Case(seed, recipe, group.num_workers, 0, tuple(group.faults), tuple(group.moments))
    rng = random.Random(f"model {seed}")
    num_workers, epochs, moving = rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.random() < 0.3
    num_samples = NUM_SAMPLES * epochs
    faults = plan(
        seed,
        num_samples=num_samples,
        num_faults=rng.choice([0, 1, 2]),
        training_s=num_samples / BATCH_SIZE * STEP_S,
    )
    faults += moves(seed, num_samples=num_samples, count=1) if moving else []
    # Of whose state the next life has to go on.
    early = rng.randrange(num_samples // 10, num_samples // 2)
    faults.append(Fault("kill", "worker", rng.randrange(8), early, 0.0, 0.0))
    recipe = Recipe(strategy, epochs + MORE_EPOCHS, ingredients)
    return Case(seed, recipe, num_workers, rng.choice([1, 2]), tuple(faults))


def spec_of(recipe: Recipe, arguments: tuple[str, ...], name: str, num_workers: int) -> JobSpec:
    """The job of a recipe."""
    return JobSpec(
        script=str(SCRIPT),
        args=arguments,
        name=name,
        strategy=recipe.strategy,
        mode="bsp",
        deterministic=recipe.deterministic,
        blocks=BLOCKS,
        preflight=False,
        solution="none",
        torch_threads=1,
        workers=NodeSpec(count=num_workers),
        checkpoint=CheckpointSpec(every_s=0.4, share=0.5, keep=1000),
        restart=RestartSpec(budget=100, backoff_s=0.1),
        timeouts=TimeoutSpec(heartbeat_s=0.1, lost_after_s=LOST_AFTER_S, hang_s=grouped.HANG_S),
    )


@functools.cache
def undisturbed(recipe: Recipe) -> Model:
    """The model of a recipe to which nothing happens: of one worker, or of the script alone."""
    out = Path(tempfile.mkdtemp(prefix="paceline-model-alone-"))
    arguments = recipe.arguments(out, 0.0)
    if recipe.deterministic:
        job = launch(spec_of(recipe, arguments, "model-alone", 1))
        where = f"undisturbed ({job.path})"
        survive(job, Injector(job, []), time.monotonic() + TIMEOUT_S, where)
        check_clean(job, where)
        shutil.rmtree(job.path)
    else:
        subprocess.run([sys.executable, str(SCRIPT), *arguments], check=True)
    (final,) = out.glob("*.final")
    found = load_file(final)
    shutil.rmtree(out)
    return found


def run(case: Case) -> dict[str, object]:
    """Run one case to its end and assert what must hold; the facts of the run."""
    out = Path(tempfile.mkdtemp(prefix=f"paceline-model-{case.seed}-"))
    recipe = case.recipe
    wanted = undisturbed(recipe)
    # A batch is a block where the job is deterministic, of which a worker has several in each step.
    parts = BLOCKS / case.num_workers if recipe.deterministic else 1
    spec = spec_of(
        recipe, recipe.arguments(out, STEP_S / parts), f"model-{case.seed}", case.num_workers
    )
    if case.num_servers:
        spec = msgspec.structs.replace(spec, servers=NodeSpec(count=case.num_servers))
    start_s = time.monotonic()
    slow = any(moment.what in CUT for moment in case.moments)
    with slow_disk(grouped.SYNC_S, grouped.COPY_S) if slow else slow_disk(0.0):
        job = launch(spec)
    injector = MomentInjector(job, list(case.faults), list(case.moments), out)
    where = f"seed {case.seed} ({job.path}; {[str(f) for f in (*case.faults, *case.moments)]})"
    status = survive(job, injector, start_s + TIMEOUT_S, where)
    check_fired([*injector.waiting, *injector.moments], where)
    check_clean(job, where)
    check_finals(out, recipe, wanted, where)
    check_logs(job, where)
    shutil.rmtree(out)
    shutil.rmtree(job.path)
    return {
        "seed": case.seed,
        "strategy": recipe.strategy,
        "ingredients": recipe.ingredients,
        "workers": case.num_workers,
        "servers": case.num_servers,
        "epochs": recipe.epochs,
        "faults": [*(str(fault) for fault, _ in injector.fired), *injector.hit],
        "missed": [str(moment) for moment in injector.missed],
        "epoch_no": status.epoch_no if status else None,
        "seconds": round(time.monotonic() - start_s, 2),
    }


def check_finals(out: Path, recipe: Recipe, wanted: Model, where: str) -> None:
    """Assert that every life that came to its end holds each sample, and the undisturbed model."""
    paths = sorted(out.glob("*.final"))
    assert paths, f"{where}: nobody came to the end"
    for path in paths:
        final = load_file(path)
        wrong = np.flatnonzero(np.abs(final["seen"] - recipe.epochs) > TOLERANCE)
        assert not wrong.size, (
            f"{where}: samples {wrong[:5]} count {final['seen'][wrong[:5]]} times"
        )
        name, distance = farthest(final, wanted)
        limit = 0.0 if recipe.bits else FLOAT64_LIMIT
        assert distance <= limit, (
            f"{where}: {path.name} is {distance:.1e} from the undisturbed model in {name}, "
            f"allowed {limit:g}"
        )


def main() -> None:
    """Run a range of seeds; resumable, since each seed stands alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:10", help="a:b, b excluded")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--strategy", choices=STRATEGIES, help="default: in turn")
    parser.add_argument(
        "--with", dest="ingredients", nargs="*", choices=INGREDIENTS, help="default: what holds"
    )
    options = parser.parse_args()
    chosen = None if options.ingredients is None else tuple(options.ingredients)

    def run_seed(seed: int) -> dict[str, object]:
        return run(case_of(seed, options.strategy, chosen))

    run_seeds(options.seeds, run_seed, keep_going=options.keep_going)


if __name__ == "__main__":
    main()
