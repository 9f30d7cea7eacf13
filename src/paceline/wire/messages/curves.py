"""What scripts log with ``job.log``, on its way from a worker to the master."""

import msgspec

from paceline.base.numbering import Inc
from paceline.wire.messages.base import Message

MAX_NAMES = 100
"""Names that a job may log; those after them are left out."""
UNPLACED = -1
"""A step or a number of samples that the worker does not know: that of the model, then."""


class Attempt(msgspec.Struct, frozen=True, array_like=True, order=True):
    """An attempt at the steps of a job. A step that comes again does so in a newer one."""

    epoch_no: int = 0
    group: int = 0
    """Number of the group with all-reduce and fsdp; else 0."""


class LoggedTotal(msgspec.Struct, frozen=True, array_like=True):
    """The sum of the values that were logged for one name in one step, and how many they are."""

    total: float
    count: int


class LoggedStep(msgspec.Struct, frozen=True, array_like=True):
    """What one worker logged in one step, or a part of that."""

    attempt: Attempt
    step: int
    """`UNPLACED`: the worker does not know where the model is."""
    samples: int
    """Samples in the model with that step."""
    values: dict[str, LoggedTotal]
    between: bool = False
    """Whether this was logged between loops: the step is in the model."""


class LogKept(Message, frozen=True):
    """master -> worker: all that was logged up to number ``n`` is in the job's file."""

    inc: Inc
    n: int
