"""Work that a worker is given to compute, and the time that it took."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.base.samples import Span

Array = NDArray[np.generic]


@dataclass(slots=True, eq=False)
class Work:
    """The samples of one batch; the object itself names it (no two are equal)."""

    feed: int
    spans: tuple[Span, ...]
    num_samples: int
    step: int = 0
    """Synchronous modes: the step that these samples belong to."""
    ends_contribution: bool = True
    """Whether its gradients are handed over with those of earlier batches; False: they are kept for
    the next. Known when ``next_work`` returns it, as is the following."""
    ends_step: bool = True
    """Whether nothing more of its step comes, as far as is known."""


class StepTimes(NamedTuple):
    """Time that one contribution took, in seconds (antdt, section II)."""

    step: int
    """Contributions of this process so far, this one included."""
    samples: int
    start_s: float
    """Time at which the batch was ready; monotonic clock."""
    bpt_s: float
    """Wall time from one yielded batch to the next."""
    compute_s: float
    """T^w: time of the training thread from batch ready to gradients ready, without its waits.
    Wall time: a thread that gets less of its core is slow, though its cpu time is not."""
    server_s: float
    message_s: float
    wait_s: float
    """Time in which the training thread waited for data, for the pull or for the others."""
    data_s: float = 0.0
    """T^d: of that, the time from when it wanted a batch until it had been read and made."""
