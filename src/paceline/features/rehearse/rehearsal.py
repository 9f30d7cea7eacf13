"""A rehearsal: which acts there are, in which order, and what each is compared with.

The script alone comes first, then each strategy: two workers undisturbed, and the same job with a
fault. An undisturbed job is compared with the script alone, a disturbed one with the undisturbed
one.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from time import monotonic

import msgspec
from msgspec import Struct

from paceline.base.processes import SAFE_PATH
from paceline.features.rehearse.acts import Acting, PlayedAct, Theatre
from paceline.features.rehearse.compare import Comparison, Names, own_values
from paceline.features.rehearse.findings import ActVerdict, Finding, Rehearsal, State
from paceline.features.rehearse.numbers import Tolerance
from paceline.features.rehearse.observed import CHIEF, ObservedAct, observe
from paceline.features.rehearse.plan import RefusedCall, Strike
from paceline.features.rehearse.source import Source
from paceline.features.rehearse.written import read_written, without_run
from paceline.jobs.outcome import End, code_of
from paceline.wire.strategies import STRATEGIES

ALONE = "alone"
UNDISTURBED = "undisturbed"
SECOND = "worker-1"
ON_SERVERS = ("ps", "fsdp")
"""Strategies whose model is exported from the last cut."""
TO_UNDISTURBED = Tolerance(values=1e-3, weights=1e-2)
TO_ALONE = Tolerance(values=5e-3, weights=3e-2)
EXACT = Tolerance(values=1e-6, weights=1e-6)
COUNTS = Tolerance(values=1e30, weights=1e30)
"""Tolerance with which whole numbers and texts alone are compared."""
LEAST_S, TIMES = 60.0, 8
"""Least seconds after which an act is broken off, and multiple of the longest act before it."""
_WORDS = (
    "weights may differ by 1 % of how far training moved them, and values by 0.1 %, between a "
    "disturbed job and the undisturbed one (3 % and 0.5 % between that and the script alone, whose "
    "sums have another order); deterministic jobs by 1e-6"
)


class RehearsalRequest(Struct, frozen=True, kw_only=True):
    """Request of a person to rehearse."""

    script: Path
    args: tuple[str, ...]
    strategies: tuple[str, ...]
    workers: int
    batches: int
    epochs: int
    minutes: float
    deterministic: bool
    settings: tuple[str, ...]
    """``KEY=VALUE`` of the job's spec."""


class _Run(Struct, frozen=True):
    acted: PlayedAct
    observed: ObservedAct


