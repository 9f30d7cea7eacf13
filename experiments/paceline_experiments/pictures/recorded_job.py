"""The job that the live view and the cast show: one of its four workers is killed."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline_experiments.pictures.drawing import Pane, Screen, draw
from paceline_experiments.pictures.recording import RecordedShell

SCRIPT = Path(__file__).with_name("train.py")
RUN, KILL = f"paceline run {SCRIPT.name} --workers 4", "paceline kill --worker 2"
VICTIM = "worker-2 "
COLUMNS, ROWS, KILL_ROWS = 100, 22, 4
IDLE_S = 1.5
"""Longest time for which the cast shows the same; what was longer is cut to this."""
BEFORE_S = 9.0
"""Seconds of training before the kill."""
END_S = 240.0
PROMPT = "$"
KILLED = "killed by order"


@contextmanager
def _shells() -> Iterator[tuple[RecordedShell, RecordedShell]]:
    """Two shells in a folder that has the script; jobs are kept beside it, and removed."""
    # The drawings of the job's report may still be made when the folder goes.
    with tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        shutil.copy(SCRIPT, home)
        environment = {key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ}
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PACELINE_HOME": name,
            "PS1": f"{PROMPT} ",
            "TERM": "xterm-256color",
            "HISTFILE": os.devnull,
        }
        first = RecordedShell(COLUMNS, ROWS, home, environment)
        second = RecordedShell(COLUMNS, KILL_ROWS, home, environment)
        try:
            yield first, second
        finally:
            # If the recording failed, its job still runs.
            subprocess.run(
                ["paceline", "stop", "--now"], env=environment, capture_output=True, check=False
            )
            first.close()
            second.close()


def record() -> tuple[Pane, Pane]:
    """Run the job in one shell, kill in another, and return what both have shown.

    Raises:
        TimeoutError: the job does not train, or does not end.
    """
    with _shells() as (first, second):
        for shell in (first, second):
            shell.await_screen(lambda text: text.strip() == PROMPT, END_S)
        time.sleep(1.0)
        first.type(RUN)
        first.await_screen(lambda text: "  training  " in text, END_S)
        time.sleep(BEFORE_S)
        second.type(KILL)
        first.await_screen(lambda text: KILLED in text, END_S)
        first.await_screen(lambda text: text.rstrip().endswith(f"\n{PROMPT}"), END_S)
        return (
            Pane("a job", COLUMNS, ROWS, list(first.screens())),
            Pane("another shell", COLUMNS, KILL_ROWS, list(second.screens())),
        )


def live(first: Pane) -> str:
    """Draw the first screen that tells of the kill, and has no times of the worker's new life yet.

    If a look came too late to see that, the first screen that tells of the kill is drawn.
    """
    after = [screen for screen in first.screens if KILLED in _text(screen)]
    found = next(filter(_awaits_victim, after), after[0])
    rows = max(number for number, line in enumerate(found.lines, 1) if line)
    title = "The live view of a job of four workers, one of which was killed just now"
    return draw(title, [Pane(RUN, first.columns, rows, [found])])


def _awaits_victim(screen: Screen) -> bool:
    row = next((line for line in screen.lines if line and line[0].text.startswith(VICTIM)), ())
    return bool(row) and not any("█" in run.text for run in row)


def cast(panes: tuple[Pane, Pane]) -> str:
    """Draw all that both shells have shown."""
    times = sorted({screen.at_s for pane in panes for screen in pane.screens})
    shown_s, at_s = {}, 0.0
    for before_s, time_s in zip([times[0], *times], times, strict=False):
        at_s += min(time_s - before_s, IDLE_S)
        shown_s[time_s] = at_s
    return draw(
        "A job is run, one of its workers is killed, and the job goes on to its end",
        [
            pane._replace(screens=[Screen(shown_s[one.at_s], one.lines) for one in pane.screens])
            for pane in panes
        ],
    )


def _text(screen: Screen) -> str:
    return "\n".join("".join(run.text for run in line) for line in screen.lines)
