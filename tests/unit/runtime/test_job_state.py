"""What a prepared model shows: state dicts, evaluation, tables without a vocabulary."""

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD, Adagrad
from torch.optim.lr_scheduler import ReduceLROnPlateau

import paceline as pl
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.data.work import StepTimes
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.model import Model
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.wire.spec import JobSpec

DATA = TensorRows(x=torch.arange(40.0).reshape(10, 4), y=torch.arange(10.0))


def test_importing_paceline_is_quick_and_loads_no_torch() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import paceline; "
        "print(time.perf_counter() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *loaded = run.stdout.split()
    assert float(seconds) < 0.2
    assert loaded == ["False", "False"]


def test_all_public_names_exist_and_others_are_refused() -> None:
    sources = ["CsvRows", "GrowingFiles", "NpyRows", "ParquetRows", "SqlTable", "TarRows"]
    sources += ["TensorRows", "TextLines"]
    job = ["Embedding", "Job", "Stopped", "StreamSource", "__version__", "init"]
    assert sorted(pl.__all__) == sorted([*sources, *job])
    assert {*sources, *job} <= {*dir(pl)}
    assert all(getattr(pl, name) for name in dir(pl))
    with pytest.raises(AttributeError, match="has no attribute 'Embeddings'"):
        _ = pl.Embeddings


def test_stopped_ends_a_script_with_exit_code_0() -> None:
    assert pl.Stopped().code == 0
    assert issubclass(pl.Stopped, SystemExit)


@pytest.mark.usefixtures("held_both_ways")
def test_prepare_returns_what_it_was_given_in_the_same_form() -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = SGD([*model.parameters(), *other.parameters()], lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer)
    got = pl.init().prepare([model, other], optimizer, (scheduler,))
    assert got == ([model, other], optimizer, (scheduler,))
    assert pl.init().prepare(other) is other


def test_who_is_alone_is_the_first() -> None:
    job = pl.init()
    assert job.rank == 0
    assert job.is_chief


def test_init_gives_equal_models() -> None:
    weights = []
    for _ in range(2):
        pl.init()
        weights.append(nn.Linear(3, 3).weight)
    assert torch.equal(*weights)


@pytest.mark.usefixtures("held_both_ways")
def test_frozen_and_tied_parameters_stay_and_train_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(1, 1))
    model[1].weight = model[0].weight
    model[2].weight.requires_grad_(requires_grad=False)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(1, 1))
    plain[1].weight = plain[0].weight
    plain.load_state_dict(model.state_dict())
    plain[2].weight.requires_grad_(requires_grad=False)
    job = pl.init()
    optimizers = [SGD(list(one.parameters())[:-1], lr=0.01) for one in (model, plain)]
    job.prepare(model, optimizers[0])
    for batch in job.batches(DATA, 10, epochs=3, shuffle=False):
        for one, optimizer in zip((model, plain), optimizers, strict=True):
            F.mse_loss(one(batch.x / 40).squeeze(1), batch.y).backward()
            optimizer.step()
            one.zero_grad()
    held = job.state_dict()
    assert set(held) == set(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.allclose(held[name], value), name
    assert torch.equal(model[1].weight, model[0].weight)


@pytest.mark.usefixtures("held_both_ways")
def test_a_state_dict_holds_the_newest_values_also_of_a_part_and_in_mid_step() -> None:
    model = nn.Sequential(nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.01)
    job = pl.init()
    job.prepare(model, optimizer)
    steps = 0
    for batch in job.batches(DATA, 5):
        steps += 1
        before = model.state_dict()["0.bias"].clone()
        loss = F.mse_loss(model(batch.x).squeeze(1), batch.y)
        assert torch.equal(model[0].state_dict(prefix="p.")["p.bias"], before)
        loss.backward()
        step = 0.01 * model[0].bias.grad
        optimizer.step()
        optimizer.zero_grad()
        assert torch.allclose(model.state_dict()["0.bias"], before - step)
        # What a step computes on is the caller's to keep.
        before.zero_()
    assert steps == 2


@pytest.mark.usefixtures("held_both_ways")
def test_two_models_are_told_apart() -> None:
    towers = [nn.Linear(4, 2), nn.Linear(4, 2)]
    optimizers = [SGD(tower.parameters(), lr=0.1) for tower in towers]
    job = pl.init()
    job.prepare(towers, optimizers)
    expected = [tower.weight.detach().clone() for tower in towers]
    for batch in job.batches(DATA, 10):
        (towers[0](batch.x) * towers[1](batch.x)).mean().backward()
        for index, (tower, optimizer) in enumerate(zip(towers, optimizers, strict=True)):
            expected[index] -= 0.1 * tower.weight.grad
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    held = job.state_dict()
    assert set(held) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert torch.allclose(held["0.weight"], expected[0])
    assert torch.allclose(held["1.weight"], expected[1])


@pytest.mark.usefixtures("held_both_ways")
def test_evaluate_covers_the_dataset_in_order_with_the_trained_values() -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.001)
    job = pl.init()
    job.prepare(model, optimizer)
    step = 0
    for step, batch in enumerate(job.batches(DATA, 5), 1):
        F.mse_loss(model(batch.x).squeeze(1), batch.y).backward()
        optimizer.step()
        optimizer.zero_grad()
        got = job.evaluate(lambda b: {"p": model(b.x), "y": b.y}, DATA, batch_size=2 + step)
        held = job.state_dict()
        assert torch.equal(got["y"], DATA.columns["y"])
        assert torch.allclose(got["p"], F.linear(DATA.columns["x"], held["weight"], held["bias"]))
        assert not got["p"].requires_grad
    assert step == 2


