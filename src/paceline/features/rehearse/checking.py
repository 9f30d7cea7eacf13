"""A check: what each strategy would refuse of a script, seen in one batch without services.

The script runs twice, side by side: as it does alone, and with its model held as parameter servers
hold it, in the same process. The second run meets what servers refuse, also after the training.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event
from time import monotonic

from paceline.features.rehearse.acts import Acting, PlayedAct, Theatre
from paceline.features.rehearse.findings import Check, Refusal
from paceline.features.rehearse.plan import (
    Note,
    PreparedModel,
    RefusedCall,
    ScriptDied,
)
from paceline.features.rehearse.source import Source
from paceline.wire import strategies

STRATEGIES = ("allreduce", "fsdp", "ps")
NOT_SHARDED = (
    "no model is sharded; call torch's fully_shard(model) before job.prepare, or run the job with "
    "--strategy allreduce, where every worker holds all of the model"
)
POLL_S = 0.05


def check_script(
    script: Path, args: tuple[str, ...], seconds: float, tick: Callable[[], None]
) -> Check:
    """Check one script.

    Raises:
        ConfigError: the script is not there, or its folder cannot be copied.
    """
    start_s = monotonic()
    theatre = Theatre(script, args, batches=1, epochs=1, until_s=start_s + seconds, tick=tick)
    try:
        alone, servers = _run_both(theatre, tick)
        found = (_as_alone(alone), *(_of(name, alone, servers) for name in STRATEGIES))
    finally:
        theatre.close()
    return Check(
        script=str(script),
        strategies=found,
        seconds=monotonic() - start_s,
        error=_error(alone),
    )


def _run_both(theatre: Theatre, tick: Callable[[], None]) -> tuple[PlayedAct, PlayedAct]:
    actings = (
        Acting(name="alone", checks=True),
        Acting(name="servers", checks=True, on_servers=True),
    )
    runs, pause = [], Event()
    try:
        for acting in actings:
            runs.append(theatre.start(acting))
        waiting = list(runs)
        while waiting and theatre.left_s > 0:
            waiting = [run for run in waiting if not run.is_over()]
            tick()
            pause.wait(POLL_S)
        alone, servers = (run.result() for run in runs)
        return alone, servers
    finally:
        for run in runs:
            run.close()


def _notes(acted: PlayedAct) -> list[Note]:
    return [note for life in acted.lives for note in life.notes]


def _error(alone: PlayedAct) -> str:
    for note in _notes(alone):
        if isinstance(note, ScriptDied):
            where = f"{note.file}:{note.line}: " if note.line else ""
            return f"{where}{note.message}"
    refused = any(isinstance(note, RefusedCall) for note in _notes(alone))
    if alone.code and not refused:
        return f"exit code {alone.code}: " + " ".join(alone.tail[-1:])
    return ""


def _as_alone(alone: PlayedAct) -> Refusal:
    notes = ["one batch took too long: what comes after it was not seen"]
    return _refusal("alone", _refused(alone, "alone"), notes if alone.code is None else [])


def _of(strategy: str, alone: PlayedAct, servers: PlayedAct) -> Refusal:
    found, notes = list(_refused(alone, strategy)), list[str]()
    traits = strategies.STRATEGIES[strategy]
    if traits.has_servers:
        found += [one for one in _refused(servers, "ps") if one not in found]
        found += _died_there(alone, servers)
    elif traits.holder == "shards" and not _calls(alone, "fully_shard"):
        found.append(RefusedCall(("fsdp",), f"job.prepare: {NOT_SHARDED}", *_prepared(alone)))
    else:
        notes += _norms(alone)
    return _refusal(strategy, found, notes)


def _refusal(strategy: str, found: Iterable[RefusedCall], notes: list[str]) -> Refusal:
    unique = {(one.message, one.file, one.line): one for one in found}
    return Refusal(
        strategy=strategy,
        refused=bool(unique),
        messages=tuple(one.message for one in unique.values()),
        places=tuple(f"{one.file}:{one.line}" if one.line else "" for one in unique.values()),
        notes=tuple(notes),
    )


def _refused(acted: PlayedAct, strategy: str) -> Iterator[RefusedCall]:
    notes = _notes(acted)
    return (one for one in notes if isinstance(one, RefusedCall) and strategy in one.strategies)


def _died_there(alone: PlayedAct, servers: PlayedAct) -> Iterator[RefusedCall]:
    """An error that the script has on servers alone."""
    if _error(alone):
        return
    for note in _notes(servers):
        if isinstance(note, ScriptDied):
            yield RefusedCall(("ps",), note.message, note.file, note.line)


def _prepared(alone: PlayedAct) -> tuple[str, int]:
    for note in _notes(alone):
        if isinstance(note, PreparedModel):
            return alone.stage.script.name, note.line
    return "", 0


def _norms(alone: PlayedAct) -> Iterator[str]:
    for note in _notes(alone):
        if isinstance(note, PreparedModel) and note.batch_norms:
            yield (
                f"{alone.stage.script.name}:{note.line}: {note.batch_norms[0]} normalises over "
                "what one worker computes of a batch, so results follow the number of workers; "
                "nn.GroupNorm and nn.LayerNorm do not"
            )
            return


def _calls(alone: PlayedAct, name: str) -> bool:
    text = alone.stage.script.read_text(errors="replace")
    return bool(Source(alone.stage.script.name, text).calls(name))
