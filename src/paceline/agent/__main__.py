"""``python -m paceline.agent --job-dir DIR --node NAME``: the agent of one node.

Of a job of another machine the job directory was made for this one node (`JobDir.is_joined`).
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

from paceline.agent.agent import Agent, AgentEnding
from paceline.base.descriptors import raise_limit
from paceline.base.errors import TransientError
from paceline.base.jobdir import JobDir
from paceline.base.joined import remove_joined
from paceline.base.node_files import NodeFiles
from paceline.base.processes import find_job_process, kill_quietly, try_lock
from paceline.wire import last_words
from paceline.wire.spec import JobSpec, load

TAKE_OVER_S = 5.0
"""Seconds that a killed predecessor has to release its lock."""


def take_node(job: JobDir, node: str) -> int:
    """Become the node's only agent: the newest wins, since it was launched in place of the other.

    Returns:
        The lock's descriptor.

    Raises:
        TransientError: the other one does not go.
    """
    path = NodeFiles(job, node).agent_lock
    deadline_s = time.monotonic() + TAKE_OVER_S
    while (descriptor := try_lock(path)) is None:
        holder = path.read_text().strip()
        found = find_job_process(int(holder), job.path) if holder.isdigit() else None
        if found and found.runs("paceline.agent"):
            kill_quietly(found.pid)
        if time.monotonic() > deadline_s:
            raise TransientError(f"{path} is still held by process {holder}, which was killed")
        time.sleep(0.02)  # noqa: TID251
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


async def serve(job: JobDir, node: str, spec: JobSpec, launch: str) -> AgentEnding:
    """Run the agent in this event loop; how it has ended."""
    return await Agent(job, node, spec, launch).serve()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m paceline.agent")
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--launch", default="")
    parser.add_argument(last_words.OPTION, type=int)
    options = parser.parse_args()
    if options.last_words is not None:
        last_words.say_at_death(options.last_words)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = JobDir(options.job_dir.absolute())
    job.make_run_dir()
    joined = job.is_joined
    raise_limit()  # a member of a large group has a connection to each other one
    lock = take_node(job, options.node)
    try:
        ending = asyncio.run(serve(job, options.node, load(job.spec), options.launch))
    finally:
        os.close(lock)
    if joined:
        remove_joined(job)
        if ending.words:
            sys.stderr.write(f"paceline: {ending.words}\n")
        sys.exit(ending.code)


if __name__ == "__main__":
    main()
