"""The port that `Job` trains through: who holds the model of a job, and how a step comes about.

``holding/servers`` implements it on parameter servers (and their like in one process alone),
``holding/replicas`` on a group of workers that each hold the model, ``holding/shards`` on one whose
members hold shards of it, ``holding/local`` on one process that holds it. All calls come from the
training thread.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.runtime.data.growth import Growth
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Array
from paceline.runtime.process.feature_port import Links, LogPlace
from paceline.runtime.state.script_state import ScriptState
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.feeds import Feed, ScriptPlace, SourceLine, Underway
from paceline.wire.spec import JobSpec

Evaluation = Callable[[Any, int], dict[str, Array]]
"""Batch and number of its samples -> name -> ``[num_samples, ...]``."""
Readers = Callable[[], AbstractContextManager[Reader]]
"""Makes a reader of an evaluation's feed, again for each attempt."""
Results = Mapping[str, Array]
"""Name -> ``[N, ...]``, by position."""


MEET_S = 1800.0
"""Seconds that a worker waits for the others to come to the same place of the script."""


class Reached(NamedTuple):
    """Position of a state in the script that it is of."""

    place: ScriptPlace
    """Loops over ``job.epochs`` that are over, and the epoch in hand."""
    calls: Sequence[int]
    """Steps of each scheduler between loops, up to the place."""
    feeds: Sequence[Feed]
    """Feeds to train on, of the places before."""


Bystander = Literal["fails", "leaves", "returns"]
"""Fate of a life without a batch whose script raises an error. ``fails``: as with any other error.
``leaves``: others train, and another life comes in later. ``returns``: all is done."""


class Entry(NamedTuple):
    """A loop over batches, by where it is."""

    place: ScriptPlace
    site: str
    """The lines of the script from which it was opened; see `Variables.site`."""
    turn: int
    """Number of the pass over its ``DataLoader``; 0: it reads something else."""
    feed: Feed | None
    """None: no worker has opened it so far; scripts were stopped as they came to it."""


class Entries(Protocol):
    """Loops in which a life that has had no batch can come into the job."""

    def newest(self) -> Entry | None:
        """Return the loop that the job is in; None: there is none."""

    def next_after(self, place: ScriptPlace) -> Entry | None:
        """Wait for the loop that others begin after the one at this place.

        None: there is none to wait for, since nobody else holds the model.
        """

    def goes_on(self) -> None:
        """The script goes to a later loop without a batch of this one: what it copied is old."""

    def came_in(self) -> None:
        """The script has taken over where the others' are."""

    def end_before(self, place: ScriptPlace) -> bool:
        """Tell whether all other scripts have ended, and none has begun the loop at this place."""

    def fate_of_bystander(self) -> Bystander:
        """Return what becomes of a life without a batch whose script has raised an error."""


def begun_at(place: ScriptPlace, counts: Sequence[int], feeds: Sequence[Feed]) -> Reached:
    """Return how far a state is.

    Args:
        place: where its script was.
        counts: steps of schedulers between loops that it contains.
        feeds: to train on that its model has samples of, in their order.
    """
    here = [feed for feed in feeds if feed.place[:2] == place]
    before = [feed for feed in feeds if feed.place[:2] < place]
    return Reached(place, here[0].calls if here else counts, before)


