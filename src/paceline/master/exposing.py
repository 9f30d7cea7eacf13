"""What Prometheus is shown of a job, where its spec asks for an endpoint."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.base.jobdir import JobDir
from paceline.jobs.slowness import ScriptPace
from paceline.master.controller import Controller
from paceline.master.exposed import Exposed
from paceline.master.jobnow import steps_done
from paceline.master.monitor import Metrics, Monitor
from paceline.policy.straggler.observation import Observation
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.training import MasterState
from paceline.wire.client import LastLogged
from paceline.wire.events.base import Event
from paceline.wire.events.job import NoMetricsEndpointEvent

if TYPE_CHECKING:
    from paceline.master.exporter import Exporter


class Exposing:
    """Shows what is measured, once an endpoint is open."""

    def __init__(
        self,
        job: JobDir,
        state: MasterState,
        members: Membership,
        monitor: Monitor,
        pace: ScriptPace,
    ) -> None:
        self._job, self._state, self._members = job, state, members
        self._monitor, self._pace = monitor, pace
        self._exporter: Exporter | None = None

    def open(self, port: int, tell: Callable[[Event], None]) -> None:
        """Answer Prometheus from now on; where the port is taken, only say so."""
        # Not at the top: most jobs do without prometheus_client, and a master must start soon.
        from paceline.master.exporter import Exporter

        try:
            self._exporter = Exporter(self._job, port)
        except OSError as error:
            tell(NoMetricsEndpointEvent(port=port, error=str(error.strerror)))

    def show(
        self,
        metrics: Metrics,
        controller: Controller | None,
        observe: Callable[[], Observation | None],
        logged: Callable[[], tuple[LastLogged, ...]] = tuple,
    ) -> None:
        """Show this from now on, if anyone can see it."""
        if self._exporter is None:
            return
        nodes = self._members.roster.nodes.values()
        speeds = {name: self._monitor.speed(name) for name in metrics.nodes}
        self._exporter.publish(
            Exposed(
                job_id=self._job.job_id,
                metrics=metrics,
                steps=steps_done(self._state, self._members.roster, metrics.committed),
                speeds={name: speed for name, speed in speeds.items() if speed is not None},
                restarts={node.name: node.past.restarts for node in nodes},
                decided={node.name: node.past.decided for node in nodes},
                decisions=controller.num_decisions if controller else 0,
                actions=dict(controller.num_actions) if controller else {},
                logged=logged(),
                observation=observe(),
                pace=self._pace.copy() if self._members.runs_by_itself else None,
            )
        )

    def close(self) -> None:
        """Stop answering Prometheus."""
        if self._exporter is not None:
            self._exporter.close()
