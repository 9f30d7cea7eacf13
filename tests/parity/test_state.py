"""State that a member copies from a peer, or reads from a cut, is the same bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.cuts.manifest import CutManifest, write_manifest
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.group.checks import check_movable
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.state.replica import Arriving, Replica
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import JobSpec
from tests.parity.kinds import (
    DTYPES,
    Kind,
    bits,
    optimizers,
    schedulers,
    small_model,
    steps,
)

Load = Callable[[Replica, Replica, Path], None]


def from_peer(source: Replica, target: Replica, _: Path) -> None:
    """In parts, as from another machine."""
    photograph, arriving = source.photograph(), Arriving()
    for part in range(photograph.num_parts):
        frame, digest = photograph.part(part)
        assert arriving.take(part, photograph.num_parts, memoryview(bytearray(frame)), digest)
    target.load(arriving)


def from_memory(source: Replica, target: Replica, _: Path) -> None:
    """As out of a peer's memory, into the tensors that are there."""
    photograph, arriving = source.photograph(), Arriving()
    frame, digest = photograph.part(0)
    arriving.take(0, photograph.num_parts, memoryview(frame), digest)
    assert arriving.layout is not None
    targets = target.targets(arriving.layout, in_place=True)
    for there, here in zip(photograph._bytes, targets, strict=True):
        here.reshape(-1).view(torch.uint8).copy_(there)
    arriving.read(targets)
    arriving.unconfirmed = False
    target.load(arriving)


def from_cut(source: Replica, target: Replica, folder: Path) -> None:
    """As a job that goes on."""
    checksum, num_bytes = cutfile.write_save(folder, "worker-0.safetensors", source.save())
    manifest = CutManifest(
        cut_no=1,
        epoch_no=1,
        position=1,
        step=1,
        committed=(),
        schema=ModelSchema(),
        files={"worker-0.safetensors": checksum},
        num_bytes=num_bytes,
    )
    write_manifest(folder, manifest)
    target.load_cut(folder)


WAYS = pytest.mark.parametrize("load", [from_peer, from_memory, from_cut])


def trained(kind: Kind, dtype: torch.dtype, num: int) -> tuple[nn.Module, Optimizer]:
    """Skips what torch itself does not run on this machine."""
    model = small_model(dtype, seed=num)
    optimizer = kind(model.parameters())
    try:
        for _ in steps(model, optimizer, range(num)):
            pass
    except (RuntimeError, AssertionError, ValueError) as error:
        pytest.skip(f"torch: {error}")
    return model, optimizer


def matrix() -> list[Any]:
    """Kinds and dtypes; with options, which change nothing that depends on the dtype, most are soak."""
    return [
        pytest.param(
            kind,
            dtype,
            id=f"{kind}-{dtype}",
            marks=() if "-" not in kind.name or dtype == torch.bfloat16 else pytest.mark.soak,
        )
        for kind in optimizers()
        for dtype in DTYPES
    ]


@pytest.mark.parametrize(("kind", "dtype"), matrix())
def test_optimizers_go_on_bit_for_bit(kind: Kind, dtype: torch.dtype, tmp_path: Path) -> None:
    model, optimizer = trained(kind, dtype, 5)
    followers = []
    for load in (from_memory, from_cut):
        other, follower = trained(kind, dtype, 1)
        load(Replica([model], [optimizer], []), Replica([other], [follower], []), tmp_path)
        assert bits(follower.state_dict()) == bits(optimizer.state_dict())
        followers.append((other, follower))
    for one in ((model, optimizer), *followers):
        for _ in steps(*one, range(5, 55)):
            pass
    for other, follower in followers:
        assert bits(follower.state_dict()) == bits(optimizer.state_dict())
        assert bits(other.state_dict()) == bits(model.state_dict())


