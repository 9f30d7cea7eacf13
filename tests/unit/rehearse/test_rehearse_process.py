"""What a rehearsed process does to feeds, and which values it notes."""

import math
import random
from argparse import Namespace
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch

from paceline.features.rehearse.plan import (
    Leaves,
    LoopDone,
    PlainLeaf,
    RehearsalPlan,
    TakenVariables,
    encode,
    read_notes,
)
from paceline.features.rehearse.process.contents import read
from paceline.features.rehearse.process.leaves import leaves_of
from paceline.features.rehearse.process.watched_job import _shortened, _size_of
from paceline.wire.messages.feeds import Feed


def feed(**given: object) -> Feed:
    fields = {"feed": 0, "purpose": "train", "num_samples": 400, "epochs": 5, "batch_size": 16}
    fields |= {"shard_size": 400, "shuffle": True, "seed": 0}
    return Feed(**(fields | given))  # type: ignore[arg-type]


def test_a_feed_is_cut_to_its_first_batches_and_epochs() -> None:
    short = _shortened(feed(), batches=8, epochs=2)
    assert (short.num_samples, short.epochs, short.num_slices) == (128, 2, 16)
    assert _shortened(feed(num_samples=40), batches=8, epochs=9) == feed(num_samples=40)
    assert _shortened(feed(num_samples=None), batches=2, epochs=1).num_samples == 32


def test_a_feed_of_batches_of_several_sizes_keeps_whole_ones() -> None:
    ends = (5, 12, 20, 36, 40)
    short = _shortened(feed(ends=ends, num_samples=40, epochs=1), batches=2, epochs=1)
    assert short.ends == (5, 12, 20)
    assert short.num_samples == 20


class Meter:
    def __init__(self) -> None:
        self.total, self.counts = 0.5, Counter(a=2)


def test_values_become_leaves_by_path() -> None:
    assert leaves_of("n", 3) == {"n": PlainLeaf(number=3.0, whole=True)}
    found = leaves_of("meter", Meter(), (__name__,))
    assert found["meter.total"] == PlainLeaf(number=0.5)
    assert found["meter.counts['a']"].number == 2
    assert leaves_of("meter", Meter()) == {}  # of a library
    assert leaves_of("h", [1.0, 2.0])["h.len()"].number == 2
    tensor = leaves_of("t", torch.tensor([3.0, 4.0]))["t"]
    assert tensor.text == "float32[2]"
    assert tensor.some == (3.0, 4.0, 5.0)
    one, other = random.Random(1), random.Random(2)
    assert leaves_of("g", one) != leaves_of("g", other)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert leaves_of("o", optimizer)["o.param_groups[0]['lr']"].number == 0.1
    knot: list[object] = []
    knot.append(knot)
    assert leaves_of("k", knot)["k.len()"].number == 1


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(8, 2), 8),
        ((torch.zeros(8, 2), torch.zeros(8)), 8),
        ({"x": torch.zeros(8)}, 8),
        (["a", "b"], 1),
        (None, 1),
    ],
)
def test_the_size_of_a_batch_is_that_of_its_first_tensor(batch: object, size: int) -> None:
    assert _size_of(batch) == size


def test_notes_are_read_by_life_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    note = TakenVariables("the end", {"n": PlainLeaf(number=1.0)})
    (tmp_path / "worker-0.10.notes").write_bytes(encode(note) + b'{"type":"loop","numb')
    (tmp_path / "worker-0.2.notes").write_bytes(encode(LoopDone(0, 8)))
    first, second = read_notes(tmp_path)
    assert (first.life, second.life) == (2, 10)
    assert first.notes == [LoopDone(0, 8)]
    assert second.notes == [note]


def test_files_of_tensors_are_read_and_what_would_run_code_is_its_size(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "epoch": 3}, tmp_path / "a.pt")
    found = read(tmp_path / "a.pt")
    assert found["['epoch']"].number == 3
    assert found["['model']['w']"].some[:2] == (1.0, 1.0)
    torch.save({"args": Namespace(lr=0.5, out=Path("x"))}, tmp_path / "c.pt")
    assert {leaf.number for leaf in read(tmp_path / "c.pt").values()} >= {0.5}
    torch.save({"best": math.inf, "w": torch.tensor([math.nan, 1.0])}, tmp_path / "d.pt")
    leaves = read(tmp_path / "d.pt")
    assert msgspec.json.decode(msgspec.json.encode(leaves), type=Leaves) == leaves
    assert leaves["['best']"].text == "inf"
    torch.save(Meter(), tmp_path / "b.pt")
    assert "bytes" in read(tmp_path / "b.pt")[""].text


def test_the_files_of_a_plan_are_beside_its_notes() -> None:
    plan = RehearsalPlan(root="/r", notes="/n", batches=8, epochs=2)
    assert {path.parent for path in (plan.reached, plan.is_back, plan.go_on)} == {Path("/n")}
