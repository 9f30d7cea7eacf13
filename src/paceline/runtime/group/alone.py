"""The step of a worker that trains alone, with all left out that serves other workers.

Of a step of several members only this is left: the batch, the optimizers, and what counts as done.
It is looked at once for each step whether anything has come from the master, a peer or a signal;
if so, the next step is one of any group, and acts on it.

Two things can break such a step: the job goes back to a cut, or on without this worker. An order to
stop cannot, since it waits for the end of the step. So no mark of the script's variables is kept.
If the step breaks, this life ends, and the next one begins where the state is.
"""

from paceline.runtime.group.member import MemberClient
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.shares import StepShares
from paceline.runtime.group.step import GroupStep, StepPlan
from paceline.runtime.process.process import Fenced
from paceline.runtime.variables.variables import Variables

COMPARED_STEPS = 2
"""Steps at the beginning of each loop in which members compare their script's variables."""


class StepsAlone:
    """Makes a step of any group the next one of a group of one, if that can be.

    Args:
        client: of this member.
        reducer: what it would sum with.
        shares: plans its steps.
        variables: of its script.
    """

    def __init__(
        self,
        client: MemberClient,
        reducer: Reducer,
        shares: StepShares,
        variables: Variables,
    ) -> None:
        self._client, self._reducer, self._shares = client, reducer, shares
        self._variables = variables
        #: The client's count of events as of the newest step that was one of any group.
        self._num_events = -1
        shares_fit = shares.accumulate == 1 and not (shares.sharing.blocks or shares.bodies)
        self._fits = shares_fit and reducer.sums_gradients and reducer.is_on_cpu

    def begins_any(self, num_events: int) -> None:
        """Note that a step of any group begins, which acts on so much that has come."""
        self._num_events = num_events

    def next_after(self, step: GroupStep | None) -> StepPlan | None:
        """Return the next step, if the one that is over may be made that; None: any group's.

        Raises:
            Fenced: it broke, and what its body has done to the script's variables stays.
        """
        if step is None:
            return None
        if not (self._has_no_news(step) and (step.is_alone or self._may_be_alone(step))):
            if step.is_alone and not step.holds and self._variables.found:
                raise Fenced
            return None
        plan = self._shares.next(step.run, step.division, step.group.rank)
        if len(plan.works) != 1:  # the feed is over, or such a share is computed in parts
            return None
        if not step.is_alone and self._is_compared(plan):
            return None
        return plan

    def begins(self, step: GroupStep) -> bool:
        """Begin the step, whose batch is there; False: something has come meanwhile."""
        if not self._client.begin_again(step.run, self._num_events, alone=True):
            return False
        if not step.is_alone:
            self._variables.unmark()
        self._reducer.rest()
        return True

    def begins_again(self, step: GroupStep | None) -> bool:
        """Begin the next step of the same group; False: something has come meanwhile."""
        if step is None or not self._has_no_news(step) or not self._client.is_quiet:
            return False
        return self._client.begin_again(step.run, self._num_events)

    def _has_no_news(self, step: GroupStep) -> bool:
        client = self._client
        is_same = client.num_events == self._num_events and not client.stops
        return is_same and step.holds and client.state.running is step.run

    def _is_compared(self, plan: StepPlan) -> bool:
        """Tell whether variables are looked at in this step, as at the beginning of each loop."""
        number = self._shares.feed.number_at(plan.whole[0].start)
        return self._variables.found and number <= COMPARED_STEPS

    def _may_be_alone(self, step: GroupStep) -> bool:
        lacking = step.division.lacking
        is_plain = step.division is step.heard and not (lacking.left_out or lacking.late)
        is_whole = step.is_last_batch and not (step.batch_no or step.behind)
        alone = self._fits and len(step.run.members) == 1 and is_plain and is_whole
        return alone and self._client.is_quiet
