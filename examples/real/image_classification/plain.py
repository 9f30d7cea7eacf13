"""Image classification with warm-up, mixup, an average of weights and the best k checkpoints."""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, TensorDataset

CLASSES, SIZE = 4, 16


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out-images"))
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--warmup-steps", type=int, default=20)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--mixup", type=float, default=0.2, help="alpha; 0: none")
    parser.add_argument("--ema", type=float, default=0.98, help="decay of the average of weights")
    parser.add_argument("--top-k", type=int, default=2, help="checkpoints that are kept")
    parser.add_argument("--norm", choices=["batch", "group"], default="batch")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_images(count, seed):
    """Noisy gratings; the class is the direction."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    angle = math.pi * labels / CLASSES + rng.normal(0, 0.15, count)
    phase = rng.uniform(0, 2 * math.pi, (count, 1, 1))
    y, x = np.mgrid[:SIZE, :SIZE]
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    images = np.sin(0.9 * along + phase) + rng.normal(0, 1.0, (count, SIZE, SIZE))
    images = torch.from_numpy(images).to(torch.get_default_dtype())
    return images[:, None], torch.from_numpy(labels)


class Mixed(Dataset):
    """Each image may be shifted, and mixed with another one; the draws follow epoch and index."""

    def __init__(self, images, labels, alpha, seed) -> None:
        self.images, self.alpha, self.seed, self.epoch = images, alpha, seed, 0
        self.targets = one_hot(labels, CLASSES).to(images.dtype)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index):
        rng = np.random.default_rng((self.seed, self.epoch, index))
        shift = tuple(rng.integers(-2, 3, size=2))
        image, target = self.images[index].roll(shift, dims=(1, 2)), self.targets[index]
        if self.alpha:
            share, other = rng.beta(self.alpha, self.alpha), rng.integers(len(self))
            image = share * image + (1 - share) * self.images[other]
            target = share * target + (1 - share) * self.targets[other]
        return image, target


def make_model(norm):
    def block(inputs, outputs, stride):
        normalise = nn.BatchNorm2d(outputs) if norm == "batch" else nn.GroupNorm(4, outputs)
        conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return nn.Sequential(conv, normalise, nn.ReLU())

    body = [block(1, 16, 1), block(16, 32, 2), block(32, 32, 2)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))


def warm_up_then_cosine(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    logits, labels = zip(*((model(x), y) for x, y in loader), strict=True)
    logits, labels = torch.cat(logits), torch.cat(labels)
    correct = (logits.argmax(1) == labels).to(logits.dtype).mean()
    return cross_entropy(logits, labels).item(), correct.item()


def keep_best(kept, accuracy, epoch, state, args):
    """Write a checkpoint if it is among the best, and remove the one that no longer is."""
    kept.append((accuracy, epoch))
    kept.sort(reverse=True)
    for _, worst in kept[args.top_k :]:
        (args.out / f"epoch-{worst}.pt").unlink(missing_ok=True)
    del kept[args.top_k :]
    if (accuracy, epoch) in kept:
        torch.save(state, args.out / f"epoch-{epoch}.pt")


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_default_dtype(getattr(torch, args.dtype))
    args.out.mkdir(parents=True, exist_ok=True)
    train_set = Mixed(*make_images(args.images, args.seed), args.mixup, args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, generator=generator)
    val_loader = DataLoader(TensorDataset(*make_images(400, args.seed + 1)), 200)

    model = make_model(args.norm)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(args.ema), use_buffers=True)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=0.9, weight_decay=args.weight_decay, nesterov=True
    )
    total = args.epochs * len(train_loader)
    scheduler = LambdaLR(
        optimizer, lambda step: warm_up_then_cosine(step, args.warmup_steps, total)
    )
    kept = []
    for epoch in range(args.epochs):
        train_set.epoch = epoch
        model.train()
        for images, targets in train_loader:
            loss = cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update_parameters(model)
        loss, accuracy = evaluate(ema, val_loader)
        print({"epoch": epoch, "val_loss": loss, "val_accuracy": accuracy}, flush=True)
        keep_best(kept, accuracy, epoch, ema.module.state_dict(), args)


if __name__ == "__main__":
    main()
