"""The comparable part of an act: its notes put together, over all lives of each process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from safetensors.numpy import load_file

from paceline.features.rehearse.acts import PlayedAct
from paceline.features.rehearse.plan import (
    EvaluationDone,
    Leaves,
    LoggedValues,
    LoopDone,
    NotesOfLife,
    PreparedModel,
    PrintedLine,
    TakenVariables,
)

CHIEF = "worker-0"
Weights = Mapping[str, Any]


class LoggedMean(NamedTuple):
    """Values that the workers logged for one step."""

    mean: float
    """Over the samples."""
    samples: int


class ObservedAct(Struct, frozen=True, kw_only=True):
    """One act, as it is compared."""

    printed: list[PrintedLine] = []
    """Lines that the first worker printed, in all its lives."""
    logged: Mapping[str, Mapping[int, LoggedMean]] = {}
    """Means of the logged values, by name and step."""
    variables: Mapping[str, Mapping[str, Leaves]] = {}
    """Variables by node and place, of the newest life that came there."""
    files: Mapping[str, Leaves] = {}
    weights: Mapping[str, Weights] = {}
    """Weights by node, at the end of the script."""
    began: Weights = {}
    draws: tuple[str, ...] = ()
    batch_norms: tuple[str, ...] = ()
    loops: Mapping[str, list[int]] = {}
    """Batches of each loop in a node's first life, by node."""
    first_ended: int | None = None
    """Number of the first worker's first loop that came to its end; None: all were left."""
    evaluations: int = 0
    drawing: tuple[str, ...] = ()
    """Places of evaluations that draw random numbers."""


def observe(acted: PlayedAct, files: Mapping[str, Leaves], exported: Path | None) -> ObservedAct:
    """Put together what was noted of an act.

    Args:
        acted: the act.
        files: what it wrote.
        exported: file of the model; None: workers hold it.
    """
    lives = list(acted.lives)
    ended = {one.node: _arrays(one.ended) for one in lives if one.ended is not None}
    if exported is not None and exported.exists():
        ended = {"servers": load_file(exported)}
    began = next((one.began for one in lives if one.began is not None), None)
    models = [note for life in lives for note in life.notes if isinstance(note, PreparedModel)]
    chief = CHIEF if any(one.node == CHIEF for one in lives) else "alone"
    evaluated = [note for life in lives for note in life.notes if isinstance(note, EvaluationDone)]
    return ObservedAct(
        drawing=tuple(dict.fromkeys(f"{one.file}:{one.line}" for one in evaluated if one.draws)),
        printed=[
            note
            for life in lives
            if life.node == chief
            for note in life.notes
            if isinstance(note, PrintedLine) and note.text.strip()
        ],
        logged=_logged(lives),
        variables=_variables(lives),
        files=files,
        weights=ended,
        began=_arrays(began) if began is not None else {},
        draws=models[0].draws if models else (),
        batch_norms=models[0].batch_norms if models else (),
        loops=_loops(lives),
        first_ended=_first_ended(lives, chief),
        evaluations=max(
            (sum(isinstance(note, EvaluationDone) for note in life.notes) for life in lives),
            default=0,
        ),
    )


def _arrays(path: Path) -> Weights:
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


def _loops(lives: list[NotesOfLife]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for life in lives:
        batches = [note.batches for note in life.notes if isinstance(note, LoopDone)]
        found.setdefault(life.node, batches)
    return found


def _first_ended(lives: list[NotesOfLife], node: str) -> int | None:
    notes = next((life.notes for life in lives if life.node == node), [])
    loops = (note for note in notes if isinstance(note, LoopDone))
    return next((one.number for one in loops if one.batches and not one.left), None)


def _variables(lives: list[NotesOfLife]) -> dict[str, dict[str, Leaves]]:
    found: dict[str, dict[str, Leaves]] = {}
    for life in lives:
        places: dict[str, Leaves] = {}
        for note in life.notes:
            if isinstance(note, TakenVariables):
                # A body that runs again for a broken step has seen the same place before.
                places.setdefault(note.place, note.values)
        found[life.node] = {**found.get(life.node, {}), **places}
    return found


def _logged(lives: list[NotesOfLife]) -> dict[str, dict[int, LoggedMean]]:
    of_node: dict[tuple[str, int], dict[str, tuple[float, int]]] = {}
    for life in lives:
        for note in life.notes:
            if isinstance(note, LoggedValues):
                for name, value in note.values.items():
                    of_node.setdefault((name, note.step), {})[life.node] = value, note.samples
    found: dict[str, dict[int, LoggedMean]] = {}
    for (name, step), values in sorted(of_node.items()):
        samples = sum(count for _, count in values.values())
        mean = sum(value * count for value, count in values.values()) / max(samples, 1)
        found.setdefault(name, {})[step] = LoggedMean(mean, samples)
    return found
