"""Lightning's Trainer with callbacks that have a state, a bar, and files; then a test of the best.

Each life writes which checkpoint it took for the best one, and what that gives.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.lightning import PacelineStrategy

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
args = parser.parse_args()

pl.seed_everything(5)
strategy = PacelineStrategy()
features = torch.randn(320, 8, dtype=torch.float64)
target = features @ torch.arange(8.0, dtype=torch.float64).unsqueeze(1)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 1).double()

    def loss_of(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        time.sleep(args.step_s)
        loss = self.loss_of(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        # It is best in the second epoch, so that a later life does not find that out itself.
        self.log("worth", 1.0 / (1 + abs(self.current_epoch - 1)))
        self.log("held_out", self.loss_of(batch))

    def test_step(self, batch: list[Tensor]) -> None:
        self.log("tested", self.loss_of(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


module, rows = Module(), TensorDataset(features, target)
saver = ModelCheckpoint(monitor="worth", mode="max")
stopping = EarlyStopping("worth", patience=3, mode="max")
trainer = pl.Trainer(
    strategy=strategy,
    max_epochs=40,
    callbacks=[saver, stopping, RichProgressBar()],
    logger=CSVLogger(args.out, "logged", flush_logs_every_n_steps=1),
    log_every_n_steps=1,
)
trainer.fit(module, DataLoader(rows, 16), DataLoader(rows, 320))
made: dict[str, Any] = {
    "best": os.path.relpath(saver.best_model_path, trainer.log_dir),
    "score": float(saver.best_model_score or 0),
    "waited": stopping.wait_count,
    "stopped": stopping.stopped_epoch,
    "steps": trainer.global_step,
}
(tested,) = trainer.test(module, DataLoader(rows, 320), ckpt_path="best")
made |= tested
own, inc = os.environ.get("PACELINE_RANK", "alone"), os.environ.get("PACELINE_INC", "0")
(args.out / f"{own}.{inc}.end").write_text(json.dumps(made))
