"""Lightning's or Hugging Face's Trainer with early stopping, and a callback that counts.

Each life writes what its Trainer decided, and what its callbacks counted.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--library", choices=["lightning", "huggingface"])
parser.add_argument("--die", default=":0", help="node:step, behind which its first life ends")
args = parser.parse_args()
own, inc = os.environ.get("PACELINE_NODE", "alone"), os.environ.get("PACELINE_INC", "0")

torch.manual_seed(0)
features = torch.randn(320, 8, dtype=torch.float64)
target = features @ torch.arange(8.0, dtype=torch.float64).unsqueeze(1)


def counted(step: int) -> None:
    """Take part in a step, or end behind it."""
    time.sleep(0.02)
    node, _, last = args.die.partition(":")
    if (node, int(last)) == (own, step) and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def by_lightning() -> dict[str, Any]:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback, EarlyStopping

    from paceline.lightning import PacelineStrategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.losses = nn.Linear(8, 1).double(), list[float]()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch: list[Tensor], _: int) -> None:
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.log("held_out", loss)
            self.losses.append(loss.item())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Counting(Callback):
        num_steps = 0

        def on_train_batch_end(self, *_: Any) -> None:
            self.num_steps += 1
            counted(self.num_steps)

    stopping, counting, module = EarlyStopping("held_out", 0.5), Counting(), Module()
    stopping.patience = 2
    trainer = pl.Trainer(
        strategy=PacelineStrategy(),
        max_epochs=40,
        callbacks=[stopping, counting],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    rows = TensorDataset(features, target)
    trainer.fit(module, DataLoader(rows, 16, shuffle=True), DataLoader(rows, 320))
    return {
        "steps": [counting.num_steps, trainer.global_step],
        "epochs": trainer.current_epoch,
        "losses": module.losses,
        "waited": stopping.wait_count,
        "best": float(stopping.best_score),
        "weight": module.net.weight.tolist(),
    }


class Rows(Dataset[dict[str, Tensor]]):
    """As Hugging Face wants them."""

    def __len__(self) -> int:
        return len(features)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": features[index], "labels": target[index]}


def by_huggingface() -> dict[str, Any]:
    from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

    from paceline.huggingface import Trainer

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 1).double()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": nn.functional.mse_loss(self.net(x), labels), "logits": labels}

    class Counting(TrainerCallback):
        num_steps = 0

        def __init__(self) -> None:
            self.losses = list[float]()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.num_steps += 1
            counted(self.num_steps)

        def on_evaluate(self, *_: Any, metrics: dict[str, float], **__: Any) -> None:
            self.losses.append(metrics["eval_loss"])

    stopping, counting, model = EarlyStoppingCallback(2, 0.5), Counting(), Model()
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(args.out / "trainer"),
            per_device_train_batch_size=16,
            num_train_epochs=40,
            learning_rate=0.1,
            lr_scheduler_type="constant",
            optim="sgd",
            eval_strategy="epoch",
            save_strategy="epoch",
            metric_for_best_model="eval_loss",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            max_grad_norm=0,
        ),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=[stopping, counting],
    )
    trainer.train()
    return {
        "steps": [counting.num_steps, trainer.state.global_step],
        "epochs": trainer.state.epoch,
        "losses": counting.losses,
        "waited": stopping.early_stopping_patience_counter,
        "best": trainer.state.best_metric,
        "weight": model.net.weight.tolist(),
    }


made = by_lightning() if args.library == "lightning" else by_huggingface()
(args.out / f"{own}.{inc}.log").write_text(json.dumps(made))
