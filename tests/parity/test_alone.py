"""A script that is started without `paceline run` computes what plain torch does, bit for bit."""

import pytest
import torch

import paceline as pl
from paceline.base.errors import ConfigError
from tests.parity.cases import BATCH, Case, Training, cases, reference, runs, samples
from tests.parity.kinds import bits, known_schedulers, schedulers
from tests.parity.refusals import refusal

FORMS = {"group": "thawed", "thaw": "thawed", "ema": "averages"}
"""What the map of promises calls edits."""


def marked(case: Case) -> object:
    """Options of optimizers, and two of the dtypes, are soak."""
    quick = case.dtype in (torch.float64, torch.bfloat16) and "-" not in case.kind.name
    marks = [] if quick or case.schedule else [pytest.mark.soak]
    if case.edit in FORMS:
        marks.append(pytest.mark.proves(form=FORMS[case.edit], strategy="alone"))
    return pytest.param(case, id=str(case), marks=marks)


@pytest.mark.parametrize("case", [*map(marked, cases())])
@pytest.mark.proves(form="batches", strategy="alone")
def test_alone_is_plain_torch(case: Case) -> None:
    if not runs(case):
        pytest.skip("torch does not run it on this machine")
    one, why = Training(case), refusal(case, "alone")
    if why is not None:
        with pytest.raises(ConfigError, match=why.said):
            _train(one)
        assert one.done == why.steps
        return
    _train(one)
    assert bits(one.state()) == bits(reference(case))


def _train(one: Training) -> None:
    job = pl.init()
    job.prepare(*one.prepared)
    for batch in job.batches(pl.TensorRows(x=samples()), batch_size=BATCH, shuffle=False):
        step = job.step
        one.backward(batch.x, step)
        one.step(step)


def test_the_table_has_all_schedulers_of_torch() -> None:
    assert schedulers().keys() == known_schedulers()
