"""The part of `Job` around its loops over batches: epochs, and what workers tell each other."""

import sys
from collections.abc import Generator, Iterator
from typing import Any

from paceline.base.errors import ConfigError
from paceline.runtime.process.process import Stopped
from paceline.runtime.script.course import OUTSIDE, ScriptCourse
from paceline.runtime.script.feed_requests import check_number
from paceline.runtime.script.job_log import JobLog
from paceline.runtime.script.strategy import Entry, Reached, Strategy
from paceline.runtime.state.packed import packed, unpacked
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.feeds import ScriptPlace

MAX_VALUE_BYTES = 1 << 20
"""Of what workers tell each other by `Job.agree` and its like."""


MOST_BEHIND = 100
"""Loops that a script may begin behind the end of the others'."""


class BatchLoop(Iterator[Any]):
    """The batches of one loop.

    ``len`` is the number of those that a worker gets if every share is one batch and no step comes
    again: what a progress bar shows.
    """

    def __init__(
        self, bodies: Generator[Any, None, None], count: int, variables: Variables
    ) -> None:
        """``count``: 0: it is not known. ``variables``: of the script that asks for batches."""
        self._bodies, self._count, self._variables = bodies, count, variables

    def __next__(self) -> Any:
        self._variables.waits_in(sys._getframe(1))
        try:
            return next(self._bodies)
        except Stopped:
            self._variables.stopped()
            raise
        finally:
            self._variables.goes_on()

    def __len__(self) -> int:
        if not self._count:
            raise TypeError(
                "the number of batches is not known: the dataset has no length yet, or the steps "
                "follow the number of workers (batch_per_worker)"
            )
        return self._count

    def close(self) -> None:
        """Leave the loop."""
        self._bodies.close()


