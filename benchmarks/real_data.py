"""Wide & Deep on public and generated data: test AUC of paceline's jobs beside plain PyTorch's.

    python benchmarks/real_data.py [--data FOLDER] [--only adult] [--quick] [--json FILE]

``examples/02_wide_deep.py`` as users run it (``paceline run``) with 1, 2 and 4 workers and two
servers, in BSP and ASP, beside the same model in a plain PyTorch loop. The folder (also
``PACELINE_DATA``) holds the public files of UCI Adult and MovieLens-small; what is not there is
skipped and named. The generated click log, whose best possible AUC is known, needs no folder.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.cli import convert
from paceline.cli.ctr import CtrSettings
from paceline.cli.make_ctr import make_ctr

EXAMPLES = Path(__file__).parents[1] / "examples"
PACELINE = Path(sys.executable).with_name("paceline")
PLAIN, ALONE = "plain PyTorch", "script alone"
MODES, WORKERS, NUM_SERVERS = ("bsp", "asp"), (1, 2, 4), 2
CTR_ROWS = 500_000
NEAR_PLAIN, NEAR_BSP, NEAR_CEILING = 0.002, 0.003, 0.01

Aucs = dict[str, float]


class Recipe(NamedTuple):
    """How the example is run on one data set."""

    epochs: int
    lr: float = 0.02
    batch_size: int = 256

    @property
    def flags(self) -> list[str]:
        """For the script."""
        values = {"epochs": self.epochs, "lr": self.lr, "batch-size": self.batch_size}
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]


RECIPES = {"adult": Recipe(epochs=3), "movielens": Recipe(epochs=2), "ctr": Recipe(epochs=1)}


def convert_all(folder: Path | None, names: list[str], out: Path) -> dict[str, Path]:
    """Bring the data sets into the examples' layout; says what is not there."""
    found: dict[str, Path] = {}
    for name in names:
        target = out / name
        try:
            if name == "ctr":
                make_ctr(target, CTR_ROWS, CtrSettings())
            elif folder is None:
                print(f"{name}: skipped, no folder given (--data or PACELINE_DATA)")
                continue
            else:
                getattr(convert, name)(folder, target)
        except ConfigError as error:
            print(f"{name}: skipped, {error}")
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
    done = subprocess.run([*command, *recipe.flags], check=True, capture_output=True, text=True)
    return _auc_in(done.stdout)


def train_launched(data: Path, recipe: Recipe, mode: str, workers: int) -> float:
    """Run the example as a job; the AUC that its chief prints."""
    with tempfile.TemporaryDirectory() as home:
        command = [str(PACELINE), "run", str(EXAMPLES / "02_wide_deep.py")]
        sizes = ["--workers", str(workers), "--servers", str(NUM_SERVERS), "--mode", mode]
        env = os.environ | {"PACELINE_HOME": home}
        flags = ["--data", str(data), *recipe.flags]
        done = subprocess.run(
            [*command, *sizes, "--", *flags], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"paceline run failed:\n{done.stdout}{done.stderr}")
        (job,) = Path(home, "jobs").iterdir()
        return _auc_in((JobDir(job).logs / "worker-0.log").read_text())


def _auc_in(text: str) -> float:
    found = re.search(r"test AUC ([\d.]+)", text)
    if found is None:
        raise RuntimeError(f"no AUC in what the example printed:\n{text}")
    return float(found[1])


def measure(data: Path, recipe: Recipe, workers: tuple[int, ...]) -> Aucs:
    """The AUC of every way to train on one data set."""
    aucs = {PLAIN: train_plainly(data, recipe), ALONE: train_alone(data, recipe)}
    for mode in MODES:
        for count in workers:
            aucs[f"{mode} {count}"] = train_launched(data, recipe, mode, count)
    return aucs


def misses(name: str, aucs: Aucs, ceiling: float | None) -> list[str]:
    """Which goals are missed, and by how much."""
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
    parser = argparse.ArgumentParser(description="Test AUC of jobs beside plain PyTorch.")
    parser.add_argument("--data", type=Path, default=os.environ.get("PACELINE_DATA"))
    parser.add_argument("--only", choices=RECIPES, help="one data set")
    parser.add_argument("--quick", action="store_true", help="2 workers; nothing generated")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    names = [args.only] if args.only else [n for n in RECIPES if not (args.quick and n == "ctr")]
    told: dict[str, Mapping[str, Any]] = {}
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="real-data-") as folder:
        for name, data in convert_all(args.data, names, Path(folder)).items():
            recipe, ceiling = RECIPES[name], ceiling_of(data)
            aucs = measure(data, recipe, (2,) if args.quick else WORKERS)
            show(name, recipe, aucs, ceiling)
            missed += misses(name, aucs, ceiling)
            told[name] = {"recipe": recipe._asdict(), "auc": aucs, "ceiling": ceiling}
    print("\n".join(missed) or "all goals are met")
    if args.json:
        head = {"what": "test AUC", "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        args.json.write_text(json.dumps({**head, "data": told}, indent=1))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
