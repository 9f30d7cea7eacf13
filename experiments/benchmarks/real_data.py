"""Wide & Deep on public and generated data: test AUC of paceline's jobs beside plain PyTorch's.

    python benchmarks/real_data.py [--data FOLDER] [--only adult] [--quick] [--json FILE]

``examples/02_wide_deep.py`` as users run it (``paceline run``) with 1, 2 and 4 workers and two
servers, in BSP and ASP, beside the same model in a plain PyTorch loop. The folder (optional, also
``PACELINE_DATA``) holds the public files of UCI Adult and MovieLens-small; what is not there is
skipped and named. The generated click log, whose best possible AUC is known, needs no folder.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from paceline_experiments import harness
from torch.nn.functional import binary_cross_entropy_with_logits

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.features.data import convert
from paceline.features.data.ctr import CtrSettings
from paceline.features.data.make_ctr import make_ctr

EXAMPLES = Path(__file__).parents[2] / "examples"
PACELINE = Path(sys.executable).with_name("paceline")
PLAIN, ALONE = "plain PyTorch", "script alone"
MODES, WORKERS, NUM_SERVERS = ("bsp", "asp"), (1, 2, 4), 2
CTR_ROWS, QUICK_ROWS = 500_000, 4_000
NEAR_PLAIN, NEAR_BSP, NEAR_CEILING = 0.002, 0.003, 0.01

Aucs = dict[str, float]


class Recipe(NamedTuple):
    """Recipe by which the example is run on one data set."""

    epochs: int
    lr: float = 0.02
    batch_size: int = 256

    @property
    def flags(self) -> list[str]:
        """Flags for the script."""
        values = {"epochs": self.epochs, "lr": self.lr, "batch-size": self.batch_size}
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]


RECIPES = {"adult": Recipe(epochs=3), "movielens": Recipe(epochs=2), "ctr": Recipe(epochs=1)}


def convert_all(folder: Path | None, names: list[str], out: Path, ctr_rows: int) -> dict[str, Path]:
    """Bring the data sets into the examples' layout; says what is not there."""
    found: dict[str, Path] = {}
    for name in names:
        target = out / name
        try:
            if name == "ctr":
                make_ctr(target, ctr_rows, CtrSettings())
            elif folder is None:
                harness.skipped(name, "no folder given (--data or PACELINE_DATA)")
                continue
            else:
                getattr(convert, name)(folder, target)
        except ConfigError as error:
            harness.skipped(name, str(error))
            continue
        found[name] = target
    return found


def train_plainly(data: Path, recipe: Recipe, seed: int = 0) -> float:
    """Train the example's model in a loop of PyTorch alone; the AUC on test."""
    ctr, wide_deep = import_module("ctr"), import_module("02_wide_deep")
    train, test = (ctr.in_one_table(part) for part in ctr.load(data, 0))
    torch.manual_seed(seed)
    model = wide_deep.WideDeep(train.num_dense, train.vocab)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=recipe.lr)
    for _ in range(recipe.epochs):
        for indices in torch.randperm(len(train)).split(recipe.batch_size):
            batch = train.__getitems__(indices)
            logits = model(batch.dense, batch.ids)
            binary_cross_entropy_with_logits(logits, batch.label).backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        score = model(test.rows.dense, test.rows.ids)
    return float(ctr.auc(score, test.rows.label))


def train_alone(data: Path, recipe: Recipe) -> float:
    """Run the example without a launcher; the AUC it prints."""
    command = [sys.executable, str(EXAMPLES / "02_wide_deep.py"), "--data", str(data)]
    return _auc_in(ALONE, harness.output_of(ALONE, [*command, *recipe.flags]))


