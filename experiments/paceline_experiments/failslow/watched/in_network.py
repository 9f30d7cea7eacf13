"""Runs a script in the network namespace of its rank.

``in_network.py PID,PID,... SCRIPT [ARG]...``: the namespaces are those of the processes, in the
order of ranks. All threads that the script starts are in it, too.
"""

import ctypes
import os
import runpy
import sys

CLONE_NEWNET = 0x40000000


def main() -> None:
    pids, *sys.argv = sys.argv[1:]
    pid = pids.split(",")[int(os.environ["RANK"])]
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"the network of process {pid} cannot be entered")
    os.close(namespace)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
