"""A small GPT on characters, with a loop and a learning rate by hand, in the shape of nanoGPT."""

import argparse
import math
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("out-char-gpt"))
parser.add_argument("--block-size", type=int, default=32)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--n-layer", type=int, default=2)
parser.add_argument("--n-head", type=int, default=4)
parser.add_argument("--n-embd", type=int, default=48)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--max-iters", type=int, default=200)
parser.add_argument("--warmup-iters", type=int, default=20)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--min-lr", type=float, default=2e-4)
parser.add_argument("--weight-decay", type=float, default=0.1)
parser.add_argument("--grad-clip", type=float, default=1.0)
parser.add_argument("--eval-interval", type=int, default=50)
parser.add_argument("--eval-iters", type=int, default=8)
parser.add_argument("--log-interval", type=int, default=10)
parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
parser.add_argument("--seed", type=int, default=1337)
args = parser.parse_args()

torch.manual_seed(args.seed)
torch.set_default_dtype(getattr(torch, args.dtype))
args.out.mkdir(parents=True, exist_ok=True)

# Sentences of a small grammar take the place of a text file.
words = random.Random(args.seed)
who, what, where = ["cat", "dog", "hen", "fox"], ["sees", "eats", "likes"], ["here", "there"]
text = " ".join(
    f"the {words.choice(who)} {words.choice(what)} a {words.choice(who)} {words.choice(where)}."
    for _ in range(2000)
)
chars = sorted(set(text))
stoi = {char: number for number, char in enumerate(chars)}
encoded = torch.tensor([stoi[char] for char in text])
split = int(0.9 * len(encoded))
train_data, val_data = encoded[:split], encoded[split:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(args.n_embd), nn.LayerNorm(args.n_embd)
        self.qkv = nn.Linear(args.n_embd, 3 * args.n_embd)
        self.proj = nn.Linear(args.n_embd, args.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(args.n_embd, 4 * args.n_embd),
            nn.GELU(),
            nn.Linear(4 * args.n_embd, args.n_embd),
            nn.Dropout(args.dropout),
        )

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(self.ln_1(x)).view(B, T, 3, args.n_head, C // args.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(len(chars), args.n_embd)
        self.wpe = nn.Embedding(args.block_size, args.n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(args.n_layer)])
        self.ln_f = nn.LayerNorm(args.n_embd)
        self.lm_head = nn.Linear(args.n_embd, len(chars), bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(data, starts):
    x = torch.stack([data[i : i + args.block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + args.block_size] for i in starts])
    return x, y


def get_lr(it):
    if it < args.warmup_iters:
        return args.lr * (it + 1) / (args.warmup_iters + 1)
    ratio = (it - args.warmup_iters) / (args.max_iters - args.warmup_iters)
    return args.min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (args.lr - args.min_lr)


@torch.no_grad()
def estimate_loss():
    """Mean loss over batches that are the same each time."""
    model.eval()
    found = {}
    for name, data in (("train", train_data), ("val", val_data)):
        fixed = torch.Generator().manual_seed(args.seed)
        size = (args.eval_iters, args.batch_size)
        draws = torch.randint(len(data) - args.block_size, size, generator=fixed)
        losses = [model(*get_batch(data, starts))[1] for starts in draws]
        found[name] = torch.stack(losses).mean().item()
    model.train()
    return found


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
rng = torch.Generator().manual_seed(args.seed)
iter_num = 0
best = {"val": math.inf}
while iter_num < args.max_iters:
    starts = torch.randint(len(train_data) - args.block_size, (args.batch_size,), generator=rng)
    X, Y = get_batch(train_data, starts)
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    logits, loss = model(X, Y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num % args.log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}", flush=True)
    if iter_num % args.eval_interval == 0:
        losses = estimate_loss()
        print({"step": iter_num, **losses}, flush=True)
        improved = losses["val"] < best["val"]
        best["val"] = min(best["val"], losses["val"])
        if improved:
            torch.save({"model": model.state_dict(), "iter_num": iter_num}, args.out / "ckpt.pt")
