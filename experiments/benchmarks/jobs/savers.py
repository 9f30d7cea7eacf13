"""The other ways of saving a state that `saving.py` is measured with.

Each keeps its newest checkpoint only. Imported by the Python of a peer: nothing but torch, and the
peer when it is asked for.
"""

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp

State = dict[str, Tensor]
STORED_S = 600.0
"""A checkpoint is waited for so long."""


class Saver(Protocol):
    def save(self, state: State, step: int) -> None:
        """Blocks as long as it blocks training."""

    def before_update(self) -> None:
        """Return when the state may change."""

    def stored(self) -> float:
        """Wait for the storage; the monotonic time at which it had the last one."""

    def restore(self, state: State) -> None:
        """Fill the state with the last one, from memory if it is kept there."""

    def close(self) -> None: ...


class TorchSave:
    """``torch.save`` into a file, not synced."""

    def __init__(self, out: Path) -> None:
        self._path = out / "state.pt"
        self._stored_s = 0.0

    def save(self, state: State, step: int) -> None:
        del step
        torch.save(state, self._path)
        self._stored_s = time.monotonic()

    def before_update(self) -> None: ...

    def stored(self) -> float:
        return self._stored_s

    def restore(self, state: State) -> None:
        fill(state, torch.load(self._path, mmap=True))

    def close(self) -> None:
        self._path.unlink()


class Dcp:
    """``dcp.save``; here also what the asynchronous ones share."""

    def __init__(self, out: Path) -> None:
        self._out, self._folder = out, out / "dcp"
        self._stored_s: Future[float] = Future()

    def save(self, state: State, step: int) -> None:
        self._fresh(step)
        dcp.save(state, checkpoint_id=str(self._folder), no_dist=True)
        self._stored_s.set_result(time.monotonic())

    def _fresh(self, step: int) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self._out / f"dcp-{step}"
        self._stored_s = Future()

    def _follow(self, upload: "Future[Any]") -> None:
        told = self._stored_s

        def tell(done: "Future[Any]") -> None:
            if error := done.exception():
                told.set_exception(error)
            else:
                told.set_result(time.monotonic())

        upload.add_done_callback(tell)

    def before_update(self) -> None: ...

    def stored(self) -> float:
        return self._stored_s.result(STORED_S)

    def restore(self, state: State) -> None:
        dcp.load(state, checkpoint_id=str(self._folder), no_dist=True)

    def close(self) -> None:
        shutil.rmtree(self._folder)


class DcpThread(Dcp):
    """``dcp.async_save`` as it comes: staged while training waits, uploaded by a thread."""

    def save(self, state: State, step: int) -> None:
        self._fresh(step)
        self._follow(dcp.async_save(state, checkpoint_id=str(self._folder), no_dist=True))


class DcpProcess(Dcp):
    """``dcp.async_save`` at its best: staged by a thread into shared memory, which is used again.

    Uploaded by a process. Pinned memory and copies without blocking need an accelerator.
    """

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        # Its process joins a group of ours.
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{out}/rendezvous", rank=0, world_size=1
        )
        gpu = torch.cuda.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=gpu,
                use_shared_memory=True,
                use_async_staging=True,
                use_non_blocking_copy=gpu,
            )
        )
        self._staged: Future[None] | None = None

    def save(self, state: State, step: int) -> None:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        self._fresh(step)
        response = dcp.async_save(
            state,
            checkpoint_id=str(self._folder),
            no_dist=True,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self._stager,
        )
        self._staged = response.staging_completion
        self._follow(response.upload_completion)

    def before_update(self) -> None:
        if self._staged is not None:
            self._staged.result(STORED_S)
            self._staged = None

    def close(self) -> None:
        super().close()
        self._stager.close()
        torch.distributed.destroy_process_group()


class DlroverFlash:
    """DLRover's flash checkpoint, to memory and from there to storage, under ``dlrover-run``."""

    def __init__(self, out: Path) -> None:
        from dlrover.python.common.constants import CheckpointConstant
        from dlrover.python.common.storage import KeepLatestStepStrategy
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        folder = out / "flash"
        folder.mkdir()
        self._tracker = folder / CheckpointConstant.TRACER_FILE_NAME
        strategy = KeepLatestStepStrategy(1, str(folder))
        self._checkpointer = DdpCheckpointer(str(folder), deletion_strategy=strategy)
        self._step = 0

    def save(self, state: State, step: int) -> None:
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

        self._step = step
        self._checkpointer.save_checkpoint(step, dict(state), storage_type=StorageType.DISK)

    def before_update(self) -> None: ...

    def stored(self) -> float:
        deadline_s = time.monotonic() + STORED_S
        while not (self._tracker.exists() and self._tracker.read_text() == str(self._step)):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"DLRover did not store step {self._step} in {STORED_S} s")
            time.sleep(0.1)
        return self._tracker.stat().st_mtime - time.time() + time.monotonic()

    def restore(self, state: State) -> None:
        fill(state, self._checkpointer.load_checkpoint())

    def close(self) -> None: ...


def fill(state: State, found: State) -> None:
    """Copy what was found into the state.

    Raises:
        KeyError: something is missing.
    """
    for name, tensor in state.items():
        tensor.copy_(found[name])


SAVERS: dict[str, Callable[[Path], Saver]] = {
    "torch.save": TorchSave,
    "dcp": Dcp,
    "dcp-thread": DcpThread,
    "dcp-process": DcpProcess,
    "dlrover": DlroverFlash,
}
