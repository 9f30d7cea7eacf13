"""Planted counts by all-reduce, and beside them a small net whose end can be compared.

Each process appends to files of its own in ``--out``: ``<node>.<inc>.ids`` (int64: the samples that
its loop was given, in order), ``<node>.<inc>.times`` (float64: the unix time of each batch) and
``<node>.<inc>.sizes`` (int64: the global batch then), and writes ``<node>.<inc>.final``: what it
holds at the end. With ``--mark-sums`` a file ``<node>.<inc>.sums`` says whether it sums up.
"""

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

import paceline as pl
from paceline.features.failslow.process import node_speed
from paceline.features.failslow.wire import NodeSpeed
from paceline.runtime.group import group
from paceline.runtime.state.replica import Replica
from paceline.wire.messages.base import Link

SLOW_S = 0.2


class Planted(nn.Module):
    """``seen``: how often each sample is in the model; ``ballast``: the steps, often; ``net`` learns.

    ``rough``: in float32, with random numbers and statistics of batches, and large enough that the
    order of a sum shows.
    """

    def __init__(
        self, num_samples: int, batch_size: int = 64, num_ballast: int = 0, *, rough: bool = False
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.ballast = None
        if num_ballast:
            self.ballast = nn.Parameter(torch.zeros(num_ballast, dtype=torch.float64))
        self.seen = nn.Parameter(torch.zeros(num_samples, dtype=torch.float64))
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        if rough:
            hidden = [nn.Linear(64, 64), nn.Dropout(0.3), nn.ReLU()]
            first = [nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU()]
            self.net = nn.Sequential(*first, *hidden, nn.Linear(64, 1))
        self.dtype = next(self.net.parameters()).dtype

    def forward(self, ids: Tensor) -> Tensor:
        """Return a loss, a mean over the samples."""
        x = torch.stack([torch.sin(ids * (k + 1.0)) for k in range(4)], dim=1).to(self.dtype)
        error = self.net(x).squeeze(1) - torch.cos(ids * 0.1)
        loss = (error**2).mean() - self.seen[ids].mean()
        return loss if self.ballast is None else loss - self.ballast.sum() / self.batch_size

    def check_whole(self, *, whole_steps: bool) -> None:
        """Raise if it is not of one step; ``whole_steps``: all were, so samples tell how many."""
        if self.ballast is None:
            return
        steps = self.seen.detach().sum() / self.batch_size
        wanted = steps.round() if whole_steps else self.ballast[0]
        if not (self.ballast == wanted).all():
            raise AssertionError(f"torn: {self.ballast.unique()[:5]} after {steps} steps")


class Updates(torch.optim.Optimizer):
    """Adds one where there is a gradient: a step of fewer samples counts each of them once, too."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__(params, {})

    def step(self) -> None:  # type: ignore[override]
        """Count."""
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    param += (param.grad != 0).to(param.dtype)


def die_once(out: Path) -> None:
    """End, unless somebody has."""
    if not (out / "died").exists():
        (out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def compute(num_samples: int, times: int) -> None:
    """Take the processor for a time that grows with the samples."""
    x, weight = torch.ones(num_samples, 256), torch.full((256, 256), 1.0 / 256)
    for _ in range(times):
        x = torch.tanh(x @ weight)


def freeze_once(out: Path) -> None:
    """Stop all threads, unless somebody has."""
    if not (out / "frozen").exists():
        (out / "frozen").touch()
        os.kill(os.getpid(), signal.SIGSTOP)


def freeze_at(place: str, out: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """When somebody has died: where the next life asks for the state (hand), or takes it (take)."""

    def freeze(*_: object) -> None:
        if (out / "died").exists():
            freeze_once(out)

    def on_state_dict(*_: object) -> None:
        if threading.current_thread().name == "paceline-door":
            freeze()

    if place == "hand":
        model.register_state_dict_post_hook(on_state_dict)
    elif place == "take":
        optimizer.register_load_state_dict_pre_hook(freeze)


def spoil_check(how: str, out: Path) -> None:
    """Have our part of the check before the first step hang, or fail, unless it has."""
    measure_node, measure_links = node_speed.measure_node, group.measure_links

    def hang(device: torch.device) -> NodeSpeed:
        if not (out / "slept").exists():
            (out / "slept").touch()
            time.sleep(1000)
        return measure_node(device)

    def fail(*_: object) -> tuple[Link, ...]:
        raise ValueError("no such link")

    node_speed.measure_node = hang if how == "hang" else measure_node
    group.measure_links = fail if how == "fail" else measure_links


def read_slowly(read_s: float, out: Path) -> None:
    """Have storage stand still before a cut is read; a file tells that it was: ``<pid>.waited``."""
    load_cut = Replica.load_cut

    def load(replica: Replica, *places: Path) -> None:
        time.sleep(read_s)
        (out / f"{os.getpid()}.waited").touch()
        load_cut(replica, *places)

    Replica.load_cut = load  # type: ignore[method-assign]


def mark_sums(path: Path) -> None:
    """Keep in a file whether gradients are being summed up: the number of this process, or 0."""
    path.write_text("")
    file = os.open(path, os.O_WRONLY)
    on_their_way: dict[group.Collective, group.Group] = {}

    def mark() -> None:
        busy = any(not one.is_dropped for one in [*on_their_way.values()])
        os.pwrite(file, b"%10d" % (os.getpid() if busy else 0), 0)

    def marked(begin: Callable[..., group.Collective]) -> Callable[..., group.Collective]:
        def act(of: group.Group, *args: Any) -> group.Collective:
            operation = begin(of, *args)
            on_their_way[operation] = of
            mark()
            return operation

        return act

    wait, drop = group.Collective.wait, group.Group.drop

    def waited(operation: group.Collective) -> None:
        try:
            wait(operation)
        finally:
            on_their_way.pop(operation, None)
            mark()

    def dropped(of: group.Group) -> None:
        drop(of)
        mark()

    group.Collective.wait = waited  # type: ignore[method-assign]
    group.Group.drop = dropped  # type: ignore[method-assign]
    group.Group.sum = marked(group.Group.sum)  # type: ignore[method-assign]
    group.Group.exchange = marked(group.Group.exchange)  # type: ignore[method-assign]


def spoil(options: argparse.Namespace, node: str) -> None:
    """What goes wrong before the first step."""
    checked, _, how = options.check.partition(":")
    if node == checked:
        spoil_check(how, options.out)
    while node == options.hold and (options.out / "held").exists():
        time.sleep(0.02)
    if options.read_s:
        read_slowly(options.read_s, options.out)


def in_ddp(model: nn.Module) -> nn.Module:
    """What a script gives that wraps its model wherever it runs."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(model)


class Diary:
    """What the module says of each batch, in files of its life."""

    def __init__(self, out: Path, name: str, *, says: bool) -> None:
        self._says = f"of {name}" if says else ""
        self._number = 0
        self._paths = [out / f"{name}.{kind}" for kind in ("ids", "times", "sizes")]

    def __enter__(self) -> "Diary":
        self._files = [path.open("wb", buffering=0) for path in self._paths]
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def note(self, ids: Tensor, global_batch: int) -> None:
        """A batch has come."""
        self._number += 1
        if self._says:
            print(f"batch {self._number} {self._says}", flush=True)
        now_s = torch.tensor([time.time()], dtype=torch.float64)
        for file, values in zip(
            self._files, (ids, now_s, torch.tensor([global_batch])), strict=True
        ):
            file.write(values.numpy().tobytes())


def flags() -> argparse.Namespace:
    """What the test asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num-samples", type=int, default=4096)
    parser.add_argument("--data", type=Path, help="a file with a line for each sample")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--per-worker", type=int, help="instead of --batch-size")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--sample-s", type=float, default=0.0)
    parser.add_argument("--compute", type=int, default=0, help="a sample's part of a processor")
    parser.add_argument("--slow", default="", help="node to which a sample costs three times that")
    parser.add_argument("--slow-until-told", action="store_true", help="by a file named hurry")
    parser.add_argument("--late", default="", help="node:seconds more for each of its first life")
    parser.add_argument("--die", default="", help="node:batch at which its first life ends")
    parser.add_argument("--die-of", default="", help="node:size of the batch that ends its life")
    parser.add_argument(
        "--die-at-end", default="", help="node whose first life ends after the loop"
    )
    parser.add_argument("--stay", action="store_true", help="after the loop, until told: a file go")
    parser.add_argument(
        "--die-evaluated", default="", help="node whose first life ends when it has evaluated"
    )
    parser.add_argument("--hang", default="", help="node:batch at which its first life hangs")
    parser.add_argument(
        "--check", default="", help="node:hang, node:fail: what its check of node, links does once"
    )
    parser.add_argument("--read-s", type=float, default=0.0, help="what reading a cut takes")
    parser.add_argument(
        "--mark-sums", action="store_true", help="tell when gradients are being summed up"
    )
    parser.add_argument("--keep-at", type=int, help="batch after which a cut is asked for")
    parser.add_argument("--ballast", type=int, default=0, help="numbers that count the steps")
    parser.add_argument(
        "--freeze", default="", help="node:hand, node:take, node:evaluate: where it is stopped once"
    )
    parser.add_argument("--hold", default="", help="node that waits while there is a file held")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--rough", action="store_true", help="a net of which equal bits mean more")
    parser.add_argument("--half", action="store_true", help="float16 that overflows at times")
    parser.add_argument("--adam", action="store_true", help="for the net, as a second optimizer")
    parser.add_argument("--by-updates", action="store_true", help="count updates of each sample")
    parser.add_argument("--device", default="cpu", help="cuda: the workers in turn have one each")
    parser.add_argument("--say", action="store_true", help="print a line in each batch")
    parser.add_argument("--wrapped", action="store_true", help="in torch's DDP, alone in its group")
    return parser.parse_args()


def device_of(kind: str, rank: int) -> torch.device:
    """A worker's own, as far as there are enough of them."""
    return torch.device(kind, rank % torch.cuda.device_count() if kind == "cuda" else None)


def build(
    options: argparse.Namespace, device: torch.device
) -> tuple[Planted, list[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]:
    """What is trained."""
    model = Planted(options.num_samples, options.batch_size, options.ballast, rough=options.rough)
    if (options.out / "edited").exists():
        model.register_buffer("more", torch.zeros(1))
    model.to(device)
    # Of a mean over a step each sample has its part: times their number it counts as one.
    planted = {
        "params": [model.seen, *([] if model.ballast is None else [model.ballast])],
        "lr": float(options.batch_size),
        "momentum": 0.0,
    }
    learning = {"params": list(model.net.parameters()), "lr": 0.05}
    if options.by_updates:
        parts = [Updates(planted["params"]), torch.optim.SGD([learning], momentum=0.9)]
    elif options.adam:
        parts = [torch.optim.SGD([planted]), torch.optim.Adam([learning | {"lr": 0.01}])]
    else:
        parts = [torch.optim.SGD([planted, learning], momentum=0.9)]
    rates = torch.optim.lr_scheduler.LambdaLR(
        parts[-1], [lambda _: 1.0, lambda step: 0.9 ** (step // 10)][-len(parts[-1].param_groups) :]
    )
    return model, parts, rates


def suffer(options: argparse.Namespace, node: str, number: int, num_samples: int) -> None:
    """Whatever is to happen to this node at this batch."""
    here = (f"{node}:{number}", f"{node}:{num_samples}")
    if options.die == here[0] or options.die_of == here[1]:
        die_once(options.out)
    if options.hang == here[0] and not (options.out / "slept").exists():
        (options.out / "slept").touch()
        time.sleep(1000)


def late_s(late: str, out: Path, node: str) -> float:
    """What this life takes more for each batch: of a node that is late its first one does."""
    late_node, _, seconds = late.partition(":")
    marker = out / "late"
    if node != late_node or marker.exists():
        return 0.0
    marker.touch()
    return float(seconds)


def evaluated(
    job: pl.Job, model: Planted, dataset: torch.utils.data.Dataset[Any], freezes: Path | None
) -> dict[str, Tensor]:
    """How often each sample is in the model; the process stops itself once, if it is to."""

    def look(batch: list[Tensor]) -> dict[str, Tensor]:
        if freezes is not None:
            freeze_once(freezes)
        return {"seen": model.seen[batch[0]]}

    return job.evaluate(look, dataset, 100)


def samples_of(options: argparse.Namespace) -> Any:
    """What is read: numbers in memory, or lines of a file."""
    if options.data is None:
        return torch.utils.data.TensorDataset(torch.arange(options.num_samples))
    return pl.TextLines(options.data, parse=lambda line: (torch.tensor(int(line)),))


def main() -> None:
    """Train; evaluate if asked to."""
    options = flags()
    node, inc = os.environ["PACELINE_NODE"], os.environ["PACELINE_INC"]
    name = f"{node}.{inc}"
    freezer, _, place = options.freeze.partition(":")
    place = place if node == freezer else ""

    spoil(options, node)
    if options.mark_sums:
        mark_sums(options.out / f"{name}.sums")
    more_s = late_s(options.late, options.out, node)
    job = pl.init()
    device = device_of(options.device, job.rank)
    model, parts, rates = build(options, device)
    freeze_at(place, options.out, model, parts[-1])
    # It doubles what it scales by until gradients overflow.
    scaler = torch.amp.GradScaler("cpu", 2.0**12, growth_interval=4, enabled=options.half)
    scalers = [scaler] if options.half else []
    job.prepare(in_ddp(model) if options.wrapped else model, parts, rates, *scalers)
    dataset = samples_of(options)
    batch_size = None if options.per_worker else options.batch_size
    batches = job.batches(dataset, batch_size, options.epochs, batch_per_worker=options.per_worker)
    with Diary(options.out, name, says=options.say) as diary:
        for number, (ids,) in enumerate(batches, 1):
            model.check_whole(whole_steps=not options.by_updates)
            diary.note(ids, job.global_batch)
            suffer(options, node, number, len(ids))
            # Before backward ends, as computing is: with its end a worker's own time of a step does.
            compute(len(ids), options.compute)
            time.sleep(more_s + len(ids) * options.sample_s * (3 if node == options.slow else 1))
            with torch.autocast("cpu", torch.float16, enabled=options.half):
                loss = model(ids.to(device))
            scaler.scale(loss).backward()
            # Stands for compute, so that faults fall into a step.
            slow = options.slow_until_told and not (options.out / "hurry").exists()
            time.sleep(SLOW_S if slow else options.step_s)
            for optimizer in parts:
                scaler.step(optimizer)
            scaler.update()
            rates.step()
            model.zero_grad()
            if number == options.keep_at:
                job.checkpoint()
    while options.stay and not (options.out / "go").exists():
        time.sleep(0.02)
    if node == options.die_at_end:
        die_once(options.out)
    if options.evaluate:
        found = evaluated(job, model, dataset, options.out if place == "evaluate" else None)
        if node == options.die_evaluated:
            die_once(options.out)
        save_file(found, options.out / f"{name}.evaluated")
    held = dict(job.state_dict())
    held |= {"scale": torch.tensor(scaler.get_scale())} if options.half else {}
    save_file(held, options.out / f"{name}.final")
    (options.out / f"{name}.{'chief' if job.is_chief else 'no_chief'}").touch()


if __name__ == "__main__":
    main()