class Strategy(Protocol):
    """Deals out samples, holds the model and takes gradients.

    Every method that blocks raises `Stopped` when the job must stop.
    """

    spec: JobSpec
    """The job as asked for; ``batch_size``, ``epochs``, ``seed`` and ``data`` are read by `Job`."""
    rank: int
    is_alone: bool
    """Whether no other worker can be there."""
    can_accumulate: bool
    """Whether a step may be of several batches of the script's, with one ``optimizer.step()``."""
    meets_in_bodies: bool
    """Whether all workers may meet in the body of a loop, and none waits there in vain."""
    accumulate: int
    """Batches of such a step, as the script says; set before `train`. 1: each batch has its own."""
    takes_uneven_steps: bool
    """Whether the steps of a feed may be batches of several sizes (`Feed.ends`)."""
    takes_trainings: bool
    """Whether `prepare` may be called again, to train something else from then on."""
    entries: Entries | None
    """Loops where a life can come into the job that has had no batch; None: where its script is."""
    takes_growth: bool
    """Whether feeds of unknown length can be read: not where a step is one global batch for all."""

    @property
    def stands_in(self) -> bool:
        """Whether worker-0 is gone for good, and this worker is the chief in its place."""

    def prepare(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler] = (),
    ) -> None:
        """Take them over; returns when the model is held.

        Again, where ``takes_trainings``: from now on these are trained.

        Raises:
            ConfigError: something that cannot be held or run.
        """

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """Open a feed, known to all workers by its number; return it as the job reads it.

        Args:
            feed: as this worker's script asks for it.
            growth: of a feed whose ``num_samples`` is None; ``takes_growth`` must hold.
        """

    def begun(self) -> Reached | None:
        """Return how far the state is in the script that this worker takes over; None: it begins.

        Asked by a script that is about to pass over epochs.
        """

    def underway(self, place: ScriptPlace) -> Underway | None:
        """Return how far the job is in the feed to train on at this place; None: not begun."""

    @property
    def calls(self) -> tuple[int, ...]:
        """Return the steps of each scheduler that the script has taken between loops so far."""

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        """Tell the others something, and hear what counts at this place of the script.

        Args:
            place: of the call.
            value: of this worker.
            all_workers: wait for the values of all that live; else the first one is everybody's.

        Returns:
            One value, or those of all workers, by rank.

        Raises:
            ConfigError: others did not come within `MEET_S`.
        """

    def enter_place(self, place: ScriptPlace) -> None:
        """The script is here now: an epoch of ``job.epochs`` begins, or such a loop is over."""

    def pass_over(self, begun: Reached) -> None:
        """The script has come to where others have brought the state, without what they did."""

    def source_line(self, line: int) -> SourceLine:
        """Return what a line of a work's spans is at its source."""

    def check(self, measure: Callable[[Links], None]) -> None:
        """Have our node measured, now or before the first step; ``measure`` gets our `Links`."""

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        """Yield batch after batch until the feed is complete; ``ahead``: batches made ahead."""

    @property
    def global_batch(self) -> int | None:
        """Samples of a whole step of those that train now; None: no loop has begun."""

    @property
    def script_state(self) -> ScriptState:
        """Values that the script keeps beside the model (`Job.state`)."""

    @property
    def variables(self) -> Variables:
        """The script's own variables, as far as they are part of the job's state."""

    @property
    def step(self) -> int | None:
        """Position of the schedule in global batches; None: not known before the first batch."""

    @property
    def samples(self) -> int | None:
        """Samples in the model where the schedule is; None: not known before the first batch."""

    @property
    def num_workers(self) -> int | None:
        """Workers that train now; None: no loop has begun."""

    @property
    def log_place(self) -> LogPlace:
        """Place to which what the script logs now belongs."""

    @property
    def place_in_body(self) -> tuple[int, ...]:
        """Place of the script in the body of its loop, the same in all that compute the step.

        Only where all workers do each step together (not ``takes_growth``). In a group, after the
        step: the number of complete ones. So a body whose step broke is where the one before it
        was, and hears again what was said there.
        """

    def close_step(self) -> None:
        """The script is done with the batch in hand, if an optimizer has stepped on it."""

    @property
    def in_step(self) -> bool:
        """Whether a batch is in hand whose gradients were not taken yet."""

    def evaluate(self, fn: Evaluation, feed: Feed, readers: Readers) -> Results:
        """Apply ``fn`` to every batch of the feed, shared among workers; all get all of it.

        Args:
            fn: what to compute.
            feed: of purpose ``evaluate``.
            readers: of the feed.
        """

    def checkpoint(self) -> None:
        """See `Job.checkpoint`."""

    def hand_over(self) -> None:
        """The script is over, perhaps within a loop: have all that it has trained kept; bounded."""

    def clip_grad_norm_(self, max_norm: float, optimizer: int | None = None) -> Tensor:
        """See `Job.clip_grad_norm_`; ``optimizer``: its number, in the order of ``prepare``."""