class Rehearsing:
    """One rehearsal.

    Args:
        asked: what to rehearse.
        on_act: called with the name of an act and its strategy, as it begins.
        on_verdict: called with each verdict.
        tick: called again and again while an act runs.
    """

    def __init__(
        self,
        asked: RehearsalRequest,
        on_act: Callable[[str, str], None],
        on_verdict: Callable[[ActVerdict], None],
        tick: Callable[[], None],
    ) -> None:
        self._asked, self._on_act, self._on_verdict = asked, on_act, on_verdict
        self._start_s = monotonic()
        self._theatre = Theatre(
            asked.script,
            asked.args,
            batches=asked.batches,
            epochs=asked.epochs,
            until_s=self._start_s + 60 * asked.minutes,
            tick=tick,
        )
        self._longest_s = 0.0
        self._links: tuple[str, ...] = ()

    def run(self) -> Rehearsal:
        """Run all acts, and clear up after them.

        Raises:
            ConfigError: the script is not there, or its folder cannot be copied.
        """
        verdicts = []
        try:
            for verdict in self._verdicts():
                verdicts.append(verdict)
                self._on_verdict(verdict)
        finally:
            self._theatre.close()
        asked = self._asked
        return Rehearsal(
            script=str(asked.script),
            args=asked.args,
            batches=asked.batches,
            epochs=asked.epochs,
            workers=asked.workers,
            verdicts=tuple(verdicts),
            seconds=monotonic() - self._start_s,
            tolerance=_WORDS,
            links=self._links,
        )

    def _verdicts(self) -> Iterator[ActVerdict]:
        alone = self._act(Acting(name=ALONE), ALONE)
        self._links = alone.acted.stage.links
        ended = _ended(alone.acted, ALONE, ALONE, wanted=0)
        if ended is not None:
            yield ended
            return
        yield ActVerdict(act=ALONE, strategy=ALONE, state="runs", seconds=alone.acted.seconds)
        for strategy in self._asked.strategies:
            yield from self._of_strategy(strategy, alone)

    def _of_strategy(self, strategy: str, alone: _Run) -> Iterator[ActVerdict]:
        deterministic, refused = self._asked.deterministic or bool(alone.observed.draws), ""
        right = self._undisturbed(strategy, deterministic=deterministic)
        if deterministic and not self._asked.deterministic and right.acted.code:
            deterministic, refused = False, _refusal(right.acted)
            right = self._undisturbed(strategy, deterministic=False)
        early = code_of(End.STOPPED_EARLY)
        wanted = early if right.acted.code == early else 0
        ended = _ended(right.acted, UNDISTURBED, strategy, wanted=wanted)
        if ended is not None:
            yield ended
            return
        comparing = _Comparing(
            self._asked, strategy, alone, right, refused, deterministic=deterministic
        )
        yield comparing.with_alone()
        for acting in self._disturbed(right.observed, strategy, deterministic=deterministic):
            if isinstance(acting, ActVerdict):
                yield acting
            elif self._theatre.left_s < 1.5 * self._longest_s:
                why = f"no time was left of --minutes {self._asked.minutes:g}"
                yield ActVerdict(act=acting.name, strategy=strategy, state="not run", message=why)
            else:
                yield comparing.with_undisturbed(self._act(acting, strategy))

    def _undisturbed(self, strategy: str, *, deterministic: bool) -> _Run:
        name = UNDISTURBED if deterministic else f"{UNDISTURBED} "
        flags = self._flags(strategy, deterministic=deterministic)
        return self._act(Acting(name=name, flags=flags), strategy)

    def _act(self, acting: Acting, strategy: str) -> _Run:
        self._on_act(acting.name.strip(), strategy)
        within_s = max(LEAST_S, TIMES * self._longest_s) if acting.name != ALONE else inf
        acted = self._theatre.run(acting, strategy, within_s)
        self._longest_s = max(self._longest_s, acted.seconds)
        exported = None
        if strategy in ON_SERVERS and acted.job is not None and acted.code == 0:
            exported = acted.home / "model.safetensors"
            _export(acted, exported)
        root = acted.stage.root
        files = read_written({root: acted.stage.written()})[root]
        run = acted.job.job_id if acted.job is not None else ""
        return _Run(acted, observe(acted, without_run(files, root, run), exported))

    def _flags(self, strategy: str, *, deterministic: bool) -> tuple[str, ...]:
        asked = self._asked
        settings = ["solution=none", "preflight=false", "timeouts.hang_s=60s", *asked.settings]
        flags = ["--strategy", strategy, "--workers", str(asked.workers), "--torch-threads", "1"]
        if STRATEGIES[strategy].has_servers:
            flags += ["--servers", "1", "--mode", "bsp"]
        if deterministic:
            flags.append("--deterministic")
            settings.insert(0, f"blocks={asked.workers}")
        return (*flags, *(word for one in settings for word in ("--set", one)))

    def _disturbed(
        self, right: ObservedAct, strategy: str, *, deterministic: bool
    ) -> Iterator[Acting | ActVerdict]:
        """The acts with a fault; a verdict at once where the script has no such moment."""
        flags = self._flags(strategy, deterministic=deterministic)
        middle = _middle(right.loops.get(SECOND, []))
        if middle is None:
            why = "the script has no loop over batches of the job"
            yield ActVerdict(act="faults", strategy=strategy, state="left out", message=why)
            return
        at_end = "a kill at an epoch's end"
        if right.first_ended is not None:
            strike = Strike(moment="loop", node=CHIEF, loop=right.first_ended)
            yield Acting(name=at_end, flags=flags, strike=strike)
        else:
            why = "the script leaves its loops over batches before their end"
            yield ActVerdict(act=at_end, strategy=strategy, state="left out", message=why)
        yield Acting(name="a kill in mid-epoch", flags=flags, strike=middle)
        evaluation = "a kill in evaluation"
        if right.evaluations:
            within = Strike(moment="evaluation", evaluation=right.evaluations // 2)
            yield Acting(name=evaluation, flags=flags, strike=within)
        else:
            why = "the script calls no job.evaluate"
            yield ActVerdict(act=evaluation, strategy=strategy, state="left out", message=why)
        held = Strike(moment="batch", node=SECOND, loop=middle.loop, batch=middle.batch, waits=True)
        yield Acting(name="a kill of the master", flags=flags, strike=held, does="kill-master")
        yield Acting(name="a stop and a resume", flags=flags, strike=held, does="stop")


class _Comparing:
    """Judges the acts of one strategy."""

    def __init__(
        self,
        asked: RehearsalRequest,
        strategy: str,
        alone: _Run,
        right: _Run,
        refused: str,
        *,
        deterministic: bool,
    ) -> None:
        self._strategy, self._alone, self._right = strategy, alone, right
        self._draws = alone.observed.draws
        self._deterministic, self._workers = deterministic, asked.workers
        self._refused = f" ({refused})" if refused else ""
        root = right.acted.stage.root
        script = right.acted.stage.script.relative_to(root).as_posix()
        self._sources, self._script = _sources(root, script), script

    def _comparison(self, tolerance: Tolerance) -> Comparison:
        own = own_values(self._right.observed, self._alone.observed, TO_UNDISTURBED)
        return Comparison(self._sources, self._script, own, tolerance)

    def with_alone(self) -> ActVerdict:
        """Judge the undisturbed job."""
        notes, alone, right = list[str](), self._alone.observed, self._right.observed
        if self._right.acted.code:
            last = next((line for line in self._right.acted.tail if "Stopped early" in line), "")
            notes.append(f"exit code {self._right.acted.code}, alone 0. {last}".strip())
        comparison = self._comparison(TO_ALONE)
        if lines := comparison.own_lines(right):
            notes.append(
                f"{', '.join(lines)}: prints a value of one worker's share, which is not compared; "
                "job.log, job.evaluate or job.all_gather give that of all"
            )
        for place in right.drawing:
            notes.append(
                f"{place}: evaluates with the model in training mode, so Dropout draws random "
                "numbers there, and no two runs find the same: model.eval() before job.evaluate, "
                "model.train() after it"
            )
        if self._draws:
            notes.append(
                f"{self._draws[0]} draws random numbers, by other workers in another order: "
                "weights and values are not compared with those of the script alone"
            )
            return self._verdict(self._right, [], notes)
        names = Names("alone", f"with {self._workers} workers")
        found = [
            *comparison.printed(alone.printed, right.printed, names),
            *comparison.not_printed(alone.printed, right.printed, names),
            *comparison.files(alone.files, right.files, names),
            *comparison.logged(alone, right, names),
            *comparison.weights(alone, right, names),
        ]
        if found:
            found = [*comparison.beginnings(alone, right, names), *found]
        return self._verdict(self._right, found, notes)

    def with_undisturbed(self, run: _Run) -> ActVerdict:
        """Judge a disturbed job."""
        name = run.acted.name
        ended = _ended(run.acted, name, self._strategy, wanted=self._right.acted.code)
        if ended is None and not run.acted.reached:
            why = "the job ended before its fault could strike"
            return _of(run.acted, name, self._strategy, "not reached", why)
        if ended is None and self._draws and not self._deterministic:
            why = (
                f"{self._draws[0]} draws random numbers, and the job cannot be deterministic"
                f"{self._refused}: it ended well, and of values only counts are compared"
            )
            counts, _ = self._comparison(COUNTS).variables(
                self._right.observed, run.observed, Names("undisturbed", f"after {name}")
            )
            if found := [one for one in counts if one.lasts]:
                return self._verdict(run, found, [why])
            return _of(run.acted, name, self._strategy, "runs", why)
        comparison = self._comparison(EXACT if self._deterministic else TO_UNDISTURBED)
        names = Names("undisturbed", f"after {name}")
        right, got = self._right.observed, run.observed
        if ended is not None:
            found, notes = comparison.variables(right, got, names, ended=False)
            return msgspec.structs.replace(ended, findings=tuple(found), notes=tuple(notes))
        if right.drawing:
            found, notes = comparison.weights(right, got, names), list[str]()
            notes.append(
                f"only weights are compared: {right.drawing[0]} evaluates with Dropout, so what it "
                "finds is random"
            )
            return self._verdict(run, found, notes)
        found, notes = comparison.all(right, got, names)
        return self._verdict(run, found, notes)

    def _verdict(self, run: _Run, found: Sequence[Finding], notes: Sequence[str]) -> ActVerdict:
        return ActVerdict(
            act=run.acted.name.strip(),
            strategy=self._strategy,
            state="drifts" if found else "equal",
            seconds=run.acted.seconds,
            findings=tuple(found),
            notes=tuple(notes),
        )


def _of(acted: PlayedAct, name: str, strategy: str, state: State, message: str) -> ActVerdict:
    return ActVerdict(
        act=name.strip(), strategy=strategy, state=state, seconds=acted.seconds, message=message
    )


def _ended(acted: PlayedAct, name: str, strategy: str, *, wanted: int | None) -> ActVerdict | None:
    """The verdict on an act that did not end as it should; None: it did."""
    if acted.code == wanted:
        return None
    if acted.code is None:
        last = "\n".join(acted.tail)
        why = f"it was broken off after {acted.seconds:.0f} s:\n{last}"
        return _of(acted, name, strategy, "failed", why)
    if refused := _refusal(acted):
        return _of(acted, name, strategy, "refused", refused)
    last = "\n".join(acted.tail)
    return _of(acted, name, strategy, "failed", f"exit code {acted.code}:\n{last}")


_REFUSED = re.compile(
    r"^(?:paceline\.base\.errors\.)?ConfigError: (.*)$|^paceline: (?!worker-)(.*)$"
)


def _refusal(acted: PlayedAct) -> str:
    """Say what paceline refuses, with the line of the script; empty: it refused nothing."""
    for life in acted.lives:
        for note in life.notes:
            if isinstance(note, RefusedCall):
                return f"{note.file}:{note.line}: {note.message}" if note.line else note.message
    told = [found for line in acted.tail if (found := _REFUSED.match(line))]
    if not told or not (acted.code == 2 or told[0][1]):
        return ""
    script = acted.stage.script.name
    lines = re.findall(rf'{re.escape(script)}", line (\d+)', "\n".join(acted.tail))
    where = f"{script}:{lines[-1]}: " if lines else ""
    return where + (told[0][1] or told[0][2])


def _middle(batches: list[int]) -> Strike | None:
    """The middle of the second loop over batches, or of the only one."""
    loops = [number for number, count in enumerate(batches) if count]
    if not loops:
        return None
    loop = loops[1] if len(loops) > 1 else loops[0]
    return Strike(moment="batch", node=SECOND, loop=loop, batch=batches[loop] // 2 + 1)


def _sources(root: Path, script: str) -> dict[str, Source]:
    files = {script, *(path.relative_to(root).as_posix() for path in root.rglob("*.py"))}
    return {name: Source(name, (root / name).read_text(errors="replace")) for name in files}


def _export(acted: PlayedAct, target: Path) -> None:
    assert acted.job is not None
    command = ["-m", "paceline", "checkpoint", "export", acted.job.job_id, str(target)]
    subprocess.run(
        [sys.executable, *SAFE_PATH, *command],
        env={**os.environ, "PACELINE_HOME": str(acted.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
