"""What a rehearsal takes for equal, what it calls a drift, and which line it names."""

from pathlib import Path

import numpy as np
import pytest

from paceline.features.rehearse.compare import Comparison, Names, own_values
from paceline.features.rehearse.numbers import Tolerance, alike, moved_apart, said, same, shown
from paceline.features.rehearse.observed import LoggedMean, ObservedAct
from paceline.features.rehearse.plan import AT_END, Leaves, PlainLeaf, PrintedLine
from paceline.features.rehearse.source import Source
from paceline.features.rehearse.written import read_written

TOLERANCE = Tolerance(values=1e-3, weights=1e-2)
NAMES = Names("undisturbed", "after a kill")
SCRIPT = """\
import paceline as pl
job = pl.init()
steps = 0
history = []
for epoch in job.epochs(3):
    for i, (x, y) in enumerate(job.batches(data, batch_size=16)):
        steps += 1
        loss = train(x, y)
    history.append(epoch)
    print("epoch", epoch, "loss", loss)
print("steps", steps)
"""


def whole(number: int) -> PlainLeaf:
    return PlainLeaf(number=float(number), whole=True)


def real(number: float) -> PlainLeaf:
    return PlainLeaf(number=number)


def ends(*each: Leaves) -> dict[str, Leaves]:
    return {f"the end of epoch {number}": values for number, values in enumerate(each)}


def comparison(own: set[str] = frozenset()) -> Comparison:  # type: ignore[assignment]
    return Comparison({"train.py": Source("train.py", SCRIPT)}, "train.py", set(own), TOLERANCE)


# --------------------------------------------------------------------------- texts and numbers


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("loss 0.4132", "loss 0.4133", True),  # the last digit
        ("loss 0.4132", "loss 0.4192", False),
        ("epoch 3", "epoch 4", False),
        ("epoch 3 took 1.2 s", "epoch 3 took 9.8 s", True),
        ("SPS: 140", "SPS: 65", True),
        ("12:30:01 done, 1000 it/s", "12:31:55 done, 7 it/s", True),
        ("<Sampler object at 0x7f3e75107590>", "<Sampler object at 0x7f15d7bef650>", True),
        ("loss nan", "loss nan", True),
        ("loss nan", "loss 0.5", False),
        ("best 0.41320000001", "best 0.41320000009", True),
        ("1e-3", "2e-3", False),
    ],
)
def test_texts_are_compared_by_their_numbers_without_times(
    one: str, other: str, *, equal: bool
) -> None:
    assert alike(said(one), said(other), TOLERANCE) is equal


def test_a_line_is_shown_with_its_numbers() -> None:
    line = PlainLeaf(text='{"loss": #, "epoch": #}', some=(0.25, 3.0))
    assert shown(line) == '{"loss": 0.25, "epoch": 3}'
    assert shown(PlainLeaf(text="float32[2]", some=(1.0, 1.0, 1.5))) == "float32[2] of norm 1.5"


def test_whole_numbers_are_compared_exactly_and_others_by_tolerance() -> None:
    assert same(real(1.0), real(1.0005), TOLERANCE)
    assert not same(real(1.0), real(1.01), TOLERANCE)
    assert not same(whole(100_000), whole(100_001), TOLERANCE)
    tensor = PlainLeaf(text="float32[3]", some=(1.0, 2.0, 1e-9, 2.2))
    assert same(tensor, PlainLeaf(text="float32[3]", some=(1.0, 2.0, -1e-9, 2.2)), TOLERANCE)
    assert not same(tensor, PlainLeaf(text="float32[3]", some=(1.0, 2.1, 0.0, 2.2)), TOLERANCE)


def test_weights_are_compared_with_how_far_training_moved_them() -> None:
    began = {"w": np.full(4, 100.0)}
    right = {"w": np.full(4, 100.1)}
    assert moved_apart(right, {"w": np.full(4, 100.1001)}, began)["w"] < 0.01
    assert moved_apart(right, {"w": np.full(4, 100.05)}, began)["w"] == pytest.approx(0.5)
    assert moved_apart(right, {}, began)["w"] == float("inf")


