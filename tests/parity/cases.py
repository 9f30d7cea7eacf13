"""Small trainings, one of each kind, and what plain torch makes of them.

The body of a loop is the same in plain torch and in a job. It goes by the number of steps that are
in the model, so that it may run again for a step, or begin in the middle.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
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
    """What a script makes of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = small_model(case.dtype)
        self.optimizer: Optimizer = case.kind(self.model.parameters())
        make = schedulers().get(case.schedule)
        self.schedule: LRScheduler | None = make(self.optimizer) if make else None
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def backward(self, x: Tensor, step: int) -> None:
        """Gradients of a batch; ``step``: complete ones."""
        before = BEFORE.get(self.case.edit)
        if before is not None:
            before(self, step)
        unused = self.case.edit == "unused" and step % 3 == 1
        x = x.to(self.case.dtype)
        (self.model[0](x) if unused else self.model(x)).pow(2).mean().backward()

    def step(self, step: int) -> None:
        """Update the model, as the script does after a backward."""
        self.optimizer.step()
        if self.schedule is not None:
            plateau = self.case.schedule == "ReduceLROnPlateau"
            self.schedule.step(*((float(step % 3),) if plateau else ()))
        self.optimizer.zero_grad()
        if self.case.edit == "clamp":
            with torch.no_grad():
                for param in self.model.parameters():
                    param.clamp_(-0.3, 0.3)
        if self.case.edit == "ema":
            self.ema.update_parameters(self.model)
        if self.case.edit == "copy":
            copy.deepcopy(self.model)(torch.ones(1, 4, dtype=self.case.dtype))

    def state(self) -> dict[str, Any]:
        """All that must be equal."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict() if self.schedule is not None else None,
            "ema": dict(self.ema.state_dict()) if self.case.edit == "ema" else None,
        }

    def _set(self, **values: Any) -> None:
        for group in self.optimizer.param_groups:
            group.update(values)

    def _freeze(self) -> None:
        self.model[0].requires_grad_(False)


BEFORE: dict[str, Callable[[Training, int], None]] = {
    "rate": lambda one, step: one._set(lr=0.02 / (1 + step)),
    "decay": lambda one, step: one._set(weight_decay=0.3) if step >= EDITED else None,
    "momentum": lambda one, step: (
        one._set(**({"momentum": 0.5} if isinstance(one.optimizer, SGD) else {"betas": (0.5, 0.9)}))
        if step >= EDITED
        else None
    ),
    "freeze": lambda one, step: one._freeze() if step >= EDITED else None,
}
EDITS = (*BEFORE, "unused", "clamp", "ema", "copy")


def cases() -> list[Case]:
    """All of them."""
    sgd = Kind("SGD", SGD, {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01})
    adamw = Kind("AdamW", AdamW, {"lr": 0.02})
    ends = (torch.float64, torch.bfloat16)
    found = [
        Case(kind, dtype)
        for kind in optimizers()
        for dtype in (DTYPES if "-" not in kind.name else ends)
    ]
    found += [Case(sgd, torch.float32, schedule=name) for name in schedulers()]
    found += [Case(kind, d, edit=edit) for kind in (sgd, adamw) for d in ends for edit in EDITS]
    return found


def runs(case: Case) -> bool:
    """Whether torch itself runs it on this machine."""
    try:
        one = Training(case)
        for step in range(2):
            one.backward(samples()[:BATCH], step)
            one.step(step)
    except (RuntimeError, AssertionError, ValueError):
        return False
    return True


def samples() -> Tensor:
    """``[STEPS * BATCH, 4]``: a batch for each step, in order."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(STEPS * BATCH, 4, generator=generator, dtype=torch.float64)


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
