"""The port of features in a worker: what a feature's part hears, and what it may send.

A feature declares its part as the ``process`` of its `paceline.base.features.Feature`: a callable
that takes `Here` and returns a `ProcessPart`, or None where the feature has nothing to do in this
process. An error that a part raises ends the part, and not the training.

A script that trains by itself has parts, too. They hear of its steps, and what was told before the
script. All else that they hear and say goes through the link of `Process` (`say`, `hear`), which
nobody else uses there.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.runtime.process.process import Process
from paceline.wire.messages.base import Attempt, Link
from paceline.wire.spec import JobSpec

if TYPE_CHECKING:  # torch: a server's process imports this, too
    from torch import Tensor, device

    from paceline.runtime.probe.times import StepOver

Number: TypeAlias = "float | Tensor"
"""Value that a script logs: a number, or a tensor without dimensions on its device."""
Links: TypeAlias = Callable[[], tuple[Link, ...]]
"""Measures what the links of this node carry, together with its peers."""


class Here(NamedTuple):
    """The worker that a part belongs to."""

    job: JobDir
    spec: JobSpec
    node: str
    inc: Inc
    rank: int


class LogPlace(NamedTuple):
    """Place in the training to which values that the script logs now belong."""

    attempt: Attempt
    step: int
    """Step of the batch in hand; between loops the last one. `UNPLACED`: not known here."""
    samples: int
    """Number of samples in the model with that step."""
    between: bool = False
    """True: no batch is in hand, and the step is in the model."""


class ProcessPart:
    """A feature's part in a worker; each method may be left out."""

    goes_by_steps: bool = False
    """True: the part needs the steps of a script that trains on its own; they are watched."""

    def begin(self, process: Process) -> None:
        """Put into the process what must be there before its script runs.

        Raises:
            ConfigError: this machine lacks what the feature needs; the process ends with it.
        """

    def script_timed(self, over: "StepOver") -> None:
        """Take in what a step took of a script that trains on its own; a GPU tells it later."""

    def script_stepped(self, step: int) -> None:
        """Act between two steps of a script that trains on its own, in the script's thread."""

    @property
    def is_to_measure(self) -> bool:
        """Tell whether `measure` must be called in this life."""
        return False

    def measure(self, device: "device", links: Links) -> None:
        """Measure the node before the first step, in the training thread: nothing else runs here.

        Args:
            device: that holds the model.
            links: see `Links`; peers wait until it is called. What it raises must be raised again:
                then the peers are gone, and all of it comes again with others.
        """

    def logged(self, place: LogPlace, values: Mapping[str, Number], now_s: float) -> None:
        """Take in values of ``job.log``; in the training thread, which waits."""

    def loop_ended(self) -> None:
        """Act on the end of a loop, or on the script's leaving it; in the training thread."""

    def told(self, body: msgspec.Raw) -> None:
        """Take in a message, as msgpack, of the feature's part in the master; in another thread.

        What the master's part gave to the order to start this life comes before `begin`.
        """

    def due(self, now_s: float) -> Iterable[Any]:
        """Return messages, msgspec structs, for the part in the master; in the same thread."""
        return ()

    def rest(self) -> Iterable[Any]:
        """Return the last messages, since the process ends; in the training thread."""
        return ()
