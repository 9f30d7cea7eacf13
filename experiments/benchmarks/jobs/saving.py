"""One worker whose state is large: it computes, and is saved, by paceline or by one of `savers`.

Writes to ``--out``: ``steps.f64``, a row of `COLUMNS` for each step; ``saves.json``, of every save
of a peer ``step`` (the row it began in), ``stored_s`` (when it was on storage), and ``restore_s``
(seconds until the state was as it was saved, which is verified in every page, after it had been
destroyed); and ``machine.json``: seconds of a memory copy of the state alone and of two at once,
and of a plain write of as many bytes with fsync, and of one past the page cache.

Under paceline there may be another member, which holds the same state and takes part in each step,
but computes nothing. When enough cuts are on disk all go on without computing, until a file
``enough`` tells them to end. Whoever is started again meanwhile notes in ``restores.jsonl`` how
long it read a cut, and from where; that is verified, too.
"""

import argparse
import json
import mmap
import os
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from savers import SAVERS, State
from torch import Tensor, nn

COLUMNS = ("asked_s", "begun_s", "backward_s", "updated_s", "factor")
"""Monotonic times at which the last step was over and what comes between two began, the forward
began, the backward was over, and the update was; and of which `--factors` the compute was."""
PAGE = 1024  # float32 in a page
TENSOR_BYTES = 64 << 20
SIDE, TRIALS = 512, 40
RING = 16
"""A memory copy goes into so many tensors in turn: too many for a cache."""
CHUNK_BYTES = 16 << 20
IDLE_S = 0.02


class Large(nn.Module):
    """One small weight that is trained, and much that the optimizer changes in every page."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))
        sizes = [TENSOR_BYTES // 4] * (num_bytes // TENSOR_BYTES)
        self.bulk = nn.ParameterList(
            [nn.Parameter(torch.zeros(size), requires_grad=False) for size in sizes]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a mean."""
        return (x * self.weight).mean()


