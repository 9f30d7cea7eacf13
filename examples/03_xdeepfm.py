"""xDeepFM on a click log: explicit products of embeddings beside an MLP.

Reference: Lian et al. 2018, arXiv:1803.05170.
"""

from itertools import pairwise

import torch
from ctr import Clicks, arguments, in_one_table, load, mlp, summary
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import paceline as pl


class CompressedInteraction(nn.Module):
    """Layer k holds products of k + 1 embeddings, mixed down to ``maps`` vectors (section 3.2)."""

    def __init__(self, num_fields: int, maps: tuple[int, ...]) -> None:
        super().__init__()
        widths = (num_fields, *maps)
        self.mixes = nn.ModuleList(
            nn.Linear(num_fields * inputs, outputs, bias=False)
            for inputs, outputs in pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, sum of maps) from (B, F, E) embeddings."""
        state, pooled = x, []
        for mix in self.mixes:
            products = torch.einsum("bfe,bhe->befh", x, state).flatten(2)
            state = mix(products).transpose(1, 2)
            pooled.append(state.sum(dim=2))
        return torch.cat(pooled, dim=1)


class XDeepFM(nn.Module):
    """A linear part, a compressed interaction network and an MLP, summed."""

    def __init__(self, num_dense: int, vocab: list[int], dim: int = 8) -> None:
        super().__init__()
        maps = (8, 8)
        self.linear = nn.EmbeddingBag(sum(vocab), 1, mode="sum", sparse=True)
        self.embedding = nn.Embedding(sum(vocab), dim, sparse=True)
        self.interaction = CompressedInteraction(len(vocab), maps)
        self.interaction_out = nn.Linear(sum(maps), 1)
        self.deep = mlp(num_dense + len(vocab) * dim, 64, 32, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.normal_(self.embedding.weight, std=0.05)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return (B,) logits from (B, D) numbers and (B, F) ids."""
        x = self.embedding(ids)
        deep = self.deep(torch.cat([dense, x.flatten(1)], dim=1))
        return (self.linear(ids) + self.interaction_out(self.interaction(x)) + deep).squeeze(1)


def main() -> None:
    """Train, then report on the rows held out."""
    args = arguments(__doc__, batch_size=256, epochs=1, lr=0.02)
    train, test = (in_one_table(part) for part in load(args.data, args.rows))
    torch.manual_seed(args.seed)
    model = XDeepFM(train.num_dense, train.vocab)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)

    job = pl.init()
    model, optimizer = job.prepare(model, optimizer)
    for batch in job.batches(train, batch_size=args.batch_size, epochs=args.epochs):
        loss = binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def predict(batch: Clicks) -> dict[str, Tensor]:
        return {"score": model(batch.dense, batch.ids), "label": batch.label}

    result = job.evaluate(predict, test, batch_size=4096)
    if job.is_chief:
        print(summary(result["score"], result["label"], test.meta))


if __name__ == "__main__":
    main()
