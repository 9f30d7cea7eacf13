"""Whether what a script hands to ``job.prepare`` belongs together."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from paceline.base.errors import ConfigError


def check_parameters(
    modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], *, alone: bool
) -> None:
    """Refuse optimizers of parameters that are not prepared.

    Args:
        modules: all that were given.
        optimizers: all that were given.
        alone: one that trains something else besides is none of the job's affairs.

    Raises:
        ConfigError: what an optimizer trains is in no model, and would be in no cut.
    """
    known = {id(param) for module in modules for param in module.parameters()}
    for number, optimizer in enumerate(optimizers):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        foreign = [param for param in params if id(param) not in known]
        if not foreign or (alone and len(foreign) < len(params)):
            continue
        what = f"optimizer {number} ({type(optimizer).__name__})"
        if len(foreign) == len(params):
            raise ConfigError(
                f"job.prepare: {what} trains no parameter of the models that were given; make it "
                "of the parameters of the model that is prepared, as it is then, and pass all "
                "models and their optimizers in one call"
            )
        raise ConfigError(
            f"job.prepare: {what} trains a parameter of shape {tuple(foreign[0].shape)} that is in "
            "no model given to job.prepare; pass all models and their optimizers in one call"
        )


def refuse_empty(modules: Sequence[nn.Module]) -> None:
    """Raise ConfigError for a parameter or buffer without values, by its name."""
    for module in modules:
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if why := why_empty(tensor):
                raise ConfigError(f"job.prepare: {name} cannot be kept or copied: it is {why}")


def why_empty(tensor: Tensor) -> str | None:
    """Say why a tensor has no values, and the remedy; None: it has some."""
    if is_lazy(tensor):
        return "a lazy tensor without a shape; run the model on one batch before job.prepare"
    if tensor.is_meta:
        return "on the meta device, without values; give it some before job.prepare"
    return None