# --------------------------------------------------------------------------- source


def test_a_variable_is_named_with_the_line_that_tells_how_it_changes() -> None:
    source = Source("train.py", SCRIPT)
    assert source.place_of("steps") == (7, "counts")
    assert source.place_of("history.len()") == (9, "appends")
    assert source.place_of("epoch") == (5, "loops")
    assert source.place_of("loss") == (8, "sets")
    assert source.place_of("nothing") is None
    assert source.names_at(10) == {"print", "epoch", "loss"}


def test_an_attribute_is_found_by_its_own_name() -> None:
    source = Source(
        "m.py", "class Meter:\n    def add(self, x):\n        self.total += x\nm = Meter()\n"
    )
    assert source.place_of("m.total") == (3, "counts")
    assert source.place_of("m.other") == (4, "sets")


# --------------------------------------------------------------------------- acts


def test_a_counter_that_begins_again_drifts_with_line_and_remedy() -> None:
    right = ObservedAct(variables={"worker-0": ends({"steps": whole(8)}, {"steps": whole(16)})})
    got = ObservedAct(variables={"worker-0": ends({"steps": whole(8)}, {"steps": whole(4)})})
    (found,), notes = comparison().all(right, got, NAMES)
    assert found.where == "train.py:7"
    assert "`steps` (train.py:7) is 16 undisturbed, and 4 after a kill" in found.what
    assert "job.step" in found.remedy
    assert notes == []


def test_a_count_that_each_epoch_begins_anew_is_a_note() -> None:
    right = ObservedAct(variables={"worker-0": ends({"steps": whole(8)}, {"steps": whole(8)})})
    got = ObservedAct(variables={"worker-0": ends({"steps": whole(8)}, {"steps": whole(4)})})
    found, (note,) = comparison().all(right, got, NAMES)
    assert found == []
    assert note.endswith("nothing else differs")


def test_what_differs_before_the_first_step_is_no_matter_of_lives() -> None:
    first = {"before step 1": {"ids": PlainLeaf(text="int64[2]", some=(1.0, 2.0))}}
    other = {"before step 1": {"ids": PlainLeaf(text="int64[2]", some=(2.0, 1.0))}}
    alone, right = (
        ObservedAct(variables={"alone": first}),
        ObservedAct(variables={"worker-0": other}),
    )
    (found,) = comparison().beginnings(alone, right, NAMES)
    assert found.what.startswith("`ids` is")
    assert "sort it" in found.remedy


def test_a_loops_own_index_is_a_note() -> None:
    right = ObservedAct(variables={"worker-0": ends({"i": whole(7)})})
    got = ObservedAct(variables={"worker-0": ends({"i": whole(3)})})
    found, (note,) = comparison().all(right, got, NAMES)
    assert found == []
    assert "train.py:6" in note
    assert "job.step" in note


def test_what_differs_among_undisturbed_workers_is_no_drift() -> None:
    ones = {size: PlainLeaf(text=f"float32[{size}]", some=(1.0, size**0.5)) for size in (8, 12, 16)}
    one = ends({"loss": real(0.5), "n": whole(8), "ones": ones[8]})
    other = ends({"loss": real(0.7), "n": whole(8), "ones": ones[8]})
    undisturbed = ObservedAct(variables={"worker-0": one, "worker-1": other})
    alone = ObservedAct(
        variables={"alone": ends({"loss": real(0.6), "n": whole(16), "ones": ones[16]})}
    )
    own = own_values(undisturbed, alone, TOLERANCE)
    assert own == {"loss", "n", "ones"}  # n, ones: follow from how many share a batch
    later = {"loss": real(0.9), "n": whole(12), "ones": ones[12]}
    got = ObservedAct(variables={"worker-0": ends(later)})
    assert comparison(own).all(undisturbed, got, NAMES) == ([], [])
    line = PrintedLine("epoch 0 loss 0.5", "train.py", 10)
    undisturbed = ObservedAct(printed=[line])
    got = ObservedAct(printed=[PrintedLine("epoch 0 loss 0.9", "train.py", 10)])
    assert comparison(own).all(undisturbed, got, NAMES).findings == []
    assert comparison(own).own_lines(undisturbed) == ["train.py:10"]
    (found,) = comparison().all(undisturbed, got, NAMES).findings
    assert found.what == (
        "train.py:10 printed `epoch 0 loss 0.9` after a kill; undisturbed: `epoch 0 loss 0.5`"
    )


