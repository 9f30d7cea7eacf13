"""The part of a member's `Strategy` that says how far training is."""

from paceline.runtime.group.loop import GroupLoop
from paceline.runtime.group.member import MemberClient
from paceline.runtime.group.step import GroupStep
from paceline.runtime.script.strategy import LogPlace
from paceline.wire.messages.curves import UNPLACED, Attempt
from paceline.wire.messages.group import NO_STEP


class PlaceOfMember:
    """Where a member is in the schedule of its job."""

    _member: MemberClient
    _loop: GroupLoop | None

    @property
    def global_batch(self) -> int | None:
        if self._loop is None or self._loop.step is None:
            return None
        return self._loop.global_batch

    @property
    def place_in_body(self) -> tuple[int, ...]:
        """See `Strategy.place_in_body`; before the step also which of its batches is in hand.

        A profiled batch is where the first one of the share is: others do not have it.
        """
        step = self._loop.step if self._loop is not None else None
        if self._loop is None or step is None:
            return (0,)
        begun = step.works[-1].step - 1
        if self._loop.in_step:
            return begun, max(0, step.batch_no - step.num_profiled)
        is_done = self._member.state.step > begun or self._half_done is not None
        return (begun + is_done,)

    @property
    def step(self) -> int | None:
        held, step = self._held, self._half_done
        if held is None:
            return None
        count = self._member.state.position.of_training(held, 0)[0]
        return count + (step.num_batches if step is not None else 0)

    @property
    def _held(self) -> int | None:
        """Global batches in the model, those of trainings that are over included."""
        state = self._member.state
        if state.step == NO_STEP:  # at most a cut of the end was read, for which no group is needed
            return state.position.value
        return state.position.at(state.step)

    @property
    def _half_done(self) -> GroupStep | None:
        """The step in hand, if an optimizer has stepped on it, and others may."""
        return self._loop.half_done if self._loop is not None else None

    @property
    def samples(self) -> int | None:
        state, step = self._member.state, self._half_done
        held = state.position.samples if state.step == NO_STEP else self._member.samples_with()
        if held is None:
            return None
        more = self._member.samples_with(step.whole) - held if step is not None else 0
        return state.position.of_training(0, held)[1] + more

    @property
    def num_workers(self) -> int | None:
        step = self._loop.step if self._loop is not None else None
        return len(step.run.members) if step is not None else None

    @property
    def log_place(self) -> LogPlace:
        step = self._loop.step if self._loop is not None else None
        if step is not None:
            # Not where the state is now: the group may be over, and the next one known.
            attempt = Attempt(step.run.epoch_no, step.run.group)
            return LogPlace(attempt, step.begins_at + 1, self._member.samples_with(step.whole))
        at = self._held
        if at is None or self._member.state.step == NO_STEP:
            return LogPlace(Attempt(), UNPLACED, UNPLACED, between=True)
        return LogPlace(self._member.attempt, at, self._member.samples_with(), between=True)

    @property
    def num_steps(self) -> int | None:
        """Steps in the model, those that completed no global batch too; None: not known yet."""
        step = self._member.state.step
        return None if step == NO_STEP else step
