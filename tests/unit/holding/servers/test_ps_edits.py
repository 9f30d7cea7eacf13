"""What a script does to a model that servers hold: as in torch, or refused, never lost."""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer
from torch.optim.swa_utils import AveragedModel

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.data.work import Array
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.script.job import Job
from paceline.wire.spec import JobSpec

DATA = TensorRows(x=torch.arange(64.0).reshape(16, 4) / 64, y=torch.ones(16, 1))


def _prepare(*objects: Any) -> Job:
    job = Job(OnServers(Alone(JobSpec(script="train.py"))))
    job.prepare(*objects)
    return job


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))


def _step(model: nn.Module, optimizer: Optimizer, batch: Any) -> None:
    ((model(batch.x) - batch.y) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _clamp(model: nn.Module) -> None:
    with torch.no_grad():
        for param in model.parameters():
            param.clamp_(-0.01, 0.01)


def _clamp_data(model: nn.Module) -> None:
    for param in model.parameters():
        param.data.clamp_(-0.01, 0.01)


def _swap(model: nn.Module) -> None:
    for param in model.parameters():
        param.data = torch.zeros_like(param)


def _replace(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.zeros(3, 4))


def _renormalize(model: nn.Sequential) -> None:
    torch.nn.utils.vector_to_parameters(torch.zeros(19), model.parameters())


EDITS: dict[str, tuple[Callable[[Any], object], str]] = {
    "clamp": (_clamp, "'0.weight' was changed"),
    "clamp of data": (_clamp_data, "'0.weight' was changed"),
    "other data": (_swap, "'0.weight' was converted, moved or given other data"),
    "from a vector": (_renormalize, "'0.weight' was converted, moved or given other data"),
    "double": (lambda model: model.double(), "'0.weight' was converted, moved or given other data"),
    "half": (lambda model: model.half(), "'0.weight' was converted, moved or given other data"),
    "replaced": (_replace, "'weight' was replaced"),
    "deleted": (lambda model: delattr(model[1], "bias"), "'bias' was replaced"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_would_be_lost_is_refused(name: str) -> None:
    edit, said = EDITS[name]
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    batches = _prepare(model, optimizer).batches(DATA, 4)
    _step(model, optimizer, next(batches))
    edit(model)
    with pytest.raises(ConfigError, match=f"parameter {said} after job.prepare"):
        next(batches)


def _fill(state: dict[str, Any]) -> None:
    state["sum"].fill_(9.0)


def _exchange(state: dict[str, Any]) -> None:
    state["sum"] = torch.full_like(state["sum"], 9.0)


def _add(state: dict[str, Any]) -> None:
    state["mine"] = 1


@pytest.mark.parametrize("edit", [_fill, _exchange, _add])
def test_an_edit_of_state_that_is_there_before_the_first_step_is_refused(
    edit: Callable[[dict[str, Any]], None],
) -> None:
    model = _model()
    optimizer = Adagrad(model.parameters(), lr=0.1)
    batches = _prepare(model, optimizer).batches(DATA, 4)
    _step(model, optimizer, next(batches))
    batch = next(batches)
    edit(optimizer.state[model[0].weight])
    with pytest.raises(ConfigError, match=r"Adagrad.state was changed"):
        _step(model, optimizer, batch)


@pytest.mark.parametrize("name", ["double", "half"])
def test_a_model_that_is_converted_before_its_batch_is_refused_at_the_step(name: str) -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    batch = next(_batches := _prepare(model, optimizer).batches(DATA, 4))  # type: ignore[call-overload]
    EDITS[name][0](model)
    model(batch.x.to(model[0].weight.dtype)).sum().backward()
    with pytest.raises(ConfigError, match="was converted"):
        optimizer.step()


def test_an_edit_before_values_are_asked_for_is_refused() -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    job = _prepare(model, optimizer)
    for batch in job.batches(DATA, 4):
        _step(model, optimizer, batch)
    _clamp(model)
    for ask in (
        job.state_dict,
        lambda: copy.deepcopy(model),
        lambda: job.evaluate(lambda batch: {"x": batch.x}, DATA),
    ):
        with pytest.raises(ConfigError, match="was changed"):
            ask()


def test_an_average_that_the_servers_hold_is_refused() -> None:
    model = _model()
    average = AveragedModel(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    batches = _prepare(model, average, optimizer).batches(DATA, 4)
    _step(model, optimizer, next(batches))
    with pytest.raises(
        ConfigError, match=r"AveragedModel.update_parameters .* allreduce, and keep"
    ):
        average.update_parameters(model)
    average.module[0].weight.data.zero_()
    with pytest.raises(ConfigError, match=r"'1.module.0.weight' was changed"):
        next(batches)


def _read_state(optimizer: Optimizer) -> None:
    optimizer.state[optimizer.param_groups[0]["params"][0]]["momentum_buffer"].zero_()


def _other_state(optimizer: Optimizer) -> None:
    optimizer.state = defaultdict(dict)
    optimizer.step()


@pytest.mark.parametrize(
    "edit", [_read_state, _other_state, lambda one: one.state.clear(), lambda one: one.state.pop(1)]
)
def test_an_edit_of_an_optimizers_state_is_refused(edit: Callable[[Optimizer], object]) -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = _prepare(model, optimizer).batches(DATA, 4)
    _step(model, optimizer, next(batches))
    next(batches)
    copied = copy.deepcopy(optimizer)
    assert copied.state_dict()["state"] == {}
    assert copied.state[1] == {}
    with pytest.raises(ConfigError, match=r"SGD\.state was changed, or asked for"):
        edit(optimizer)


def test_averages_of_other_models_and_of_copies_are_torchs() -> None:
    model, other = _model(), _model()
    _prepare(model, SGD(model.parameters(), lr=0.1))
    for one in (other, copy.deepcopy(model)):
        average = AveragedModel(one)
        average.update_parameters(one)
        assert torch.equal(average.module[0].weight, one[0].weight)


def _one_value(model: nn.Module) -> None:
    model.get_parameter("0.weight").data[40, 40] = 7.0


def _large() -> nn.Sequential:
    return nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 1))


@pytest.mark.parametrize(("at", "edit"), [(1, _one_value), (40, _clamp_data), (64, _one_value)])
def test_edits_of_data_are_found(at: int, edit: Callable[[nn.Module], None]) -> None:
    model, data = _large(), TensorRows(x=torch.ones(280, 100), y=torch.ones(280, 1))
    optimizer = SGD(model.parameters(), lr=1e-4)
    batches = _prepare(model, optimizer).batches(data, 4)
    for _ in range(at + 1):
        _step(model, optimizer, next(batches))
    edit(model)
    with pytest.raises(ConfigError, match=r"'0\.weight' was changed"):
        next(batches)


def test_values_that_are_no_numbers_are_no_edits() -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=torch.inf)
    for batch in _prepare(model, optimizer).batches(DATA, 4):
        _step(model, optimizer, batch)
    assert all(value.isnan().all() for value in model.state_dict().values())


@pytest.mark.parametrize("key", ["lr", "momentum"])
def test_an_array_as_hyper_parameter_is_refused_by_name(key: str) -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
    batches = _prepare(model, optimizer).batches(DATA, 4)
    _step(model, optimizer, next(batches))
    next(batches)
    optimizer.param_groups[0][key] = np.array([0.1, 0.2])
    with pytest.raises(ConfigError, match=f"{key}=.*is no number"):
        _step(model, optimizer, next(iter([DATA[:4]])))


def test_a_copy_is_an_ordinary_module_of_the_values_now() -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    job = _prepare(model, optimizer)
    first = copy.deepcopy(model)
    for batch in job.batches(DATA, 4):
        _step(model, optimizer, batch)
        part = copy.deepcopy(model[0])
        assert torch.equal(part.weight, job.state_dict()["0.weight"])
    second = copy.deepcopy({"model": model})["model"]
    assert job.state_dict().keys() == first.state_dict().keys()
    for name, value in job.state_dict().items():
        assert torch.equal(second.state_dict()[name], value)
        assert torch.equal(second.get_parameter(name), value)
        assert not torch.equal(first.state_dict()[name], value)
    second.load_state_dict(first.state_dict())
    _clamp(second)
    assert torch.equal(copy.deepcopy(second)[0].weight, second[0].weight)
    assert model.state_dict()["0.weight"].abs().max() > 0.01


def test_a_copy_between_forward_and_backward_changes_neither() -> None:
    class Ahead(Alone):
        """One whose model others move while a batch is computed."""

        def dense(self) -> Mapping[str, Array]:
            return {dtype: values + 1 for dtype, values in super().dense().items()}

    model = _model()
    job = Job(OnServers(Ahead(JobSpec(script="train.py"))))
    job.prepare(model, SGD(model.parameters(), lr=0.1))
    batch = next(_batches := job.batches(DATA, 4))  # type: ignore[call-overload]
    plain = _model()
    plain.load_state_dict({name: value.detach() for name, value in model.named_parameters()})
    loss = ((model(batch.x) - batch.y) ** 2).mean()
    ahead = copy.deepcopy([model[1], model])
    loss.backward()
    ((plain(batch.x) - batch.y) ** 2).mean().backward()
    for name, param in plain.named_parameters():
        assert torch.equal(model.get_parameter(name), param)
        assert torch.equal(model.get_parameter(name).grad, param.grad)  # type: ignore[arg-type]
        assert torch.equal(ahead[1].get_parameter(name), param + 1)  # type: ignore[attr-defined]
    assert ahead[0] is ahead[1][1]  # type: ignore[index]


def test_a_restore_while_the_script_is_asked_for_is_taken_over_too() -> None:
    asked: list[int] = []

    class Restored(Alone):
        def script(self, position: int | None) -> None:
            asked.append(self.restores)
            if len(asked) == 1:
                self.restores += 1

    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    job = Job(OnServers(Restored(JobSpec(script="train.py"))))
    job.prepare(model, optimizer)
    for batch in job.batches(DATA, 4):
        _step(model, optimizer, batch)
    assert asked[0] == 0
    assert {*asked[1:]} == {1}  # also the newest that there is


def test_a_model_with_tables_cannot_be_copied() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True))
    _prepare(model, SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="rows the worker does not hold; copy it before"):
        copy.deepcopy(model)


