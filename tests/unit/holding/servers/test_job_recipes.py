"""Ids of the next batch are found from the last; wrong recipes cost time, never correctness."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import paceline as pl
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.recipes import Recipes, Recorder, tensors_in
from paceline.runtime.server.store import Gradients


def _learn(batch: Any, ids_of: Any) -> Recipes:
    recipes, recorder = Recipes(), Recorder(batch)
    with recorder:
        recorder.note_lookup(0, ids_of(batch))
    recipes.learned(recorder)
    return recipes


def _batch(seed: int, size: int = 6) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randint(0, 100, (size, 3), generator=generator),
        "rest": [SimpleNamespace(mixed=torch.rand(size, 4, generator=generator) * 50)],
    }


OFFSETS = torch.tensor([0, 100, 200])


@pytest.mark.parametrize(
    "ids_of",
    [
        lambda b: b["x"],
        lambda b: b["x"][:, 1],
        lambda b: b["x"].reshape(-1),
        lambda b: b["x"].view(len(b["x"]) * 3, 1),
        lambda b: b["x"] + OFFSETS,
        lambda b: b["x"] + b["x"].new_tensor((0, 100, 200)).unsqueeze(0),
        lambda b: (b["x"][:, 0] * 31 + b["x"][:, 1]) % 97,
        lambda b: b["rest"][0].mixed[:, 2].long(),
        lambda b: b["rest"][0].mixed.detach()[:, :2].to(torch.int32),
        lambda b: b["x"].split(1, dim=1)[2],
        lambda b: torch.where(b["x"] > 50, b["x"], 0),
        lambda b: torch.cat([b["x"][:, 0], b["x"][:, 2]]),
    ],
)
@pytest.mark.parametrize("size", [6, 5])
def test_ids_follow_from_the_next_batch(ids_of: Any, size: int) -> None:
    recipes = _learn(_batch(1), ids_of)
    ((_, ids),) = recipes.ids_of(_batch(2, size))
    assert torch.equal(ids, ids_of(_batch(2, size)))


@pytest.mark.parametrize(
    "ids_of",
    [
        lambda b: torch.arange(len(b["x"])),
        lambda b: torch.randint_like(b["x"], 5),
        lambda b: b["x"].add_(1),
        lambda b: torch.from_numpy(b["x"].numpy() * 2),
        lambda b: (b["rest"][0].mixed * 2).sum(1),
    ],
)
def test_ids_from_elsewhere_have_no_recipe(ids_of: Any) -> None:
    assert _learn(_batch(1), ids_of).ids_of(_batch(2)) == []


def test_a_recipe_that_does_not_fit_a_batch_is_dropped_after_three() -> None:
    recipes = _learn(_batch(1), lambda b: b["x"][:, 2])
    for _ in range(3):
        assert len(recipes.found) == 1
        assert recipes.ids_of({"other": torch.ones(3)}) == []
        recipes.judge([])
    assert recipes.found == []


def test_a_wrong_recipe_is_forgiven_when_it_is_right_again() -> None:
    recipes = _learn(_batch(1), lambda b: b["x"])
    (recipe,) = recipes.found
    for right in (False, False, True, False, False):
        recipes.judge([(recipe, right)])
    assert recipes.found == [recipe]


def test_tensors_are_found_in_a_batch_that_contains_itself() -> None:
    batch = SimpleNamespace(x=torch.ones(2))
    batch.me = batch
    assert any(path == ((True, "x"),) for path, _ in tensors_in(batch))


class Fickle(nn.Module):
    """Looks up what ``choose`` says, with a gradient of 1 each time; counts its calls."""

    def __init__(self, choose: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 2, sparse=True, dtype=torch.float64)
        self.choose, self.calls = choose, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.stack([self.table(ids).sum() for ids in self.choose(self.calls, x)]).sum()


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[Gradients]:
    """All contributions of the jobs of a test."""
    seen: list[Gradients] = []
    push = Alone.push

    def noting(trainer: Alone, work: Work, gradients: Gradients) -> None:
        seen.append(gradients)
        push(trainer, work, gradients)

    monkeypatch.setattr(Alone, "push", noting)
    return seen


def test_the_padding_row_takes_no_gradient(pushed: list[Gradients]) -> None:
    data = TensorRows(x=torch.tensor([[7, 1], [2, 7], [7, 7], [3, 1]]))
    for make in (nn.Embedding, nn.EmbeddingBag):
        table = make(40, 2, sparse=True, padding_idx=7)
        optimizer = SGD(table.parameters(), lr=1.0)
        job = pl.init()
        job.prepare(table, optimizer)
        for batch in job.batches(data, 2, shuffle=False, epochs=2):
            table(batch.x).sum().backward()
            optimizer.step()
    ids = [sorted(gradients.sparse[0][0].tolist()) for gradients in pushed]
    assert ids == [[1, 2], [1, 3]] * 4


def _columns_alternate(call: int, x: Tensor) -> list[Tensor]:
    return [x[:, call % 2]]


def _changed_in_place(call: int, x: Tensor) -> list[Tensor]:
    if call > 4:
        x[:, 0].add_(1)
    return [x[:, 0]]


def _two_kinds(call: int, x: Tensor) -> list[Tensor]:
    return [x[:, 0] if call < 9 else x[:, 1] * 2]


def _one_of_two_foreseen(call: int, x: Tensor) -> list[Tensor]:
    return [x[:, 0], x[:, 1] + call % 2]


def _the_same_twice(call: int, x: Tensor) -> list[Tensor]:
    return [x[:, 0], x[:, 0]]


def _sometimes_none(call: int, x: Tensor) -> list[Tensor]:
    return [x[:, 0], x[:, 1]] if call % 3 else [x[:, 1]]


@pytest.mark.parametrize(
    "choose",
    [
        _columns_alternate,
        _changed_in_place,
        _two_kinds,
        _one_of_two_foreseen,
        _the_same_twice,
        _sometimes_none,
    ],
)
def test_every_id_takes_exactly_its_gradients_whatever_the_recipe(
    choose: Any, pushed: list[Gradients]
) -> None:
    data = TensorRows(x=torch.randint(0, 19, (160, 2), generator=torch.manual_seed(5)))
    model = Fickle(choose)
    expected = model.table.weight.detach().clone()
    optimizer = SGD(model.parameters(), lr=1.0)
    job = pl.init()
    job.prepare(model, optimizer)
    for call, batch in enumerate(job.batches(data, 8), 1):
        ids = torch.cat(choose(call, batch.x.clone()))
        model(batch.x).backward()
        optimizer.step()
        # A gradient of zero would not do: lazy Adam moves the row.
        assert sorted(pushed[-1].sparse[0][0].tolist()) == ids.unique().tolist()
        expected.index_add_(0, ids, torch.full((len(ids), 2), -1.0, dtype=torch.float64))
    assert model.calls == 20
    assert torch.allclose(model.state_dict()["table.weight"], expected, rtol=1e-13)


def test_rows_are_pulled_ahead_once_ids_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    rows_now = Alone.rows

    def counted(trainer: Alone, table: int, ids: Any) -> Any:
        fetched.append(len(ids))
        return rows_now(trainer, table, ids)

    monkeypatch.setattr(Alone, "rows", counted)
    data = TensorRows(x=torch.randint(0, 40, (70, 2)))
    model = Fickle(lambda _, x: [x[:, 0] % 30, x[:, 1], x[:, 1]])
    optimizer = SGD(model.parameters(), lr=1.0)
    job = pl.init()
    job.prepare(model, optimizer)
    for batch in job.batches(data, 8):
        model(batch.x).backward()
        optimizer.step()
    assert model.calls == 9
    assert len(fetched) == 2
