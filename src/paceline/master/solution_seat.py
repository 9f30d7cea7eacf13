"""The seats of policies in a master: each is taken where the spec names one."""

from paceline.master.controller import Controller
from paceline.master.deciding import Deciding
from paceline.master.facts import PastRead
from paceline.master.inbox import Inbox
from paceline.master.members import MembersEdge
from paceline.master.memory_watch import MemoryWatch
from paceline.master.parts import MasterParts, Times
from paceline.master.remembering import Remembering
from paceline.master.restarts import StartMeasured
from paceline.master.scene import Scene
from paceline.master.size_moves import SizeMoves
from paceline.master.sizing import SizingSeat
from paceline.master.training import Training
from paceline.policy.observation import Observation
from paceline.wire.events.base import Event


class SolutionSeat:
    """What a solution sees of one job, and the solution, if there is one."""

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        inbox: Inbox,
        training: Training,
        members: MembersEdge,
        memory: MemoryWatch,
        scene: Scene,
    ) -> None:
        self._job, self._spec, self._outbox = parts.job, parts.spec, parts.outbox
        self._times, self._inbox = times, inbox
        self._scene = scene
        self._deciding: Deciding | None = None
        self._moves = SizeMoves(parts, times, training, members, memory.sizes)
        self.sizing = SizingSeat(parts, times, inbox, training, members, memory)
        self.past = Remembering(parts, training.state, inbox)
        members.watchers.append(self._note)

    def begin(self) -> None:
        """Ask the policies that the spec names from now on.

        Raises:
            ConfigError: there is no such policy, or it takes no such parameters.
        """
        self.sizing.begin()
        if self._spec.solution != "none":
            self._deciding = Deciding(
                self._spec,
                self._job.decisions,
                self._scene,
                post=self._inbox.for_threads(),
                tell=self._outbox.tell,
                wall_clock=self._times.wall,
            )

    @property
    def controller(self) -> Controller | None:
        """None: the spec names no solution."""
        return self._deciding.controller if self._deciding else None

    def observe(self) -> Observation | None:
        """The job as a solution would see it now; None: nobody trains."""
        now_s, controller = self._times.steady(), self.controller
        since_s = controller.since_action_s(now_s) if controller else None
        return self._scene.observe(self._scene.progress(now_s), since_s)

    def tick(self, now_s: float) -> None:
        """Read the history, carry out moves, and ask, if it is time to."""
        self.past.tick(now_s)
        self._moves.tick(now_s)
        self.sizing.tick(now_s)
        if self._deciding is not None:
            self._deciding.tick(now_s)

    def works(self, measured: StartMeasured) -> None:
        """A node works after a start."""
        if self._deciding is not None:
            self._deciding.works(measured, self._times.steady())

    def remember(self, found: PastRead) -> None:
        """Take in what earlier jobs learned."""
        self.past.read(found)
        if (controller := self.controller) is not None:
            controller.remember(found.restarts)

    def _note(self, event: Event) -> None:
        if self._deciding is not None:
            self._deciding.note(event)