class Touching(torch.optim.SGD):
    """SGD that also counts its steps in every page of the bulk."""

    bulk: nn.ParameterList

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update once."""
        for tensor in self.bulk:
            tensor[::PAGE] += 1
        return super().step(closure)


class Compute:
    """Matrix products for about so many seconds; they stand for forward and backward."""

    def __init__(self) -> None:
        self._square, self._product = torch.rand(SIDE, SIDE), torch.empty(SIDE, SIDE)
        took = []
        for _ in range(TRIALS):
            begun_s = time.perf_counter()
            self._once()
            took.append(time.perf_counter() - begun_s)
        self._each_s = statistics.median(took)

    def _once(self) -> None:
        torch.mm(self._square, self._square, out=self._product)

    def __call__(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / self._each_s))):
            self._once()


class Training:
    """The loop that all share; ``idle``: without computing, and nothing is noted."""

    def __init__(self, options: argparse.Namespace, *, idle: bool = False) -> None:
        self.model = Large(options.bytes)
        self.optimizer = Touching(self.model.parameters(), lr=0.01)
        self.optimizer.bulk = self.model.bulk
        self.idle = idle
        self.number = 0
        self.copy_s = self.pair_s = 0.0
        if idle:
            return
        self._compute = Compute()
        self._factors, self._gap = options.factors, options.gap
        self.copy_s, self.pair_s = copies_s(self.state)
        self._steps = (options.out / "steps.f64").open("wb", buffering=0)

    @property
    def state(self) -> State:
        """The tensors themselves."""
        return dict(self.model.state_dict())

    def step(self, batches: Iterator[Tensor], save: Any, before_update: Any) -> None:
        """Do one step; ``save`` is called before its compute."""
        if self.idle:
            self.model(next(batches)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return
        factor = self._factors[self.number // self._gap % len(self._factors)]
        asked_s = time.monotonic()
        x = next(batches)
        save()
        begun_s = time.monotonic()
        self._compute(factor * self.copy_s)
        self.model(x).backward()
        backward_s = time.monotonic()
        before_update()
        self.optimizer.step()
        row = (asked_s, begun_s, backward_s, time.monotonic(), factor)
        self._steps.write(struct.pack("5d", *row))
        self.optimizer.zero_grad()
        self.number += 1


def by_peer(training: Training, options: argparse.Namespace) -> list[dict[str, float]]:
    """Save at every ``gap``-th step; what was saved is restored and verified before the next."""
    saver, state = SAVERS[options.arm](options.out), training.state
    saves = []

    def nothing() -> None: ...

    batches = iter(lambda: torch.ones(8, 8), None)
    for _ in range(options.gap):  # nothing is measured against a first step
        training.step(batches, nothing, nothing)
    for _ in range(options.saves):
        expected, at = float(training.number), training.number
        training.step(batches, lambda: saver.save(state, at), saver.before_update)  # noqa: B023
        for _ in range(options.gap - 1):
            training.step(batches, nothing, nothing)
        stored_s, now = saver.stored(), float(training.number)
        restore_s = restored_s(state, lambda: saver.restore(state), expected)
        saves.append({"step": at, "stored_s": stored_s, "restore_s": restore_s})
        set_pages(state, now)
    saver.close()
    return saves


def by_paceline(options: argparse.Namespace) -> None:
    """Train until so many cuts are on disk; what they cost, the job's events say."""
    import paceline as pl

    measured = come_together(options)
    while measured and len(list(options.out.glob("*.built"))) < options.members - 1:
        time.sleep(IDLE_S)  # nothing is measured beside that
    training = Training(options, idle=not measured)
    note_restores(training.state, options.out)
    if measured:
        note_machine(training, options)
        (options.out / "measured").write_text(life())
    # As a model's own start leaves it: memory that was never written to costs more to read into.
    set_pages(training.state, 0.0)
    (options.out / f"{life()}.built").touch()
    job = pl.init()
    job.prepare(training.model, training.optimizer)
    rows = pl.TensorRows(x=torch.ones(1 << 20, 8))
    batches = (batch.x for batch in job.batches(rows, 8))

    def nothing() -> None: ...

    while not (options.out / "enough").exists():
        training.step(batches, nothing, nothing)
        if training.idle and (options.out / "saves.json").exists():
            time.sleep(IDLE_S)
        if not training.idle and num_cuts(options.cuts) >= options.saves:
            training.idle = True
            (options.out / "saves.json").write_text("[]")


def num_cuts(folder: Path) -> int:
    """Count the cuts that are on disk."""
    return len(list(folder.glob("*/manifest.json")))


def life() -> str:
    """Return what the files of this life of this worker begin with."""
    return f"{os.environ['PACELINE_NODE']}-{os.environ['PACELINE_INC']}"


def come_together(options: argparse.Namespace) -> bool:
    """Wait for all members of the first group; whether this is the one that is measured.

    It is the first by its node: of a group that one makes the cuts.
    """
    if (options.out / "saves.json").exists():
        return False
    number = int(os.environ["PACELINE_NODE"].rpartition("-")[2])
    (options.out / f"{number}.member").touch()
    while len(members := list(options.out.glob("*.member"))) < options.members:
        time.sleep(IDLE_S)
    return number == min(int(path.stem) for path in members)


def note_restores(state: State, out: Path) -> None:
    """Have the seconds noted that it takes to read a cut, as the job does it."""
    from paceline.cuts.manifest import copies, read_manifest
    from paceline.runtime.state.replica import Replica

    load_cut = Replica.load_cut

    def load(replica: Replica, *places: Path) -> None:
        (name,) = read_manifest(*places).files
        read_from = str(copies(name, *places)[0])
        begun_s = time.perf_counter()
        load_cut(replica, *places)
        took_s = time.perf_counter() - begun_s
        bulk = [tensor for name, tensor in state.items() if "bulk" in name]
        pages = torch.cat([tensor[::PAGE] for tensor in bulk]).unique().tolist()
        noted = {"restore_s": took_s, "steps": pages, "place": read_from}
        with (out / "restores.jsonl").open("a") as file:
            file.write(json.dumps(noted) + "\n")

    Replica.load_cut = load  # type: ignore[method-assign]


