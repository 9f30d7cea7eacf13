"""The click model of `ps_throughput.py` in PyTorch, trained plainly or as a job of paceline.

python click_model.py --engine torch|paceline --socket FILE --name ARM [...]
"""

import argparse
from itertools import pairwise

import torch
from rounds import Rounds
from torch import Tensor, nn

NUM_FIELDS, DIM = 26, 16
NUM_BATCHES = 64
RATE = 0.01


class ClickModel(nn.Module):
    """One embedding per field, or one for all, and a perceptron on top."""

    def __init__(self, num_rows: int, num_tables: int, hidden: list[int]) -> None:
        super().__init__()
        rows = num_rows // num_tables
        self.tables = nn.ModuleList(nn.Embedding(rows, DIM, sparse=True) for _ in range(num_tables))
        sizes = [NUM_FIELDS * DIM, *hidden]
        layers: list[nn.Module] = []
        for size, wider in pairwise(sizes):
            layers += [nn.Linear(size, wider), nn.ReLU()]
        self.top = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of ids ``[n, NUM_FIELDS]``."""
        if len(self.tables) == 1:
            found = self.tables[0](ids).flatten(1)
        else:
            found = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        return self.top(found).squeeze(1)


class Premade:
    """Samples that lie in memory; a batch is a view of them."""

    def __init__(self, ids: Tensor, labels: Tensor) -> None:
        self.ids, self.labels = ids, labels

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.ids[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return samples that are neighbours: the feed is not shuffled."""
        here = slice(indices[0], indices[-1] + 1)
        return self.ids[here], self.labels[here]


def make_samples(options: argparse.Namespace) -> Premade:
    """Ids uniform over each field's rows: hardly any repeat, which suits none of the arms."""
    generator = torch.Generator().manual_seed(1)
    num, rows = NUM_BATCHES * options.batch_size, options.rows // NUM_FIELDS
    ids = torch.randint(rows, (num, NUM_FIELDS), generator=generator)
    if options.tables == 1:
        ids += torch.arange(NUM_FIELDS) * rows
    return Premade(ids, torch.randint(2, (num,), generator=generator).float())


def train_plainly(options: argparse.Namespace, rounds: Rounds) -> None:
    """Train in one process with sparse gradients and torch's Adagrad."""
    torch.set_num_threads(options.threads)
    model = ClickModel(options.rows, options.tables, options.hidden)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=RATE)
    samples, at = make_samples(options), 0
    while rounds.turn():
        ids, labels = samples.__getitems__([at, at + options.batch_size - 1])
        at = (at + options.batch_size) % len(samples)
        nn.functional.binary_cross_entropy_with_logits(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_with_paceline(options: argparse.Namespace, rounds: Rounds) -> None:
    """Train the same as a job."""
    import paceline as pl

    job = pl.init()
    model = ClickModel(options.rows, options.tables, options.hidden)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=RATE)
    model, optimizer = job.prepare(model, optimizer)
    batches = job.batches(
        make_samples(options), batch_size=options.batch_size, epochs=1_000_000, shuffle=False
    )
    for ids, labels in batches:
        if not rounds.turn():
            break
        nn.functional.binary_cross_entropy_with_logits(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Train until the benchmark has had enough."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=["torch", "paceline"], required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--tables", type=int, required=True)
    parser.add_argument("--hidden", type=int, nargs="+", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rounds = Rounds(options.socket, options.name)
    train = train_plainly if options.engine == "torch" else train_with_paceline
    train(options, rounds)


if __name__ == "__main__":
    main()
