"""A recurrent language model with truncated backpropagation, as torch's word_language_model."""

import argparse
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ReduceLROnPlateau

import paceline as pl


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=24_000)
    parser.add_argument("--vocab", type=int, default=50)
    parser.add_argument("--emsize", type=int, default=64)
    parser.add_argument("--nhid", type=int, default=64)
    parser.add_argument("--nlayers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=4.0)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--bptt", type=int, default=20)
    parser.add_argument("--log-interval", type=int, default=20)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=1111)
    return parser.parse_args()


def make_corpus(tokens, vocab, seed):
    """A walk in which the next word follows from the two words before, most of the time."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(vocab, (4, vocab), generator=generator).tolist()
    noise = torch.randint(vocab, (tokens,), generator=generator).tolist()
    keep = (torch.rand(tokens, generator=generator) < 0.85).tolist()
    words = noise[:2]
    for place in range(2, tokens):
        words.append(table[words[-2] % 4][words[-1]] if keep[place] else noise[place])
    return torch.tensor(words)


def batchify(data, bsz):
    """Cut the corpus into ``bsz`` columns, which are read side by side."""
    nbatch = len(data) // bsz
    return data[: nbatch * bsz].view(bsz, nbatch).t().contiguous()


def get_batch(source, i, bptt):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len]


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout) -> None:
        super().__init__()
        self.nlayers, self.nhid = nlayers, nhid
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)), hidden

    def init_hidden(self, bsz):
        return tuple(torch.zeros(self.nlayers, bsz, self.nhid) for _ in range(2))


def criterion(output, targets):
    return cross_entropy(output.flatten(0, 1), targets.flatten())


def repackage_hidden(hidden):
    """The same states without the graph that they came from."""
    return tuple(state.detach() for state in hidden)


@torch.no_grad()
def evaluate(model, source, bptt):
    model.eval()
    total, hidden = 0.0, model.init_hidden(source.shape[1])
    for i in range(0, len(source) - 1, bptt):
        data, targets = get_batch(source, i, bptt)
        output, hidden = model(data, hidden)
        total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def main():
    args = parse_args()
    job = pl.init()
    torch.manual_seed(args.seed)
    torch.set_default_dtype(getattr(torch, args.dtype))
    corpus = make_corpus(args.tokens, args.vocab, args.seed)
    split = int(0.9 * len(corpus))
    train_data = batchify(corpus[:split], args.batch_size)
    val_data = batchify(corpus[split:], 10)
    steps = math.ceil((len(train_data) - 1) / args.bptt)

    model = RNNModel(args.vocab, args.emsize, args.nhid, args.nlayers, args.dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
    job.prepare(model, optimizer, scheduler)
    for epoch in job.epochs(args.epochs):
        model.train()
        job.state["hidden"] = model.init_hidden(args.batch_size)
        for row in job.batches(range(steps * args.batch_size), args.batch_size, shuffle=False):
            step, batch, columns = job.step, row[0].item() // args.batch_size, row % args.batch_size
            data, targets = get_batch(train_data, batch * args.bptt, args.bptt)
            output, after = model(data, job.state["hidden"])
            loss = criterion(output[:, columns], targets[:, columns])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            hidden = repackage_hidden(after)
            job.state["hidden"] = hidden if job.step > step else job.state["hidden"]
            if batch % args.log_interval == 0:
                print(f"epoch {epoch} {batch}/{steps} batches loss {loss.item():.4f}", flush=True)
        val_loss = evaluate(model, val_data, args.bptt)
        scheduler.step(val_loss)
        lr = optimizer.param_groups[0]["lr"]
        print({"epoch": epoch, "val_loss": val_loss, "lr": lr}, flush=True)


if __name__ == "__main__":
    main()
