"""A model on servers is what torch gives, with edits in mid-training, or is refused before it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop, SparseAdam
from torch.optim.lr_scheduler import OneCycleLR

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.script.job import Job
from paceline.runtime.server.optimizers import KINDS
from paceline.wire.spec import JobSpec

STEPS, SIZE, NUM_IDS = 60, 8, 12
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
"""As in experiments/benchmarks/equality.py."""


class Net(nn.Module):
    """A table, a trunk, and a head that is used every third step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_IDS, 4, sparse=True)
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.step = 0

    def forward(self, ids: Tensor) -> Tensor:
        self.step += 1
        hidden = self.trunk(self.table(ids)).tanh()
        found: Tensor = self.heads[0](hidden)
        return found + self.heads[1](hidden) if self.step % 3 == 1 else found


Make = Callable[[list[nn.Parameter]], Optimizer]
Edit = Callable[[Net, Optimizer, int], None]


def _data(dtype: torch.dtype) -> TensorRows:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, NUM_IDS, (STEPS * SIZE,), generator=generator)
    return TensorRows(ids=ids, y=torch.randn(STEPS * SIZE, 1, generator=generator, dtype=dtype))


def _train(
    model: Net,
    dense: Optimizer,
    sparse: Optimizer,
    batches: Iterator[Any],
    edit: Edit,
) -> None:
    for step, batch in enumerate(batches):
        edit(model, dense, step)
        F.mse_loss(model(batch.ids), batch.y).backward()
        for one in (dense, sparse):
            one.step()
            one.zero_grad()


def _build(make: Make, make_sparse: Make, dtype: torch.dtype) -> tuple[Net, Optimizer, Optimizer]:
    torch.manual_seed(1)
    model = Net().to(dtype)
    dense = [*model.trunk.parameters(), *model.heads.parameters()]
    return model, make(dense), make_sparse([model.table.weight])


def _rows(params: list[nn.Parameter]) -> Optimizer:
    return SGD(params, lr=0.1)


def _nothing(model: Net, optimizer: Optimizer, step: int) -> None:
    """No edit."""


def _equal(
    make: Make,
    edit: Edit = _nothing,
    make_sparse: Make = _rows,
    dtype: torch.dtype = torch.float64,
) -> None:
    data = _data(dtype)
    plain = _build(make, make_sparse, dtype)
    _train(
        *plain,
        (data.__getitems__(list(range(k, k + SIZE))) for k in range(0, len(data), SIZE)),
        edit,
    )
    ours = _build(make, make_sparse, dtype)
    job = Job(OnServers(Alone(JobSpec(script="train.py"))))
    job.prepare(*ours)
    _train(*ours, job.batches(data, SIZE, shuffle=False), edit)
    held = job.state_dict()
    for name, value in plain[0].state_dict().items():
        error = (held[name] - value).norm() / value.norm()
        assert error <= TOLERANCE[dtype], name


