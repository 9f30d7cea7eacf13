"""Counts what a job's processes send on the data plane, for ``exactly_once_cost.py``.

Python runs a module of this name at its start; the benchmark puts its folder on the path of the
training processes. At the end each process writes ``$PACELINE_BENCH_COUNTS/<node>.json``:
kind of message -> [messages, bytes of header and frames].
"""

import atexit
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any


def _count() -> None:
    from paceline.wire.codec import encode
    from paceline.wire.data_packing import Packer

    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    inner = Packer.send

    def send(this: Any, sock: Any, message: Any, frames: Any, *args: Any, **kwargs: Any) -> bool:
        sent = inner(this, sock, message, frames, *args, **kwargs)
        found = counts[type(message).__name__]
        found[0] += sent
        found[1] += sent * (len(encode(message)) + sum(memoryview(f).nbytes for f in frames))
        return sent

    def write() -> None:
        if counts:
            path = Path(os.environ["PACELINE_BENCH_COUNTS"]) / f"{os.environ['PACELINE_NODE']}.json"
            path.write_text(json.dumps(counts))

    Packer.send = send  # type: ignore[method-assign]
    atexit.register(write)


if "PACELINE_BENCH_COUNTS" in os.environ:
    _count()
