"""Optuna searches settings over paceline jobs: each trial is a job, a pruned trial a stopped one.

    pip install optuna
    python examples/optuna_search/search.py --trials 10

This program only starts jobs, reads their files, and stops them. So a trial survives what a job
survives: a worker that is killed costs a moment, and no wrong result.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna

TRAIN = Path(__file__).with_name("train.py")
LOSS = "held_out/loss"
PACELINE = (sys.executable, "-m", "paceline")


def paceline(*words: str) -> str:
    """Run a command of paceline; what it prints."""
    done = subprocess.run([*PACELINE, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"paceline {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def started(trial: optuna.Trial, workers: int, epochs: int) -> Path:
    """Start the job of a trial; its folder."""
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    width = trial.suggest_int("width", 4, 64, log=True)
    own = ("--rate", str(rate), "--width", str(width), "--epochs", str(epochs))
    name, nodes = f"trial-{trial.number}", str(workers)
    said = paceline("run", str(TRAIN), "--workers", nodes, "--name", name, "--detach", "--", *own)
    folder = re.search(r"^logs and results: (.+)$", said, re.MULTILINE)
    assert folder, said
    trial.set_user_attr("job", Path(folder[1]).name)
    return Path(folder[1])


def losses(job: Path) -> list[tuple[int, float]]:
    """Step and loss of each epoch so far. If a step came again, its newest line counts."""
    found: dict[int, float] = {}
    curves = job / "curves.jsonl"
    for line in curves.read_text().splitlines() if curves.exists() else []:
        try:
            point = json.loads(line)
        except ValueError:
            continue  # the last line, which is being written
        if LOSS in point["values"]:
            found[point["step"]] = float(point["values"][LOSS])
    return sorted(found.items())


def outcome(job: Path) -> dict[str, Any] | None:
    """How the job ended; None: it runs."""
    path = job / "outcome.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def stop(job: Path) -> None:
    """Stop a job, unless it has ended on its own."""
    try:
        if outcome(job) is None:
            paceline("stop", "--now", job.name)
    except RuntimeError:
        if outcome(job) is None:  # else it ended in this moment
            raise


def run_trial(trial: optuna.Trial, workers: int, epochs: int) -> float:
    """Follow a job to its end, or stop it where Optuna gives it up; its last loss."""
    job, told = started(trial, workers, epochs), 0
    try:
        while True:
            end = outcome(job)  # before the losses: those of an ended job are all there
            known = losses(job)
            for number, (_, loss) in enumerate(known[told:], told):
                trial.report(loss, number)
                if trial.should_prune():
                    raise optuna.TrialPruned
            told = len(known)
            if end is not None:
                if end["state"] != "finished" or not known:
                    raise RuntimeError(f"{job.name} {end['state']}: {end.get('error', '')}")
                return known[-1][1]
            time.sleep(0.2)
    finally:
        stop(job)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="of each job")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--at-a-time", type=int, default=1, help="trials that run together")
    parser.add_argument("--storage", help="e.g. sqlite:///search.db: the study goes on from there")
    options = parser.parse_args()

    study = optuna.create_study(
        study_name="paceline",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=10),
        storage=options.storage,
        load_if_exists=True,
    )
    study.optimize(
        lambda trial: run_trial(trial, options.workers, options.epochs),
        n_trials=options.trials,
        n_jobs=options.at_a_time,
    )
    for trial in study.trials:
        shown = {name: f"{value:.3g}" for name, value in trial.params.items()}
        print(trial.number, trial.user_attrs["job"], trial.state.name.lower(), trial.value, shown)
    print(f"best: {study.best_value:.4f} with {study.best_params}")


if __name__ == "__main__":
    main()
