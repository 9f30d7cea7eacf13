"""A DataLoader that is given to ``job.prepare`` comes back as one whose batches are dealt out."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.base.errors import ConfigError

DATA = TensorDataset(torch.arange(12.0)[:, None])


def make_loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(DATA, batch_size=4, shuffle=True, generator=generator)


def ids_of(batch: Any) -> list[float]:
    return batch[0].flatten().tolist()  # type: ignore[no-any-return]


@pytest.mark.usefixtures("held_both_ways")
@pytest.mark.proves(form=("loader", "epochs"), strategy="alone", ends="runs")
def test_each_pass_is_one_of_torch_and_trains() -> None:
    plain = make_loader()
    expected = [ids_of(batch) for _ in range(2) for batch in plain]
    job = pl.init()
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    given = make_loader()
    (prepared,), optimizer, loader = job.prepare([model], optimizer, given)
    assert prepared is model
    assert loader is not given
    assert (len(loader), loader.batch_size, loader.dataset) == (3, 4, DATA)
    assert copy.copy(loader).loader is given
    found = []
    for _ in job.epochs(2):
        for batch in loader:
            model(batch[0]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(ids_of(batch))
    assert found == expected
    assert job.step == 6


def test_it_says_how_many_batches_make_a_step() -> None:
    job = pl.init()
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    _, _, loader = job.prepare(model, optimizer, make_loader(), accumulate=3)
    for number, batch in enumerate(loader):
        (model(batch[0]).mean() / 3).backward()
        if number == 2:
            optimizer.step()
    assert (number, job.step) == (2, 1)


def test_a_rehearsal_shortens_it() -> None:
    # An engine counts its batches, and would begin the next pass where a shorter one ends.
    _, _, loader = prepared()
    assert len(loader) == 3
    loader.most = 2
    assert (len(loader), loader.batch_size) == (2, 4)


def prepared() -> tuple[Any, Any, Any]:
    model = nn.Linear(1, 1)
    found: tuple[Any, Any, Any] = pl.init().prepare(
        model, SGD(model.parameters(), lr=0.1), make_loader()
    )
    return found


def test_a_loop_that_has_trained_trains_in_eval_mode_too() -> None:
    model, optimizer, loader = prepared()

    def epochs(count: int, *, trains: bool) -> None:
        for number in range(count):
            for batch in loader:  # as of an engine that evaluates between its epochs
                if trains or not number:
                    model.train()
                    model(batch[0]).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            model.eval()

    epochs(3, trains=True)
    model.train()
    with pytest.raises(ConfigError, match=r"leaves a batch without optimizer.step\(\)"):
        epochs(2, trains=False)


def test_it_can_be_given_where_a_loader_can() -> None:
    job = pl.init()
    model = nn.Linear(1, 1)
    _, _, loader = job.prepare(model, SGD(model.parameters(), lr=0.1), make_loader())
    found = job.evaluate(lambda batch: {"x": batch[0][:, 0]}, loader)
    assert sorted(found["x"].tolist()) == [*range(12)]


@pytest.mark.usefixtures("held_both_ways")
def test_in_eval_mode_it_is_read_as_it_is() -> None:
    job = pl.init()
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    _, _, loader = job.prepare(model, optimizer, make_loader())
    found = []
    for _ in range(2):
        for batch in loader:
            model(batch[0]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        found.append(sorted(number for batch in loader for number in ids_of(batch)))
        model.train()
    assert found == [[*range(12)]] * 2
    assert (job.step, job.samples) == (6, 24)


def test_in_eval_mode_it_is_not_trained_on() -> None:
    job = pl.init()
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    _, _, loader = job.prepare(model, optimizer, make_loader())
    model.eval()
    model(next(iter(loader))[0]).mean().backward()
    with pytest.raises(ConfigError, match="with the model in training mode, over a DataLoader"):
        optimizer.step()


@pytest.mark.parametrize("count", [3, 0])
def test_accumulation_without_a_loader_is_refused(count: int) -> None:
    job = pl.init()
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=rf"accumulate={count} is for a DataLoader"):
        job.prepare(model, SGD(model.parameters(), lr=0.1), accumulate=count)
