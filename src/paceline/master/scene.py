"""The job as a decision needs it: what there is to see, and what can be done about it."""

from collections.abc import Callable

from paceline.base.errors import ConfigError
from paceline.master.jobnow import job_now, steps_done
from paceline.master.monitor import Monitor
from paceline.master.status import count_committed, count_total
from paceline.master.training import Training
from paceline.policy.actions import AnyAction, KillRestart, Profile
from paceline.policy.observation import JobProgress, Observation
from paceline.protocol.nodes.lives import Fate
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.samples.plans import GlobalAction
from paceline.protocol.training import MasterState


class Scene:
    """The master's machines, looked at and acted on in its event loop."""

    def __init__(
        self,
        training: Training,
        members: Membership,
        monitor: Monitor,
        *,
        pending_s: Callable[[], float | None],
        restart: Callable[[str, str], None],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Look at these.

        Args:
            training: the samples, and the plan by which they are trained on.
            members: the nodes.
            monitor: measures them.
            pending_s: the backend's.
            restart: of a node, for a reason: as a membership's decision.
            is_ending: tells whether the job is about to end, so that nothing is to change any more.
        """
        self._training, self._roster, self._monitor = training, members.roster, monitor
        self.since_action_s: Callable[[float], float | None] = lambda _: None
        """Tells the seconds since the last action took effect, at a time of the master's clock. The
        part that decides sets it."""
        self._restart = restart
        self.pending_s, self.is_ending = pending_s, is_ending

    @property
    def state(self) -> MasterState:
        """The machine of the training: feeds, samples, plans, the model's schema. Only read it."""
        return self._training.state

    def progress(self, now_s: float) -> JobProgress:
        """How far the job is."""
        state = self._training.state
        return JobProgress(now_s, count_committed(state), count_total(state))

    def iterations(self, progress: JobProgress) -> float:
        """Steps of the job; asynchronous: of its mean worker."""
        state = self._training.state
        steps = steps_done(state, self._roster, progress.committed)
        return steps if state.mode == "bsp" else steps / max(1, self._roster.num_workers)

    def observe(self, progress: JobProgress, since_action_s: float | None) -> Observation | None:
        """What a solution sees; None: nobody trains now."""
        now = job_now(
            self._training.state,
            self._roster,
            committed=progress.committed,
            total=progress.total,
            pending_s=self.pending_s(),
            since_action_s=since_action_s,
        )
        return None if now is None else self._monitor.observe(progress.t_s, now)

    def now(self, now_s: float) -> Observation | None:
        """Return the job as a solution would see it now; None: nobody trains."""
        return self.observe(self.progress(now_s), self.since_action_s(now_s))

    def holds(self, action: AnyAction) -> bool:
        """Whether a global action is in force for the step that is worked on; a `Profile`: over."""
        if isinstance(action, Profile):
            return self._training.profiling.is_over
        return isinstance(action, GlobalAction) and self._training.state.holds(action)

    def carry_out(self, action: AnyAction) -> None:
        """Set it going.

        Raises:
            ConfigError: it cannot be; the message says why.
        """
        if isinstance(action, KillRestart):
            self._kill_restart(action)
        elif isinstance(action, Profile):
            self._training.edge.profile(action)
        else:
            self._training.leasing.carry_out(action)

    def _kill_restart(self, action: KillRestart) -> None:
        node = self._roster.nodes.get(action.node)
        if node is None or not node.life.is_alive or node.fate is Fate.LEAVES:
            raise ConfigError(f"{action.node} has ended meanwhile, or is about to leave")
        self._restart(action.node, action.reason)
