"""The numbers that parts of a job are known by: each kind has a type of its own.

On the wire, on disk and in the shared ledger they are plain integers: a message or a record that
declares its fields so decodes to them. An integer becomes one of them where a number is given for
the first time, or is read from elsewhere than a message.
"""

from typing import NewType

Inc = NewType("Inc", int)
"""Incarnation: the number of a life, given once in a job, from 1 on."""
NO_INC = Inc(0)
"""No life has it."""

EpochNo = NewType("EpochNo", int)
"""Epoch number: how often the job began from a state, counted from 1; every message carries it."""
NO_EPOCH = EpochNo(0)
"""Before the first, or unknown."""

CutNo = NewType("CutNo", int)
"""The number of a cut; one that failed is given again."""
NO_CUT = CutNo(0)
"""The model as it was built."""

StepNo = NewType("StepNo", int)
"""The number of a step: a job's first is 1; a state of a step is the one after it."""
START = StepNo(0)
"""Before the first step; also where the order knows no steps."""

EntryNo = NewType("EntryNo", int)
"""The position of an entry in the order of servers: an epoch's first is 1. A group counts steps.

The positions of samples in a line, and of a schedule, are other things.
"""
NO_ENTRY = EntryNo(0)
"""Before the first entry; also where there is no order."""


def step_after(step: StepNo, count: int = 1) -> StepNo:
    """The step that comes so many after this one."""
    return StepNo(step + count)
