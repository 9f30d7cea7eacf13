"""Read files of tensors as leaves, for a command that does not import torch.

``python -m paceline.features.rehearse.process.contents``: paths as a JSON list on the standard
input, leaves by path as JSON on the standard output. Nothing of a file is executed.
"""

import sys
from argparse import Namespace
from collections import defaultdict, deque
from pathlib import Path, PosixPath, PurePosixPath
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file

from paceline.features.rehearse.plan import Leaves, PlainLeaf
from paceline.features.rehearse.process.leaves import leaves_of

MOST = 5000
_HARMLESS: list[Any] = [Namespace, SimpleNamespace, PosixPath, PurePosixPath, defaultdict, deque]
"""Classes of values that scripts save beside tensors; to make one runs no code of a script."""
_PLAIN_MODULES = ("argparse", "types")


def main() -> None:
    """Answer one list of paths."""
    paths = msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])
    sys.stdout.buffer.write(msgspec.json.encode({path: read(Path(path)) for path in paths}))


def read(path: Path) -> Leaves:
    """Read one file; one that cannot be read is its size."""
    try:
        return leaves_of("", _loaded(path), _PLAIN_MODULES, most=MOST)
    except Exception as error:  # noqa: BLE001 - of whatever the script wrote
        return {"": PlainLeaf(text=f"{type(error).__name__}, {path.stat().st_size} bytes")}


def _loaded(path: Path) -> Any:
    match path.suffix:
        case ".safetensors":
            return load_file(path)
        case ".npz" | ".npy":
            found = np.load(path, allow_pickle=False)
            return dict(found) if path.suffix == ".npz" else found
        case _:
            pass
    with torch.serialization.safe_globals(_HARMLESS):
        return torch.load(path, map_location="cpu", weights_only=True)


if __name__ == "__main__":
    main()
