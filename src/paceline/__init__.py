"""paceline trains PyTorch models on machines that are shared, uneven and unreliable.

The public names are found on first use, so that importing paceline never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.runtime.job import Job, init
    from paceline.runtime.ps.embedding import Embedding
    from paceline.runtime.ps.port import Stopped

__version__ = "0.1.0"

_HOMES = {
    "Embedding": "paceline.runtime.ps.embedding",
    "Job": "paceline.runtime.job",
    "Stopped": "paceline.runtime.ps.port",
    "init": "paceline.runtime.job",
}

__all__ = ["Embedding", "Job", "Stopped", "__version__", "init"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}; it has {__all__}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
