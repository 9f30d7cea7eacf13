"""Threads of torch that follow the cpu quota of their node, which may change while it trains.

A node begins with as many as its quota has cores (`paceline.agent.process`). torch has the number
for each thread of its own, so only the thread that trains can change it: between two steps. The
quota is read in another thread.
"""

import os
import sys
import threading

import torch

from paceline.base.cgroups import NodeGroup, find_node_group
from paceline.runtime.process.process import Process
from paceline.wire.spec import JobSpec

EVERY_S = 1.0
"""Seconds from one look at the quota to the next."""


class QuotaThreads:
    """The threads of torch in the thread that trains.

    Args:
        spec: says how many threads suit a quota.
        group: of the node. The quota is read from the kernel, so all changes of it are seen.
        begun_with: threads that the process was started with. If torch has another number, the
            script has set it, which then stays.
    """

    def __init__(self, spec: JobSpec, group: NodeGroup, begun_with: int) -> None:
        self._spec, self._group, self._num = spec, group, begun_with
        self._cores = len(os.sched_getaffinity(0))
        self._quota: float | None = None
        self._wanted = begun_with
        self._is_left = threading.Event()

    def look(self) -> None:
        """Read the quota."""
        self._quota = self._group.quota
        self._wanted = self._spec.threads(self._cores, self._quota)

    def keep_looking(self) -> None:
        """Read the quota again and again, until the script has set the threads itself."""
        while not self._is_left.wait(EVERY_S):
            self.look()

    def follow(self) -> None:
        """Give torch the threads that suit the quota seen last; called before each step."""
        if self._is_left.is_set():
            return
        if torch.get_num_threads() != self._num:
            self._is_left.set()
            return
        wanted, quota = self._wanted, self._quota
        if wanted != self._num:
            torch.set_num_threads(wanted)
            allowed = "no cpu quota" if quota is None else f"a cpu quota of {quota:g} cores"
            sys.stderr.write(
                f"paceline: torch has {wanted} threads from now on, {self._num} before: {allowed}\n"
            )
            self._num = wanted


def follow_quota(process: Process) -> None:
    """Have torch's threads follow the quota of the process's node.

    Not where the job says how many there are, where bits depend on them, or where no quota can be
    in force.
    """
    spec = process.spec
    if spec.torch_threads is not None or spec.deterministic:
        return
    group = find_node_group(process.job.job_id, process.node)
    if group.has_cpu:
        begun_with = int(os.environ["OMP_NUM_THREADS"])
        threads = QuotaThreads(spec, group, begun_with)
        process.between_steps = threads.follow
        threading.Thread(target=threads.keep_looking, name="quota", daemon=True).start()
