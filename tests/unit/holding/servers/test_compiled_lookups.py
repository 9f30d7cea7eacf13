"""A compiled model with sparse tables: look-ups run as they are, and all else is compiled."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from torch.optim import SGD

import paceline as pl

# Torch's compiler itself looks there, with a filter that gives way to ours.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

STEPS, SIZE, NUM_IDS = 30, 8, 40


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(NUM_IDS, 4, sparse=True)
        self.bags = nn.EmbeddingBag(NUM_IDS, 4, sparse=True, mode="sum")
        self.out = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.cat([self.rows(ids % NUM_IDS).flatten(1), self.bags(ids // 2)], 1)
        found: Tensor = self.out(hidden)
        return found


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def trained(*, compiled: bool, fullgraph: bool = False) -> dict[str, Tensor]:
    """What a job of one process makes of it, whose batches ask for other rows each."""
    job = pl.init()
    net: nn.Module = Net().double()
    optimizer = SGD(net.parameters(), lr=0.1)
    if compiled:
        net.compile(backend="eager", fullgraph=fullgraph)
    job.prepare(net, optimizer)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(NUM_IDS, (STEPS * SIZE - 3, 2), generator=generator)
    for batch in job.batches(pl.TensorRows(ids=ids), batch_size=SIZE):
        net(batch.ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return job.state_dict()


def test_a_compiled_model_with_tables_is_the_model_that_nobody_compiled() -> None:
    expected = trained(compiled=False)
    assert not counters["stats"]["unique_graphs"]
    found = trained(compiled=True)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-14)
    # Before, between and after the two look-ups, each for one size and for all.
    assert 0 < counters["stats"]["unique_graphs"] <= 6


def test_a_compiler_that_is_to_take_in_the_tables_is_refused_with_the_remedy() -> None:
    with pytest.raises(Unsupported, match="compile the model without fullgraph=True"):
        trained(compiled=True, fullgraph=True)
