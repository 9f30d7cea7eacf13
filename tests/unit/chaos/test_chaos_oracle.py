"""What the oracle of planted counts accepts of a cut in each mode, and what it does not."""

from pathlib import Path

import numpy as np
import pytest

from paceline.base.samples import Span
from paceline.cuts import manifest as cut
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.state.layout import initial_arrays
from paceline.wire.messages.feeds import Feed
from paceline.wire.schema import DenseTensor, ModelSchema, OptimizerGroup, Table
from tests.chaos.oracle import check_cut

NUM_SAMPLES = 10
SCHEMA = ModelSchema(
    dense=(DenseTensor(name="counters", shape=(3,), dtype="float64", offset=0, group=0),),
    tables=(Table(name="seen", dim=1, dtype="float64", group=0, num_rows=NUM_SAMPLES),),
    groups=(OptimizerGroup(kind="sgd"),),
)
FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=NUM_SAMPLES,
    epochs=1,
    batch_size=2,
    shard_size=5,
    shuffle=False,
    seed=0,
)


def check(
    path: Path, samples: str, seen: list[float], counter: float, committed: int, *, final: bool
) -> None:
    rows = np.array(seen).reshape(-1, 1)
    arrays = initial_arrays(SCHEMA, {"float64": np.full(3, counter)}, {0: rows})
    digest, num_bytes = cutfile.write_save(path, "initial.safetensors", arrays)
    manifest = cut.CutManifest(
        cut_no=1,
        epoch_no=1,
        position=0,
        step=0,
        committed=(Span(0, 0, committed),),
        schema=SCHEMA,
        files={"initial.safetensors": digest},
        num_bytes=num_bytes,
    )
    cut.write_manifest(path, manifest)
    check_cut(path, FEED, samples, 1, final=final)


HALF = [1.0] * 5 + [0.0] * 5
ALL = [1.0] * 10
TWICE = [2.0] + [1.0] * 9


@pytest.mark.parametrize(
    ("samples", "seen", "counter", "committed", "final"),
    [
        ("exactly-once", HALF, 5.0, 5, False),
        ("exactly-once", ALL, 10.0, 10, True),
        ("at-least-once", ALL, 10.0, 5, False),
        ("at-least-once", TWICE, 11.0, 10, True),
        ("at-most-once", HALF, 5.0, 10, False),
        ("at-most-once", HALF, 5.0, 10, True),
    ],
)
def test_a_cut_that_keeps_the_promise_passes(
    tmp_path: Path, samples: str, seen: list[float], counter: float, committed: int, final: bool
) -> None:
    check(tmp_path, samples, seen, counter, committed, final=final)


@pytest.mark.parametrize(
    ("samples", "seen", "counter", "committed", "final", "message"),
    [
        ("exactly-once", HALF, 5.0, 6, False, "rows .5. hold .0.., ledger says .1"),
        ("exactly-once", ALL, 10.0, 9, False, "rows .9. hold .1.., ledger says .0"),
        ("exactly-once", HALF, 5.0, 5, True, "a sample was applied 0.0 times"),
        ("at-least-once", HALF, 5.0, 6, False, "rows .5. hold .0.., ledger says .1"),
        ("at-least-once", HALF, 4.0, 5, False, "dense counters .4.., ledger says 5"),
        ("at-least-once", HALF, 5.0, 5, True, "a sample was applied 0.0 times"),
        ("at-least-once", ALL, 9.0, 9, True, "a dense counter is 9.0, not 10"),
        ("at-most-once", TWICE, 9.0, 10, False, "a sample was applied 2.0 times"),
        ("at-most-once", HALF, 11.0, 10, True, "a dense counter is 11.0, not 10"),
    ],
)
def test_a_cut_that_breaks_the_promise_is_named(
    tmp_path: Path,
    samples: str,
    seen: list[float],
    counter: float,
    committed: int,
    final: bool,
    message: str,
) -> None:
    with pytest.raises(AssertionError, match=message):
        check(tmp_path, samples, seen, counter, committed, final=final)
