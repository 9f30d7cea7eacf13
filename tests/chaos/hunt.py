"""Plants bugs into the processes of chaos jobs and looks whether the kit finds them.

``python -m tests.chaos.hunt [BUG ...]``: for each planted bug, the first of 50 seeds whose run
fails as this bug makes it fail. The seeds are the first 50 whose faults and modes can bring it out
(no plan without a lost server starts a new epoch, for example). Then all cases up to that one run
without the bug, but with what was planted to uncover it: these must pass.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from paceline.base.cgroups import remove_job
from paceline.base.jobdir import JobDir, home
from paceline.base.processes import find_job_processes, kill_quietly
from tests.chaos import models, run
from tests.chaos.run import Case

NUM_SEEDS = 50
PLANTER = Path(__file__).with_name("bugs")
HELD_UP = ("pause", "slow", "cut", "silence", "delay")
"""Faults after which messages of a living process are lost, late, or sent again."""


@dataclass(frozen=True)
class Kit:
    """What finds a bug: cases by seed, and how one is run."""

    case_of: Callable[[int], Any]
    """Without a slow disk: Python imports one sitecustomize only, and that is the planter's."""
    run: Callable[[Any], object]


def _model_case(seed: int) -> models.Case:
    return replace(models.case_of(seed, "allreduce"), moments=())


COUNTS = Kit(lambda seed: replace(run.case_of(seed), sync_s=0.0), run.run)
MODELS = Kit(_model_case, models.run)


@dataclass(frozen=True)
class Bug:
    """A bug, which cases can bring it out, and how it shows then."""

    name: str
    may_show: Callable[[Any], bool]
    shows: str
    """A pattern: what the run says, or a log of the job."""
    uncovered_by: tuple[str, ...] = ()
    """What is planted with it."""
    kit: Kit = COUNTS


def _does(case: Case | models.Case, kinds: Iterable[str], *roles: str) -> bool:
    return any(fault.kind in kinds and fault.role in roles for fault in case.faults)


def _needs_order(case: Case) -> bool:
    """A part that one of the two servers does not hold yet, or never will."""
    late = _does(case, HELD_UP, "worker", "server")
    return case.samples == "exactly-once" and case.num_servers > 1 and late


def _fences_the_living(case: Case) -> bool:
    """A worker that is taken for dead while others go on, and comes back."""
    silent = _does(case, ["silence"], "worker")
    return case.samples == "exactly-once" and case.num_workers > 1 and silent


def _goes_back(case: Case) -> bool:
    """A server is lost with what came after the last cut."""
    return case.samples == "exactly-once" and _does(case, ["kill"], "server")


def _leaves_a_server_behind(case: Case) -> bool:
    """A server is lost, and another one is still in the old epoch."""
    return case.num_servers > 1 and _does(case, ["kill"], "server")


def _repeats_parts(case: Case) -> bool:
    """An applied part comes again, and nothing may count twice."""
    return case.samples != "at-least-once" and _does(case, HELD_UP, "worker", "server")


def _joins(case: models.Case) -> bool:
    """A worker is lost, and its next life takes over the state of another one."""
    return case.num_workers > 1 and _does(case, ["kill"], "worker")


TWICE = "a sample was applied [2-9]|ledger says|that are in the model|are offered twice"
BUGS = [
    Bug("ready_before_all_held", _needs_order, "never held it|servers disagree"),
    Bug("fence_ignored", _fences_the_living, TWICE, ("silence_believed",)),
    Bug("ledger_not_rewound", _goes_back, "it hangs|a sample was applied 0"),
    Bug("duplicate_part_applied", _repeats_parts, TWICE),
    Bug(
        "newer_epoch_accepted",
        _leaves_a_server_behind,
        f"{TWICE}|servers disagree|never held it|it hangs",
        ("workers_told_first",),
    ),
    Bug("schedule_begins_again", _joins, "from the undisturbed model|diverged", kit=MODELS),
    Bug("momentum_lost", _joins, "from the undisturbed model|diverged", kit=MODELS),
]


def cases(bug: Bug) -> list[Any]:
    """The first 50 that can bring it out."""
    apt = (case for case in map(bug.kit.case_of, count()) if bug.may_show(case))
    return list(islice(apt, NUM_SEEDS))


def hunt(bug: Bug) -> bool:
    """Whether the bug was found, and nothing without it; says how."""
    tried = []
    for case in cases(bug):
        tried.append(case)
        said = failure(bug.kit, case, (bug.name, *bug.uncovered_by))
        sign = re.search(rf"[^\n\\]*({bug.shows})[^\n\\]*", said)
        if sign:
            print(f"{bug.name}: run {len(tried)}, seed {case.seed}: {sign[0].strip()}", flush=True)
            break
        if said:
            print(f"{bug.name}: seed {case.seed} failed otherwise: {said[:2000]}", flush=True)
    else:
        print(f"{bug.name}: not found in {NUM_SEEDS} seeds", flush=True)
        return False
    for case in tried:
        said = failure(bug.kit, case, bug.uncovered_by)
        if said:
            print(f"{bug.name}: seed {case.seed} fails without it: {said[:2000]}", flush=True)
            return False
    print(f"{bug.name}: without it, all {len(tried)} pass", flush=True)
    return True


def failure(kit: Kit, case: Any, plants: Iterable[str]) -> str:
    """What a run with these plants says, and the job's logs after it; empty: it passes."""
    home().mkdir(parents=True, exist_ok=True)
    own_home = Path(tempfile.mkdtemp(dir=home(), prefix=f"hunt-{case.seed}-"))
    path = os.pathsep.join(filter(None, [str(PLANTER), os.environ.get("PYTHONPATH")]))
    planted = {"PYTHONPATH": path, "PACELINE_PLANTS": ",".join(plants)}
    try:
        with patch.dict(os.environ, planted, PACELINE_HOME=str(own_home)):
            kit.run(case)
    except AssertionError as error:
        jobs = [JobDir(found) for found in own_home.glob("jobs/*")]
        logs = [log.read_text(errors="replace") for job in jobs for log in job.logs.iterdir()]
        for job in jobs:
            _end(job)
        return "\n".join([str(error), *logs])
    shutil.rmtree(own_home)
    return ""


def _end(job: JobDir) -> None:
    """A job broken on purpose may not end by itself."""
    while processes := find_job_processes(job.path):
        for process in processes:
            kill_quietly(process.pid)
        time.sleep(0.05)
    shutil.rmtree(job.run_dir, ignore_errors=True)
    remove_job(job.job_id)


def main() -> None:
    """Hunt the named bugs, or all of them."""
    names = [bug.name for bug in BUGS]
    parser = argparse.ArgumentParser()
    parser.add_argument("bugs", nargs="*", metavar="BUG", help=", ".join(names))
    wanted = parser.parse_args().bugs or names
    if unknown := set(wanted) - set(names):
        parser.error(f"no such bug: {', '.join(sorted(unknown))}")
    os.environ.setdefault("PACELINE_HOME", "/tmp/paceline-hunt")
    found = [hunt(bug) for bug in BUGS if bug.name in wanted]
    sys.exit(not all(found))


if __name__ == "__main__":
    main()
