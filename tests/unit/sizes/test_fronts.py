"""The search for sizes finds the front that trying all sizes finds, in four worlds."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from paceline.features.sizes.policy import candidates
from paceline.features.sizes.policy.candidates import SearchSpace, SizeOffer, Valuation, offers
from paceline.features.sizes.policy.fitting import fit
from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.observation import ResourceBounds, ResourceObservation
from paceline.features.sizes.policy.step_model import Floats, SizeModel
from paceline.policy.job_size import GIB, JobSize, ResourcePrices
from tests.unit.sizes.job_world import Job
from tests.unit.sizes.sizing import observation
from tests.unit.sizes.test_throughput_model import seen as measured


@dataclass(frozen=True)
class Case:
    """A job of one size and its bounds; by how much of its rate the search may miss the front."""

    job: Job
    size: JobSize
    fields: dict[str, Any] = field(default_factory=dict)
    missed: float = 0.0

    def fitted(self) -> tuple[ResourceObservation, SizeModel, float]:
        now = measured(self.job, self.size, random.Random(1))
        seen = observation(size=self.size, **self.fields)
        return seen, fit(SizingHistory(), now, "asp"), now.rate.per_s


def nodes(workers: int, servers: int, **memory: int) -> JobSize:
    return JobSize(workers=workers, servers=servers, worker_cpu=1.0, server_cpu=1.0, **memory)


SMALL = Case(
    Job(compute=1.0, serve=0.3),
    nodes(4, 2),
    {"bounds": ResourceBounds(cores=12.0, max_workers=9, max_node_cores=1.5)},
)
"""12,168 sizes: the grid has them all."""
MANY_WORKERS = Case(
    Job(compute=2.0, serve=0.1, network_s=0.002),
    nodes(24, 6),
    {"bounds": ResourceBounds(cores=80.0, core_step=0.25)},
    missed=0.003,
)
"""535,808 sizes: the grid has one of eight."""
SERVER_BOUND = Case(
    Job(compute=0.3, serve=1.5, skew=0.5, message=0.01),
    nodes(8, 2),
    {"bounds": ResourceBounds(cores=32.0, core_step=0.25)},
)
"""63,488 sizes."""
MEMORY_BOUND = Case(
    Job(compute=1.0, serve=0.6, threads=2.0),
    nodes(6, 4, worker_memory=2 * GIB, server_memory=4 * GIB),
    {
        "bounds": ResourceBounds(memory_bytes=40 * GIB, cost=40.0, core_step=0.25),
        "prices": ResourcePrices(core=1.0, gib=0.5),
        "samples_total": 2_000_000,
    },
)
"""94,208 sizes: the grid has half of them."""
WORLDS = {
    "small": SMALL,
    "many workers": MANY_WORKERS,
    "server-bound": SERVER_BOUND,
    "memory-bound": MEMORY_BOUND,
}


def front_of_all(seen: ResourceObservation, model: SizeModel, per_s: float) -> Floats:
    """Cost and gain of each size that no other size beats, of all sizes within reach."""
    space = SearchSpace.around(seen, 4.0)
    value = Valuation(seen, model, per_s, 0.0, candidates.CAUTION)
    axes = [np.arange(low, high + 1) for low, high in zip(space.lows, space.highs)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 4)
    points = points[(value.beyond(points, space.step) <= 0.0).all(axis=1)]
    rates, errors = value.rates(value.table(points, space.step))
    gains = value.gains(rates, errors, value.stalls_s(points, space.clipped(seen.size)))
    quotas = points[:, 2:] * space.step
    cores = (points[:, :2] * quotas).sum(axis=1)
    servers = np.maximum(points[:, 1], seen.size.servers)
    memory = points[:, 0] * seen.size.worker_memory + servers * seen.size.server_memory
    cost = np.round(cores * seen.prices.core + memory / GIB * seen.prices.gib, 9)
    table = np.stack([cost, gains], axis=1)[np.lexsort((-gains, cost))]
    before = np.maximum.accumulate(np.append(-np.inf, table[:-1, 1]))
    return np.asarray(table[table[:, 1] > before + 1e-9])


def missed(found: list[SizeOffer], front: Floats, base: float) -> Floats:
    """Gain that each size of the front has more than the best of `found` at no more cost."""
    costs = np.array([each.cost + base for each in found])
    gains = np.maximum.accumulate([each.gain for each in found])
    places = np.searchsorted(costs, front[:, 0] + 1e-6, side="right") - 1
    assert places.min() >= 0, "nothing is as cheap as the cheapest of the front"
    return np.asarray(front[:, 1] - gains[places])


@pytest.mark.parametrize("name", WORLDS)
def test_the_search_finds_the_front_of_all_sizes(name: str) -> None:
    case = WORLDS[name]
    seen, model, per_s = case.fitted()
    front, found = front_of_all(seen, model, per_s), offers(seen, model, per_s)
    gap = missed(found, front, seen.size.cost(seen.prices))
    assert gap.max() <= case.missed * per_s + 1e-6
    assert np.mean(gap > 1e-6) <= 0.01
    assert max(each.gain for each in found) == pytest.approx(front[:, 1].max(), rel=1e-9)
    if not case.missed:
        assert len(found) == len(front)


def test_without_an_allowed_size_the_present_one_is_the_only_offer() -> None:
    seen, model, per_s = SMALL.fitted()
    found = offers(seen, model, per_s, least=1e6 * per_s)
    assert [each.size for each in found] == [seen.size]


def test_a_narrow_gap_between_bounds_is_found_from_the_closest_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The grid has no allowed size; rounds begin with those that are the least beyond."""
    seen, model, per_s = MANY_WORKERS.fitted()
    fastest = max(offers(seen, model, per_s), key=lambda each: each.per_s)
    monkeypatch.setattr(candidates, "_GRID_SIZES", 16)
    found = offers(seen, model, per_s, least=0.95 * fastest.per_s)
    assert found
    assert min(each.per_s for each in found) >= 0.95 * per_s
