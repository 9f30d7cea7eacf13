"""Digests of what records hold: equal in all processes that have read the same."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

_PLAIN = str | bytes | int | float | complex | None


def digest_of(value: Any) -> str:
    """A digest of nested data: plain values, tensors, arrays, pictures, dataclasses.

    Of a value of another type, its type counts.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(value):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    # What cannot be looked into (a tensor of a kind without bytes, say) has a type all the same.
    with suppress(Exception):
        if isinstance(value, torch.Tensor):
            yield from _of_tensor(value)
        elif isinstance(value, _PLAIN):
            yield repr(value).encode()
        else:
            yield from _of_object(value)


def _of_tensor(value: torch.Tensor) -> Iterator[bytes]:
    yield f"{value.dtype} {tuple(value.shape)}".encode()
    if value.layout is torch.strided and not value.is_meta:
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _of_object(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        inside: Any = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple):
        inside = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif getattr(getattr(value, "dtype", None), "hasobject", False):
        inside = [value.tolist()]
    else:
        inside = []
        if callable(made := getattr(value, "tobytes", None)):  # arrays, pictures
            yield f"{getattr(value, 'dtype', '')} {getattr(value, 'shape', '')}".encode()
            yield bytes(made())
    for one in inside:
        yield from _parts(one)
