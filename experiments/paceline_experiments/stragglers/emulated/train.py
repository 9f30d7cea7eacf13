"""A worker of an emulated job: real batches, messages and updates; the computation is a sleep.

The model counts: each sample in it has added 1 to the row that its number falls on, so that what
the job has made of every sample can be read from its last cut.
"""

import time

import torch
from paceline_experiments.stragglers.emulation import ROWS, EmulatedLife
from torch import nn

import paceline as pl


class Counts(nn.Module):
    """Numbers of samples that have come, by row."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Embedding(ROWS, 1, sparse=True, dtype=torch.float64)
        nn.init.zeros_(self.seen.weight)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Minus what is counted: its gradient is -1 per sample."""
        counted: torch.Tensor = -self.seen(samples % ROWS).sum()
        return counted


def main() -> None:
    """Train as the scenario says."""
    life = EmulatedLife.of_this_process()
    scenario = life.scenario
    synchronous = scenario.mode == "bsp"
    job = pl.init()
    model = Counts()
    # Synchronous steps apply the mean over a global batch.
    rate = float(scenario.batch_size) if synchronous else 1.0
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
    dataset = torch.utils.data.TensorDataset(torch.arange(scenario.num_samples))
    life.await_all()
    batches = job.batches(dataset, scenario.batch_size, scenario.epochs)
    for iteration, (samples,) in enumerate(batches):
        start_s = time.time()
        busy_s = life.batch_s(samples.numel(), iteration)
        loss = model(samples) / (samples.numel() if synchronous else 1)
        loss.backward()
        time.sleep(max(0.0, start_s + busy_s - time.time()))
        life.note(start_s, time.time(), samples.numel())
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
