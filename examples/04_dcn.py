"""DCN-v2 on a click log, with embeddings that need no vocabulary and two optimizers.

The first fields use `pl.Embedding`: a row appears when its id is first seen, so new ids need no
new model. The others are ordinary tables, one per field.

Reference: Wang et al. 2021, arXiv:2008.13535.
"""

import torch
from ctr import Clicks, arguments, load, mlp, summary
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import paceline as pl

DIM = 16
NUM_DYNAMIC = 4


class Cross(nn.Module):
    """x_next = x_0 * (W x + b) + x: each layer raises the degree of the products by one."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, start: Tensor) -> Tensor:
        """Return (B, W) from (B, W)."""
        x = start
        for layer in self.layers:
            x = start * layer(x) + x
        return x


class Dcn(nn.Module):
    """Cross network and MLP side by side over numbers and embeddings."""

    def __init__(self, num_dense: int, vocab: dict[str, int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList()
        for field, (name, size) in enumerate(vocab.items()):
            if field < NUM_DYNAMIC:
                self.tables.append(pl.Embedding(name, dim=DIM))
            else:
                self.tables.append(nn.Embedding(size, DIM, sparse=True))
                nn.init.normal_(self.tables[-1].weight, std=0.01)
        width = num_dense + len(vocab) * DIM
        self.cross = Cross(width, num_layers=2)
        self.deep = mlp(width, 64, 32)
        self.out = nn.Linear(width + 32, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return (B,) logits from (B, D) numbers and (B, F) ids."""
        embedded = [table(ids[:, field]) for field, table in enumerate(self.tables)]
        x = torch.cat([dense, *embedded], dim=1)
        return self.out(torch.cat([self.cross(x), self.deep(x)], dim=1)).squeeze(1)


def main() -> None:
    """Train, then report on the rows held out."""
    args = arguments(__doc__, batch_size=256, epochs=1, lr=0.02)
    train, test = load(args.data, args.rows)
    torch.manual_seed(args.seed)
    model = Dcn(train.num_dense, train.meta.categorical)
    tables = list(model.tables.parameters())
    rest = [p for name, p in model.named_parameters() if not name.startswith("tables.")]
    optimizers = [torch.optim.Adagrad(tables, lr=args.lr), torch.optim.Adam(rest, lr=1e-3)]

    job = pl.init()
    model, optimizers = job.prepare(model, optimizers)
    for batch in job.batches(train, batch_size=args.batch_size, epochs=args.epochs):
        loss = binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.label)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def predict(batch: Clicks) -> dict[str, Tensor]:
        return {"score": model(batch.dense, batch.ids), "label": batch.label}

    result = job.evaluate(predict, test, batch_size=4096)
    if job.is_chief:
        print(summary(result["score"], result["label"], test.meta))


if __name__ == "__main__":
    main()
