"""``from paceline.huggingface import Trainer`` (or ``Accelerator``): for jobs of paceline."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.runtime.integrations.accelerate import Accelerator
    from paceline.runtime.integrations.huggingface import Trainer

# Found on first use: transformers takes seconds to import.
_HOMES = {
    "Accelerator": "paceline.runtime.integrations.accelerate",
    "Trainer": "paceline.runtime.integrations.huggingface",
}

__all__ = ["Accelerator", "Trainer"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {__all__}")
    return getattr(import_module(_HOMES[name]), name)
