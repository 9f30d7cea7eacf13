"""Writes down what servers multiply the learning rate of contributions with, for ``adjust_lr.py``.

Python runs a module of this name at its start; the benchmark puts its folder on the path of the
training processes. Each server appends a float32 per contribution that it applies to
``$PACELINE_BENCH_FACTORS/<node>.f32``, and its staleness to ``<node>.stale.f32``.
"""

import os
from pathlib import Path
from typing import Any


def _record(out: Path) -> None:
    import numpy as np

    from paceline.protocol.holding.servers.server_contents import ServerContents

    inner = ServerContents._factor

    def factor(this: Any, part: Any) -> float:
        stale = max(0, this.applied - part.seen) if part.seen >= 0 else -1
        found = inner(this, part)
        for name, value in (("factors", found), ("stale", stale)):
            with (out / f"{os.environ['PACELINE_NODE']}.{name}.f32").open("ab") as file:
                file.write(np.float32(value).tobytes())
        return found

    ServerContents._factor = factor  # type: ignore[method-assign]


if "PACELINE_BENCH_FACTORS" in os.environ and os.environ.get("PACELINE_ROLE") == "server":
    _record(Path(os.environ["PACELINE_BENCH_FACTORS"]))