class WideMomentum(Optimizer):
    """Keeps float32 state of any parameters, nested, as optimizers of other libraries do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05, "beta": torch.tensor(0.9, dtype=torch.float64)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["own"] = {"mean": torch.zeros(param.shape), "rest": [torch.tensor(0)]}
                mean = state["own"]["mean"]
                mean.mul_(group["beta"].item()).add_(param.grad.float())
                state["own"]["rest"][0] += 1
                param.sub_((group["lr"] * mean).to(param.dtype))


@WAYS
def test_nested_state_of_a_wider_dtype_is_kept(load: Load, tmp_path: Path) -> None:
    kind = Kind("wide", WideMomentum, {})
    (model, optimizer), (other, follower) = (trained(kind, torch.bfloat16, n) for n in (5, 1))
    beta = follower.param_groups[0]["beta"]
    load(Replica([model], [optimizer], []), Replica([other], [follower], []), tmp_path)
    assert bits(follower.state_dict()) == bits(optimizer.state_dict())
    assert follower.param_groups[0]["beta"] is beta, "a script may refer to it"


@pytest.mark.parametrize("name", sorted(schedulers()))
def test_schedulers_go_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, Optimizer, Any]:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        return model, optimizer, schedulers()[name](optimizer)

    def train(model: nn.Module, optimizer: Optimizer, schedule: Any, numbers: range) -> None:
        for number in steps(model, optimizer, numbers):
            schedule.step(*((number % 3,) if name == "ReduceLROnPlateau" else ()))

    for number, load in enumerate((from_peer, from_memory, from_cut)):
        source, target = made(), made()
        train(*source, range(7))
        train(*target, range(2))
        folder = tmp_path / str(number)
        folder.mkdir()
        load(*(Replica([one[0]], [one[1]], [one[2]]) for one in (source, target)), folder)
        for one in (source, target):
            train(*one, range(7, 57))
        assert bits(source[1].state_dict()) == bits(target[1].state_dict())
        assert bits(source[2].state_dict()) == bits(target[2].state_dict())
        assert bits(source[0].state_dict()) == bits(target[0].state_dict())


def test_other_groups_are_refused_by_name(tmp_path: Path) -> None:
    model, other = small_model(), small_model()
    optimizer = torch.optim.SGD(list(model.parameters())[:1], lr=0.1)
    optimizer.add_param_group({"params": list(model.parameters())[1:]})
    source = Replica([model], [optimizer], [])
    target = Replica([other], [torch.optim.SGD(other.parameters(), lr=0.1)], [])
    with pytest.raises(ConfigError, match=r"groups of \[2\] parameters.*\[1, 1\]"):
        from_peer(source, target, tmp_path)


# ---------------------------------------------------------------------------- kinds of state


class Extra(nn.Module):
    """Keeps something that is no tensor, or a tensor that is made when it is asked for."""

    def __init__(self, *, as_tensor: bool) -> None:
        super().__init__()
        self.count, self.as_tensor = 0, as_tensor

    def get_extra_state(self) -> Any:
        if self.as_tensor:
            return torch.tensor(self.count)
        return {"count": self.count, "raw": b"\x00\xff", "seen": {1, 2}}

    def set_extra_state(self, state: Any) -> None:
        self.count = int(state if self.as_tensor else state["count"])


KEPT = {
    "bool": torch.tensor([True, False]),
    "int8": torch.ones(3, dtype=torch.int8),
    "uint16": torch.ones(3).to(torch.uint16),
    "uint64": torch.ones(3).to(torch.uint64),
    "half": torch.ones(3).half(),
    "bfloat16": torch.ones(3).bfloat16(),
    "fp8": torch.ones(3).to(torch.float8_e4m3fn),
    "fp8_e5m2": torch.ones(2, 3).to(torch.float8_e5m2),
    "complex64": torch.ones(3, dtype=torch.complex64),
    "complex128": torch.ones(2, 3, dtype=torch.complex128),
    "conjugate": torch.full((3,), 1 + 2j).conj(),
    "empty": torch.ones(0, 3),
    "scalar": torch.tensor(2.5),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "strided": torch.arange(8.0)[::2],
}


@pytest.mark.filterwarnings("ignore:Casting complex")
@WAYS
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("name", sorted(KEPT))
def test_buffers_of_every_kind_are_kept(
    name: str, persistent: bool, load: Load, tmp_path: Path
) -> None:
    def made(times: int) -> nn.Module:
        model = small_model()
        value = KEPT[name]
        changed = (value.to(torch.complex128) * times).to(value.dtype) if times else value
        model.register_buffer("kept", changed, persistent=persistent)
        return model

    source, target = made(3), made(0)
    check_movable([source])
    load(Replica([source], [], []), Replica([target], [], []), tmp_path)
    assert bits(target.get_buffer("kept").resolve_conj()) == bits(
        source.get_buffer("kept").resolve_conj()
    )
    assert bits(target.state_dict()) == bits(source.state_dict())


@WAYS
def test_what_a_module_keeps_besides_is_kept(load: Load, tmp_path: Path) -> None:
    for number, as_tensor in enumerate((True, False)):
        source, target = Extra(as_tensor=as_tensor), Extra(as_tensor=as_tensor)
        source.count = 7
        folder = tmp_path / str(number)
        folder.mkdir()
        theirs, ours = Replica([source], [], []), Replica([target], [], [])
        assert theirs.describe() == ours.describe()
        load(theirs, ours, folder)
        assert target.count == 7


@WAYS
def test_buffers_that_change_their_form_are_kept(load: Load, tmp_path: Path) -> None:
    def made() -> nn.Module:
        model = nn.Linear(2, 2)
        model.register_buffer("grown", torch.zeros(2))
        model.register_buffer("later", None)
        model.register_buffer("gone", torch.zeros(1))
        return model

    source, target = made(), made()
    theirs, ours = Replica([source], [], []), Replica([target], [], [])
    source.grown, source.later, source.gone = (
        torch.ones(5, dtype=torch.float64),
        torch.ones(1),
        None,
    )
    source.register_buffer("fresh", torch.ones(3))
    load(theirs, ours, tmp_path)
    assert bits(dict(target.state_dict())) == bits(dict(source.state_dict()))


@pytest.mark.filterwarnings("ignore")  # torch's, about what it supports in part only
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.eye(3).to_sparse(), "layout sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "layout sparse_csr"),
        (lambda: torch.ones(2, device="meta"), "meta device"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    ],
    ids=["coo", "csr", "meta", "quantized", "nested"],
)
def test_what_cannot_be_kept_is_refused_by_name(make: Callable[[], torch.Tensor], why: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_buffer("adj", make())
    with pytest.raises(ConfigError, match=rf"job.prepare: 0.adj cannot be kept.*{why}"):
        check_movable([model])
    model[0].register_buffer("adj", make(), persistent=False)
    check_movable([model])


def test_lazy_parameters_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"weight cannot be kept.*lazy"):
        check_movable([nn.LazyLinear(3)])
    model = nn.LazyLinear(3)
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    on_servers = OnServers(Alone(JobSpec(script="train.py")))
    with pytest.raises(ConfigError, match=r"weight cannot be kept.*lazy"):
        on_servers.prepare([model], [optimizer], [])
