"""paceline trains PyTorch models on machines that are shared, uneven and unreliable.

The public names are found on first use, so that importing paceline never imports torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.runtime.data.sources.csv_rows import CsvRows
    from paceline.runtime.data.sources.growing_files import GrowingFiles
    from paceline.runtime.data.sources.npy_rows import NpyRows
    from paceline.runtime.data.sources.parquet_rows import ParquetRows
    from paceline.runtime.data.sources.sql_table import SqlTable
    from paceline.runtime.data.sources.tar_rows import TarRows
    from paceline.runtime.data.sources.tensor_rows import TensorRows
    from paceline.runtime.data.sources.text_lines import TextLines
    from paceline.runtime.data.stream import StreamSource
    from paceline.runtime.process.process import Stopped
    from paceline.runtime.script.embedding import Embedding
    from paceline.runtime.script.job import Job, init

__version__ = "0.1.0"

_HOMES = {
    "Embedding": "paceline.runtime.script.embedding",
    "Job": "paceline.runtime.script.job",
    "Stopped": "paceline.runtime.process.process",
    "StreamSource": "paceline.runtime.data.stream",
    "init": "paceline.runtime.script.job",
}
_SOURCES = "paceline.runtime.data.sources"

__all__ = [
    "CsvRows",
    "Embedding",
    "GrowingFiles",
    "Job",
    "NpyRows",
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


def _sources() -> dict[str, str]:
    """Modules of the data sources, which have the names of their classes, by class."""
    folder = f"{__path__[0]}/{'/'.join(_SOURCES.split('.')[1:])}"
    files = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    modules = [name.removesuffix(".py") for name in files if name != "__init__.py"]
    return {name.title().replace("_", ""): f"{_SOURCES}.{name}" for name in modules}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or _sources().get(name)
    if home is None:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}; it has {__dir__()}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES, *_sources()})
