"""Figures of a job at one moment, which features get once a second; nobody changes them."""

from collections.abc import Callable

import msgspec

from paceline.base.jobdir import JobDir
from paceline.master.jobnow import steps_done
from paceline.master.monitor import Metrics, Monitor
from paceline.policy.observation import Observation
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.training import MasterState
from paceline.wire.client import LastLogged, Shown, ShownFigure, SlowPart


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


class Exposing:
    """Puts figures together from what the master's rooms know."""

    def __init__(
        self,
        job: JobDir,
        state: MasterState,
        members: Membership,
        monitor: Monitor,
    ) -> None:
        self._job, self._state, self._members = job, state, members
        self._monitor = monitor

    def figures(
        self,
        metrics: Metrics,
        observe: Callable[[], Observation | None],
        shown: Shown,
    ) -> Exposed:
        """Return the figures of this moment."""
        nodes = self._members.roster.nodes.values()
        speeds = {name: self._monitor.speed(name) for name in metrics.nodes}
        return Exposed(
            job_id=self._job.job_id,
            metrics=metrics,
            steps=steps_done(self._state, self._members.roster, metrics.committed),
            speeds={name: speed for name, speed in speeds.items() if speed is not None},
            restarts={node.name: node.past.restarts for node in nodes},
            decided={node.name: node.past.decided for node in nodes},
            logged=shown.logged,
            slow=shown.slow,
            figures=shown.figures,
            observation=observe(),
        )
