"""k-fold cross-validation of a small network on a table."""

import argparse

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_table(rows, seed):
    """Friedman's function of five columns, among ten; with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 10, generator=generator)
    a, b, c, d, e = x[:, :5].T
    y = 10 * torch.sin(torch.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e
    return x, y + torch.randn(rows, generator=generator)


def split(rows, folds, fold, seed):
    """Rows of a fold to train on, and those held out."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    held_out = order[fold::folds]
    return order[~torch.isin(order, held_out)], held_out


class Standardised(nn.Module):
    """The network sees columns of mean 0 and spread 1, by the rows that it is trained on."""

    def __init__(self, x, y) -> None:
        super().__init__()
        for name, value in (("mean", x.mean(0)), ("std", x.std(0)), ("level", y.mean())):
            self.register_buffer(name, value)
        self.net = nn.Sequential(
            nn.Linear(10, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1)
        )

    def forward(self, x):
        return self.net((x - self.mean) / self.std).squeeze(1) + self.level


def run_fold(args, fold):
    """Train on all rows but those of a fold, and return the error on these."""
    torch.manual_seed(args.seed + fold)
    x, y = make_table(args.rows, args.seed)
    train, held_out = split(args.rows, args.folds, fold, args.seed)
    model = Standardised(x[train], y[train])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(
        TensorDataset(x[train], y[train]),
        batch_size=args.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(args.seed + fold),
    )
    for epoch in range(args.epochs):
        model.train()
        for features, target in loader:
            loss = mse_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            error = mse_loss(model(x[held_out]), y[held_out]).sqrt().item()
        print({"fold": fold, "epoch": epoch, "rmse": error}, flush=True)
    return error


def main():
    args = parse_args()
    torch.set_default_dtype(getattr(torch, args.dtype))
    errors = [run_fold(args, fold) for fold in range(args.folds)]
    print(f"rmse {sum(errors) / len(errors):.4f} in the mean of {len(errors)} folds")


if __name__ == "__main__":
    main()
