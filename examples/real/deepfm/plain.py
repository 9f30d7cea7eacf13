"""DeepFM on a click log with `compile`, `fit` and `predict`, in the shape of DeepCTR.

Reference: Guo et al. 2017, arXiv:1703.04247.
"""

import argparse
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class SparseFeat(NamedTuple):
    name: str
    vocabulary_size: int
    embedding_dim: int = 8


class DenseFeat(NamedTuple):
    name: str


class DeepFM(nn.Module):
    """A linear part, all products of two embeddings, and an MLP, summed."""

    def __init__(self, sparse, dense, hidden=(64, 32), seed=1024) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.sparse, self.dense = sparse, dense
        self.linear = nn.ModuleList(nn.Embedding(f.vocabulary_size, 1) for f in sparse)
        self.embeddings = nn.ModuleList(
            nn.Embedding(f.vocabulary_size, f.embedding_dim) for f in sparse
        )
        for table in [*self.linear, *self.embeddings]:
            nn.init.normal_(table.weight, std=0.01)
        width = sum(f.embedding_dim for f in sparse) + len(dense)
        layers = []
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        self.dnn = nn.Sequential(*layers, nn.Linear(width, 1))
        self.dense_linear = nn.Linear(len(dense), 1)

    def forward(self, X):
        """Return the probability of a click from columns of ids and numbers."""
        ids, numbers = X[:, : len(self.sparse)].long(), X[:, len(self.sparse) :]
        first = sum(table(ids[:, k]) for k, table in enumerate(self.linear))
        fields = torch.stack([table(ids[:, k]) for k, table in enumerate(self.embeddings)], dim=1)
        second = (fields.sum(1) ** 2 - (fields**2).sum(1)).sum(1, keepdim=True) / 2
        deep = self.dnn(torch.cat([fields.flatten(1), numbers], dim=1))
        return torch.sigmoid(first + self.dense_linear(numbers) + second + deep).squeeze(1)

    def compile(self, optimizer, lr):
        kinds = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        self.optim = kinds[optimizer](self.parameters(), lr=lr)

    def fit(self, x, y, *, batch_size, epochs, validation_split):
        split = int(len(x) * (1.0 - validation_split))
        held_out = TensorDataset(x[split:], y[split:])
        train_loader = DataLoader(
            TensorDataset(x[:split], y[:split]),
            batch_size=batch_size,
            shuffle=True,
            generator=torch.Generator().manual_seed(2020),
        )
        print(f"Train on {split} samples, validate on {len(held_out)} samples", flush=True)
        history = []
        for epoch in range(epochs):
            self.train()
            for x_train, y_train in train_loader:
                loss = binary_cross_entropy(self(x_train), y_train)
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
            scores = self.predict(held_out)
            history.append({"epoch": epoch, **evaluate(scores, y[split:])})
            print(history[-1], flush=True)
        return history

    @torch.no_grad()
    def predict(self, data, batch_size=1024):
        self.eval()
        loader = DataLoader(data, batch_size)
        return torch.cat([self(batch[0]) for batch in loader])


def evaluate(scores, labels):
    """Log loss and AUC."""
    rank = torch.empty_like(scores)
    rank[scores.argsort()] = torch.arange(1.0, len(scores) + 1)
    ones = labels.sum()
    above = rank[labels == 1].sum() - ones * (ones + 1) / 2
    auc = above / (ones * (len(labels) - ones))
    return {"logloss": binary_cross_entropy(scores, labels).item(), "auc": auc.item()}


def make_clicks(rows, sparse, dense, seed):
    """Columns of ids and numbers, and clicks that depend on pairs of ids."""
    generator = torch.Generator().manual_seed(seed)
    columns, hidden, logit = [], [], torch.full((rows,), -1.0)
    for feat in sparse:
        ids = (feat.vocabulary_size * torch.rand(rows, generator=generator) ** 2).long()
        hidden.append(torch.randn(feat.vocabulary_size, 4, generator=generator)[ids])
        logit += torch.randn(feat.vocabulary_size, generator=generator)[ids]
        columns.append(ids.to(torch.get_default_dtype()))
    columns += [torch.randn(rows, generator=generator) for _ in dense]
    fields = torch.stack(hidden)
    logit += 0.15 * (fields.sum(0) ** 2 - (fields**2).sum(0)).sum(1) + 0.5 * columns[-1]
    clicks = torch.rand(rows, generator=generator) < torch.sigmoid(logit)
    return torch.stack(columns, dim=1), clicks.to(logit.dtype)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--optimizer", choices=["adagrad", "adam", "sgd"], default="adagrad")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=1024)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    torch.set_default_dtype(getattr(torch, args.dtype))
    sparse = [SparseFeat(f"C{k}", size) for k, size in enumerate((10, 20, 30, 50, 80, 120))]
    dense = [DenseFeat(f"I{k}") for k in range(4)]
    x, y = make_clicks(args.rows, sparse, dense, args.seed)
    split = int(0.8 * args.rows)
    model = DeepFM(sparse, dense, seed=args.seed)
    model.compile(args.optimizer, args.lr)
    model.fit(
        x[:split], y[:split], batch_size=args.batch_size, epochs=args.epochs, validation_split=0.2
    )
    scores = model.predict(TensorDataset(x[split:]))
    print({"test": "end", **evaluate(scores, y[split:])}, flush=True)
