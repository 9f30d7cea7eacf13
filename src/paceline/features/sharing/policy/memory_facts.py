"""Facts and state of the law of a device's memory, as values; in bytes and seconds."""

import math

import msgspec

from paceline.features.sharing.wire import MemoryCause


class MemoryWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker on the device, and what it says of its memory; in bytes."""

    name: str
    job: str
    is_kept: bool
    """True: a worker of the guaranteed job."""
    since_s: float = 0.0
    """Unix time at which its job came."""
    is_away: bool = False
    """Whether it was ended for want of room: it starts again when there is some."""
    minimum: float = 0.0
    """Least bytes that its spec asks for."""
    ordered: float = 0.0
    """The limit ordered last; 0: none yet, inf: no limit."""
    looks: float = 0.0
    """Number of times that the worker has said its use; 0: it has no tensors yet."""
    limit: float = math.inf
    """Limit in effect, in bytes."""
    device: float = 0.0
    peak: float = 0.0
    host: float = 0.0
    spilled: float = 0.0
    """Bytes spilled in all so far."""
    batches: float = 0.0
    """Mini-batches so far."""

    @property
    def floor(self) -> float:
        """Memory that an opportunistic job keeps, or kept if it is away."""
        return max(self.minimum, self.device, 1.0)


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about memory that the device coordinator sees at one moment."""

    now_s: float
    room: float
    """Memory of the device; 0: it is not shared."""
    workers: tuple[MemoryWorker, ...] = ()
    is_steady: bool = True
    """Whether the guaranteed job runs steadily, or there is none."""
    is_unstable: bool = False
    """Whether steps of the guaranteed job vary more than alone: nothing is raised."""
    is_paused: bool = False
    """Whether opportunistic jobs wait, so what they use means nothing."""


class MemoryRules(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of the law."""

    slack: float = 1.1
    """Factor on what a job spilled, or on what it used: it gets so much."""
    least: float = 256 * 2**20
    least_part: float = 1 / 16
    """A spill is worth the lesser of both at least: bytes, and a part of the device's memory."""
    near: float = 0.8
    """Part of the limit above which a peak comes near it."""
    calm_s: float = 10.0
    most_calm_s: float = 160.0
    """A limit falls when no peak came near it for so long; doubled up to the second."""
    owed_s: float = 3.0
    """Seconds for others to let go of what a job should get; then the amount is counted again."""
    step: float = 0.05
    step_s: float = 30.0
    """Part of the device's memory that is exchanged, and for how long speeds are compared."""
    gain: float = 0.01
    """Part by which the sum of speeds must have risen."""
    refused_s: float = 300.0
    """Seconds for which an exchange that was wrong is not tried again."""
    starved_s: float = 10.0
    """A guaranteed job spills for so long, while all others have their least, before one ends."""
    away_s: float = 60.0
    most_away_s: float = 960.0
    """An ended job stays away for so long, if the guaranteed one is still there; doubled each time,
    up to the second."""

    def least_of(self, room: float) -> float:
        """Return the bytes that a spill is worth at least."""
        return min(self.least, self.least_part * room)


class MemoryShare(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the device coordinator keeps of a worker."""

    limit: float
    """Limit as ordered, in bytes."""
    calm_since_s: float
    calm_s: float
    """Seconds during which no peak must come near the limit before it falls."""
    top: float = 0.0
    """The highest peak since it is calm."""
    was_lowered: bool = False
    """True: the newest change was for want of use."""
    taken: bool = False
    """True: the limit was seen in effect, so what is spilled is spilled under it."""
    looks: float = 0.0
    spilled: float = 0.0
    """Bytes spilled in all, as last seen."""
    lacks: float = 0.0
    """Bytes spilled in a mini-batch."""
    batches: float = 0.0
    batch_at_s: float = 0.0
    """Mini-batches, and when there was another one."""
    owed: float = 0.0
    owed_since_s: float = 0.0
    owed_cause: MemoryCause = "spill"


class MemoryExchange(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one worker has given another, for a try."""

    giver: str
    taker: str
    amount: float
    rates: dict[str, float]
    """Mini-batches per second, before."""


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """State of memory that the device coordinator keeps."""

    shares: dict[str, MemoryShare] = {}
    came_s: float = -math.inf
    """Time at which a worker last came."""
    goes_on: bool = False
    """True: a former device coordinator's division goes on. No job has come, though this
    coordinator has seen none run steadily."""
    since_s: float = 0.0
    made: dict[str, tuple[float, float]] = {}
    """Batches that each worker had made when the window of speeds began, and the time of the last
    one."""
    exchange: MemoryExchange | None = None
    refused: dict[tuple[str, str], float] = {}
    """Time at which an exchange was wrong, by giver and taker."""
    starved_since_s: float = math.inf
    """Time since which the guaranteed job spills what no other job can give; inf: it does not."""
    away: dict[str, tuple[float, float]] = {}
    """Workers that were ended for want of room: when last, and for how long they stay away."""
