"""grouped.py's model, trained by a loop that is written for Hugging Face's Accelerate.

Each process writes ``<node>.<inc>.final`` and ``<node>.<inc>.log``, as hf_trained.py does.
"""

import json
import os
import time

import torch
from grouped import Planted, die_once
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset
from trained import flags, learners

from paceline.huggingface import Accelerator


def main() -> None:
    options = flags()
    out = options.out
    own, inc = os.environ.get("PACELINE_NODE", "alone"), os.environ.get("PACELINE_INC", "0")
    victim, _, number = options.die.partition(":")

    torch.manual_seed(0)
    model = Planted(options.num_samples)
    optimizer, rates = learners(model)
    rows = TensorDataset(torch.arange(options.num_samples))
    accelerator = Accelerator(gradient_accumulation_steps=options.accumulation, cpu=True)
    model = accelerator.prepare(model)  # as its FSDP examples do
    optimizer, loader, held_out, rates = accelerator.prepare(
        optimizer,
        DataLoader(rows, batch_size=options.per_device, shuffle=True),
        DataLoader(rows, batch_size=100),
        rates,
    )
    num_steps = len(loader) // accelerator.gradient_accumulation_steps
    batches = largest = evaluated = completed = 0
    for _ in range(2):
        model.train()
        for (ids,) in loader:
            batches, largest = batches + 1, max(largest, len(ids))
            if own == victim and batches == int(number) and not (out / "first").exists():
                (out / "first").write_text(inc)
                die_once(out)
            with accelerator.accumulate(model):
                accelerator.backward(model(ids))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.2)
                optimizer.step()
                rates.step()
                optimizer.zero_grad()
            completed += accelerator.sync_gradients
            if (out / "first").exists() and not (out / "hurry").exists():
                if own == victim and inc != (out / "first").read_text():
                    (out / "hurry").touch()
                time.sleep(0.3)
        model.eval()
        with torch.no_grad():
            evaluated += sum(len(ids) for (ids,) in held_out)
    save_file(model.state_dict(), out / f"{own}.{inc}.final")
    log = {
        "chief": accelerator.is_main_process,
        "num_steps": num_steps,
        "largest": largest,
        "evaluated": evaluated,
        "completed": completed,
    }
    (out / f"{own}.{inc}.log").write_text(json.dumps(log))


if __name__ == "__main__":
    main()
