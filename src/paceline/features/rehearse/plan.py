"""Plan of a rehearsal for a process, and what the process notes: files between the two.

The command writes a `RehearsalPlan` for each act and names it in the environment
(`PLAN`). The process of the script appends `Note`s to a file of its own, one JSON object per line.
Imports no torch.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

PLAN = "PACELINE_REHEARSAL"
"""Variable that names the file of the plan."""
LOOK_ON = "paceline.features.rehearse.process.in_job"
"""Module that puts the rehearsal into a process of a job."""
BEFORE_STEP, AT_END = "before step ", "the end of the script"
"""Names of places at which variables are taken."""
HELD_S = 20.0
"""Seconds for which a process waits at a moment for what the command does to the job, and for a
worker that was killed to be back."""

Moment = Literal["none", "loop", "batch", "evaluation"]
"""Moments of a fault: after the last batch of a loop, at a batch, within an evaluation."""


class Strike(Struct, frozen=True, kw_only=True):
    """One fault: where it strikes, and whom."""

    moment: Moment = "none"
    node: str = ""
    """Node whose process it strikes; empty: the first one that comes there."""
    loop: int = 0
    """Number of the loop over batches in this life of the process."""
    batch: int = 0
    """Number of the batch in that loop, from 1."""
    evaluation: int = 0
    """Number of the evaluation in this life of the process."""
    waits: bool = False
    """True: the process waits while the command acts. False: the process kills itself."""


class RehearsalPlan(Struct, frozen=True, kw_only=True):
    """Plan of what a process of one act does."""

    root: str
    """Copy of the script's folder, in which the act runs."""
    notes: str
    """Folder for what processes note."""
    batches: int
    """Batches of a loop, of each epoch."""
    epochs: int
    strike: Strike = Strike()
    on_servers: bool = False
    """Whether a lone process holds the model as parameter servers do."""
    checks: bool = False
    """Whether the process also notes what strategies would refuse."""

    @property
    def reached(self) -> Path:
        """File that says that the fault has struck."""
        return Path(self.notes) / "reached"

    @property
    def is_back(self) -> Path:
        """File that says that a life after the fault has come to its first loop."""
        return Path(self.notes) / "is-back"

    @property
    def go_on(self) -> Path:
        """File for which a process waits that has reached the moment."""
        return Path(self.notes) / "go-on"


class PlainLeaf(Struct, frozen=True, omit_defaults=True):
    """One plain value, or what is kept of a tensor."""

    number: float | None = None
    whole: bool = False
    """Whether the number is one of Python's ``int`` or ``bool``."""
    text: str = ""
    some: tuple[float, ...] = ()
    """Elements of a tensor, at places that follow from its size alone, and its norm at last."""


Leaves = dict[str, PlainLeaf]
"""Values by path: ``best``, ``history[2]``, ``meter.total``."""


class LifeBegan(Struct, frozen=True, tag="began"):
    """A process begins to run the script."""

    script: str


class PrintedLine(Struct, frozen=True, tag="printed"):
    """The script printed a line."""

    text: str
    file: str
    """Relative to the folder of the script; empty: not known."""
    line: int


class LoggedValues(Struct, frozen=True, tag="logged"):
    """The script called ``job.log``."""

    step: int
    values: dict[str, float]
    samples: int = 1
    """Samples of the batch in hand; 1 between loops, and where a batch does not say."""


class LoopDone(Struct, frozen=True, tag="loop"):
    """A loop over batches came to its end, or was left."""

    number: int
    batches: int
    left: bool = False


class EvaluationDone(Struct, frozen=True, tag="evaluation"):
    """A call of ``job.evaluate`` returned."""

    number: int
    file: str = ""
    line: int = 0
    draws: bool = False
    """Whether a module drew random numbers, since the model was in training mode."""


class TakenVariables(Struct, frozen=True, tag="variables"):
    """Variables of the script at one place of its course."""

    place: str
    values: Leaves


class PreparedModel(Struct, frozen=True, tag="prepared"):
    """The script called ``job.prepare``."""

    line: int
    draws: tuple[str, ...]
    """Modules that draw random numbers in training."""
    batch_norms: tuple[str, ...]
    """Modules that normalise over the batch."""


class RefusedCall(Struct, frozen=True, tag="refused"):
    """A strategy refused something, or would refuse it."""

    strategies: tuple[str, ...]
    message: str
    file: str = ""
    line: int = 0


class ScriptDied(Struct, frozen=True, tag="died"):
    """An error of the script ended it."""

    message: str
    file: str = ""
    line: int = 0


Note = (
    LifeBegan
    | PrintedLine
    | LoggedValues
    | LoopDone
    | EvaluationDone
    | TakenVariables
    | PreparedModel
    | RefusedCall
    | ScriptDied
)


class NotesOfLife(Struct, frozen=True, kw_only=True):
    """All that one life of one process noted."""

    node: str
    life: int
    notes: list[Note]
    began: Path | None = None
    """Weights that ``job.prepare`` got."""
    ended: Path | None = None
    """Weights at the end of the script."""


def encode(note: Note) -> bytes:
    """Return the line of a note."""
    return msgspec.json.encode(note) + b"\n"


def read_notes(folder: Path) -> Iterator[NotesOfLife]:
    """Read what the processes of an act noted, by node and life."""
    for path in sorted(folder.glob("*.notes"), key=_life_of):
        node, life = _life_of(path)
        lines = path.read_bytes().splitlines()
        weights = {word: path.with_suffix(f".{word}.npz") for word in ("began", "ended")}
        yield NotesOfLife(
            node=node,
            life=life,
            notes=[*_decoded(lines)],
            **{word: file for word, file in weights.items() if file.exists()},
        )


def _life_of(path: Path) -> tuple[str, int]:
    node, _, life = path.stem.rpartition(".")
    return node, int(life)


def _decoded(lines: list[bytes]) -> Iterator[Note]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=Note)
        except msgspec.DecodeError:  # of a process that was killed while it wrote
            continue


def environment(plan: Path) -> Mapping[str, str]:
    """Return the variables that put a rehearsal into the processes of a job."""
    return {PLAN: str(plan), "PACELINE_LOOK_ON": LOOK_ON}