class Users(nn.Module):
    """Any key, also twice in one forward."""

    def __init__(self, optimizer: str | None = None, **args: float) -> None:
        super().__init__()
        self.users = pl.Embedding(
            "user", 3, optimizer=optimizer, optimizer_args=args, dtype=torch.float64
        )

    def forward(self, keys: Tensor) -> Tensor:
        return self.users(keys).sum(2) + self.users(keys.flip(1)).sum(2)


def test_a_table_without_vocabulary_takes_any_key() -> None:
    keys = torch.tensor([[-(2**63), 2**63 - 1], [0, 0], [5, -1], [5, 5]])
    model = Users()
    optimizer = Adagrad(model.parameters(), lr=0.5)
    job = pl.init()
    job.prepare(model, optimizer)
    first = job.evaluate(lambda b: {"rows": model.users(b.keys)}, TensorRows(keys=keys))["rows"]
    assert not any(key.numel() for key in [model.state_dict()["users.keys"]])
    for batch in job.batches(TensorRows(keys=keys), 4, shuffle=False):
        model(batch.keys).sum().backward()
        optimizer.step()
    held = model.state_dict()
    assert set(held) == {"users.keys", "users.rows"}
    assert held["users.keys"].tolist() == [-(2**63), -1, 0, 5, 2**63 - 1]
    # Adagrad's first step is the rate, whatever the gradient.
    assert torch.allclose(held["users.rows"][2], first[1, 0] - 0.5)


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "ftrl", "adam", "sgd"])
def test_a_table_may_have_an_optimizer_of_its_own(optimizer: str) -> None:
    data = TensorRows(keys=torch.randint(-(2**40), 2**40, (30, 2)))
    model = Users(optimizer)
    sgd = SGD(model.parameters(), lr=0.1)
    job = pl.init()
    job.prepare(model, sgd)
    sizes = []
    for batch in job.batches(data, 30, epochs=30):
        loss = F.mse_loss(model(batch.keys), torch.ones(30, 2, dtype=torch.float64))
        loss.backward()
        sgd.step()
        sizes.append(loss.item())
    assert sizes[-1] < 0.8 * sizes[0]


@pytest.mark.parametrize("l1", [0.0, 5.0])
def test_ftrl_with_l1_zeroes_the_rows_whose_gradients_stay_small(l1: float) -> None:
    model = Users("ftrl", l1=l1)
    sgd = SGD(model.parameters(), lr=0.1)
    job = pl.init()
    job.prepare(model, sgd)
    # Gradients add up to 2 for key 3 (each row is read twice) and to 14 for key 8.
    keys = torch.tensor([[3, 8], [8, 8], [8, 8], [8, 8]])
    for batch in job.batches(TensorRows(keys=keys), 1, shuffle=False):
        model(batch.keys).sum().backward()
        sgd.step()
    held = model.state_dict()
    assert held["users.keys"].tolist() == [3, 8]
    assert bool((held["users.rows"][0] == 0).all()) == bool(l1)
    assert bool((held["users.rows"][1] < 0).all())


def test_optimizer_args_refine_the_optimizer_of_the_weight() -> None:
    model = Users(eps=1.0)
    optimizer = Adagrad(model.parameters(), lr=0.5, initial_accumulator_value=0.25)
    (group,) = Model([model], [optimizer], seed=0).schema.groups
    assert group.kind == "adagrad"
    assert group.hyper["eps"] == 1.0
    assert group.hyper["initial_accumulator_value"] == 0.25


def test_step_times_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[StepTimes] = []
    trainer = Alone(JobSpec(script="train.py"))
    monkeypatch.setattr(trainer, "record", noted.append)
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    job = pl.Job(OnServers(trainer))
    job.prepare(model, optimizer)
    for batch in job.batches(DATA, 3, epochs=2):
        model(batch.x).mean().backward()
        optimizer.step()
    assert [one.samples for one in noted] == [3, 3, 3, 1] * 2
    assert [one.step for one in noted] == list(range(1, 9))
    for one in noted:
        assert 0 < one.compute_s < one.bpt_s
        assert 0 <= one.server_s <= one.wait_s


def _pair(batch: Any) -> Any:
    return batch.x, batch.y


@pytest.mark.usefixtures("held_both_ways")
def test_loader_processes_and_collate_fn_give_the_same_batches() -> None:
    seen = []
    for num_workers in (0, 2):
        model = nn.Linear(4, 1)
        optimizer = SGD(model.parameters(), lr=0.0)
        job = pl.init()
        job.prepare(model, optimizer)
        labels = []
        for x, y in job.batches(DATA, 3, epochs=2, num_workers=num_workers, collate_fn=_pair):
            model(x).mean().backward()
            optimizer.step()
            labels.append(y.tolist())
        seen.append(labels)
    assert seen[0] == seen[1]
    assert sorted(label for batch in seen[0][:4] for label in batch) == list(range(10))
