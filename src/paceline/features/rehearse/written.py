"""Leaves of what an act wrote: contents where they can be read, else sizes."""

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from paceline.base.processes import SAFE_PATH
from paceline.features.rehearse.numbers import said
from paceline.features.rehearse.plan import Leaves, PlainLeaf

TEXTS = {".json", ".jsonl", ".csv", ".tsv", ".txt", ".log", ".md", ".yaml", ".yml"}
TENSORS = {".pt", ".pth", ".tar", ".ckpt", ".bin", ".safetensors", ".npz", ".npy"}
READER = "paceline.features.rehearse.process.contents"
TEXT_BYTES = 4 << 20
TIMES = re.compile(r"(?<!\d)(\d{10}(\.\d+|\d{9})?|20\d{6}[-_T.]?\d{4,6})(?!\d)")
"""The time of a run in a name: seconds since 1970, or a date with a time."""


def read_written(roots: Mapping[Path, Iterable[str]]) -> dict[Path, dict[str, Leaves]]:
    """Read the files that acts wrote.

    Args:
        roots: the folder of each act, and the files that it wrote there.

    Returns:
        By folder and file, what the file holds; without those whose names have a time in them.
    """
    # Each run has a name of its own for what has its time in it: event files of TensorBoard.
    written = {
        root: [name for name in names if not TIMES.search(name)] for root, names in roots.items()
    }
    tensors = [
        str(root / name)
        for root, names in written.items()
        for name in names
        if Path(name).suffix in TENSORS
    ]
    found = _read_tensors(tensors) if tensors else {}
    return {
        root: {name: found.get(str(root / name)) or _plain(root / name, root) for name in names}
        for root, names in written.items()
    }


def without_run(files: Mapping[str, Leaves], root: Path, run: str) -> dict[str, Leaves]:
    """Return files with the name and place of their run made the same for all runs.

    Args:
        files: by name, what each holds.
        root: the folder in which the script ran.
        run: the job's id; empty: the script ran alone, in a ``version_0`` of Lightning's.
    """
    one = re.compile(re.escape(run) if run else r"\bversion_\d+\b")
    return {
        one.sub("RUN", name): {
            path: msgspec.structs.replace(
                leaf, text=one.sub("RUN", leaf.text.replace(str(root), "."))
            )
            for path, leaf in leaves.items()
        }
        for name, leaves in files.items()
    }


def _read_tensors(paths: list[str]) -> dict[str, Leaves]:
    reader = subprocess.run(
        [sys.executable, *SAFE_PATH, "-m", READER],
        input=msgspec.json.encode(paths),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if reader.returncode != 0:
        return {}
    return msgspec.json.decode(reader.stdout, type=dict[str, Leaves])


def _plain(path: Path, root: Path) -> Leaves:
    size = path.stat().st_size
    if path.suffix not in TEXTS or size > TEXT_BYTES:
        return {"": PlainLeaf(number=float(size), whole=True)}
    # Each act runs in a folder of its own, which a script may write down.
    lines = path.read_text(errors="replace").replace(str(root), ".").splitlines()
    return {f"line {number}": _of_line(line) for number, line in enumerate(lines, 1)}


def _of_line(line: str) -> PlainLeaf:
    words = said(line)
    numbers = tuple(value for value, _ in words.numbers)
    if not numbers:
        return PlainLeaf(text=words.words)
    return PlainLeaf(text=words.words, some=numbers)
