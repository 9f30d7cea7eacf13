"""Scripts of other shapes than one loop in another: what people write beside the usual.

Each is a text in which a few numbers and parts are drawn. It ends with ``found``, what it holds.
"""

import random
from collections.abc import Callable

NEXT = """
class Runner:
    def __init__(self, callbacks):
        self.callbacks, self.iteration, self.epoch, self.losses = callbacks, 0, 0, []

    def run(self, most):
        batches = iter(loader)
        while True:
            try:
                a, b = next(batches)
            except StopIteration:
                self.epoch += 1
                self.losses.append(validate())
                batches = iter(loader)
                a, b = next(batches)
            optimizer.param_groups[0]["lr"] = 0.03 * {decay} ** self.iteration
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(STEP_S)
            self.iteration += 1
            for callback in self.callbacks:
                callback(self)
            if self.iteration >= most:
                break

class Every:
    def __init__(self, n):
        self.n, self.calls, self.seen = n, 0, []

    def __call__(self, runner):
        self.calls += 1
        if runner.iteration % self.n == 0:
            self.seen.append(runner.iteration)

every = Every({every})
runner = Runner([every, lambda runner: None])
runner.run({steps})
found = {{"iteration": runner.iteration, "epoch": runner.epoch, "losses": runner.losses,
    "calls": every.calls, "seen": every.seen, "weight": whole(model).tolist()}}
"""

FOLDS = """
results, total_steps = {{}}, 0
fold_size = {samples} // {folds}
for fold in range({folds}):
    torch.manual_seed(fold)
    net = nn.Linear(4, 1).double()
    sgd = torch.optim.SGD(net.parameters(), lr=0.03)
    net, sgd = job.prepare(net, sgd)
    held = torch.arange({samples}) // fold_size == fold
    rows = TensorDataset(x[~held], y[~held])
    losses = []
    for epoch in range({epochs}):
        for a, b in job.batches(rows, batch_size={batch}):
            nn.functional.mse_loss(net(a), b).backward()
            sgd.step()
            sgd.zero_grad()
            time.sleep(STEP_S)
            total_steps += 1
        with torch.no_grad():
            losses.append(float(((net(x[held]) - y[held]) ** 2).mean()))
    results[fold] = losses
mean = sum(one[-1] for one in results.values()) / len(results)
found = {{"results": list(results.values()), "mean": mean, "steps": total_steps,
    "weight": whole(net).tolist()}}
"""

ROLLOUTS = """
from dataclasses import dataclass, field

@dataclass
class Progress:
    steps: int = 0
    returns: list = field(default_factory=list)
    best: float = float("inf")

def collect(rng, progress):
    state = torch.as_tensor(rng.normal(size=({samples}, 4)))
    progress.returns.append(float(state.mean()))
    return TensorDataset(state, state.sum(1, keepdim=True))

def main():
    rng, progress = np.random.default_rng({seed}), Progress()
    for iteration in range({iterations}):
        data = collect(rng, progress)
        {frac}
        for _ in range({epochs}):
            for a, b in job.batches(data, batch_size={batch}):
                loss = nn.functional.mse_loss(model(a), b)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                progress.steps += 1
                time.sleep(STEP_S)
        progress.best = min(progress.best, validate())
    return progress

progress = main()
found = {{"steps": progress.steps, "returns": progress.returns, "best": progress.best,
    "weight": whole(model).tolist()}}
"""

YIELDS = """
def steps(epochs):
    count = 0
    for epoch in range(epochs):
        for number, (a, b) in enumerate(loader):
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            count += 1
            yield epoch, number, count

def counter():
    made = 0
    def more():
        nonlocal made
        made += 1
        return made
    return more

more, history, marks = counter(), [], []
for epoch, number, count in steps({epochs}):
    time.sleep(STEP_S)
    made = more()
    if count % {every} == 0:
        marks.append((epoch, number, made))
    if number == {last}:
        history.append(validate())
found = {{"count": count, "made": made, "marks": [list(one) for one in marks], "history": history,
    "weight": whole(model).tolist()}}
"""

CLOSURES = """
import copy

def fit(epochs, patience):
    best = {{"loss": float("inf"), "state": None, "epoch": -1}}
    bad = 0
    rates = [0.03]

    def train_one(epoch):
        nonlocal rates
        meter = Meter()
        for a, b in bar(loader):
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            meter.add(loss.item())
            time.sleep(STEP_S)
        rates = rates + [rates[-1] * {decay}]
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        return meter.mean

    for epoch in range(epochs):
        train_one(epoch)
        loss = validate()
        if loss < best["loss"] * 0.5:
            best.update(loss=loss, state=copy.deepcopy(model.state_dict()), epoch=epoch)
            bad = 0
        else:
            bad += 1
        if bad > patience:
            break
    return best, rates, epoch, bad

best, rates, epoch, bad = fit({epochs}, {patience})
found = {{"best": [best["loss"], best["epoch"], *best["state"]["weight"].flatten().tolist()],
    "rates": rates, "epoch": epoch, "bad": bad}}
"""


def drawn(pick: random.Random, samples: int, batch: int) -> str:
    """The text of one of them, without its head and its end."""
    steps = samples // batch
    parts: dict[str, Callable[[], object]] = {
        NEXT: lambda: {
            "decay": pick.choice([0.98, 1.0]),
            "every": pick.randint(2, 9),
            "steps": pick.randint(3, 5) * steps + pick.choice([0, 0, 7]),
        },
        FOLDS: lambda: {"folds": pick.randint(2, 3), "epochs": pick.randint(1, 2)},
        ROLLOUTS: lambda: {
            "seed": pick.randint(0, 99),
            "iterations": pick.randint(2, 3),
            "epochs": pick.randint(1, 2),
            "frac": pick.choice(
                ["", "optimizer.param_groups[0]['lr'] = 0.03 * (1 - iteration / 10)"]
            ),
        },
        YIELDS: lambda: {
            "epochs": pick.randint(3, 5),
            "every": pick.randint(3, 11),
            "last": steps - 1,
        },
        CLOSURES: lambda: {
            "decay": pick.choice([0.9, 0.5]),
            "epochs": pick.randint(3, 6),
            "patience": pick.randint(0, 2),
        },
    }
    shape = pick.choice([*parts])
    given = {"samples": samples, "batch": batch}
    return shape.format(**(given | dict(parts[shape]())))  # type: ignore[call-overload]
