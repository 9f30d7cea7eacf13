"""A classifier with Lightning: a module, a data module, callbacks and a schedule by steps."""

import argparse
from pathlib import Path

import lightning.pytorch as lit
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from paceline.lightning import PacelineStrategy


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out-lightning"))
    parser.add_argument("--rows", type=int, default=6400)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--no-shuffle", dest="shuffle", action="store_false")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Spirals(lit.LightningDataModule):
    """Three arms of a spiral, with noise."""

    def __init__(self, rows, batch_size, shuffle, seed) -> None:
        super().__init__()
        self.rows, self.batch_size, self.shuffle, self.seed = rows, batch_size, shuffle, seed

    def setup(self, stage=None):
        self.train_set = self.make(self.rows, self.seed)
        self.val_set = self.make(900, self.seed + 1)

    def make(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        label = torch.randint(3, (count,), generator=generator)
        radius = torch.rand(count, generator=generator)
        angle = 5 * radius + 2 * torch.pi * label / 3
        points = radius * torch.stack([angle.cos(), angle.sin()])
        points += 0.03 * torch.randn(points.shape, generator=generator)
        return TensorDataset(points.T.contiguous().to(torch.get_default_dtype()), label)

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self):
        return DataLoader(self.val_set, 300)


class Classifier(lit.LightningModule):
    def __init__(self, lr, hidden=96) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(2, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 3),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, label = batch
        loss = cross_entropy(self(x), label)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, label = batch
        logits = self(x)
        self.log("val_loss", cross_entropy(logits, label))
        self.log("val_accuracy", (logits.argmax(1) == label).to(logits.dtype).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def main():
    args = parse_args()
    lit.seed_everything(args.seed)
    torch.set_default_dtype(getattr(torch, args.dtype))
    model = Classifier(args.lr)
    data = Spirals(args.rows, args.batch_size, args.shuffle, args.seed)
    trainer = lit.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=PacelineStrategy(),
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        logger=CSVLogger(args.out),
        callbacks=[
            LearningRateMonitor("step"),
            ModelCheckpoint(args.out, monitor="val_loss", save_top_k=1),
        ],
        enable_progress_bar=False,
    )
    trainer.fit(model, data)
    found = trainer.validate(model, data, verbose=False)[0]
    print(found, flush=True)
    if trainer.is_global_zero:
        torch.save(model.state_dict(), args.out / "final.pt")


if __name__ == "__main__":
    main()
