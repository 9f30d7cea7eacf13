"""A recommendation model on one pass over a click log, in the shape of DLRM.

Reference: Naumov et al. 2019, arXiv:1906.00091.
"""

import argparse
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy
from torch.utils.data import DataLoader, Dataset

import paceline as pl


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch-sparse-feature-size", type=int, default=16)
    parser.add_argument("--arch-embedding-size", default="1000-400-100-50-20-1000")
    parser.add_argument("--arch-mlp-bot", default="8-64-16")
    parser.add_argument("--arch-mlp-top", default="64-32-1")
    parser.add_argument("--num-indices-per-lookup", type=int, default=3)
    parser.add_argument("--data-size", type=int, default=30_000)
    parser.add_argument("--mini-batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--print-freq", type=int, default=50)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--numpy-rand-seed", type=int, default=123)
    return parser.parse_args()


class RandomClicks(Dataset):
    """Rows of dense features, of ids for each table, and of clicks that depend on both."""

    def __init__(self, sizes, num_dense, lookups, rows, seed) -> None:
        rng = np.random.default_rng(seed)
        self.dense = np.log1p(rng.exponential(2.0, (rows, num_dense)))
        # Few ids are frequent, as in real logs.
        u = rng.random((rows, len(sizes), lookups))
        self.ids = (np.array(sizes)[:, None] * u**3).astype(np.int64)
        logit = self.dense @ rng.normal(0, 0.5, num_dense) - 1.0
        for table, size in enumerate(sizes):
            logit += rng.normal(0, 0.7, size)[self.ids[:, table]].mean(1)
        self.clicks = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float64)

    def __len__(self) -> int:
        return len(self.clicks)

    def __getitem__(self, index):
        dtype = torch.get_default_dtype()
        dense = torch.as_tensor(self.dense[index], dtype=dtype)
        click = torch.as_tensor(self.clicks[index], dtype=dtype)
        return dense, torch.from_numpy(self.ids[index]), click


def make_mlp(widths, *, sigmoid):
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    layers[-1] = nn.Sigmoid() if sigmoid else layers[-1]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Dot products between embeddings and the bottom MLP's output go into the top MLP."""

    def __init__(self, sizes, dim, bottom, top) -> None:
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, dim, mode="sum", sparse=True) for n in sizes)
        for table in self.emb_l:
            bound = table.num_embeddings**-0.5
            nn.init.uniform_(table.weight, -bound, bound)
        fields = len(sizes) + 1
        self.bot_l = make_mlp(bottom, sigmoid=False)
        self.top_l = make_mlp([dim + fields * (fields - 1) // 2, *top], sigmoid=True)
        self.register_buffer("pairs", torch.tril_indices(fields, fields, -1), persistent=False)

    def forward(self, dense, ids):
        x = self.bot_l(dense)
        ly = [table(ids[:, number]) for number, table in enumerate(self.emb_l)]
        T = torch.stack([x, *ly], dim=1)
        Z = torch.bmm(T, T.transpose(1, 2))
        i, j = self.pairs
        return self.top_l(torch.cat([x, Z[:, i, j]], dim=1)).squeeze(1)


@torch.no_grad()
def predict(model, loader):
    model.eval()
    scores = job.evaluate(lambda batch: {"p": model(*batch[:2])}, loader)["p"]
    model.train()
    return scores


def auc(scores, clicks):
    rank = torch.empty_like(scores)
    rank[scores.argsort()] = torch.arange(1.0, len(scores) + 1)
    ones = clicks.sum()
    above = rank[clicks == 1].sum() - ones * (ones + 1) / 2
    return (above / (ones * (len(clicks) - ones))).item()


args = parse_args()
job = pl.init()
torch.manual_seed(args.numpy_rand_seed)
torch.set_default_dtype(getattr(torch, args.dtype))
sizes = [int(size) for size in args.arch_embedding_size.split("-")]
bottom = [int(width) for width in args.arch_mlp_bot.split("-")]
top = [int(width) for width in args.arch_mlp_top.split("-")]
lookups, held_out = args.num_indices_per_lookup, args.data_size // 5
data = RandomClicks(sizes, bottom[0], lookups, args.data_size + held_out, args.numpy_rand_seed)
train_data = torch.utils.data.Subset(data, range(args.data_size))
test_data = torch.utils.data.Subset(data, range(args.data_size, len(data)))
train_ld = DataLoader(train_data, args.mini_batch_size)
test_ld = DataLoader(test_data, 1024)

dlrm = DLRM(sizes, args.arch_sparse_feature_size, bottom, top)
optimizer = torch.optim.SGD(dlrm.parameters(), lr=args.learning_rate)
dlrm, optimizer, train_ld = job.prepare(dlrm, optimizer, train_ld)
for j, (dense, ids, clicks) in enumerate(train_ld):
    E = binary_cross_entropy(dlrm(dense, ids), clicks)
    optimizer.zero_grad()
    E.backward()
    optimizer.step()
    if (j + 1) % args.print_freq == 0:
        print(f"finished training it {j + 1}/{len(train_ld)}, loss {E.item():.6f}", flush=True)

scores = predict(dlrm, test_ld)
clicks = torch.as_tensor(data.clicks[args.data_size :], dtype=scores.dtype)
loss = binary_cross_entropy(scores, clicks).item()
print({"test": "end", "loss": loss, "auc": auc(scores, clicks)}, flush=True)
