"""On parameter servers every case is equal to plain torch, or refused by name before it is lost."""

import pytest
import torch

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.script.job import Job
from paceline.wire.spec import JobSpec
from tests.parity.cases import BATCH, STEPS, Case, Training, cases, reference, runs, samples
from tests.parity.refusals import SERVED, refusal
from tests.parity.rule import allowed, distance


def test_the_table_has_what_servers_run() -> None:
    taken = {(one.kind.name, one.dtype) for one in cases() if refusal(one, "servers") is None}
    assert taken > {(name, dtype) for name in SERVED for dtype in (torch.float64, torch.float32)}


@pytest.mark.parametrize("case", cases(), ids=str)
def test_servers_are_plain_torch_or_refuse(case: Case) -> None:
    job, one = Job(OnServers(Alone(JobSpec(script="train.py")))), Training(case)
    why = refusal(case, "servers")
    if why is not None:
        with pytest.raises(ConfigError, match=why.said):
            _train(job, one)
        assert one.done == why.steps
        return
    if not runs(case):
        pytest.skip("torch does not run it on this machine")
    _train(job, one)
    assert one.done == STEPS
    plain = reference(case)
    assert distance(one.model.state_dict(), plain["model"]) <= allowed(case, plain)
    if one.schedule is not None:
        assert one.schedule.state_dict() == plain["schedule"]


def _train(job: Job, one: Training) -> None:
    job.prepare(*one.prepared)
    batches = job.batches(pl.TensorRows(x=samples()), batch_size=BATCH, shuffle=False)
    for step, batch in enumerate(batches):
        one.backward(batch.x, step)
        one.step(step)
