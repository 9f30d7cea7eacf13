"""One member of a bare gloo group that measures its links: ``linked.py STORE RANK SIZE ADDRESS``.

Begins when a line comes on stdin; prints what it has measured as JSON.
"""

import sys
from datetime import timedelta
from typing import Any

import msgspec
from torch._C import _distributed_c10d as c10d

from paceline.runtime.group.links import measure_links, pair_up


def main() -> None:
    """Measure."""
    store, rank, size, address = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    print("ready", flush=True)
    sys.stdin.readline()
    gloo: Any = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=20)
    options._devices = [gloo.create_device(hostname=address)]
    group = gloo(c10d.FileStore(store, size), rank, size, options)
    links = measure_links(group, rank, [f"worker-{k}" for k in range(size)], pair_up(size))
    print(msgspec.json.encode(links).decode(), flush=True)
    sys.stdin.readline()  # nobody hangs up on who still measures


if __name__ == "__main__":
    main()
