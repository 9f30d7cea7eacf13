"""Modules in torch's DistributedDataParallel, whose part the job takes."""

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from paceline.base.errors import ConfigError


def unwrapped(given: Any) -> Any:
    """Return the same in the same form, with the module itself for each wrapper around one.

    Wrappers no longer average, even if the script still calls them: their hooks act only for a
    forward pass that has asked them to.

    Raises:
        ConfigError: a wrapper whose part nobody can take.
    """
    if isinstance(given, list | tuple):
        parts = [unwrapped(one) for one in given]
        changed = any(new is not old for new, old in zip(parts, given, strict=True))
        make = getattr(given, "_make", type(given))  # of a namedtuple
        return make(parts) if changed else given
    if not isinstance(given, DistributedDataParallel):
        return given
    size = given.process_group.size()
    if size > 1:
        raise ConfigError(
            f"job.prepare got a DistributedDataParallel over a process group of {size}: the job's "
            "workers come and go, and its group is its own; leave out init_process_group, or give "
            "it world_size=1"
        )
    if given.mixed_precision is not None:
        raise ConfigError(
            "job.prepare got a DistributedDataParallel with mixed_precision, which changes the "
            "module inside; use torch.autocast"
        )
    given.require_backward_grad_sync = given.require_forward_param_sync = False
    return given.module
