"""paceline trains PyTorch models on machines that are shared, uneven and unreliable.

The public names are found on first use, so that importing paceline never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.runtime.data.batch import TensorRows
    from paceline.runtime.data.delimited import CsvRows
    from paceline.runtime.data.growing import GrowingFiles
    from paceline.runtime.data.parquet import ParquetRows
    from paceline.runtime.data.stream import StreamSource
    from paceline.runtime.data.table import SqlTable
    from paceline.runtime.data.tar import TarRows
    from paceline.runtime.data.text import TextLines
    from paceline.runtime.process.process import Stopped
    from paceline.runtime.script.embedding import Embedding
    from paceline.runtime.script.job import Job, init

__version__ = "0.1.0"

_HOMES = {
    "CsvRows": "paceline.runtime.data.delimited",
    "Embedding": "paceline.runtime.script.embedding",
    "GrowingFiles": "paceline.runtime.data.growing",
    "Job": "paceline.runtime.script.job",
    "ParquetRows": "paceline.runtime.data.parquet",
    "SqlTable": "paceline.runtime.data.table",
    "Stopped": "paceline.runtime.process.process",
    "StreamSource": "paceline.runtime.data.stream",
    "TarRows": "paceline.runtime.data.tar",
    "TensorRows": "paceline.runtime.data.batch",
    "TextLines": "paceline.runtime.data.text",
    "init": "paceline.runtime.script.job",
}

__all__ = [
    "CsvRows",
    "Embedding",
    "GrowingFiles",
    "Job",
    "ParquetRows",
    "SqlTable",
    "Stopped",
    "StreamSource",
    "TarRows",
    "TensorRows",
    "TextLines",
    "__version__",
    "init",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}; it has {__all__}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
