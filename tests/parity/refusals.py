"""What each holder refuses, and when: the rest it computes as plain torch does."""

import re
from typing import Literal, NamedTuple

import torch

from tests.parity.cases import EDITED, Case

Holder = Literal["alone", "servers", "allreduce", "deterministic", "fsdp"]

SERVED = {"SGD", "Adagrad", "Adam", "AdamW", "RMSprop"}
"""The optimizers of dense parameters that servers run."""
_LACKING = {"amsgrad", "maximize"}
_INSTEAD = ".*--strategy allreduce"
_CHANGED = "parameter '0.weight' was changed after job.prepare" + _INSTEAD
_AVERAGE = "AveragedModel.update_parameters was given a model"
_ROUNDED = "lr is a tensor of torch.float32, .* parameters of torch.float64 .* make it a number"
_GROUP = "add_param_group was called after job.prepare.* with requires_grad=True, and call"
_IN_LOOP = "add_param_group was called in a loop over job.batches; do it between two loops"


class Refusal(NamedTuple):
    """An error that a script gets."""

    said: str
    """What matches it."""
    steps: int
    """Bodies of the loop that went through before it."""


def refusal(case: Case, holder: Holder) -> Refusal | None:
    """The one that a case meets; None: it is trained."""
    if holder == "servers":
        found = _of_servers(case)
        if found is not None:
            return found
    if case.edit == "group" and holder != "alone":
        held_by_all = holder in ("allreduce", "deterministic")
        return Refusal(_IN_LOOP if held_by_all else _GROUP, EDITED)
    return None


def _of_servers(case: Case) -> Refusal | None:
    name, _, option = case.kind.name.partition("-")
    if case.dtype not in (torch.float64, torch.float32):
        said = f"is {case.dtype}; servers hold float32 and float64"
    elif name not in SERVED:
        said = f"{name} cannot be run on parameter servers; use one of .*{re.escape('optim.SGD')}"
    elif option in _LACKING:
        said = f"{option}=1.0 is not supported for dense parameters on servers"
    elif option == "tensor_lr" and case.dtype == torch.float64:
        said = _ROUNDED
    elif case.edit == "reset":
        return Refusal(
            "state was changed, .* after job.prepare.* leave it as it is" + _INSTEAD, EDITED
        )
    elif case.edit == "ema":
        said = _AVERAGE
    elif case.edit in ("clamp", "clamp_data"):
        return Refusal(_CHANGED, 1)
    else:
        return None
    return Refusal(said + _INSTEAD, 0)
