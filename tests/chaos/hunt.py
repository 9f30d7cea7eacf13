"""Plants bugs into the processes of chaos jobs and looks whether the kit finds them.

``python -m tests.chaos.hunt [BUG ...]``: for each planted bug, the first of 50 seeds whose run fails.
The cases are those of exactly-once and at-most-once in which a worker or a server is lost.
"""

import argparse
import os
import sys
from pathlib import Path

from paceline.base.processes import find_job_processes
from tests.chaos.bugs.sitecustomize import BUGS
from tests.chaos.run import Case, case_of, run

NUM_SEEDS = 50


def cases() -> list[Case]:
    """The first 50 cases in which a worker or a server is lost, and nothing may count twice."""
    found = (case_of(seed) for seed in range(10_000))
    deadly = (case for case in found if case.samples != "at-least-once" and _is_deadly(case))
    return [next(deadly) for _ in range(NUM_SEEDS)]


def _is_deadly(case: Case) -> bool:
    lost = ("kill", "silence")
    return any(f.kind in lost and f.role in ("worker", "server") for f in case.faults)


def hunt(bug: str) -> tuple[int, str] | None:
    """How many runs it took to see the bug, and how it showed; None: it did not."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).with_name("bugs")), before])
    )
    os.environ["PACELINE_PLANTED_BUG"] = bug
    try:
        for number, case in enumerate(cases(), 1):
            try:
                run(case)
            except AssertionError as error:
                return number, str(error)
            finally:
                _end_all()
    finally:
        del os.environ["PACELINE_PLANTED_BUG"]
        os.environ["PYTHONPATH"] = before
    return None


def _end_all() -> None:
    """A job broken on purpose may not end by itself."""
    for path in Path(os.environ["PACELINE_HOME"]).glob("jobs/*"):
        for process in find_job_processes(path):
            os.kill(process.pid, 9)


def main() -> None:
    """Hunt the named bugs, or all of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bugs", nargs="*", default=list(BUGS))
    options = parser.parse_args()
    os.environ.setdefault("PACELINE_HOME", "/tmp/paceline-hunt")
    missed = []
    for bug in options.bugs or BUGS:
        found = hunt(bug)
        if found is None:
            missed.append(bug)
            print(f"{bug}: not found in {NUM_SEEDS} seeds", flush=True)
        else:
            print(f"{bug}: found by run {found[0]}: {found[1][:300]}", flush=True)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