class JobCourse(JobLog):
    """One worker's way through its script."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._looping = False
        self._num_behind = 0
        """Loops that were begun behind the end of others' scripts."""
        self._num_passed = 0
        """Loops over batches that were done before this life came there, in no epoch."""
        self._num_apart = 0
        """Of these, those behind which its script does not hold what the others' did."""
        self._has_told = False
        self._course = ScriptCourse(self._step_of_body, self._place_in_body)
        self._begun: Reached | None = None
        """How far the state was when this script asked, before its first loop over epochs."""
        self._has_asked = False
        self._of_epochs = 0
        """Epochs of the loop over epochs in hand; 0: in none."""
        self._calls: tuple[int, ...] = ()
        """Steps of schedulers between loops when the epoch in hand began."""

    def _step_of_body(self) -> int:
        """The step of the body in hand, where all workers compute each step together."""
        return OUTSIDE if self._strategy.takes_growth else self._strategy.step or 0

    @property
    def samples(self) -> int:
        """Samples in the model, as this worker knows: it changes where `step` does.

        Raises:
            ConfigError: before the first batch of `batches`.
        """
        return self._known("samples", self._strategy.samples)

    def _known(self, name: str, value: int | None) -> int:
        """How far the job is, for a script that asks for it."""
        self._course.asked()
        if value is None:
            raise ConfigError(
                f"job.{name} is known from the first batch of job.batches on; read it in the loop"
            )
        return value

    def epochs(self, epochs: int) -> Iterator[int]:
        """Number the epochs of a script that goes through its data more than once, from 0.

            for epoch in job.epochs(12):
                for batch in job.batches(dataset, batch_size=4096):
                    ...
                validate(model)

        A worker that joins, and a job that is resumed, begin with the epoch that the model is in:
        what the body does between its loops is not done again for epochs that are over. An epoch
        has begun when a step of its first loop is in the model. If the job is resumed before that,
        the end of the epoch before is done again, with the model and `state` as they were then.
        What the script keeps from one epoch to the next belongs into `state`.

        Args:
            epochs: how many; ``epochs`` in the job's spec takes its place.

        Raises:
            ConfigError: a value is out of range, nothing was prepared, or another such loop is
                open.
        """
        self._check_prepared("job.epochs")
        check_number("job.epochs", "epochs", epochs)
        if self._course.epoch is not None or self._looping:
            raise ConfigError(
                "job.epochs was called within a loop over job.epochs or job.batches; finish that "
                "loop first"
            )
        return self._epochs(self._strategy.spec.epochs or epochs)

    def _epochs(self, count: int) -> Iterator[int]:
        if not self._has_asked:
            self._begun, self._has_asked = self._strategy.begun(), True
        first = self._course.first_epoch(self._begun.place if self._begun else None, count)
        self._of_epochs, epoch = count, first
        try:
            while epoch < count:
                self._course.enter(epoch)
                self._come_to(passed=epoch == first > 0)
                yield epoch
                # A life that had no batch of it may have come in in a later one.
                epoch = (self._course.epoch or 0) + 1
        finally:
            self._of_epochs = 0
            self._course.leave()
            self._come_to(passed=first == count)

    # ------------------------------------------------------------------ a life that comes in

    def _entry(self, site: str) -> Entry | None:
        """The loop that the job is in, if this life has had no batch, and opens it from there."""
        entries = self._strategy.entries
        if entries is None or self._has_begun:
            return None
        entry = entries.newest()
        here = entry is not None and entry.site == site and entry.place > self._course.coming
        return entry if here else None

    def _next_entry(self, site: str) -> Entry | None:
        """Wait for the next loop of others, if this life has had no batch.

        So the body of the script never runs for a loop of which it had none.
        """
        entries, variables = self._strategy.entries, self._strategy.variables
        if entries is None or self._has_begun or variables.has_left:
            return None
        entry = entries.next_after(variables.place)
        return entry if entry is not None and entry.site == site else None

    def _is_behind_end(self) -> bool:
        """Whether this life, which had no batch, begins a loop that nobody else ever had.

        It goes through its data until it has counted enough batches, and has counted none: it would
        train alone once more what the others have trained. What stands behind the loops that it
        passes is done; if these do not end, it ends.

        Raises:
            SystemExit: they do not end.
        """
        entries = self._strategy.entries
        if entries is None or self._has_begun or not self._num_passed:
            return False
        if not entries.end_before(self._course.coming):
            return False
        self._begins_behind_end()
        return True

    def _begins_behind_end(self) -> None:
        """Count a loop that only this life begins, as the others' scripts have ended.

        Raises:
            SystemExit: there is no end of them.
        """
        self._num_behind += 1
        if self._num_behind > MOST_BEHIND:
            sys.stderr.write(_WORDS_AT_END)
            raise SystemExit(0)

    def _move_to(self, place: ScriptPlace) -> None:
        self._course.come_in(place)
        self._strategy.enter_place(self._course.place)

    def _stand_by(self) -> None:
        """This life has had no batch of a loop, and goes on behind it, as others did."""
        entries = self._strategy.entries
        follows = self._strategy.variables.take(ended=True)
        if follows and entries is not None:
            entries.came_in()
        self._pass_loop(follows=follows)

    def _pass_loop(self, *, follows: bool = False) -> None:
        """A loop over batches had none for this worker.

        ``follows``: what its script holds is what others' scripts held behind it.
        """
        from paceline.runtime.process.process import current

        process, entries = current(), self._strategy.entries
        if process is None or self._has_begun:
            return
        if entries is not None:
            process.stands_by = entries.fate_of_bystander
        if self._course.epoch is not None:
            return
        self._num_passed += 1
        process.check_returned = self._check_returned
        if not follows:
            self._num_apart += 1
            process.remark = _passed_words(self._num_apart)

    def _tell_passed(self) -> None:
        """Say, in the first loop with a batch, what this life has done again."""
        from paceline.runtime.process.process import current

        process = current()
        if process is not None:
            process.stands_by = None
        if process is not None and self._num_apart and not self._has_told:
            self._has_told = True
            sys.stderr.write(f"paceline: this life of {process.node} {process.remark}\n")

    def _check_returned(self) -> None:
        """Raise ConfigError if the script has left out a loop in which others have trained."""
        underway = self._strategy.underway(self._course.coming)
        if underway is not None and underway.at > 0:
            raise ConfigError(
                "the script returned before a loop over batches that the job has begun. Before, it "
                f"{_passed_words(self._num_passed)}. Decide with job.agree when to stop; then go "
                "on with `paceline run --resume`"
            )

    def _begin_course(self) -> None:
        """What was prepared trains next. A loop before it gave the state that it had ended with."""
        from paceline.runtime.process.process import current

        self._course.next_training()
        if (process := current()) is not None:
            process.forget_remark()
        self._num_passed = self._num_apart = 0
        self._begun, self._has_asked = None, False
        self._come_to(passed=False)

    def _check_between(self, caller: str) -> None:
        """Raise ConfigError within a loop, whose training is not over."""
        if self._course.epoch is not None or self._looping:
            raise ConfigError(
                f"{caller} was called within a loop over job.epochs or job.batches, and begins the "
                "next training; finish that loop, or leave it, first. For one training, call it "
                "once, before its loops"
            )

    def _come_to(self, *, passed: bool) -> None:
        """The script is at its next place, or ``passed`` over what was done before."""
        self._strategy.enter_place(self._course.place)
        if passed and self._begun is not None and self._course.reaches_target:
            self._strategy.pass_over(self._begun)
        self._calls = self._strategy.calls

    def agree(self, value: Any) -> Any:
        """Decide something once for all workers: the value of the first one that calls.

            if job.agree(bad_epochs >= 2):
                break

        All workers make the call, and get the same value, also those that come there later, or
        again: after a resume, or where the step of a body comes again.

        Args:
            value: plain data or tensors, up to 1 MiB.

        Raises:
            ConfigError: something that cannot be sent, or in a loop body of mode asp or ssp.
        """
        self._check_prepared("job.agree")
        apart = self._strategy.takes_growth and not self._strategy.is_alone
        if self._course.in_body and apart:
            raise ConfigError(
                "job.agree was called within a loop over job.batches, whose workers share no step "
                "in modes asp and ssp; call it between two loops, or run the job with --mode bsp"
            )
        return self._meet("job.agree", value, all_workers=False)[0]

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all workers, by rank; all of them make the call.

        A worker that dies is no longer waited for, so there may be fewer values than workers. One
        that comes later, or again, gets the same list. With strategy allreduce the call may stand
        in the body of a loop, too: there it hears the workers that are in the step.

        Args:
            value: plain data or tensors, up to 1 MiB.

        Raises:
            ConfigError: something that cannot be sent, or called in the body of a loop (not
                with strategy allreduce).
        """
        return self._meet_all("job.all_gather", value)

    def broadcast(self, value: Any) -> Any:
        """The value of the worker with the lowest rank that lives; see `all_gather`."""
        return self._meet_all("job.broadcast", value)[0]

    def barrier(self) -> None:
        """Return when all workers that live have come here; see `all_gather`."""
        self._meet_all("job.barrier", None)

    def _meet_all(self, caller: str, value: Any) -> list[Any]:
        self._check_prepared(caller)
        if self._looping and not self._strategy.meets_in_bodies:
            raise ConfigError(
                f"{caller} was called within a loop over job.batches, where a worker that dies "
                "would leave the others waiting; call it between two loops, use job.agree or "
                "job.evaluate, or run the job with --strategy allreduce"
            )
        return self._meet(caller, value, all_workers=True)

    def _meet(self, caller: str, value: Any, *, all_workers: bool) -> list[Any]:
        sent = packed(value, caller)
        if len(sent) > MAX_VALUE_BYTES:
            raise ConfigError(
                f"{caller} got a value of {len(sent):,} bytes, and takes up to "
                f"{MAX_VALUE_BYTES:,}; put what is larger into a file"
            )
        place = self._course.meeting()
        return [*map(unpacked, self._strategy.meet(place, sent, all_workers=all_workers))]

    def _place_in_body(self) -> tuple[int, ...]:
        return (OUTSIDE,) if self._strategy.takes_growth else self._strategy.place_in_body

    @property
    def epoch(self) -> int:
        """The epoch of `epochs` in hand.

        Raises:
            ConfigError: outside of a loop over `epochs`.
        """
        if self._course.epoch is None:
            raise ConfigError("job.epoch is known within a loop over job.epochs only")
        return self._course.epoch


_WORDS_AT_END = (
    "paceline: the other workers' scripts have returned. This life began later, and its script "
    "begins one loop after the other behind their last one, since it has not counted all batches: "
    "it ends here, without what its script does after its loops. If only this worker does that "
    "(job.is_chief), do it by hand: `paceline checkpoint export` writes the model. A script that "
    "decides by job.step when to stop ends as the others do\n"
)


def _passed_words(num_loops: int) -> str:
    loops, each = ("a loop", "it") if num_loops == 1 else (f"{num_loops} loops", "each")
    return (
        f"passed over {loops} that earlier lives or other workers had done, and did what stands "
        f"after {each} again, with the newest model and no batch. Number the epochs with "
        "`for epoch in job.epochs(n)`, and keep in job.state what the script remembers"
    )
