"""Files of one node in the run directory, and its log: shared by its agent and its process."""

import shutil
import signal

from paceline.base.jobdir import JobDir

CHIEF = "worker-0"
MASTER = "master"
"""Name of the master in events and among logs."""
STACKS_SIGNAL = signal.SIGRTMAX - 1
"""Signal on which a training process writes the Python stacks of all its threads."""


class NodeFiles:
    """Paths of one node; creating the object touches nothing."""

    def __init__(self, job: JobDir, node: str) -> None:
        self.socket = job.run_dir / f"{node}.sock"
        """The agent listens here for the training process."""
        self.ledger = job.run_dir / f"{node}.ledger"
        self.process = job.run_dir / f"{node}.process"
        """The training process's last `ProcessUp`, as JSON: what an agent's successor adopts."""
        self.agent_lock = job.run_dir / f"{node}.agent"
        """Held by the node's agent; contains its process number."""
        self.stacks = job.run_dir / f"{node}.stacks"
        """Stacks of all threads, which the training process writes when it is asked to."""
        self.log = job.logs / f"{node}.log"
        self._memory = job.memory

    def remove(self) -> None:
        """Remove what only a living node needs, and what its dead processes left.

        Besides the files above and those of features (``server-1.*``) these are the data plane's
        (``server-1-7.*``).
        """
        folder, node = self.process.parent, self.process.stem
        for path in (*folder.glob(f"{node}.*"), *folder.glob(f"{node}-*")):
            path.unlink(missing_ok=True)
        for path in self._memory.glob(f"*/{node}"):
            shutil.rmtree(path, ignore_errors=True)
