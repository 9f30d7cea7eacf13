"""Sequence to sequence: numbers are spelled, and gradients of several batches are added up."""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

import paceline as pl

PAD, BOS, EOS = 0, 1, 2
NAMES = """<pad> <bos> <eos>
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
twenty thirty forty fifty sixty seventy eighty ninety
hundred thousand"""
WORDS = NAMES.split()
SMALL, TENS = WORDS[3:23], WORDS[23:31]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1920)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=4, help="batches for each step")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def spell(number):
    """The English words of a number below a million."""
    if number >= 1000:
        rest = spell(number % 1000) if number % 1000 else []
        return [*spell(number // 1000), "thousand", *rest]
    if number >= 100:
        rest = spell(number % 100) if number % 100 else []
        return [SMALL[number // 100], "hundred", *rest]
    if number >= 20:
        return [TENS[number // 10 - 2], *([SMALL[number % 10]] if number % 10 else [])]
    return [SMALL[number]]


def make_pairs(count, seed):
    """Pairs of digits and words, as tensors of numbers."""
    generator = torch.Generator().manual_seed(seed)
    exponents = 6 * torch.rand(count, generator=generator)
    pairs = []
    for number in (10**exponents).long().tolist():
        source = torch.tensor([int(digit) + 3 for digit in str(number)])
        target = torch.tensor([BOS, *(WORDS.index(word) for word in spell(number)), EOS])
        pairs.append((source, target))
    return pairs


def collate(pairs):
    sources, targets = zip(*pairs, strict=True)
    lengths = torch.tensor([len(source) for source in sources])
    return pad_sequence(sources, True, PAD), lengths, pad_sequence(targets, True, PAD)


class Seq2Seq(nn.Module):
    def __init__(self, hidden, dropout) -> None:
        super().__init__()
        self.source = nn.Embedding(13, hidden, padding_idx=PAD)
        self.target = nn.Embedding(len(WORDS), hidden, padding_idx=PAD)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Sequential(
            nn.Linear(2 * hidden, hidden),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(hidden, len(WORDS)),
        )

    def forward(self, source, lengths, words):
        packed = pack_padded_sequence(self.source(source), lengths, True, enforce_sorted=False)
        states, last = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        decoded, _ = self.decoder(self.target(words), last)
        scores = self.query(decoded) @ states.transpose(1, 2)
        scores = scores.masked_fill((source == PAD)[:, None], float("-inf"))
        return self.out(torch.cat([decoded, scores.softmax(-1) @ states], dim=-1))


def loss_of(model, source, lengths, target):
    """The mean over sentences of the mean over their words."""
    logits, wanted = model(source, lengths, target[:, :-1]), target[:, 1:]
    losses = cross_entropy(logits.transpose(1, 2), wanted, reduction="none", ignore_index=PAD)
    return (losses.sum(1) / (wanted != PAD).sum(1)).mean()


@torch.no_grad()
def evaluate(model, pairs):
    """Loss, and the share of numbers whose every word is right when greedily decoded."""
    model.eval()
    source, lengths, target = collate(pairs)
    words = torch.full((len(pairs), 1), BOS)
    for _ in range(target.shape[1] - 1):
        best = model(source, lengths, words)[:, -1:].argmax(-1)
        words = torch.cat([words, best], dim=1)
    right = ((words == target) | (target == PAD)).all(1)
    return loss_of(model, source, lengths, target).item(), right.to(torch.float).mean().item()


def main():
    args = parse_args()
    job = pl.init()
    torch.manual_seed(args.seed)
    torch.set_default_dtype(getattr(torch, args.dtype))
    generator = torch.Generator().manual_seed(args.seed)
    pairs, held_out = make_pairs(args.pairs, args.seed), make_pairs(200, args.seed + 1)
    loader = DataLoader(
        pairs, args.batch_size, shuffle=True, generator=generator, collate_fn=collate
    )
    model = Seq2Seq(args.hidden, args.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    *_, loader = job.prepare(model, optimizer, loader, accumulate=args.accumulate)
    for epoch in job.epochs(args.epochs):
        model.train()
        for i, (source, lengths, target) in enumerate(loader):
            loss = loss_of(model, source, lengths, target)
            (loss / args.accumulate).backward()
            if (i + 1) % args.accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                optimizer.zero_grad()
        val_loss, right = evaluate(model, held_out)
        print({"epoch": epoch, "val_loss": val_loss, "right": right}, flush=True)


if __name__ == "__main__":
    main()
