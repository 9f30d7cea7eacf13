"""``python -m paceline.features.formats.process.export``: a cut as one file for other programs.

A process of its own beside the command line, which knows no torch. Prints what it wrote as one line
of JSON; a mistake or a damaged cut is one line on stderr and exit code 2, and no file.
"""

import argparse
import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from paceline.base.errors import ConfigError, PacelineError, PermanentError
from paceline.base.numbering import CutNo, StepNo
from paceline.features.formats.formats import format_of
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.checkpoint.assembly import (
    ModelTensor,
    buffers_of,
    is_replica,
    model_of,
    replica_of,
)

EXIT_OURS = 2


class ExportedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Report on what was written."""

    cut_no: CutNo
    step: StepNo
    num_tensors: int
    num_bytes: int
    num_buffers: int = 0
    """Buffers among the tensors, of the worker that was furthest; 0 without servers."""
    left_out: tuple[str, ...] = ()
    """Buffers that are not among them (`SavedBuffers.left_out`)."""


def export(
    out: Path, *places: Path, file_format: str, optimizer: bool = False, force: bool = False
) -> ExportedModel:
    """Write the model of a cut, verified before, as ``out``: there wholly, or not at all.

    Args:
        out: the file; its folder must exist.
        places: of the cut, see `wire.cut`.
        file_format: name of a format, as ``safetensors`` or ``torch``.
        optimizer: write ``{"model", "optimizers", "schedulers", "scalers"}`` instead.
        force: replace a file that is there.

    Raises:
        ConfigError: the file is there, the cut or the format has no such thing, or there is no such
            format.
        PermanentError: the cut is damaged, or the file cannot be written.
    """
    kind = format_of(file_format)
    if not force:
        _check_absent(out)
    manifest, saves = cutfile.read_cut(*places)
    model = model_of(manifest.schema, saves)
    buffers = buffers_of(saves)
    content: dict[str, Any] = {name: _with_tensors(value) for name, value in model.items()}
    if optimizer:
        if not is_replica(saves):
            raise ConfigError(
                "--optimizer: the optimizer state of a job on parameter servers is not in the form "
                "of torch's optimizers, and is not exported; leave --optimizer out"
            )
        rest = replica_of(saves)
        kinds = ("optimizers", "schedulers", "scalers")
        parts = {name: _with_tensors(rest[name]) for name in kinds}
        content = {"model": content, **parts}
    with _beside(out) as partial:
        if kind.only_tensors:
            _check_tensors(content, file_format)
        about = {"cut": str(manifest.cut_no), "step": str(manifest.step)}
        pkgutil.resolve_name(kind.write)(content, partial, about)
        if not force:
            _check_absent(out)
    return ExportedModel(
        cut_no=manifest.cut_no,
        step=manifest.step,
        num_tensors=sum(isinstance(value, ModelTensor) for value in model.values()),
        num_bytes=out.stat().st_size,
        num_buffers=len(buffers.held),
        left_out=buffers.left_out,
    )


def _with_tensors(value: Any) -> Any:
    """Nested state with torch's tensors, each with memory of its own."""
    match value:
        case ModelTensor():
            return as_tensor(value)
        case dict():
            return {key: _with_tensors(one) for key, one in value.items()}
        case list():
            return [_with_tensors(one) for one in value]
        case tuple():
            return tuple(_with_tensors(one) for one in value)
        case _:
            return value


def as_tensor(held: ModelTensor) -> Tensor:
    """A tensor; of an array that may be written it takes the memory.

    Raises:
        PermanentError: torch has no such dtype.
    """
    dtype = getattr(torch, held.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise PermanentError(f"a state cannot be read: {held.dtype!r} is no dtype of torch")
    array = np.require(held.array, requirements=["C", "W"])
    return torch.from_numpy(array.reshape(-1).view(np.uint8)).view(dtype).reshape(array.shape)


def _check_tensors(content: dict[str, Any], file_format: str) -> None:
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{name} of the model is a {type(value).__name__}, and {file_format} holds tensors "
                "only; use --format torch"
            )


def _check_absent(out: Path) -> None:
    if out.exists():
        raise ConfigError(f"{out} is there already; give another name, or --force to replace it")


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A file that becomes ``out``, durably, when the block ends well."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        yield partial
        _sync(partial)
        partial.replace(out)
        _sync(out.parent)
    except (OSError, RuntimeError) as error:
        raise PermanentError(f"{out} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m paceline.features.formats.process.export")
    parser.add_argument("out", type=Path)
    parser.add_argument("places", type=Path, nargs="+")
    parser.add_argument("--format", required=True)
    parser.add_argument("--optimizer", action="store_true")
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    try:
        done = export(
            options.out,
            *options.places,
            file_format=options.format,
            optimizer=options.optimizer,
            force=options.force,
        )
    except PacelineError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_OURS)
    sys.stdout.write(msgspec.json.encode(done).decode() + "\n")


if __name__ == "__main__":
    main()
