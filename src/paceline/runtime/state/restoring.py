"""Making a module or an optimizer what its ``state_dict`` says, bit for bit.

Torch's own ``load_state_dict`` is for states of other programs, so it converts: an optimizer's
tensors become of the parameter's dtype, and a module copies values into the buffers that it has,
whatever they were when the state was taken.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.state.tree import why_unmovable

CPU = torch.device("cpu")

# ---------------------------------------------------------------------------- optimizers


def restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Make an optimizer what `Optimizer.state_dict` gave, with the dtypes that it had.

    Groups that the script has added since then stay as they are, without state.

    Raises:
        ConfigError: it has other groups of parameters.
    """
    more = _more_groups(optimizer, state)
    if more:
        added = optimizer.state_dict()["param_groups"][-more:]
        state = {**state, "param_groups": [*state["param_groups"], *added]}
    before = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, param in zip(numbers, params, strict=True):
        if number in state["state"]:
            loaded = optimizer.state[param]
            for key, value in state["state"][number].items():
                if key in loaded:
                    loaded[key] = _exactly(value, loaded[key])
    for own, group in zip(before, optimizer.param_groups, strict=True):
        for key, value in group.items():
            if key != "params":
                group[key] = _kept(own.get(key), value)


def fits(optimizer: Optimizer, state: Mapping[str, Any]) -> bool:
    """Tell whether an optimizer has all groups of a state."""
    ours, theirs = _sizes(optimizer.param_groups), _sizes(state["param_groups"])
    return ours[: len(theirs)] == theirs


def group_sizes(optimizers: Sequence[Optimizer]) -> list[list[int]]:
    """Return the numbers of parameters in each group of each optimizer."""
    return [_sizes(optimizer.param_groups) for optimizer in optimizers]


def _more_groups(optimizer: Optimizer, state: Mapping[str, Any]) -> int:
    ours, theirs = _sizes(optimizer.param_groups), _sizes(state["param_groups"])
    if not fits(optimizer, state):
        raise ConfigError(
            f"{type(optimizer).__name__} has groups of {ours} parameters, and the state that it is "
            f"to take over has {theirs}; give an optimizer all of its groups before job.prepare, "
            "or add them before the first loop of the epoch, by its number: if epoch >= 3"
        )
    return len(ours) - len(theirs)


def _sizes(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _exactly(value: Any, loaded: Any) -> Any:
    """Return what was loaded, with the tensors' own dtypes."""
    match value:
        case Tensor() if isinstance(loaded, Tensor):
            return loaded if loaded.dtype == value.dtype else value.to(loaded.device)
        case dict() if isinstance(loaded, dict):
            for key, one in value.items():
                loaded[key] = _exactly(one, loaded.get(key))
            return loaded
        case list() | tuple() if isinstance(loaded, list | tuple) and len(loaded) == len(value):
            return type(value)(map(_exactly, value, loaded))
        case _:
            return loaded


def _kept(own: Any, value: Any) -> Any:
    """A hyper-parameter that is a tensor keeps its memory: scripts and graphs refer to it."""
    if not (isinstance(own, Tensor) and isinstance(value, Tensor)):
        return value
    if (own.shape, own.dtype) != (value.shape, value.dtype):
        return value
    with torch.no_grad():
        return own.copy_(value)


# ---------------------------------------------------------------------------- modules


def unsaved_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that a module's ``state_dict`` lacks (``persistent=False``), by their names.

    They change in training as others do. What cannot be copied is left to each worker to build.
    """
    return {
        f"{path}.{name}" if path else name: buffer
        for path, owner in module.named_modules()
        for name, buffer in owner._buffers.items()
        if name in owner._non_persistent_buffers_set
        and buffer is not None
        and why_unmovable(buffer) is None
    }


def restore_module(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Make a module what its ``state_dict`` gave."""
    own = module.state_dict()
    for name in own.keys() - state.keys():
        _drop_buffer(module, name)
    for name, value in state.items():
        if isinstance(value, Tensor):
            _fit_buffer(module, name, value)
    if not _is_in(module, state):
        whole = OrderedDict(state)
        # Modules tell states of older versions of their class from those of the present by this.
        whole._metadata = own._metadata  # type: ignore[attr-defined]
        module.load_state_dict(whole)


def restore_unsaved(module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Make a module's other buffers these; see `unsaved_buffers`."""
    for name, value in buffers.items():
        _fit_buffer(module, name, value, persistent=False)
        path, _, local = name.rpartition(".")
        buffer = module.get_submodule(path)._buffers.get(local)
        if buffer is not None and buffer.data_ptr() != value.data_ptr():
            with torch.no_grad():
                buffer.copy_(value)


def _owner(module: nn.Module, path: str) -> nn.Module | None:
    """None: what is called so is no module's own, but something that a hook has named."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _fit_buffer(module: nn.Module, name: str, value: Tensor, *, persistent: bool = True) -> None:
    """Make a buffer that can take these values of the one that is there, or is not."""
    path, _, local = name.rpartition(".")
    owner = _owner(module, path)
    if owner is None or local in owner._parameters or local == "_extra_state":
        return
    own = owner._buffers.get(local)
    if own is not None and (own.shape, own.dtype) == (value.shape, value.dtype):
        if not _overlaps(own):
            return
    elif own is None and local not in owner._buffers and hasattr(owner, local):
        return
    params = next(module.parameters(), None)
    device = own.device if own is not None else params.device if params is not None else CPU
    room = torch.empty_like(value, device=device, memory_format=torch.contiguous_format)
    owner.register_buffer(local, room, persistent=persistent)


def _drop_buffer(module: nn.Module, name: str) -> None:
    """Make a buffer none any more."""
    path, _, local = name.rpartition(".")
    owner = _owner(module, path)
    if owner is not None and local in owner._buffers:
        owner._buffers[local] = None


def _overlaps(tensor: Tensor) -> bool:
    """Tell whether elements lie at one place (`Tensor.expand`), so that none can be written."""
    return any(not step and size > 1 for step, size in zip(tensor.stride(), tensor.shape))


def _is_in(module: nn.Module, state: Mapping[str, Any]) -> bool:
    """Tell whether a module's own tensors are those of the state: they were written in place."""
    own = module.state_dict()
    # All DTensors have one address, which is none.
    return own.keys() == state.keys() and all(
        isinstance(one, Tensor)
        and not hasattr(one, "device_mesh")
        and one.data_ptr() == state[name].data_ptr()
        for name, one in own.items()
    )
