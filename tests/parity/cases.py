"""Small trainings, one of each kind, and what plain torch makes of them.

One table for all holders of the model: this process alone, parameter servers, members of a group
with all-reduce, shards. The body of a loop is the same in plain torch and in a job. It goes by the
number of steps that are in the model, so that it may run again for a step, or begin in the middle.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.parity.kinds import DTYPES, Kind, optimizers, schedulers, small_model

STEPS, BATCH = 60, 8
EDITED = 12
"""The number of steps after which a script changes something."""


class Case(NamedTuple):
    """One training."""

    kind: Kind
    dtype: torch.dtype
    schedule: str = ""
    edit: str = ""

    def __str__(self) -> str:
        kind = f"{self.kind}-{str(self.dtype).removeprefix('torch.')}"
        return "-".join(filter(None, (kind, self.schedule, self.edit)))


class Training:
    """What a script makes of a case.

    Args:
        case: which.
        shard: called with the model before its optimizer is made.
    """

    def __init__(self, case: Case, shard: Callable[[nn.Module], object] | None = None) -> None:
        self.case = case
        self.done = 0
        """Bodies of the loop that went through."""
        self.model = small_model(case.dtype)
        if shard is not None:
            shard(self.model)
        trained = self.model.parameters()
        if case.edit == "group":
            self.model[2].requires_grad_(False)
            trained = self.model[0].parameters()
        self.optimizer: Optimizer = case.kind(trained, **_finite(case))
        make = schedulers().get(case.schedule)
        self.schedule: LRScheduler | None = make(self.optimizer) if make else None
        self.ema: AveragedModel | None = None
        if case.edit == "ema":
            self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    @property
    def prepared(self) -> list[Any]:
        """What is given to ``job.prepare``."""
        return [self.model, self.optimizer, *([self.schedule] if self.schedule is not None else [])]

    def backward(self, x: Tensor, step: int) -> None:
        """Gradients of a batch; ``step``: complete ones."""
        before = BEFORE.get(self.case.edit)
        if before is not None:
            before(self, step)
        unused = self.case.edit in ("unused", "zeros") and step % 3 == 1
        x = x.to(self.case.dtype)
        (self.model[0](x) if unused else self.model(x)).pow(2).mean().backward()

    def step(self, step: int) -> None:
        """Update the model, as the script does after a backward."""
        self.optimizer.step()
        if self.schedule is not None:
            plateau = self.case.schedule == "ReduceLROnPlateau"
            self.schedule.step(*((float(step % 3),) if plateau else ()))
        self.optimizer.zero_grad(set_to_none=self.case.edit != "zeros")
        if self.case.edit == "clamp":
            with torch.no_grad():
                for param in self.model.parameters():
                    param.clamp_(-0.3, 0.3)
        if self.case.edit == "clamp_data":
            for param in self.model.parameters():
                param.data.clamp_(-0.3, 0.3)
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        if self.case.edit == "copy":
            copy.deepcopy(self.model)(torch.ones(1, 4, dtype=self.case.dtype))
        self.done += 1

    def state(self) -> dict[str, Any]:
        """All that must be equal."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict() if self.schedule is not None else None,
            "ema": dict(self.ema.state_dict()) if self.ema is not None else None,
        }

    def _set(self, **values: Any) -> None:
        for group in self.optimizer.param_groups:
            group.update(values)

    def _add_group(self) -> None:
        self.model[2].requires_grad_(True)
        if len(self.optimizer.param_groups) == 1:
            self.optimizer.add_param_group({"params": list(self.model[2].parameters())})


BEFORE: dict[str, Callable[[Training, int], object]] = {
    "rate": lambda one, step: one._set(lr=0.02 / (1 + step)),
    "decay": lambda one, step: one._set(weight_decay=0.3) if step >= EDITED else None,
    "momentum": lambda one, step: (
        one._set(**({"momentum": 0.5} if isinstance(one.optimizer, SGD) else {"betas": (0.5, 0.9)}))
        if step >= EDITED
        else None
    ),
    "freeze": lambda one, step: one.model[0].requires_grad_(step < EDITED),
    "thaw": lambda one, step: one.model[2].requires_grad_(step >= EDITED),
    "group": lambda one, step: one._add_group() if step >= EDITED else None,
    "reset": lambda one, step: one.optimizer.state.clear() if step == EDITED else None,
}
EDITS = (*BEFORE, "unused", "zeros", "clamp", "clamp_data", "ema", "copy")


def _finite(case: Case) -> dict[str, Any]:
    """What keeps float16 from 0 / 0: torch's own values of eps are 0 there."""
    eps = inspect.signature(case.kind.make).parameters.get("eps")
    tiny = case.dtype == torch.float16 and eps is not None and isinstance(eps.default, float)
    return {"eps": 1e-3} if tiny else {}


def cases() -> list[Case]:
    """All of them."""
    sgd = Kind("SGD", SGD, {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01})
    adamw = Kind("AdamW", AdamW, {"lr": 0.02})
    found = [Case(kind, dtype) for kind in optimizers() for dtype in DTYPES]
    for kind, dtype in ((sgd, torch.float32), (adamw, torch.float64)):
        found += [Case(kind, dtype, schedule=name) for name in schedulers()]
    found += [Case(kind, d, edit=edit) for kind in (sgd, adamw) for d in DTYPES for edit in EDITS]
    return found


def runs(case: Case, shard: Callable[[nn.Module], object] | None = None) -> bool:
    """Whether torch itself runs it on this machine."""
    try:
        one = Training(case, shard)
        for step in (0, 1, EDITED):
            one.backward(samples()[:BATCH], step)
            one.step(step)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError):
        return False
    return True


def samples() -> Tensor:
    """``[STEPS * BATCH, 4]``: a batch for each step, in order."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(STEPS * BATCH, 4, generator=generator, dtype=torch.float64)


def steps_of() -> Tensor:
    """Of each sample the number of steps that are complete when it is trained on."""
    return torch.arange(STEPS).repeat_interleave(BATCH)


def reference(case: Case, parts: int = 1) -> dict[str, Any]:
    """What plain torch makes of it, whose batches come in so many equal parts.

    The gradient is the mean of theirs, added up in the dtype of the parameters.
    """
    one, rows = Training(case), samples()
    params = list(one.model.parameters())
    for step in range(STEPS):
        whole: dict[int, Tensor] = {}
        for part in rows[step * BATCH : (step + 1) * BATCH].chunk(parts):
            one.backward(part, step)
            for number, param in enumerate(params):
                if param.grad is not None:
                    term = param.grad * (1 / parts)
                    whole[number] = whole[number] + term if number in whole else term
                param.grad = None
        for number, grad in whole.items():
            params[number].grad = grad
        one.step(step)
    return one.state()
