"""grouped.py's model, trained by Lightning's Trainer.

Each process writes ``<node>.<inc>.final`` and ``<node>.<inc>.log``: what it holds at its end, and
what its Trainer has counted.
"""

import json
import os
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from grouped import Planted, die_once
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from trained import flags, learners

from paceline.lightning import PacelineStrategy


class Module(pl.LightningModule):
    """As Lightning wants it."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.planted = Planted(num_samples)
        self.largest = 0

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.largest = max(self.largest, len(batch[0]))
        loss: Tensor = self.planted(batch[0])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.planted(batch[0]))

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        optimizer, by_step = learners(self.planted)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": by_step, "interval": "step"},
        }


class Faults(Callback):
    """Dies once, and takes its time until its next life trains."""

    def __init__(self, out: Path, die: str) -> None:
        self.out = out
        node, _, step = die.partition(":")
        own = os.environ.get("PACELINE_NODE", "alone")
        self.step = int(step) if node == own else 0
        self.name = f"{own}.{os.environ.get('PACELINE_INC', '0')}"
        self.steps: list[int] = []
        self.evaluated: list[float] = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):  # type: ignore[no-untyped-def]
        if trainer.global_step + 1 == self.step and not (self.out / "first").exists():
            (self.out / "first").write_text(self.name)
            die_once(self.out)

    def on_before_optimizer_step(self, trainer, module, optimizer):  # type: ignore[no-untyped-def]
        if (self.out / "first").exists() and not (self.out / "hurry").exists():
            node, inc = self.name.split(".")
            victim, former = (self.out / "first").read_text().split(".")
            if node == victim and inc != former:
                (self.out / "hurry").touch()
            time.sleep(0.5)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):  # type: ignore[no-untyped-def]
        self.steps.append(trainer.global_step)

    def on_validation_end(self, trainer, module):  # type: ignore[no-untyped-def]
        if not trainer.sanity_checking:
            self.evaluated.append(trainer.current_epoch + 1.0)


def main() -> None:
    options = flags()

    torch.manual_seed(0)
    module = Module(options.num_samples)
    faults = Faults(options.out, options.die)
    rows = TensorDataset(torch.arange(options.num_samples))
    trainer = pl.Trainer(
        strategy=PacelineStrategy(),
        max_epochs=2,
        accumulate_grad_batches=options.accumulation,
        gradient_clip_val=0.2,
        log_every_n_steps=1,
        callbacks=[faults, ModelCheckpoint(options.out / "trainer", save_top_k=-1)],
        logger=CSVLogger(options.out, "logged"),
        enable_progress_bar=False,
    )
    trainer.fit(
        module,
        DataLoader(rows, batch_size=options.per_device, shuffle=True),
        DataLoader(rows, batch_size=100),
    )
    save_file(module.planted.state_dict(), options.out / f"{faults.name}.final")
    (options.out / f"{faults.name}.log").write_text(
        json.dumps(
            {
                "steps": faults.steps,
                "evaluated": faults.evaluated,
                "global_step": trainer.global_step,
                "largest": module.largest,
            }
        )
    )


if __name__ == "__main__":
    main()
