"""The part of a member's `Strategy` that follows its script from loop to loop."""

from collections.abc import Sequence

from torch.optim.lr_scheduler import LRScheduler

from paceline.runtime.group.member import MemberClient
from paceline.runtime.script.strategy import Reached, begun_at
from paceline.runtime.state.outside import Outside
from paceline.runtime.state.replica import place_in_cut
from paceline.wire.messages.feeds import ScriptPlace, Underway


class WayOfMember:
    """Where a member's script is, and what it and the others have done there."""

    _member: MemberClient
    _between: Outside
    _training = 0
    """Number of the script's newest training: each ``job.prepare`` begins one."""

    def _num_schedules(self, scheduler: LRScheduler) -> int | None:
        """Return the steps that a scheduler's call in the body of a loop counts; None: no loop."""
        raise NotImplementedError

    def _outside(self, schedulers: Sequence[LRScheduler]) -> Outside:
        self._between = Outside(schedulers, self._num_schedules)
        return self._between

    def begun(self) -> Reached | None:
        found = self._member.begun()
        feeds = [one for one in found.begun if one.training == self._training]
        if not feeds:
            return None
        if found.cut is None:
            return begun_at(feeds[-1].place[:2], feeds[-1].calls, feeds)
        # It may be of after the end of an epoch, and before a step of the next.
        places = self._member.process.cuts.places(found.cut)
        held = place_in_cut(self._training, *places)
        return None if held is None else begun_at(*held, feeds)

    def underway(self, place: ScriptPlace) -> Underway | None:
        return self._member.underway(place)

    @property
    def calls(self) -> tuple[int, ...]:
        return self._between.own()

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        return self._member.meet(place, value, all_workers=all_workers)

    def enter_place(self, place: ScriptPlace) -> None:
        self._between.place = place

    def pass_over(self, begun: Reached) -> None:
        self._between.pass_over(begun.place, begun.calls)
