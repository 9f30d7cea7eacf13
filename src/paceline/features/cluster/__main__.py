"""``python -m paceline.features.cluster FOLDER``: the scheduler of a cluster.

It leaves if there is one.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

from paceline.base.errors import PacelineError
from paceline.base.processes import try_lock
from paceline.features.cluster.folder import ClusterConfig, ClusterDir
from paceline.features.cluster.service import ClusterService

LOCK_WAIT_S = 1.0
"""Commands try the lock for a moment to see whether it is held: not to be taken for a scheduler."""


def take(folder: ClusterDir) -> int | None:
    """Become the scheduler: the lock's descriptor; None: there is one."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while (descriptor := try_lock(folder.lock)) is None:
        if time.monotonic() > deadline_s:
            return None
        time.sleep(0.02)  # noqa: TID251
    return descriptor


async def serve(folder: ClusterDir, config: ClusterConfig) -> None:
    """Run the scheduler in this event loop."""
    service = ClusterService(folder, config)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, service.stop_nowait)
    await service.run()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m paceline.features.cluster")
    parser.add_argument("folder", type=Path)
    folder = ClusterDir(parser.parse_args().folder)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    lock = take(folder)
    config = folder.load(folder.wanted) or folder.load()
    if lock is None or config is None:
        logging.getLogger(__name__).warning("not_started: it runs, or nothing says what it has")
        return
    try:
        asyncio.run(serve(folder, config))
    except PacelineError as error:
        sys.exit(f"paceline: {error}")
    finally:
        os.close(lock)


if __name__ == "__main__":
    main()
