"""A small model that is trained until a file appears; what the scheduler gave the job is noted."""

import os
import sys
import time
from pathlib import Path

import torch


def main() -> None:
    out, name = Path(sys.argv[1]), sys.argv[2]
    granted = f"{os.environ['PACELINE_DEVICES']} {os.environ['PACELINE_SHARE']}"
    with (out / f"{name}.begun").open("a") as file:
        file.write(f"{granted}\n")
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while not (out / f"{name}.go").exists():
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