def test_optimizers_may_step_in_backward() -> None:
    plain, ours = _model(), _model()
    for model, job in ((plain, None), (ours, Job(OnServers(Alone(JobSpec(script="x")))))):
        optimizers = {param: SGD([param], lr=0.1) for param in model.parameters()}
        if job is not None:
            job.prepare(model, *optimizers.values())

        def act(param: Tensor, own: dict[Any, Optimizer] = optimizers) -> None:
            own[param].step()
            own[param].zero_grad()

        for param in model.parameters():
            param.register_post_accumulate_grad_hook(act)
        batches = (
            job.batches(DATA, 4, shuffle=False)
            if job is not None
            else [DATA.__getitems__(list(range(k, k + 4))) for k in range(0, 16, 4)]
        )
        for batch in batches:
            ((model(batch.x) - batch.y) ** 2).mean().backward()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


def _clip(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)


def _clip_values(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_value_(model.parameters(), 100.0)


def _by_hand(model: nn.Module) -> None:
    for param in model.parameters():
        assert param.grad is not None
        param.grad = param.grad.clamp(-1.0, 1.0)


def _clip_data(model: nn.Module) -> None:
    for param in model.parameters():
        assert param.grad is not None
        param.grad.data.clamp_(-1e-4, 1e-4)


@pytest.mark.parametrize("edit", [_clip, _clip_values, _by_hand, _clip_data])
@pytest.mark.parametrize("summed", [False, True])
def test_gradients_of_a_shared_step_that_are_changed_by_hand_are_refused(
    edit: Callable[[nn.Module], None], summed: bool
) -> None:
    trainer = Alone(JobSpec(script="train.py"))
    trainer.sums_workers = summed
    job, model = Job(OnServers(trainer)), _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    batch = next(_batches := job.batches(DATA, 4))  # type: ignore[call-overload]
    for _ in range(2):  # of which the second adds to the first
        ((model(batch.x) - batch.y) ** 2).mean().backward()
    edit(model)
    if not summed:
        optimizer.step()
        return
    with pytest.raises(
        ConfigError, match=r"was changed between loss.backward\(\) and .*--mode asp"
    ):
        optimizer.step()


@pytest.mark.parametrize("edit", [_clip, _clip_data])
def test_gradients_that_are_changed_between_two_optimizers_are_refused(
    edit: Callable[[nn.Module], None],
) -> None:
    trainer = Alone(JobSpec(script="train.py"))
    trainer.sums_workers = True
    job, model = Job(OnServers(trainer)), _model()
    first, second = (SGD(layer.parameters(), lr=0.1) for layer in model)
    job.prepare(model, first, second)
    batches = job.batches(DATA, 4)
    batch = next(batches)
    ((model(batch.x) - batch.y) ** 2).mean().backward()
    first.step()
    first.zero_grad(set_to_none=False)
    second.step()
    batch = next(batches)
    ((model(batch.x) - batch.y) ** 2).mean().backward()
    first.step()
    edit(model[1])
    with pytest.raises(ConfigError, match="was changed between"):
        second.step()


def test_gradients_that_no_other_worker_adds_to_may_be_changed_between_two_optimizers() -> None:
    trainer = Alone(JobSpec(script="train.py"))
    trainer.sums_workers = False
    job, model = Job(OnServers(trainer)), _model()
    first, second = (SGD(layer.parameters(), lr=0.1) for layer in model)
    job.prepare(model, first, second)
    batches = job.batches(DATA, 4)
    for _ in range(2):
        batch = next(batches)
        ((model(batch.x) - batch.y) ** 2).mean().backward()
        first.step()
        _clip(model[1])
        second.step()
    batches.close()


def test_gradients_that_nobody_changes_are_taken_in_every_step() -> None:
    trainer = Alone(JobSpec(script="train.py"))
    trainer.sums_workers = True
    job, model = Job(OnServers(trainer)), _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    for step, batch in enumerate(job.batches(DATA, 4, epochs=2)):
        ((model(batch.x) - batch.y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)


# ---------------------------------------------------------------------------- ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.float16])
@pytest.mark.parametrize("table", [nn.Embedding(10, 2, sparse=True), pl.Embedding("u", 2)])
def test_ids_that_are_no_whole_numbers_are_refused(table: nn.Module, dtype: torch.dtype) -> None:
    table = copy.deepcopy(table)
    job = _prepare(table, SGD(table.parameters(), lr=1.0))
    next(_batches := job.batches(DATA, 4))  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=f"was asked for {dtype} ids; give int64"):
        table(torch.ones(3).to(dtype))


def test_a_padding_row_moves_by_a_module_that_shares_the_table_without_it() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.padded = nn.Embedding(5, 2, padding_idx=0, sparse=True)
            self.other = nn.Embedding(5, 2, sparse=True)
            self.other.weight = self.padded.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.padded(ids).sum() + 10 * self.other(ids[1:]).sum()

    found = []
    for managed in (False, True):
        torch.manual_seed(0)
        model = Shared()
        optimizer = SGD(model.parameters(), lr=1.0)
        ids = TensorRows(ids=torch.tensor([0, 1, 0, 2, 0, 1, 3, 4]))
        batches: Any = [ids.__getitems__([0, 1, 2, 3]), ids.__getitems__([4, 5, 6, 7])]
        if managed:
            batches = _prepare(model, optimizer).batches(ids, 4, shuffle=False)
        for batch in batches:
            model(batch.ids).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(model.state_dict()["other.weight"])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("how", ["evaluate", "next batch"])
def test_no_gradient_is_of_values_of_before_and_after_the_servers_new_ones(how: str) -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    job = _prepare(model, optimizer)
    batches = iter(job.batches(DATA, 4))
    batch = next(batches)
    _step(model, optimizer, batch)
    loss = (model(batch.x) ** 2).mean()
    if how == "evaluate":
        job.evaluate(lambda part: {"y": model(part.x)}, DATA, 4)
    else:
        next(batches)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]
    batches.close()  # type: ignore[attr-defined]


def test_an_edit_before_the_first_batch_is_found_though_that_brings_values() -> None:
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.1)
    job = _prepare(model, optimizer)
    _clamp(model)
    batches = iter(job.batches(DATA, 4))
    with pytest.raises(ConfigError, match=r"was changed after job\.prepare"):
        _step(model, optimizer, next(batches))
    batches.close()  # type: ignore[attr-defined]
