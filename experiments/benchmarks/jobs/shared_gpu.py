"""A script that waits for its input and computes on a GPU, and notes its losses.

shared_gpu.py NOTES STEPS WAIT_S

It knows no paceline. A step takes an H100 some 10 ms.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS, LENGTH, WIDTH = 8, 256, 1024


class Waiting(Dataset):  # type: ignore[type-arg]
    """Samples that come after a while."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        return torch.tensor(float(index % 7) / 7)


def model_of() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()


def main(notes: str, steps: str, wait_s: str) -> None:
    # Else the gradients of attention are sums in an order that no seed decides.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(0)
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    loader = DataLoader(Waiting(float(wait_s)), batch_size=None)
    ones = torch.ones(ROWS, LENGTH, WIDTH, device="cuda")
    with Path(notes).open("a", buffering=1) as file:
        for number, batch in enumerate(loader):
            if number == int(steps):
                break
            batch = ones * batch.cuda()
            optimizer.zero_grad()
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            file.write(f"{loss.item():.17g}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