def train_launched(data: Path, recipe: Recipe, mode: str, workers: int) -> float:
    """Run the example as a job; the AUC that its chief prints."""
    with tempfile.TemporaryDirectory() as home:
        command = [str(PACELINE), "run", str(EXAMPLES / "02_wide_deep.py")]
        sizes = ["--workers", str(workers), "--servers", str(NUM_SERVERS), "--mode", mode]
        flags = ["--data", str(data), *recipe.flags]
        arm = f"{mode} {workers}"
        harness.output_of(arm, [*command, *sizes, "--", *flags], {"PACELINE_HOME": home})
        (job,) = Path(home, "jobs").iterdir()
        return _auc_in(arm, (JobDir(job).logs / "worker-0.log").read_text())


def _auc_in(arm: str, text: str) -> float:
    found = re.search(r"test AUC ([\d.]+)", text)
    if found is None:
        raise harness.failure(arm, f"no AUC in what the example printed:\n{text}")
    return float(found[1])


def measure(data: Path, recipe: Recipe, modes: tuple[str, ...], workers: tuple[int, ...]) -> Aucs:
    """The AUC of every way to train on one data set."""
    aucs = {PLAIN: train_plainly(data, recipe), ALONE: train_alone(data, recipe)}
    for mode in modes:
        for count in workers:
            aucs[f"{mode} {count}"] = train_launched(data, recipe, mode, count)
    return aucs


def misses(name: str, aucs: Aucs, ceiling: float | None) -> list[str]:
    """List which goals are missed, and by how much."""
    missed = []
    for way, auc in aucs.items():
        mode, _, count = way.partition(" ")
        if mode not in MODES:
            continue
        apart = auc - aucs[PLAIN]
        if name == "adult" and abs(apart) > NEAR_PLAIN:
            missed.append(f"{name}: {way} is {apart:+.4f} from plain PyTorch")
        if mode == "asp" and aucs[f"bsp {count}"] - auc > NEAR_BSP:
            missed.append(f"{name}: {way} is {auc - aucs[f'bsp {count}']:+.4f} from bsp {count}")
        if ceiling is not None and ceiling - auc > NEAR_CEILING:
            missed.append(f"{name}: {way} is {ceiling - auc:.4f} below the ceiling")
    return missed


def ceiling_of(data: Path) -> float | None:
    """The best possible AUC on test, where it is known."""
    found: float | None = json.loads((data / "meta.json").read_text()).get("bayes_auc")
    return found


def show(name: str, recipe: Recipe, aucs: Aucs, ceiling: float | None) -> None:
    """Print a data set's part of the table."""
    best = f", best possible {ceiling:.4f}" if ceiling else ""
    print(f"{name}: {recipe.epochs} epochs, batch {recipe.batch_size}, lr {recipe.lr}{best}")
    for way, auc in aucs.items():
        print(f"  {way:14s} {auc:.4f}  {auc - aucs[PLAIN]:+.4f}", flush=True)


def main() -> int:
    """Print the AUCs; 1: a goal is missed."""
    quick = "a small click log, bsp, 1 worker; goals do not count"
    parser = harness.parser(__doc__, quick)
    parser.add_argument("--data", type=Path, default=os.environ.get("PACELINE_DATA"))
    parser.add_argument("--only", choices=RECIPES, help="one data set")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    modes, workers, ctr_rows = MODES, WORKERS, CTR_ROWS
    if args.quick:
        args.only, modes, workers, ctr_rows = "ctr", MODES[:1], (1,), QUICK_ROWS
    names = [args.only] if args.only else list(RECIPES)
    told: dict[str, Mapping[str, Any]] = {}
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="real-data-") as folder:
        for name, data in convert_all(args.data, names, Path(folder), ctr_rows).items():
            recipe, ceiling = RECIPES[name], ceiling_of(data)
            aucs = measure(data, recipe, modes, workers)
            show(name, recipe, aucs, ceiling)
            missed += misses(name, aucs, ceiling)
            told[name] = {"recipe": recipe._asdict(), "auc": aucs, "ceiling": ceiling}
    if not told:
        raise harness.failure(", ".join(names), "none of these data sets is there")
    print("\n".join(missed) or "all goals are met")
    harness.report("real_data", {"what": "test AUC", "data": told}, file=args.json)
    return int(bool(missed) and not args.quick)


if __name__ == "__main__":
    harness.run(main)