def set_pages(state: State, value: float) -> None:
    """Set the pages as an update leaves them."""
    with torch.no_grad():
        for name, tensor in state.items():
            if "bulk" in name:
                tensor[::PAGE] = value


def restored_s(state: State, restore: Any, expected: float) -> float:
    """Seconds of restoring what was destroyed before; every page is as it was saved.

    Raises:
        RuntimeError: one is not.
    """
    set_pages(state, -1.0)
    begun_s = time.perf_counter()
    with torch.no_grad():
        restore()
    took_s = time.perf_counter() - begun_s
    for name, tensor in state.items():
        if "bulk" in name and not bool((tensor[::PAGE] == expected).all()):
            raise RuntimeError(f"{name} is not what was saved at step {expected:.0f}")
    return took_s


def copies_s(state: State) -> tuple[float, float]:
    """Seconds of one warm memory copy of the state, and of two at once by two threads."""

    def once(ring: list[Tensor]) -> None:
        for number, tensor in enumerate(bulk):
            ring[number % len(ring)].copy_(tensor)

    bulk = [tensor for name, tensor in state.items() if "bulk" in name]
    rings = [[torch.zeros_like(bulk[0]) for _ in range(min(RING, len(bulk)))] for _ in range(2)]
    alone, both = [], []
    for _ in range(5):
        begun_s = time.perf_counter()
        once(rings[0])
        alone.append(time.perf_counter() - begun_s)
        threads = [threading.Thread(target=once, args=(ring,)) for ring in rings]
        begun_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        both.append(time.perf_counter() - begun_s)
    return statistics.median(alone), statistics.median(both)


def write_s(path: Path, num_bytes: int, flags: int = 0) -> float | None:
    """Seconds of writing so many bytes, one after the other, and fsync; None: not this way."""
    chunk = mmap.mmap(-1, CHUNK_BYTES)
    chunk[:] = os.urandom(CHUNK_BYTES)
    begun_s = time.perf_counter()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
        try:
            for _ in range(num_bytes // CHUNK_BYTES):
                if os.write(descriptor, chunk) < CHUNK_BYTES:
                    raise OSError(f"{path}: a write was cut short")
            os.fsync(descriptor)
            return time.perf_counter() - begun_s
        finally:
            os.close(descriptor)
    except OSError:
        if not flags:
            raise
        return None  # this file system has no way past the page cache
    finally:
        path.unlink(missing_ok=True)


def note_machine(training: Training, options: argparse.Namespace) -> None:
    """Write what a copy and a plain write of the state take here."""
    machine = {
        "copy_s": training.copy_s,
        "pair_s": training.pair_s,
        "write_s": write_s(options.out / "plain", options.bytes),
        "direct_s": write_s(options.out / "direct", options.bytes, os.O_DIRECT),
    }
    (options.out / "machine.json").write_text(json.dumps(machine))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--arm", choices=["paceline", *SAVERS], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--factors", type=float, nargs="+", required=True, help="compute / copy")
    parser.add_argument("--saves", type=int, required=True)
    parser.add_argument("--gap", type=int, required=True, help="steps from save to save")
    parser.add_argument("--cuts", type=Path, help="paceline's")
    parser.add_argument("--members", type=int, default=1, help="paceline's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.arm == "paceline":
        by_paceline(options)
        return
    training = Training(options)
    saves = by_peer(training, options)
    note_machine(training, options)
    (options.out / "saves.json").write_text(json.dumps(saves))


if __name__ == "__main__":
    main()
