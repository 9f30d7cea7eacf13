"""grouped.py's model, trained by Hugging Face's Trainer.

Each process writes ``<node>.<inc>.final`` and ``<node>.<inc>.log``: what it holds at its end, and
what its Trainer has counted.
"""

import json
import os
import time
from pathlib import Path

import torch
from grouped import Planted, die_once
from safetensors.torch import save_file
from torch import Tensor, nn
from trained import flags, learners
from transformers import TrainerCallback, TrainingArguments

from paceline.huggingface import Trainer


class WithLoss(nn.Module):
    """As the Trainer wants it."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.planted = Planted(num_samples)
        self.largest = 0

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        self.largest = max(self.largest, len(ids)) if self.training else self.largest
        return {"loss": self.planted(ids)}


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"ids": index}


class Faults(TrainerCallback):
    """Dies once, and takes its time until its next life trains."""

    def __init__(self, out: Path, die: str) -> None:
        self.out = out
        node, _, step = die.partition(":")
        own = os.environ.get("PACELINE_NODE", "alone")
        self.step = int(step) if node == own else 0
        self.name = f"{own}.{os.environ.get('PACELINE_INC', '0')}"

    def on_step_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if state.global_step + 1 == self.step and not (self.out / "first").exists():
            (self.out / "first").write_text(self.name)
            die_once(self.out)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if (self.out / "first").exists() and not (self.out / "hurry").exists():
            node, inc = self.name.split(".")
            victim, former = (self.out / "first").read_text().split(".")
            if node == victim and inc != former:
                (self.out / "hurry").touch()
            time.sleep(0.5)


def main() -> None:
    options = flags()

    torch.manual_seed(0)
    model = WithLoss(options.num_samples)
    optimizer, rates = learners(model.planted)
    faults = Faults(options.out, options.die)
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(options.out / "trainer"),
            per_device_train_batch_size=options.per_device,
            gradient_accumulation_steps=options.accumulation,
            num_train_epochs=2,
            max_grad_norm=0.2,
            logging_steps=1,
            save_steps=16,
            eval_strategy="epoch",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Rows(options.num_samples),
        eval_dataset=Rows(100),
        optimizers=(optimizer, rates),
        callbacks=[faults],
    )
    trainer.train()
    save_file(model.planted.state_dict(), options.out / f"{faults.name}.final")
    (options.out / f"{faults.name}.log").write_text(
        json.dumps(
            {
                "steps": [one["step"] for one in trainer.state.log_history if "loss" in one],
                "evaluated": [
                    one["epoch"] for one in trainer.state.log_history if "eval_runtime" in one
                ],
                "global_step": trainer.state.global_step,
                "largest": model.largest,
            }
        )
    )


if __name__ == "__main__":
    main()
