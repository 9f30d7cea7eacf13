"""Fits the model of a job's steps to what was measured, and chooses its form by held-out error.

The coefficients are found by non-negative least squares of relative errors (so it is close to the
RMSLE that the paper minimises). One measured size gives several equations: the whole step, its
parts as far as they are measured, and the work in core-seconds, from the cores that were used. So
one size nearly determines the model where parts and use are measured. A weak prior covers what no
equation determines; what stays open shows in the covariance, and so in a plan's confidence. With
few sizes, the form is the one that the job's mode suggests and the equations do not contradict.

Reference: DLRover-RM section 4.3 (online model fitting), DLRover section 4.1 (used cores).
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from paceline.base.optional import extra_for
from paceline.features.sizes.policy.history import MeasuredSize, PlanOutcome, SizingHistory
from paceline.features.sizes.policy.node_use import used_by
from paceline.features.sizes.policy.step_model import (
    COMPUTED,
    SENT,
    SERVED,
    TERMS,
    WORK,
    Floats,
    SizeModel,
    SizeTable,
    StepForm,
    columns,
    parted,
)

_NEWEST = 16
"""Measured sizes that are fitted, at most."""
_WHOLE, _PART, _SERVICE, _WORK = 0.03, 0.15, 0.5, 0.25
"""Relative errors: of a step's time; of a measured part; of a server's service time as the work for
all workers, since it does not have the wait for the others' requests; of core-seconds as work."""
_SIMILAR = 0.5
"""Relative error of what similar jobs measured, as a prior of this one."""
_FLOOR = 0.03
"""Standard deviation of a term before anything is measured, in whole steps, at least. It is a whole
step where no part is measured, else the part that the term is in."""
_UNKNOWN_FORM = 0.15
"""Relative error of the form, until enough sizes are measured to hold some out."""
_LEAST_FORM = 0.02
_PLANS = 4
"""Newest plans whose outcomes count for the form's error."""
_LUCK = 0.33
"""Part of the error that counts where a plan brought more than it promised: it did no harm."""
_FEW = 4
"""Sizes from which on some are held out."""
_FULL_USE = 0.85
"""Used part of its quota from which a node would use more if it had more."""
_STEPS = (0.7, 1.0, 1.4)
"""Factors on measured cores that are tried as limits of useful ones."""
_SIMPLER = 0.85
"""Another form than the one that the mode suggests must be better by this factor."""
_AT_ONCE = ("bsp", "allreduce")


class _Equations(msgspec.Struct, frozen=True, kw_only=True):
    """Rows x = y of one measured size, each divided by its error."""

    rows: Floats
    values: Floats


def fit(history: SizingHistory, present: MeasuredSize, mode: str) -> SizeModel:
    """Fit the better of both forms.

    Args:
        mode: of the job; in synchronous ones all workers push at once.
        history: measured sizes; that of `present` is replaced by it.
        present: the size that the job has now.
    """
    own = [*history.with_measured(present).measured[-_NEWEST:]]
    similar = list(history.similar[-_NEWEST:])
    usual = mode in _AT_ONCE

    def quality(form: StepForm) -> float:
        is_plain = form.saturating != usual and form.worker_cores == form.server_cores
        return _quality(own, similar, form) * (_SIMPLER if is_plain else 1.0)

    form = min(_forms(own), key=quality)
    error = _form_error(history, own, similar, form)
    return replace(_solve(own, similar, form), form_error=error)


def rmsle(model: SizeModel, seen: Sequence[MeasuredSize]) -> float:
    """Root of the mean squared log error of the rates that a model gives."""
    table = _table(seen)
    rates = np.array([each.rate.per_s for each in seen])
    return float(np.sqrt(np.mean(np.log(model.per_s(table) / rates) ** 2)))


