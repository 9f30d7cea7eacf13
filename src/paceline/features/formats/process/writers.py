"""Writers of paceline's own formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file


def write_safetensors(content: dict[str, Any], path: Path, about: Mapping[str, str]) -> None:
    """Write tensors by name.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        save_file(content, path, {"format": "pt", **about})
    except SafetensorError as error:
        raise OSError(f"{error}") from error


def write_torch(content: dict[str, Any], path: Path, _about: Mapping[str, str]) -> None:
    """Write nested state that ``torch.load`` reads with ``weights_only=True``."""
    torch.save(content, path)