def test_a_count_of_each_workers_own_is_named_where_weights_differ() -> None:
    began = {"w": np.zeros(3)}
    counts = {f"worker-{rank}": {AT_END: {"steps": whole(7 + rank)}} for rank in range(2)}
    right = ObservedAct(variables=counts, began=began, weights={"worker-0": {"w": np.ones(3)}})
    got = ObservedAct(variables=counts, weights={"worker-0": {"w": np.full(3, 1.2)}})
    named, differs = comparison({"steps"}).all(right, got, NAMES).findings
    assert named.what.startswith("`steps` (train.py:7) counts what each worker saw: 7 and 8")
    assert "job.step" in named.remedy
    assert differs.kind == "weights"


def test_lines_may_come_again_and_one_that_the_killed_worker_missed_is_a_note() -> None:
    lines = [PrintedLine(f"epoch {epoch} done", "train.py", 10) for epoch in range(3)]
    right = ObservedAct(printed=lines)
    again = ObservedAct(printed=[*lines[:2], lines[1], lines[2]])
    assert comparison().all(right, again, NAMES) == ([], [])
    found, (note,) = comparison().all(right, ObservedAct(printed=lines[1:]), NAMES)
    assert found == []
    assert "train.py:10 `epoch 0 done`" in note
    (missing,) = comparison().not_printed(lines, lines[1:], NAMES)
    assert missing.kind == "printed"


def test_logged_values_are_compared_where_the_same_samples_count() -> None:
    right = ObservedAct(logged={"loss": {1: LoggedMean(0.5, 16), 2: LoggedMean(0.4, 16)}})
    twice = ObservedAct(logged={"loss": {1: LoggedMean(0.9, 24), 2: LoggedMean(0.4, 16)}})
    assert comparison().all(right, twice, NAMES).findings == []
    got = ObservedAct(logged={"loss": {1: LoggedMean(0.5, 16), 2: LoggedMean(0.6, 16)}})
    (found,) = comparison().all(right, got, NAMES).findings
    assert found.what == "job.log's `loss` at step 2 is 0.4 undisturbed, and 0.6 after a kill"


def test_weights_of_every_worker_are_compared() -> None:
    began, model = {"w": np.zeros(3)}, {"w": np.ones(3)}
    right = ObservedAct(began=began, weights={"worker-0": model, "worker-1": model})
    got = ObservedAct(weights={"worker-0": model, "worker-1": {"w": np.full(3, 1.2)}})
    (found,) = comparison().all(right, got, NAMES).findings
    assert found.kind == "weights"
    assert "worker-1" in found.what


def test_files_are_compared_by_name_and_by_what_they_hold(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, best in ((here, 0.5), (there, 0.6)):
        folder.mkdir()
        (folder / "log.csv").write_text(f"epoch,loss\n0,{best}\n")
        (folder / "same.txt").write_text("took 1.5 s\n" if folder == here else "took 2.5 s\n")
        (folder / "plot.png").write_bytes(b"12345")
        (folder / "args.txt").write_text(f"python {folder}/train.py\n")
        (folder / f"events.out.tfevents.17958956{best:.0%}.host").write_bytes(b"1")
    (here / "epoch-0.txt").write_text("x")
    names = {folder: sorted(path.name for path in folder.iterdir()) for folder in (here, there)}
    read = read_written(names)
    found = comparison().files(read[here], read[there], NAMES)
    assert [one.where for one in found] == ["epoch-0.txt", "log.csv"]
    assert found[0].what == "epoch-0.txt was written undisturbed, and not after a kill"
    assert found[1].what.startswith("line 2 in log.csv is")
