"""Notes of one process on its script during a rehearsal, and the fault that strikes it.

`Looking` finds the frames of the script on the stack, so that it knows which line printed and what
the variables of its functions are, and appends notes to the file of this life.
"""

import atexit
import linecache
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from time import monotonic
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import msgspec
import numpy as np

from paceline.features.rehearse.plan import (
    AT_END,
    HELD_S,
    PLAN,
    EvaluationDone,
    Leaves,
    LifeBegan,
    LoopDone,
    Note,
    PrintedLine,
    RehearsalPlan,
    TakenVariables,
    encode,
)
from paceline.features.rehearse.process.leaves import leaves_of
from paceline.runtime.variables.frames import is_scripts_module

POLL_S = 0.02
SLOW_S = 0.15
SLOW_BATCHES = 6
"""Number of batches that take longer when a worker that was killed is back: it needs that time to
join."""

BARS = frozenset("━╸╺█▏▎▍▌▋▊▉")


class Looking:
    """The notes of one life of a process.

    Args:
        plan: of the act.
        node: name of the node; ``alone`` without a job.
        life: number of the life.
        leaving: tells whether the job was told to stop, so that the script leaves its loops.
    """

    def __init__(
        self, plan: RehearsalPlan, node: str, life: int, leaving: Callable[[], bool]
    ) -> None:
        self.plan, self.node, self._leaving = plan, node, leaving
        self._base = Path(plan.notes) / f"{node}.{life}"
        self._file = self._base.with_name(f"{self._base.name}.notes").open("ab", buffering=0)
        self._pid = os.getpid()
        self._loops = self._evaluations = self._slow_batches = 0
        self._comes_after = plan.reached.exists()
        """Whether the fault struck before this life began."""
        self.on_end: list[Callable[[], None]] = []
        """Called when the script has come to its end, before its variables go."""

    def begin(self, script: str) -> None:
        """The script is about to run."""
        self.note(LifeBegan(script))
        sys.stdout = _Tee(sys.stdout, self)
        atexit.register(self._end)

    def note(self, note: Note) -> None:
        """Append a note; nothing in a process that the script forked."""
        if os.getpid() == self._pid:
            self._file.write(encode(note))

    def _end(self) -> None:
        if os.getpid() != self._pid or self._leaving():
            return
        main = sys.modules["__main__"].__dict__
        self._take(AT_END, [main])
        for call in self.on_end:
            call()

    # ------------------------------------------------------------------ the script's lines

    def frames(self) -> Iterator[FrameType]:
        """The frames of the script, the innermost first."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._is_mine(frame.f_code):
                yield frame
            frame = frame.f_back

    def _is_mine(self, code: CodeType) -> bool:
        name = code.co_filename
        return name.startswith(self.plan.root + os.sep) and "site-packages" not in name

    def place(self, *, but: str = "") -> tuple[str, int]:
        """File and line of the script that runs now, in another function than one of this name."""
        frame = next((one for one in self.frames() if one.f_code.co_name != but), None)
        if frame is None:
            return "", 0
        return os.path.relpath(frame.f_code.co_filename, self.plan.root), frame.f_lineno

    def is_leaving_a_loop(self) -> bool:
        """Tell whether the script runs a ``break`` or a ``return``, not away from an error."""
        frame = next(self.frames(), None)
        if frame is None:
            return False
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        return "break" in line or "return" in line

    def printed(self, text: str) -> None:
        """The script printed a line; a progress bar's shows how far it was when it was drawn."""
        if BARS & set(text):
            return
        # Some scripts have a `print` of their own around Python's.
        file, line = self.place(but="print")
        self.note(PrintedLine(text.replace(self.plan.root, "."), file, line))

    def take(self, place: str) -> None:
        """Note the variables of all functions of the script that are on the stack."""
        if os.getpid() != self._pid or self._leaving():
            return
        main = sys.modules["__main__"].__dict__
        self._take(place, [main, *(frame.f_locals for frame in reversed([*self.frames()]))])

    def _take(self, place: str, spaces: list[Mapping[str, Any]]) -> None:
        mine = ("__main__", *_modules_of_script())
        values: Leaves = {}
        for space in spaces:
            for name, value in list(space.items()):
                if not (name.startswith("_") or isinstance(value, _NO_VARIABLES)):
                    values |= leaves_of(name, value, mine)
        root = self.plan.root  # another one in each act
        for path, leaf in values.items():
            if root in leaf.text:
                values[path] = msgspec.structs.replace(leaf, text=leaf.text.replace(root, "."))
        self.note(TakenVariables(place, values))

    def keep(self, word: str, weights: Mapping[str, Any]) -> None:
        """Write the weights of a moment, for comparison."""
        if os.getpid() == self._pid:
            np.savez(self._base.with_name(f"{self._base.name}.{word}.npz"), **weights)

    # ------------------------------------------------------------------ the script's course

    def begin_loop(self) -> int:
        """A loop over batches begins; return its number in this life."""
        if self._comes_after and os.getpid() == self._pid:
            self.plan.is_back.touch()
        self._loops += 1
        return self._loops - 1

    def at_batch(self, loop: int, batch: int) -> None:
        """The script gets a batch."""
        strike = self.plan.strike
        if strike.moment == "batch" and (strike.loop, strike.batch) == (loop, batch):
            self._strike()
        if not (strike.waits or self._comes_after) and strike.moment != "none":
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        """Have a worker that was killed take part in what is left of a short job."""
        if not self.plan.reached.exists() or self._slow_batches >= SLOW_BATCHES:
            return
        self._wait(self.plan.is_back.exists)
        self._slow_batches += 1
        Event().wait(SLOW_S)

    def leave_loop(self, loop: int, batches: int) -> None:
        """The script left a loop over batches."""
        self.note(LoopDone(loop, batches, left=True))

    def end_loop(self, loop: int, batches: int) -> None:
        """A loop over batches came to its end."""
        self.note(LoopDone(loop, batches))
        strike = self.plan.strike
        if strike.moment == "loop" and strike.loop == loop and batches:
            self._strike()

    def evaluating(self, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Have a fault strike within this evaluation, if the plan says so."""
        number, strike = self._evaluations, self.plan.strike
        if strike.moment != "evaluation" or strike.evaluation != number:
            return compute

        def struck(batch: Any) -> Any:
            self._strike()
            return compute(batch)

        return struck

    def evaluated(self, *, draws: bool) -> None:
        """An evaluation returned.

        Args:
            draws: a module drew random numbers.
        """
        self.note(EvaluationDone(self._evaluations, *self.place(), draws))
        self._evaluations += 1

    def _strike(self) -> None:
        """Kill this process, or let the command act: once in a job."""
        strike = self.plan.strike
        if strike.node not in ("", self.node) or os.getpid() != self._pid:
            return
        try:
            self.plan.reached.touch(exist_ok=False)
        except FileExistsError:
            return
        if not strike.waits:
            os.kill(self._pid, signal.SIGKILL)
        self._wait(self.plan.go_on.exists)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        until_s, pause = monotonic() + HELD_S, Event()
        while not is_over() and monotonic() < until_s:
            pause.wait(POLL_S)


_NO_VARIABLES = (ModuleType, FunctionType, type)


def _modules_of_script() -> list[str]:
    """Names of the modules that are the script's own, also of a package that lies elsewhere."""
    return [name for name in [*sys.modules] if is_scripts_module(name)]


class _Tee:
    """A stream that also has each line noted."""

    def __init__(self, stream: Any, looking: Looking) -> None:
        self._stream, self._looking, self._rest = stream, looking, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._looking.printed(line)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def plan_here() -> RehearsalPlan:
    """Read the plan that the environment names."""
    return msgspec.json.decode(Path(os.environ[PLAN]).read_bytes(), type=RehearsalPlan)
