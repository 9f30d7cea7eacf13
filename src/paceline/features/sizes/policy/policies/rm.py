"""The policy ``rm``: a fitted model, plans on the Pareto front, workers first.

Reference: DLRover-RM sections 4.1 to 4.3.
Differs: what is not known of a size lowers what is expected of it; sizes that tell the terms apart
are tried where too little is known; a size that costs less at a small loss is a plan, too.
"""

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from paceline.features.sizes.policy.candidates import CAUTION, SizeOffer, offers
from paceline.features.sizes.policy.causes import ALGORITHMS, diagnose, has_fewer_cores
from paceline.features.sizes.policy.choice import (
    JobOffers,
    SpareResources,
    weight,
    weighted_greedy,
)
from paceline.features.sizes.policy.fitting import fit
from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import Hold, Relief, ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.features.sizes.policy.probing import probe
from paceline.features.sizes.policy.step_model import TERMS, SizeModel, SizeTable, confidence

Ratio = Annotated[float, Meta(ge=0, lt=1)]
Factor = Annotated[float, Meta(gt=1)]
AnyNumber = Annotated[int, Meta(ge=0)]

_SERVERS = ("servers", "server_size")


class DlroverRm(ResourcePolicy, frozen=True):
    """DLRover-RM's auto-scaling of one job."""

    reach: Factor = 4.0
    """Factor by which each count and quota may change in one plan."""
    thrift: Ratio = 0.05
    """See `weighted_greedy`."""
    least_gain: Ratio = 0.05
    """Relative gain from which on a plan is made."""
    servers_margin: Ratio = 0.02
    """A plan that changes servers must beat the best one that does not by this part of the present
    rate, and by its extra cost."""
    saving: Ratio = 0.2
    """Part of the present cost that a smaller size must save."""
    loss: Ratio = 0.02
    """Part of the present rate that a smaller size may lose."""
    sure: Ratio = 0.5
    """Confidence below which a size is tried that tells the terms apart."""
    learn_gain: Ratio = 0.25
    """Relative gain that a plan must promise to be worth such a trial."""
    trials: AnyNumber = 3
    """Sizes of one job that are tried although, with caution, no plan is worth it."""
    seed: AnyNumber = 0
    """Not used, since the search draws nothing; specs and logs of earlier versions may name it."""

    def decide(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | Hold:
        present = history.measured_at(seen.size)
        if present is None or not present.rate.per_s:
            return Hold(cause="too_little_measured")
        per_s = present.rate.per_s
        cause, server = diagnose(seen)
        # A server that is only uneven is the model's: it has more to give than one server's cores.
        is_own = server is not None and (cause == "slow_server" or has_fewer_cores(seen, server))
        cured = ALGORITHMS[cause](seen, history, server) if is_own else None
        if cured and not history.avoids(cured.target, seen.now_s, cured.node_names):
            return cured
        model = fit(history, present, seen.mode)
        found = self._found(seen, history, model, per_s)
        best = self._fastest(seen, found, per_s)
        if best is not None and best.per_s >= (1.0 + self.least_gain) * per_s:
            plan = _plan(seen, model, per_s, best)
            is_worth = plan.expected_per_s >= (1.0 + self.learn_gain) * per_s
            if plan.confidence < self.sure and is_worth:
                return probe(seen, history, model, plan) or plan
            return plan
        return (
            self._cheaper(seen, model, per_s, found)
            or self._trial(seen, history, model, per_s)
            or Hold(
                cause="no_gain",
                detail=f"the best of {len(found)} sizes: {_describe(best, per_s)}",
            )
        )

    def _found(
        self,
        seen: ResourceObservation,
        history: SizingHistory,
        model: SizeModel,
        per_s: float,
        caution: float = CAUTION,
    ) -> list[SizeOffer]:
        """Other sizes on the Pareto front."""
        # Fewer nodes of more cores each: no harm if a node has no use for so many.
        least = (1.0 - self.loss) * per_s
        return [
            each
            for each in offers(seen, model, per_s, self.reach, least, caution)
            if each.size.differing(seen.size) and not history.avoids(each.size, seen.now_s)
        ]

    def _trial(
        self, seen: ResourceObservation, history: SizingHistory, model: SizeModel, per_s: float
    ) -> ResourcePlan | None:
        """A size to learn from, where a plan without caution promises much; None: there is none.

        Sizes that have the same numbers of nodes leave open what fewer nodes would bring, so with
        caution none of fewer is a plan. After a change that has made the job faster, fewer nodes
        are worth a trial for less: each node has some work of its own.
        """
        if history.probes >= self.trials:
            return None
        found = self._found(seen, history, model, per_s, caution=0.0)
        best = max(found, key=lambda each: each.per_s, default=None)
        if best is None:
            return None
        fewer = best.size.workers + best.size.servers < seen.size.workers + seen.size.servers
        is_way_down = fewer and _has_become_faster(history)
        gain = self.least_gain if is_way_down else self.learn_gain
        if best.per_s < (1.0 + gain) * per_s:
            return None
        plan = _plan(seen, model, per_s, best)
        if plan.confidence >= self.sure:
            return None
        nearer = None if is_way_down else probe(seen, history, model, plan)
        return nearer or replace(plan, aim="learn", relieves="too_little_known")

    def _fastest(
        self, seen: ResourceObservation, found: list[SizeOffer], per_s: float
    ) -> SizeOffer | None:
        """The offer that weighted greedy takes; workers first."""
        any_kind = self._chosen(seen, found, per_s)
        if any_kind is None or not set(seen.size.kinds(any_kind.size)) & set(_SERVERS):
            return any_kind
        others = [each for each in found if not set(seen.size.kinds(each.size)) & set(_SERVERS)]
        workers_only = self._chosen(seen, others, per_s)
        if workers_only is None:
            return any_kind
        margin = self.servers_margin * per_s
        return any_kind if any_kind.gain > workers_only.gain + margin else workers_only

    def _chosen(
        self, seen: ResourceObservation, found: list[SizeOffer], per_s: float
    ) -> SizeOffer | None:
        left = seen.samples_left
        job = JobOffers(
            job="",
            present=seen.size,
            weight=weight(0.0 if left is None else left / per_s),
            per_s=per_s,
            cost=seen.size.cost(seen.prices),
            offers=tuple(found),
        )
        return weighted_greedy([job], SpareResources(), self.thrift).get("")

    def _cheaper(
        self, seen: ResourceObservation, model: SizeModel, per_s: float, found: list[SizeOffer]
    ) -> ResourcePlan | None:
        """The smaller size that saves most, at a bounded loss; None: there is none."""
        now = seen.size.cost(seen.prices)
        fit_for = [
            each
            for each in found
            if each.cost <= -self.saving * now
            and each.per_s * (1.0 - each.error) >= per_s * (1.0 - self.loss - 0.1)
            and each.per_s >= per_s * (1.0 - self.loss)
            and confidence(each.error) >= self.sure
        ]
        if not fit_for:
            return None
        best = min(fit_for, key=lambda each: each.cost)
        plan = _plan(seen, model, per_s, best)
        return ResourcePlan(
            target=plan.target,
            aim="cheaper",
            relieves="idle_cores",
            present_per_s=plan.present_per_s,
            expected_per_s=plan.expected_per_s,
            expected_error=plan.expected_error,
            allowed_loss=self.loss,
            cost_s=plan.cost_s,
            cost_per_hour=plan.cost_per_hour,
            confidence=plan.confidence,
            extrapolates=plan.extrapolates,
        )


def _has_become_faster(history: SizingHistory) -> bool:
    """Whether a plan for speed has helped, so that the job did not begin well-sized."""
    return any(
        one.verdict == "better" and one.relieves not in ("memory", "too_little_known")
        for one in history.outcomes
    )


def _plan(
    seen: ResourceObservation, model: SizeModel, per_s: float, offer: SizeOffer
) -> ResourcePlan:
    return ResourcePlan(
        target=offer.size,
        relieves=_relieved(seen, model, offer),
        present_per_s=per_s,
        expected_per_s=offer.per_s,
        expected_error=offer.error,
        cost_s=offer.stall_s,
        cost_per_hour=offer.cost,
        confidence=confidence(offer.error),
        extrapolates=model.outside(offer.size),
    )


def _relieved(seen: ResourceObservation, model: SizeModel, offer: SizeOffer) -> Relief:
    """The term of a sample's time that the offer makes smaller by most."""
    sizes = (seen.size, offer.size)
    batches = [seen.batch_at(each.workers) for each in sizes]
    terms = model.terms(SizeTable.of(sizes, batches))
    for_each = terms / [[each.workers * batch] for each, batch in zip(sizes, batches, strict=True)]
    saved = for_each[0] - for_each[1]
    return TERMS[int(saved[:-1].argmax())]


def _describe(best: SizeOffer | None, per_s: float) -> str:
    return "none is faster" if best is None else f"{best.per_s / per_s - 1.0:+.1%}"