DENSE: dict[str, Make] = {
    "sgd": lambda p: SGD(p, lr=0.1, weight_decay=0.1),
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9, dampening=0.2, weight_decay=0.01),
    "nesterov": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda p: Adagrad(p, lr=0.1, lr_decay=0.05, weight_decay=0.1),
    "adam": lambda p: Adam(p, lr=0.02, weight_decay=0.1),
    "decoupled adam": lambda p: Adam(p, lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": lambda p: AdamW(p, lr=0.02),
    "rmsprop": lambda p: RMSprop(p, lr=0.02, alpha=0.9, eps=1e-4, momentum=0.8),
    "a rate in a tensor": lambda p: Adam(p, lr=torch.tensor(0.02, dtype=torch.float64)),
}
SPARSE: dict[str, Make] = {
    "sgd": _rows,
    "adagrad": lambda p: Adagrad(p, lr=0.1, lr_decay=0.05),
    "sparse adam": lambda p: SparseAdam(p, lr=0.02),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", DENSE)
def test_an_optimizer_with_parameters_that_lack_gradients_equals_torch(
    name: str, dtype: torch.dtype
) -> None:
    _equal(DENSE[name], dtype=dtype)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", SPARSE)
def test_an_optimizer_of_a_table_equals_torch(name: str) -> None:
    _equal(DENSE["sgd"], make_sparse=SPARSE[name])


def _set(at: int, **values: Any) -> Edit:
    def edit(_model: Net, optimizer: Optimizer, step: int) -> None:
        if step == at:
            optimizer.param_groups[0].update(values)

    return edit


def _switch(**values: tuple[Any, Any]) -> Edit:
    """One value in even steps, another in odd ones."""

    def edit(_model: Net, optimizer: Optimizer, step: int) -> None:
        optimizer.param_groups[0].update({key: two[step % 2] for key, two in values.items()})

    return edit


EDITS: dict[str, tuple[str, Edit]] = {
    "rate 0": ("momentum", _set(10, lr=0.0)),
    "no momentum": ("momentum", _set(10, momentum=0.0)),
    "momentum comes and goes": ("momentum", _switch(momentum=(0.0, 0.9))),
    "dampening": ("momentum", _switch(dampening=(0.5, 0.0))),
    "nesterov": ("momentum", _switch(nesterov=(False, True), dampening=(0.0, 0.0))),
    "decay of sgd": ("sgd", _set(10, weight_decay=0.0)),
    "decay of adam": ("adam", _set(10, weight_decay=0.5)),
    "decay of adamw": ("adamw", _switch(weight_decay=(0.0, 0.2))),
    "decay of adagrad": ("adagrad", _switch(weight_decay=(0.0, 0.2), lr_decay=(0.1, 0.0))),
    "betas": ("adam", _switch(betas=((0.5, 0.9), (0.9, 0.99)))),
    "eps": ("adam", _set(20, eps=1e-3)),
    "momentum of rmsprop": ("rmsprop", _switch(momentum=(0.8, 0.0), alpha=(0.9, 0.5))),
    "other keys": ("adam", _set(5, max_lr=1.0, name="dense", mine=object())),
}


@pytest.mark.parametrize("name", EDITS)
def test_hyper_parameters_changed_in_mid_training_act_as_in_torch(name: str) -> None:
    kind, edit = EDITS[name]
    _equal(DENSE[kind], edit)


def test_decay_of_adamw_may_begin_later() -> None:
    _equal(lambda p: AdamW(p, lr=0.02, weight_decay=0.0), _set(10, weight_decay=0.3))


def test_the_mean_of_a_centered_rmsprop_may_be_left_out_in_mid_training() -> None:
    _equal(
        lambda p: RMSprop(p, lr=0.02, alpha=0.9, eps=1e-4, momentum=0.8, centered=True),
        _switch(centered=(True, False)),
    )


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_a_schedule_that_cycles_momentum_equals_torch(kind: str) -> None:
    schedules: dict[int, OneCycleLR] = {}

    def make(params: list[nn.Parameter]) -> Optimizer:
        optimizer = DENSE[kind](params)
        schedules[id(optimizer)] = OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS)
        return optimizer

    def edit(_model: Net, optimizer: Optimizer, step: int) -> None:
        if step:
            schedules[id(optimizer)].step()

    _equal(make, edit)


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_parameters_that_are_frozen_in_mid_training_stay_as_they_are(kind: str) -> None:
    def edit(model: Net, _optimizer: Optimizer, step: int) -> None:
        model.trunk.requires_grad_(step < 10 or step >= 40)

    _equal(DENSE[kind], edit)


def test_named_parameters_and_groups_of_several_kinds_are_taken() -> None:
    _equal(
        lambda p: Adam(
            [
                {"params": p[:2], "name": "trunk", "lr_scale": 0.5},
                {"params": p[2:], "name": "heads"},
            ]
        )
    )


SERVED = {kind.torch for kind in KINDS.values()}
OTHERS = [
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and name not in SERVED | {"Optimizer"}
]


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_optimizer_of_torch_is_refused_with_the_list_of_those_that_work(
    name: str,
) -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = getattr(torch.optim, name)(model.parameters())
    with pytest.raises(ConfigError, match=f"{name} cannot .*Adagrad.*Adam.*AdamW.*SGD.*Sparse"):
        _prepare(model, optimizer)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.complex64],
    ids=str,
)
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(4, dtype=dtype))
    with pytest.raises(ConfigError, match=f"is {dtype}; servers hold float32 and float64"):
        _prepare(model, SGD(model.parameters(), lr=0.1))


def _prepare(model: nn.Module, *optimizers: Any) -> Job:
    job = Job(OnServers(Alone(JobSpec(script="train.py"))))
    job.prepare(model, *optimizers)
    return job


