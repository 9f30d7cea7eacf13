"""Events of the job as a whole: its supervisor, its master, its disks, its features, its end."""

from signal import Signals
from typing import Literal, assert_never

from paceline.base.numbering import NO_CUT, CutNo
from paceline.wire.events.base import Event, ReasonedEvent

JOURNAL_WAITS = (
    "nothing more is dealt out and no cut counts until it can be written again; workers wait. Make "
    "room there, or end the job with `paceline stop --now`, without what is in no cut"
)
CUTS_WAIT = (
    "make room there, or end the job with `paceline stop --now`, without what is in no cut on disk"
)
STOPPED_BY = {
    0: "paceline stop",
    Signals.SIGINT: "Ctrl-C",
    Signals.SIGTERM: "SIGTERM",
    Signals.SIGUSR1: "SIGUSR1",
}
"""Name of what ends a job, by the number of the signal that it sends."""


class LaunchedEvent(Event, frozen=True):
    """The job was launched: the first line of the file."""

    is_usual = True
    sentence_words = "the job was launched"


class ResumedEvent(Event, frozen=True):
    """The job is resumed: a person starts it again after its end."""

    is_usual = True
    sentence_words = "the job is resumed"


class SupervisorStartedEvent(Event, frozen=True):
    """A supervisor has started."""

    pid: int

    is_usual = True


class StopAskedEvent(Event, frozen=True):
    """A signal has asked the supervisor for the end of the job."""

    signal: int

    @property
    def clause(self) -> str:
        return Signals(self.signal).name


class MasterStartedEvent(Event, frozen=True):
    """A master has started."""

    restarted: bool
    """Whether the master goes on from the journal of another one."""

    @property
    def is_news(self) -> bool:
        return self.restarted

    @property
    def clause(self) -> str:
        return "from the journal" if self.restarted else ""

    def sentence(self) -> str:
        return "a new master goes on from the journal" if self.restarted else "the master started"


class JournalShortEvent(Event, frozen=True):
    """The journal ended before the newest cut on disk, as after a power cut."""

    path: str
    knew: CutNo
    """The newest cut in the journal; -1: it told of none."""
    cut_no: CutNo

    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        knew = f"ends after cut {self.knew}" if self.knew >= 0 else "tells of no cut"
        return (
            f"the journal {self.path} {knew}, as after a power cut; the job goes on from cut "
            f"{self.cut_no}, the newest one on disk"
        )


class JournalKeptEvent(Event, frozen=True):
    """Other machines keep the journal from now on, or none does."""

    hosts: tuple[str, ...]
    """Names of all that keep it, the master's first; empty: it is on the master's machine alone."""
    why: str = ""
    """Why it is there alone."""

    is_usual = True
    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        if not self.hosts:
            return f"if the master's machine is lost, the job stops: {self.why}"
        names = ", ".join(self.hosts)
        return f"{names} keep the job's journal: it goes on if one of them is lost"


class KeepersAwaitedEvent(Event, frozen=True):
    """A master waits until most of those that keep the job's journal can be reached."""

    hosts: tuple[str, ...]

    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        return (
            f"the master waits for {' or '.join(self.hosts)}, which keep the job's journal: "
            "without them it cannot know whether the job goes on elsewhere"
        )


class MasterMovedEvent(Event, frozen=True):
    """The job goes on with a master on another machine."""

    before: str
    """Name of the machine that is gone."""
    host: str
    after_s: float
    """Seconds from the last word of the master there to this one."""

    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        return (
            f"the master's machine {self.before} is gone; the master runs on {self.host} now, "
            f"after {self.after_s:.1f} s. Logs and cuts of before are on {self.before}"
        )


class MasterDiedEvent(ReasonedEvent, frozen=True):
    """The master has died, by its own last words or its exit code."""

    deaths: int = 0
    """Deaths in a row."""


class StoppedEvent(Event, frozen=True):
    """A person ends the job."""

    signal: int
    """The signal that asked for it; 0: ``paceline stop``."""

    sentence_words = "the job must stop: {0.clause}"

    @property
    def clause(self) -> str:
        return STOPPED_BY.get(self.signal, STOPPED_BY[0])


class FinishedEvent(Event, frozen=True):
    """The work of the job is done; its processes end."""

    is_usual = True


class NotKeptEvent(Event, frozen=True):
    """The job ends, and no cut on disk holds these samples of its model."""

    samples: int
    cut_no: CutNo | None = None
    """The newest cut on disk; None: there is none."""

    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        since = "so far" if self.cut_no is None else f"since cut {self.cut_no}"
        return f"{self.samples:,} samples trained {since} are in no cut on disk"


class FeatureFailedEvent(Event, frozen=True):
    """A feature's part in the master has raised an error, and is left out from now on."""

    feature: str
    error: str

    clause_words = "feature {0.feature} failed ({0.error}); the job goes on without it"
    sentence_words = "{0.clause}"


class FeatureSlowEvent(Event, frozen=True):
    """A feature's part holds the master up again and again; told once for each feature."""

    feature: str
    seconds: float
    """Seconds of the newest call, in which the master did nothing else."""

    clause_words = (
        "feature {0.feature} holds the master up, for {0.seconds:.1f} s just now: its part must "
        "not wait"
    )
    sentence_words = "{0.clause}"


class DiskRefusesEvent(Event, frozen=True):
    """A disk takes no more writes; what needs it waits."""

    error: str
    waits: Literal["master", "journal", "cuts"]
    """The start of the master; all records, and so the job; only cuts."""
    for_s: float = 0.0
    """After so many seconds without cuts the job fails."""

    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        match self.waits:
            case "master":
                return self.error
            case "journal":
                return f"{self.error}: {JOURNAL_WAITS}"
            case "cuts":
                goes_on = f"training goes on without cuts for {self.for_s:.0f} s at most"
                return f"{self.error}; {goes_on}: {CUTS_WAIT}"
            case _:
                assert_never(self.waits)


class DiskHealsEvent(Event, frozen=True):
    """The disk takes writes again."""

    waited: Literal["journal", "cuts"]
    """Files that have waited: the journal, and so the whole job; or cuts only."""
    error: str = ""
    """Why the journal was refused."""
    cut_no: CutNo = NO_CUT
    """The cut that is stored now."""

    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        match self.waited:
            case "journal":
                return f"no longer: {self.error}; the job goes on"
            case "cuts":
                return f"cut {self.cut_no} is stored"
            case _:
                assert_never(self.waited)


class ScaledEvent(Event, frozen=True):
    """The number of workers or servers is another one."""

    role: Literal["worker", "server"]
    count: int
    """Nodes that are wanted now."""
    before: int | None = None
    """Nodes that were wanted before; None: the job is resumed, or ``node`` has joined."""
    host: str = ""
    """The machine from which ``node`` has joined on its own."""

    @property
    def clause(self) -> str:
        if self.host:
            return f"{self.host} joins"
        wanted = f"{self.count} {self.role}s"
        return wanted if self.before is None else f"{self.before} -> {wanted}"
