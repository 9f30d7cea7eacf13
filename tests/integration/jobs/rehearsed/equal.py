"""Ends equal whatever happens: epochs by job.epochs, what it remembers in job.state."""

import torch
from torch.utils.data import TensorDataset

import paceline as pl

g = torch.Generator().manual_seed(1)
x = torch.randn(400, 8, generator=g, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True))
held = TensorDataset(x[:64], x[:64].sum(1, keepdim=True))


def main():
    job = pl.init()
    model = torch.nn.Linear(8, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    losses = job.state["losses"] = []
    for epoch in job.epochs(5):
        for a, b in job.batches(data, batch_size=16):
            loss = torch.nn.functional.mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            job.log(loss=loss)
        found = job.evaluate(lambda t: {"se": (model(t[0]) - t[1]) ** 2}, held, batch_size=16)
        losses.append(found["se"].mean().item())
        scheduler.step()
        if job.is_chief:
            print(f"epoch {epoch} validation {losses[-1]:.6f}", flush=True)
            torch.save(model.state_dict(), "model.pt")
    if job.is_chief:
        print("best", min(losses))


main()