REFUSED_OPTIONS: dict[str, tuple[Make, str]] = {
    "maximize": (lambda p: SGD(p, lr=0.1, maximize=True), "maximize=1.0 is not supported"),
    "amsgrad": (lambda p: Adam(p, amsgrad=True), "amsgrad=1.0 is not supported"),
    "sparse": (SparseAdam, "SparseAdam takes sparse gradients only"),
}


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
def test_options_that_servers_do_not_know_are_refused(name: str) -> None:
    make, said = REFUSED_OPTIONS[name]
    model = nn.Linear(4, 1)
    with pytest.raises(ConfigError, match=said):
        _prepare(model, make(list(model.parameters())))


def test_an_optimizer_that_has_moved_already_is_refused() -> None:
    model = nn.Linear(4, 1)
    optimizer = Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(ConfigError, match=r"optimizer 0 \(Adam\) has state already"):
        _prepare(model, optimizer)


LATE: dict[str, tuple[Make, Edit, str]] = {
    "momentum": (
        DENSE["sgd"],
        _set(3, momentum=0.9),
        "momentum was 0 at job.prepare and is 0.9 now",
    ),
    "maximize": (DENSE["adam"], _set(3, maximize=True), "maximize was False .* is True now"),
    "amsgrad": (DENSE["adamw"], _set(3, amsgrad=True), "amsgrad was False"),
    "group": (
        lambda p: SGD(p[:2], lr=0.1),
        lambda m, o, _: o.add_param_group({"params": list(m.heads.parameters())}),
        "SGD.add_param_group was called after job.prepare",
    ),
    "group by hand": (
        lambda p: SGD(p[:2], lr=0.1),
        lambda m, o, _: o.param_groups[0]["params"].extend(m.heads.parameters()),
        "groups of optimizer 0 hold other parameters",
    ),
    "state": (
        DENSE["adam"],
        lambda _m, o, _s: o.load_state_dict(o.state_dict()),
        "Adam.load_state_dict was called after",
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_edits_that_servers_cannot_follow_are_refused_at_that_step(name: str) -> None:
    make, edit, said = LATE[name]
    with pytest.raises(ConfigError, match=said):
        _equal(make, _only_managed(edit))


def _only_managed(edit: Edit) -> Edit:
    """Of the model that servers hold."""

    def one(model: Net, optimizer: Optimizer, step: int) -> None:
        if model.table.weight.isnan().any():
            edit(model, optimizer, step)

    return one


def test_what_was_frozen_at_prepare_and_has_a_gradient_is_refused() -> None:
    model = nn.Linear(4, 1)
    model.bias.requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    job = _prepare(model, optimizer)
    model.bias.requires_grad_(True)
    batch = next(_batches := job.batches(TensorRows(x=torch.ones(4, 4)), 4))  # type: ignore[call-overload]
    model(batch.x).sum().backward()
    with pytest.raises(ConfigError, match="parameter 'bias' has a gradient, but was frozen"):
        optimizer.step()


def test_frozen_parameters_may_be_infinite() -> None:
    model = nn.Linear(4, 1)
    model.register_parameter("mask", nn.Parameter(torch.tensor([-torch.inf]), requires_grad=False))
    optimizer = SGD(model.parameters(), lr=0.1)
    job = _prepare(model, optimizer)
    for batch in job.batches(TensorRows(x=torch.ones(4, 4)), 4):
        model(batch.x).sum().backward()
        optimizer.step()
    assert job.state_dict()["mask"].item() == -torch.inf


def test_hooks_of_an_optimizer_are_called() -> None:
    model, calls = nn.Linear(4, 1), []
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    job = _prepare(model, optimizer)
    for batch in job.batches(TensorRows(x=torch.ones(4, 4)), 4):
        model(batch.x).sum().backward()
        optimizer.step()
    assert calls == ["before", "after"]


@pytest.mark.usefixtures("held_both_ways")
def test_an_optimizer_of_another_model_is_refused() -> None:
    old, new = nn.Linear(4, 1), nn.Linear(4, 1)
    with pytest.raises(ConfigError, match=r"optimizer 0 \(SGD\) trains no parameter of the models"):
        pl.init().prepare(new, SGD(old.parameters(), lr=0.1))
