"""Words that people write for a value of the spec, and the value that is meant. Pure."""

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

NEAR = 0.75
"""Least likeness of a word to a value that is meant, from 0 to 1."""
_MEANT: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "strategy": dict.fromkeys(("ddp", "dp", "all-reduce", "ring", "horovod"), "allreduce")
        | dict.fromkeys(("data-parallel", "dataparallel", "mirrored", "replicas"), "allreduce")
        | dict.fromkeys(("zero", "zero1", "zero2", "zero3", "deepspeed", "sharded"), "fsdp")
        | dict.fromkeys(("parameter-server", "parameter-servers", "pserver", "servers"), "ps")
        | dict.fromkeys(("torchrun", "elastic", "accelerate", "none", "tp", "pp"), "script"),
        "mode": dict.fromkeys(("async", "asynchronous", "hogwild"), "asp")
        | dict.fromkeys(("sync", "synchronous", "barrier"), "bsp")
        | dict.fromkeys(("stale", "staleness", "bounded", "semi-sync"), "ssp"),
        "samples": {
            "exact": "exactly-once",
            "once": "exactly-once",
            "at-least": "at-least-once",
            "at-most": "at-most-once",
        },
        "backend": dict.fromkeys(("process", "processes", "localhost", "none"), "local"),
        "share.class": {"low": "opportunistic", "high": "guaranteed"},
    }
)
"""Key of the spec -> word of other libraries -> value."""
_TORCHS_OWN = ("gloo", "nccl", "mpi")


def value_meant(key: str, text: str, choices: Sequence[str]) -> str:
    """Return which of a key's values a text means; empty: nobody can tell."""
    word = text.lower().replace("_", "-")
    known = {choice.lower(): choice for choice in choices} | dict(_MEANT.get(key, {}))
    close = [word] if word in known else difflib.get_close_matches(word, known, 1, NEAR)
    return known[close[0]] if close else ""


def is_torchs_backend(key: str, text: str) -> bool:
    """Tell whether a value for where nodes run is torch's word for how they communicate."""
    return key == "backend" and text.lower() in _TORCHS_OWN