def _form_error(
    history: SizingHistory,
    own: Sequence[MeasuredSize],
    similar: Sequence[MeasuredSize],
    form: StepForm,
) -> float:
    """The relative error of the model's form: by sizes held out, or by what plans have brought.

    A plan's size is among those that are held out, so with enough of them its error counts there.
    """
    if len(own) >= _FEW:
        return max(_held_out(own, similar, form), _LEAST_FORM)
    squares = [_UNKNOWN_FORM**2]
    squares += [
        _surprise(each) ** 2
        for each in history.outcomes[-_PLANS:]
        if each.after_per_s > 0.0 and each.expected_per_s > 0.0 and each.relieves in TERMS[:-1]
    ]
    return max(math.sqrt(sum(squares) / len(squares)), _LEAST_FORM)


def _surprise(outcome: PlanOutcome) -> float:
    """How far a plan's outcome was from what it promised; more is less bad."""
    off = math.log(outcome.after_per_s / outcome.expected_per_s)
    return off * (_LUCK if off > 0.0 else 1.0)


def _forms(own: Sequence[MeasuredSize]) -> list[StepForm]:
    """The forms that are worth a try: both, with each limit of useful cores."""
    basic = used_by(own)
    workers, servers = {math.inf}, {math.inf}
    for each in own:
        granted, used = each.size.worker_cpu, each.worker_cores
        if granted and used is not None and each.parts.compute_s:
            while_busy = used * each.step_s / each.parts.compute_s
            if while_busy < _FULL_USE * granted:
                workers |= {while_busy * factor for factor in _STEPS}
        granted, used = each.size.server_cpu, each.server_cores
        if granted and used is not None and each.parts.server_s:
            # The busiest one's, which is waited for.
            work = max(used - basic.server_own, 0.0) * each.step_s / each.size.workers
            while_busy = work * (each.skew or 1.0) / each.parts.server_s + basic.server_own
            if work > 0.0 and while_busy < _FULL_USE * granted:
                servers |= {while_busy * factor for factor in _STEPS}
    if len(own) >= _FEW:
        # Enough sizes to see by their times where more cores stopped to help.
        workers |= {each.size.worker_cpu for each in own if each.size.worker_cpu}
    return [
        replace(basic, saturating=saturating, worker_cores=worker, server_cores=server)
        for saturating in (False, True)
        for worker in sorted(workers, reverse=True)[:8]
        for server in sorted(servers, reverse=True)[:6]
        if worker > 0.0 and server > 0.0
    ]


def _quality(own: Sequence[MeasuredSize], similar: Sequence[MeasuredSize], form: StepForm) -> float:
    """How badly a form fits: its held-out error, or with few sizes its error at the same ones."""
    if len(own) >= _FEW:
        return _held_out(own, similar, form)
    model = _solve(own, similar, form)
    parts = [_equations(each, form, 1.0) for each in own]
    coefficients = np.array(model.coefficients)
    left = np.concatenate([each.rows @ coefficients - each.values for each in parts])
    return float(np.sqrt(np.mean(left**2))) + 0.1


def _held_out(
    own: Sequence[MeasuredSize], similar: Sequence[MeasuredSize], form: StepForm
) -> float:
    """The log error at each size of the model that was fitted to the others."""
    off = []
    for place, each in enumerate(own):
        others = [*own[:place], *own[place + 1 :]]
        off.append(rmsle(_solve(others, similar, form), [each]))
    return float(np.sqrt(np.mean(np.square(off))))


def _solve(
    own: Sequence[MeasuredSize], similar: Sequence[MeasuredSize], form: StepForm
) -> SizeModel:
    with extra_for("a resource policy that fits a model"):
        from scipy.optimize import nnls  # 0.4 s, and needed only here

    parts = [_equations(each, form, 1.0) for each in own]
    parts += [_equations(each, form, _SIMILAR / _WHOLE) for each in similar]
    table = _table(own)
    usual = columns(table, form).mean(axis=0)
    step_s = float(np.mean([each.step_s for each in own]))
    # Terms in whole steps of the usual size, so that the prior is the same for each.
    scale = step_s / np.maximum(usual, 1e-12)
    rows = np.concatenate([each.rows for each in parts]) * scale
    prior = np.diag(1.0 / _ceilings(own))
    values = np.concatenate([each.values for each in parts])
    found, _ = nnls(np.concatenate([rows, prior]), np.append(values, np.zeros(len(TERMS))))
    covariance = np.linalg.inv(rows.T @ rows + prior.T @ prior)
    spread = covariance * np.outer(scale, scale)
    dimensions = np.stack([table.workers, table.servers, table.worker_cpu, table.server_cpu])
    return SizeModel(
        form=form,
        coefficients=tuple((found * scale).tolist()),
        covariance=tuple(tuple(row) for row in spread.tolist()),
        form_error=0.0,
        num_sizes=len(own),
        lows=tuple(dimensions.min(axis=1).tolist()),
        highs=tuple(dimensions.max(axis=1).tolist()),
    )


