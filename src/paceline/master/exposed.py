"""Figures of a job at one moment, which features get once a second; nobody changes them."""

import msgspec

from paceline.master.monitor import Metrics
from paceline.policy.observation import Observation
from paceline.wire.client import LastLogged, ShownFigure, SlowPart


class Exposed(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a job at one moment."""

    job_id: str
    metrics: Metrics
    steps: int
    speeds: dict[str, float]
    """Samples per second by worker, where measured."""
    restarts: dict[str, int]
    """Number of restarts that cost budget, by node."""
    decided: dict[str, int]
    """Number of lives that a KILL_RESTART has ended, by node."""
    logged: tuple[LastLogged, ...] = ()
    """The newest value of each name that the script has logged."""
    observation: Observation | None = None
    """The job as a solution sees it; None: no worker trains."""
    slow: tuple[SlowPart, ...] = ()
    """What features say is slow."""
    figures: tuple[ShownFigure, ...] = ()
    """Figures of features."""
