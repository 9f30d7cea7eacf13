"""A script that is started without `paceline run` computes what plain torch does, bit for bit."""

import pytest
import torch

import paceline as pl
from tests.parity.cases import BATCH, Case, Training, cases, reference, runs, samples
from tests.parity.kinds import bits


def marked(case: Case) -> object:
    """Options of optimizers, and two of the dtypes, are soak."""
    quick = case.dtype in (torch.float64, torch.bfloat16) and "-" not in case.kind.name
    marks = () if quick or case.schedule else pytest.mark.soak
    return pytest.param(case, id=str(case), marks=marks)


@pytest.mark.parametrize("case", [*map(marked, cases())])
def test_alone_is_plain_torch(case: Case) -> None:
    if not runs(case):
        pytest.skip("torch does not run it on this machine")
    job = pl.init()
    one = Training(case)
    given = [one.model, one.optimizer, *([one.schedule] if one.schedule is not None else [])]
    job.prepare(*given)
    for batch in job.batches(pl.TensorRows(x=samples()), batch_size=BATCH, shuffle=False):
        step = job.step
        one.backward(batch.x, step)
        one.step(step)
    assert bits(one.state()) == bits(reference(case))
