"""Alarms of a detector over many jobs, counted in the standard and in the published way."""

import math
from collections.abc import Iterable

import msgspec

from paceline_experiments.failslow.steps import Episode, SyntheticJob
from paceline_experiments.outputs import table

_GRACE = 10
"""Steps after an episode in which an alarm is still its own."""


class SuiteRow(msgspec.Struct, kw_only=True):
    """Row of what one detector said of the jobs of one kind."""

    suite: str
    kind: str
    detector: str
    jobs: int = 0
    events: int = 0
    right: int = 0
    """Jobs without a false alarm whose event, if any, was found."""
    false_jobs: int = 0
    """Healthy jobs with an alarm."""
    false_alarms: int = 0
    """Number of false alarms in all jobs, healthy or not."""
    missed: int = 0
    below_noise: int = 0
    """Missed events that were smaller than chance could be, as the detector's formula has it."""
    delays: list[int] = []
    """Steps from the first slow one to the alarm, of the events that were found."""

    def add(self, job: SyntheticJob, alarms: list[int]) -> None:
        """Count one job."""
        episode = job.episode
        own = [] if episode is None else [at for at in alarms if _is_own(at, episode)]
        false = len(alarms) - len(own)
        self.jobs += 1
        self.false_alarms += false
        if episode is None:
            self.false_jobs += false > 0
        else:
            self.events += 1
            if own:
                self.delays.append(own[0] - episode.start)
            else:
                self.missed += 1
                self.below_noise += _is_below_noise(job, episode)
        self.right += not false and (episode is None or bool(own))

    @property
    def healthy(self) -> int:
        """Jobs without an event."""
        return self.jobs - self.events

    @property
    def accuracy(self) -> float:
        """Part of the jobs that are right."""
        return self.right / self.jobs

    def fpr(self, *, published: bool = False) -> float:
        """False positives over negatives; as FALCON publishes it, over both together."""
        return _rate(self.false_jobs, self.healthy + (self.false_jobs if published else 0))

    def fnr(self, *, published: bool = False) -> float:
        """Missed events over events; as FALCON publishes it, over both together."""
        return _rate(self.missed, self.events + (self.missed if published else 0))

    def delay(self, part: float) -> float:
        """Delay that this part of the events found does not exceed; NaN: none was found."""
        ordered = sorted(self.delays)
        return (
            float(ordered[min(len(ordered) - 1, int(part * len(ordered)))]) if ordered else math.nan
        )


def _is_own(at: int, episode: Episode) -> bool:
    return episode.start <= at < episode.end + _GRACE


def _is_below_noise(job: SyntheticJob, episode: Episode) -> bool:
    after = min(256, episode.end - episode.start)
    error = 1.1 * job.spread * math.sqrt(1 / 256 + 1 / after)
    return math.log(episode.factor) < max(math.log(1.1) + error, 5.0 * error)


def _rate(count: int, of: int) -> float:
    return count / of if of else 0.0


def total(rows: Iterable[SuiteRow], kind: str) -> SuiteRow:
    """Add up rows of one detector in one suite."""
    first, *others = rows
    added = msgspec.structs.replace(first, kind=kind, delays=list(first.delays))
    for row in others:
        for name in ("jobs", "events", "right", "false_jobs", "false_alarms", "missed"):
            setattr(added, name, getattr(added, name) + getattr(row, name))
        added.below_noise += row.below_noise
        added.delays += row.delays
    return added


def markdown_rows(rows: Iterable[SuiteRow]) -> str:
    """Return the table of all rows."""
    head = (
        *("suite", "jobs", "detector", "right", "FPR (published)", "FNR (published)"),
        *("below noise", "delay, steps: median, 90 %", "false alarms"),
    )
    cells = [
        (
            row.suite,
            f"{row.kind}: {row.jobs}, {row.events} slow",
            row.detector,
            f"{row.right}/{row.jobs} = {row.accuracy:.2%}",
            f"{row.fpr():.1%} ({row.fpr(published=True):.1%})",
            f"{row.missed}/{row.events} = {row.fnr():.1%} ({row.fnr(published=True):.1%})",
            str(row.below_noise),
            f"{row.delay(0.5):g}, {row.delay(0.9):g}",
            str(row.false_alarms),
        )
        for row in rows
    ]
    return table(head, cells)