def _ceilings(own: Sequence[MeasuredSize]) -> Floats:
    """How large each term can be, in whole steps: no larger than the measured part that has it."""
    found = []
    for each in own:
        parts = each.parts
        sent_s = _sum(parts.message_s, parts.lookup_s)
        served_s = None if sent_s is None else sent_s + (parts.server_s or 0.0)
        rest_s = None
        if parts.compute_s is not None and served_s is not None:
            rest_s = max(each.step_s - parts.compute_s - served_s, 0.0) + 0.1 * each.step_s
        ceilings = (
            parts.compute_s,
            parts.compute_s,
            sent_s,
            served_s,
            served_s,
            sent_s,
            sent_s,
            sent_s,
            rest_s,
        )
        found.append([1.0 if one is None else one / each.step_s for one in ceilings])
    return np.asarray(np.clip(np.array(found).mean(axis=0), _FLOOR, 1.0))


def _table(seen: Sequence[MeasuredSize]) -> SizeTable:
    return SizeTable.of([each.size for each in seen], [each.batch for each in seen])


def _equations(seen: MeasuredSize, form: StepForm, doubt: float) -> _Equations:
    """Return the equations that one measured size gives for the coefficients.

    Args:
        seen: the size.
        form: of the model.
        doubt: factor on all errors.
    """
    table = _table([seen])
    row, bound_s = columns(table, form)[0], form.bound_s(table)
    found: list[tuple[Floats, float, float]] = []

    def add(terms: Sequence[int], value: float | None, error: float) -> None:
        if value:
            chosen = np.zeros(len(TERMS))
            chosen[list(terms)] = row[list(terms)]
            found.append((chosen, value, max(error * doubt, 1e-3)))

    parts = seen.parts
    free_s = float(parted(np.array([seen.step_s]), bound_s, form)[0])
    # Close to the bound little can be said of the time without waiting.
    blur = (seen.step_s / free_s) ** 2
    add(range(len(TERMS)), free_s, blur * math.hypot(_WHOLE, min(seen.rate.relative_error, 1.0)))
    served_s = _sum(parts.server_s, parts.message_s, parts.lookup_s)
    # In the saturating form, what is waited for is in no term.
    waited_s = seen.step_s - free_s
    add(COMPUTED, parts.compute_s, _PART)
    if served_s is not None and served_s > 2.0 * waited_s:
        add(SENT, served_s - waited_s, _PART * served_s / (served_s - waited_s))
    add(SERVED, parts.server_s, _PART if form.saturating else _SERVICE)
    if seen.worker_cores is not None and seen.size.worker_cpu:
        work = max(seen.worker_cores - form.worker_own, 0.0) * seen.step_s
        add(WORK, work / float(form.worker_cpu(table)[0]), _WORK)
    if seen.server_cores is not None and seen.size.server_cpu and not form.saturating:
        work = max(seen.server_cores * (seen.skew or 1.0) - form.server_own, 0.0) * seen.step_s
        add(SERVED, work / float(form.server_cpu(table)[0]), _WORK)
    rows = np.array([chosen / (value * error) for chosen, value, error in found])
    return _Equations(rows=rows, values=np.array([1.0 / error for _, _, error in found]))


def _sum(*parts: float | None) -> float | None:
    known = [each for each in parts if each is not None]
    return sum(known) if known else None
