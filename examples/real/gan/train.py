"""A GAN whose two networks and optimizers take turns, in the shape of DCGAN, on points."""

import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline as pl

MODES = 8


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=3200)
    parser.add_argument("--niter", type=int, default=6, help="epochs")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--nz", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--beta1", type=float, default=0.5)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Points(Dataset):
    """Points of a ring of Gaussians, each with the noise that it meets in an epoch."""

    def __init__(self, count, nz, seed) -> None:
        rng = np.random.default_rng(seed)
        angle = 2 * math.pi * rng.integers(MODES, size=count) / MODES
        ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        self.points = ring + rng.normal(0, 0.05, (count, 2))
        self.nz, self.seed, self.epoch = nz, seed, 0

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index):
        noise = np.random.default_rng((self.seed, self.epoch, index)).normal(size=self.nz)
        dtype = torch.get_default_dtype()
        return torch.as_tensor(self.points[index], dtype=dtype), torch.as_tensor(noise, dtype=dtype)


def make_net(inputs, hidden, outputs):
    act = nn.LeakyReLU(0.2)
    return nn.Sequential(
        nn.Linear(inputs, hidden), act, nn.Linear(hidden, hidden), act, nn.Linear(hidden, outputs)
    )


def quality(fake):
    """Mean distance of made points to the nearest mode, and how many modes they reach."""
    angle = 2 * math.pi * torch.arange(MODES) / MODES
    ring = torch.stack([angle.cos(), angle.sin()], dim=1).to(fake.dtype)
    distance, nearest = torch.cdist(fake, ring).min(dim=1)
    return {"distance": distance.mean().item(), "modes": len(nearest[distance < 0.2].unique())}


def main():
    opt = parse_args()
    job = pl.init()
    torch.manual_seed(opt.seed)
    torch.set_default_dtype(getattr(torch, opt.dtype))
    dataset = Points(opt.points, opt.nz, opt.seed)
    generator = torch.Generator().manual_seed(opt.seed)
    dataloader = DataLoader(dataset, opt.batch_size, shuffle=True, generator=generator)

    netG = make_net(opt.nz, opt.hidden, 2)
    netD = make_net(2, opt.hidden, 1)
    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(500, opt.nz)
    optimizerD = torch.optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))

    *_, dataloader = job.prepare([netG, netD], [optimizerG, optimizerD], dataloader)
    for epoch in job.epochs(opt.niter):
        dataset.epoch = epoch
        for i, (real, noise) in enumerate(dataloader):
            # (1) Update D: maximise log(D(x)) + log(1 - D(G(z)))
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            netD.zero_grad()
            errD_real = criterion(netD(real), ones)
            errD_real.backward()
            fake = netG(noise)
            errD_fake = criterion(netD(fake.detach()), zeros)
            errD_fake.backward()
            optimizerD.step()
            # (2) Update G: maximise log(D(G(z)))
            netG.zero_grad()
            errG = criterion(netD(fake), ones)
            errG.backward()
            optimizerG.step()
            if i % 25 == 0:
                errD = errD_real.item() + errD_fake.item()
                where = f"[{epoch}/{opt.niter}][{i}/{len(dataloader)}]"
                print(f"{where} Loss_D: {errD:.4f} Loss_G: {errG.item():.4f}", flush=True)
        with torch.no_grad():
            print({"epoch": epoch, **quality(netG(fixed_noise))}, flush=True)


if __name__ == "__main__":
    main()
