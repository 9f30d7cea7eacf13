"""Wide & Deep on a click log: memorise single ids, generalise over their embeddings.

Reference: Cheng et al. 2016, arXiv:1606.07792.
"""

import torch
from ctr import Clicks, arguments, in_one_table, load, mlp, summary
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import paceline as pl


class WideDeep(nn.Module):
    """A linear model over all columns plus an MLP over embeddings and numbers."""

    def __init__(self, num_dense: int, vocab: list[int], dim: int = 8) -> None:
        super().__init__()
        self.wide = nn.EmbeddingBag(sum(vocab), 1, mode="sum", sparse=True)
        self.wide_dense = nn.Linear(num_dense, 1)
        self.embedding = nn.Embedding(sum(vocab), dim, sparse=True)
        self.deep = mlp(num_dense + len(vocab) * dim, 64, 32, 1)
        nn.init.zeros_(self.wide.weight)
        nn.init.normal_(self.embedding.weight, std=0.05)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return (B,) logits from (B, D) numbers and (B, F) ids."""
        wide = self.wide(ids) + self.wide_dense(dense)
        deep = self.deep(torch.cat([dense, self.embedding(ids).flatten(1)], dim=1))
        return (wide + deep).squeeze(1)


def main() -> None:
    """Train, then report on the rows held out."""
    args = arguments(__doc__, batch_size=256, epochs=1, lr=0.02)
    train, test = (in_one_table(part) for part in load(args.data, args.rows))
    torch.manual_seed(args.seed)
    model = WideDeep(train.num_dense, train.vocab)
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
