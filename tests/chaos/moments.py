"""Faults that fall into a moment of the protocol, which no time or number of samples would hit.

A worker is killed just when its group forms or begins to run (the job's events say so), while its
gradients are summed up (its script says so), while it copies a cut (its file has appeared in memory),
or while that is written (its file on disk is not complete); or then its agent is, which writes. A
thread watches; with a slow disk (`run.slow_disk`) copying and writing last long enough, and with
`BALLAST` sums do.
"""

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.base.jobdir import JobDir
from paceline.base.processes import kill_quietly
from paceline.jobs.history import Tail
from paceline.wire.client import JobStatus
from paceline.wire.events.lines import decode_events
from paceline.wire.events.nodes import AgentJoinedEvent, ProcessUpEvent
from paceline.wire.events.state import FeedCompleteEvent, GroupFormsEvent, GroupRunsEvent
from paceline.wire.spec import load
from tests.chaos.faults import Fault, Injector, is_alive

POLL_S = 0.001
GROUP = {"forms": GroupFormsEvent, "runs": GroupRunsEvent}
CUT = ("copies", "writes", "keeps")
WHATS = (*GROUP, *CUT)
SUMS = "adds up"
"""Not one of those: it comes beside them (`grouped.with_sum`), so that seeds do what they did."""
BALLAST = 200_000
"""Numbers of a model to be summed up in each step: it takes some milliseconds."""
COPY_S, SYNC_S = 0.2, 0.3
"""What copying a cut, and its sync, take at least where a moment is to be hit in them."""


@dataclass(frozen=True)
class Moment:
    """One planned kill: what its victim is doing."""

    what: str
    """That its cut is being written: ``writes`` if it is killed, ``keeps`` if its agent is."""
    index: int
    """Which member of the group, counted among those that it is told of, or that sum up just then;
    who makes a cut is known."""
    from_committed: int
    """The first such moment from then on."""
    after_s: float
    """So long after it was seen."""

    def __str__(self) -> str:
        victim = "agent" if self.what == "keeps" else "worker"
        return (
            f"kill {victim}[{self.index}] as it {self.what}, from {self.from_committed} samples on"
        )


class MomentInjector(Injector):
    """Fires kills at their moments, too; `finish` it.

    Args:
        out: where the script says that it adds up.
    """

    def __init__(self, job: JobDir, faults: list[Fault], moments: list[Moment], out: Path) -> None:
        super().__init__(job, faults)
        self._out = out
        self.moments = list(moments)
        """Those that have not come yet."""
        self.hit: list[str] = []
        self.missed: list[Moment] = []
        """No group formed or summed up any more: their master was away until all was trained."""
        self._committed = 0
        #: Node -> its newest process, as the events tell.
        self._pids: dict[str, int] = {}
        self._agents: dict[str, int] = {}
        self._seen: set[Path] = set()
        """Files that were there already when somebody looked."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def look(self, status: JobStatus) -> None:
        """See `Injector.look`."""
        self._committed = max(self._committed, status.committed)
        super().look(status)

    def finish(self) -> None:
        """See `Injector.finish`."""
        self._over.set()
        self._thread.join()
        super().finish()

    # ------------------------------------------------------------------ the thread

    def _watch(self) -> None:
        events = Tail(self.job.events)
        while self.moments and not self._over.wait(POLL_S):
            for event in decode_events(events.lines()):
                match event:
                    case ProcessUpEvent(node=node, pid=pid):
                        self._pids[node] = pid
                    case AgentJoinedEvent(node=node, pid=pid):
                        self._agents[node] = pid
                    case FeedCompleteEvent():
                        self._miss()
                    case GroupFormsEvent() | GroupRunsEvent():
                        for moment in self._armed(*GROUP):
                            if isinstance(event, GROUP[moment.what]):
                                self._kill_member(moment, event)
                    case _:
                        pass
            for moment in self._armed(SUMS):
                self._kill_adder(moment)
            for moment in self._armed(*CUT):
                self._kill_maker(moment)

    def _miss(self) -> None:
        for moment in [one for one in self.moments if one.what in (*GROUP, SUMS)]:
            self.moments.remove(moment)
            self.missed.append(moment)

    def _armed(self, *whats: str) -> list[Moment]:
        return [
            moment
            for moment in self.moments
            if moment.what in whats and moment.from_committed <= self._committed
        ]

    def _kill_member(self, moment: Moment, event: GroupFormsEvent | GroupRunsEvent) -> None:
        living = [self._pids[name] for name in event.members if is_alive(self._pids.get(name, 0))]
        if not living:
            return
        late_s = time.time() - event.t
        time.sleep(moment.after_s)
        self._kill(moment, living[moment.index % len(living)], f"seen after {late_s:.3f} s")

    def _kill_adder(self, moment: Moment) -> None:
        adding = [mark for mark in sorted(self._out.glob("*.sums")) if self._adds(mark)]
        if not adding:
            return
        mark = adding[moment.index % len(adding)]
        time.sleep(moment.after_s)
        pid = self._adds(mark)
        if pid:
            self._kill(moment, pid, mark.stem)

    def _adds(self, mark: Path) -> int:
        """The process that says in this file that it does; 0: none does, or it is dead."""
        pid = int(mark.read_bytes() or b"0")
        newest = self._pids.get(mark.name.partition(".")[0])
        return pid if pid == newest and is_alive(pid) else 0

    def _kill_maker(self, moment: Moment) -> None:
        pattern, root = "*/.*.safetensors.partial", self._cuts
        if moment.what == "copies":
            pattern, root = "*/*/*.safetensors", self.job.memory
        for path in self._found(root, pattern):
            name = path.name.removeprefix(".").removesuffix(".partial")
            node = name.rpartition("-")[0]
            if path in self._seen or (moment.what == "copies" and path.parent.name != node):
                continue
            self._seen.add(path)
            time.sleep(moment.after_s)
            pid = (self._agents if moment.what == "keeps" else self._pids).get(node, 0)
            if self._still(moment, path, name) and is_alive(pid):
                self._kill(moment, pid, path.parent.name)
                return

    def _still(self, moment: Moment, path: Path, name: str) -> bool:
        """Whether it is still at it: where it is written all is copied."""
        if moment.what != "copies":
            return path.exists()
        directory = self._cuts / path.parent.parent.name
        return path.exists() and not any(
            (directory / one).exists() for one in (name, f".{name}.partial")
        )

    @property
    def _cuts(self) -> Path:
        return Path(load(self.job.spec).checkpoint.folder or self.job.cuts)

    def _found(self, root: Path, pattern: str) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            return sorted(root.glob(pattern))
        return []

    def _kill(self, moment: Moment, pid: int, told: str) -> None:
        kill_quietly(pid)
        self.moments.remove(moment)
        self.hit.append(f"{moment} ({told}, killed {moment.after_s:.3f} s later)")
