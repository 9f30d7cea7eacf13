"""Messages and events of the curves: what scripts log, on its way from a worker to the master."""

import msgspec

from paceline.wire.events.base import FeatureEvent
from paceline.wire.messages.base import Attempt, Message

FEATURE = "curves"
"""Name of the feature, as its entry point has it."""
MAX_NAMES = 100
"""Names that a job may log; those after them are left out."""


class LoggedTotal(msgspec.Struct, frozen=True, array_like=True):
    """Sum of the values that were logged for one name in one step, and their number."""

    total: float
    count: int


class LoggedStep(msgspec.Struct, frozen=True, array_like=True):
    """Values that one worker logged in one step, or a part of them."""

    attempt: Attempt
    step: int
    """`UNPLACED`: the worker does not know where the model is."""
    samples: int
    """Samples in the model with that step."""
    values: dict[str, LoggedTotal]
    between: bool = False
    """True: the values were logged between loops, and the step is in the model."""


class Logged(Message, frozen=True):
    """worker -> master: what its script has logged; resent until `LogKept`."""

    n: int
    """Number of this message among those of the worker's life."""
    steps: tuple[LoggedStep, ...] = ()
    left_out: str = ""
    """First name beyond `MAX_NAMES`, told once; empty: the worker left out none."""


class LogKept(Message, frozen=True):
    """master -> worker: all that was logged up to number ``n`` is in the job's file."""

    n: int


class NotLoggedEvent(FeatureEvent, frozen=True):
    """The script logs under more names than a job keeps."""

    feature_name = FEATURE
    first: str
    """First name that is left out."""
    most: int
    """Number of names that a job keeps."""

    clause_words = (
        "job.log got more than {0.most} names; {0.first} and those after it are left out. Log "
        "fewer, or give what differs from step to step no name of its own"
    )
    sentence_words = "{0.clause}"


class SinkFailedEvent(FeatureEvent, frozen=True):
    """Curves no longer go to one of the places that the spec names."""

    feature_name = FEATURE
    sink: str
    error: str

    clause_words = "log_to.{0.sink}: {0.error}; the job goes on without it, curves.jsonl has all"
    sentence_words = "{0.clause}"
