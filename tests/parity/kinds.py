"""Every optimizer and scheduler of torch, with the options that change what it keeps or does."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NOT_ALONE = {"LBFGS", "SparseAdam", "Optimizer"}
"""Those that need a closure, or gradients that are sparse."""
_MORE: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.9},
    "ASGD": {"t0": 2.0, "lambd": 1e-2},
    "Adadelta": {"lr": 0.5},
}
_HOW = {"foreach", "fused"}
"""Options that are None until somebody wants them."""


def _flags(make: type[Optimizer]) -> list[str]:
    """What can be switched on, but for what no optimizer of leaves can do."""
    known = inspect.signature(make).parameters.values()
    found = [one.name for one in known if one.name in _HOW or one.default is False]
    return [name for name in found if name != "differentiable"]


class Kind(NamedTuple):
    """An optimizer with its options."""

    name: str
    make: Callable[..., Optimizer]
    options: dict[str, Any]

    def __call__(self, params: Iterable[Any], **more: Any) -> Optimizer:
        """One of these parameters."""
        return self.make(params, **{**self.options, **more})

    def __str__(self) -> str:
        return self.name


def optimizers() -> list[Kind]:
    """All of torch that take a step without a closure: as they are, and with each option."""
    found = []
    for name, make in sorted(vars(torch.optim).items()):
        is_one = isinstance(make, type) and issubclass(make, Optimizer)
        if not is_one or name in _NOT_ALONE:
            continue
        known = inspect.signature(make).parameters
        plain = {"lr": 0.01} | _MORE.get(name, {})
        found.append(Kind(name, make, plain))
        found += [Kind(f"{name}-{flag}", make, plain | {flag: True}) for flag in _flags(make)]
        if "weight_decay" in known:
            found.append(Kind(f"{name}-decay", make, plain | {"weight_decay": 0.1}))
        if "momentum_decay" in known or "betas" in known:
            tensor_lr = plain | {"lr": torch.tensor(0.01)}
            if name in ("Adam", "AdamW"):
                tensor_lr["capturable"] = False
                found.append(Kind(f"{name}-tensor_lr", make, tensor_lr))
    return found


def known_schedulers() -> set[str]:
    """The names of all schedulers of torch."""
    classes = [*vars(lr_scheduler).values(), torch.optim.swa_utils.SWALR]
    made = {
        one.__name__ for one in classes if isinstance(one, type) and issubclass(one, LRScheduler)
    }
    return {name for name in made if not name.startswith("_")} - {"LRScheduler"}


def schedulers() -> dict[str, Callable[[Optimizer], LRScheduler]]:
    """All of torch, for an optimizer with momentum; of 40 steps where they ask for a number."""
    one = lr_scheduler
    return {
        "LambdaLR": lambda o: one.LambdaLR(o, lambda t: 1 / (1 + t)),
        "MultiplicativeLR": lambda o: one.MultiplicativeLR(o, lambda t: 0.97),
        "StepLR": lambda o: one.StepLR(o, 7, 0.7),
        "MultiStepLR": lambda o: one.MultiStepLR(o, [5, 9, 9, 30], 0.6),
        "ConstantLR": lambda o: one.ConstantLR(o, 0.3, 12),
        "LinearLR": lambda o: one.LinearLR(o, 0.2, 1.0, 25),
        "ExponentialLR": lambda o: one.ExponentialLR(o, 0.95),
        "PolynomialLR": lambda o: one.PolynomialLR(o, 40, 2.0),
        "CosineAnnealingLR": lambda o: one.CosineAnnealingLR(o, 13),
        "CosineAnnealingWarmRestarts": lambda o: one.CosineAnnealingWarmRestarts(o, 6, 2),
        "CyclicLR": lambda o: one.CyclicLR(o, 0.001, 0.02, 4, mode="exp_range", gamma=0.9),
        "OneCycleLR": lambda o: one.OneCycleLR(o, 0.05, 200),
        "SequentialLR": lambda o: one.SequentialLR(
            o, [one.LinearLR(o, 0.1, 1.0, 9), one.CosineAnnealingLR(o, 20)], [9]
        ),
        "ChainedScheduler": lambda o: one.ChainedScheduler(
            [one.ConstantLR(o, 0.5, 11), one.ExponentialLR(o, 0.98)], o
        ),
        "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.004, 10),
        "ReduceLROnPlateau": lambda o: one.ReduceLROnPlateau(o, patience=2, factor=0.5),
    }


def small_model(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """Of matrices only, which all optimizers take, Muon too."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    return model.to(dtype)


def backward(model: nn.Module, number: int, rows: slice = slice(None)) -> None:
    """Gradients of batch ``number``, the same for everybody."""
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(8, 4, generator=generator)[rows].to(next(model.parameters()).dtype)
    model(x).pow(2).mean().backward()


def steps(model: nn.Module, optimizer: Optimizer, numbers: Iterable[int]) -> Iterator[int]:
    """Train on these batches; yields after each, so that a scheduler may follow."""
    for number in numbers:
        backward(model, number)
        optimizer.step()
        optimizer.zero_grad()
        yield number


def bits(value: Any) -> Any:
    """Nested state in a form that is equal if it is so bit for bit, dtypes and types included."""
    match value:
        case Tensor():
            plain = value.detach().resolve_conj().cpu().contiguous().reshape(-1).view(torch.uint8)
            return "tensor", value.dtype, tuple(value.shape), sha256(plain.numpy()).hexdigest()
        case dict():
            return type(value).__name__, {key: bits(one) for key, one in value.items()}
        case list() | tuple():
            return type(value).__name__, [bits(one) for one in value]
        case float():
            return value.hex()
        case _:
            return type(value).__name__, repr(value)
