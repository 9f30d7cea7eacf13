"""Receipts of exported files: what they count, and what `paceline verify` finds wrong."""

import json
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from paceline.base.samples import Span
from paceline.cli.main import app
from paceline.cuts.manifest import CutManifest
from paceline.features.formats import keys, verbs
from paceline.features.formats.digests import digests_of
from paceline.features.formats.origin import count, deaths_before
from paceline.features.formats.process.export import export as write_export
from paceline.features.formats.receipts import DeathsSurvived, read_receipt, receipt_of
from paceline.wire.events.job import MasterDiedEvent
from paceline.wire.events.nodes import NodeLostEvent, NodeStartedEvent
from paceline.wire.events.state import CutValidEvent, EpochEvent
from paceline.wire.messages.feeds import LINES_PER_FEED, Feed
from paceline.wire.schema import ModelSchema
from tests.unit.cli.test_cli_checkpoint import new_job, paceline, replica_cut


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(verbs, "_run_exporter", run_exporter)
    return tmp_path


def run_exporter(arguments: Sequence[str]) -> dict[str, Any]:
    """Export here: another process would import torch first."""
    _, name, *flags, out, place = (word for word in arguments if word != "--")
    done = write_export(Path(out), Path(place), file_format=name, force="--force" in flags)
    found: dict[str, Any] = msgspec.to_builtins(done)
    return found


def export(name: str) -> Path:
    """Export the newest job's cut."""
    out = Path(name).absolute()
    done = paceline("export", out)
    assert done.exit_code == 0, done.stderr
    assert f"{receipt_of(out)}: its signed receipt" in done.stdout
    return out


@pytest.fixture
def model(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of safetensors with its receipt."""
    monkeypatch.chdir(home)
    replica_cut(new_job().cuts)
    return export("model.safetensors")


def verify(*args: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, args)])


# --------------------------------------------------------------------------- a good one


def test_a_proof_has_three_lines_and_needs_no_job(model: Path, home: Path) -> None:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    for path in (model, receipt_of(model)):
        path.rename(elsewhere / path.name)
    for path in (home / "home" / "jobs").iterdir():
        path.rename(home / path.name)
    checked = verify(elsewhere / model.name)
    assert checked.exit_code == 0
    first, second, third = checked.stdout.splitlines()
    assert "9 tensors as paceline" in first
    assert "cut 4, step 7, of job trained-" in first
    assert "112 samples in the model, exactly once per epoch" in second
    assert "no deaths" in second
    assert "your own key ed25519:" in third


def test_a_file_of_torch_has_one_too(model: Path) -> None:
    out = export("model.pt")
    assert verify(out).exit_code == 0
    assert read_receipt(receipt_of(out))[1].content.tensors == {}


def test_tensors_that_another_program_saved_again_are_the_same_tensors(model: Path) -> None:
    save_file(load_file(model), model, {"written": "elsewhere"})
    assert verify(model).exit_code == 0


# --------------------------------------------------------------------------- wrong ones


def change_a_tensor(model: Path) -> None:
    tensors = load_file(model)
    tensors["0.bias"][1] += 1
    save_file(tensors, model)


def change_the_receipt(model: Path) -> None:
    path = receipt_of(model)
    text = path.read_text()
    assert '"samples": 112' in text
    path.write_text(text.replace('"samples": 112', '"samples": 999'))


def take_another_file(model: Path) -> None:
    tensors = load_file(model)
    save_file({f"other.{name}": one for name, one in tensors.items()}, model)


def take_another_model(model: Path) -> None:
    save_file({name: one + 1 for name, one in load_file(model).items()}, model)


def cut_short(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-1])


def remove_the_receipt(model: Path) -> None:
    receipt_of(model).unlink()


def take_another_key(model: Path) -> None:
    """Sign what was changed with a key of one's own, and keep the name of the old one."""
    keys.key_file().unlink()
    receipt, _ = read_receipt(receipt_of(model))
    old = receipt.key
    paceline("export", model, "--force")
    path = receipt_of(model)
    path.write_text(path.read_text().replace(read_receipt(path)[0].key, old))


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        (change_a_tensor, 1, "tensor '0.bias' was changed since the export of cut 4"),
        (change_the_receipt, 1, "the signature is wrong: the receipt was changed"),
        (take_another_key, 1, "the signature is wrong: the receipt was changed"),
        (take_another_file, 1, "only the receipt has the tensor '0.bias'"),
        (take_another_model, 1, "all its tensors differ"),
        (cut_short, 1, "another file than that of the receipt of model.safetensors"),
        (remove_the_receipt, 2, "there is no receipt; `paceline checkpoint export` writes one"),
        (Path.unlink, 2, "the file cannot be read (No such file or directory)"),
        (lambda model: receipt_of(model).write_text("{}"), 2, "this is no receipt of paceline"),
    ],
)
def test_each_fault_has_an_answer_and_an_exit_code(
    change: Callable[[Path], object], code: int, told: str, model: Path
) -> None:
    change(model)
    checked = verify(model)
    assert checked.exit_code == code, checked.output
    assert told in checked.output
    assert len(checked.output.splitlines()) == 1


def test_a_header_that_two_readers_could_read_differently_shows_no_tensors(model: Path) -> None:
    """Of a name that is there twice another program may take the other tensor."""
    image = model.read_bytes()
    (size,) = struct.unpack("<Q", image[:8])
    head = image[8 : 8 + size].rstrip()
    entry = json.dumps(json.loads(head)["0.bias"])
    twice = head[:-1] + f', "0.bias": {entry}}}'.encode()
    model.write_bytes(struct.pack("<Q", len(twice)) + twice + image[8 + size :])
    assert digests_of(model).tensors == {}
    assert verify(model).exit_code == 1


# --------------------------------------------------------------------------- the key


def test_a_key_is_made_once_and_only_its_owner_can_read_it(model: Path) -> None:
    path, before = keys.key_file(), keys.own_public()
    assert path.stat().st_mode & 0o777 == 0o600
    export("again.pt")
    assert keys.own_public() == before
    path.chmod(0o644)
    done = paceline("export", "third.pt")
    assert done.exit_code == 2
    assert "got a key of mode 0644, expected one that only you can read" in done.stderr


def test_commands_that_make_a_key_at_the_same_time_have_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(keys.own_key) for _ in range(8)]
        assert len({keys.public_text(one.result()) for one in made}) == 1


def test_a_key_may_be_pinned_as_text_or_by_a_file(model: Path, home: Path) -> None:
    own = keys.own_public()
    published = home / "key.pub"
    published.write_text(f"{own}\n")
    for pin in (own, published):
        checked = verify(model, "--key", pin)
        assert checked.exit_code == 0
        assert f"the pinned key {own}" in checked.stdout
    other = keys.KIND + "A" * 43 + "="
    refused = verify(model, "--key", other)
    assert refused.exit_code == 1
    assert f"signed by {own}, expected {other}" in refused.stdout
    unknown = verify(model, "--key", "nobody")
    assert unknown.exit_code == 2
    assert "expected a public key like ed25519:" in unknown.stderr


def test_a_key_of_another_user_is_not_called_one_s_own(model: Path) -> None:
    keys.key_file().unlink()
    assert "that the key ed25519:" in verify(model).stdout
    assert not keys.key_file().exists()


# --------------------------------------------------------------------------- what is counted


def feed(number: int, num_samples: int | None, **fields: object) -> Feed:
    given = {
        "feed": number,
        "purpose": "train",
        "num_samples": num_samples,
        "epochs": 9,
        "batch_size": 2,
        "shard_size": 2,
        "shuffle": True,
        "seed": 0,
    }
    return Feed(**(given | fields))  # type: ignore[arg-type]


def manifest(*committed: Span) -> CutManifest:
    return CutManifest(
        cut_no=4,
        epoch_no=1,
        position=1,
        step=1,
        committed=committed,
        schema=ModelSchema(),
        files={},
        num_bytes=0,
    )


LINE_1 = LINES_PER_FEED


@pytest.mark.parametrize(
    ("committed", "feeds", "samples", "epochs"),
    [
        ((), [feed(0, 10)], 0, []),
        ((Span(0, 0, 30),), [feed(0, 10)], 30, [(0, 1, 3, 10)]),
        ((Span(0, 0, 24),), [feed(0, 10)], 24, [(0, 1, 2, 10), (0, 3, 3, 4)]),
        ((Span(0, 0, 8), Span(0, 9, 13)), [feed(0, 10)], 12, [(0, 1, 1, 9), (0, 2, 2, 3)]),
        ((Span(0, 0, 10), Span(0, 20, 30)), [feed(0, 10)], 20, [(0, 1, 1, 10), (0, 3, 3, 10)]),
        ((Span(0, 0, 10), Span(0, 5, 10)), [feed(0, 10)], 10, [(0, 1, 1, 10)]),
        (
            (Span(0, 0, 10), Span(LINE_1, 0, 4)),
            [feed(0, 10), feed(1, 8)],
            14,
            [(0, 1, 1, 10), (1, 1, 1, 4)],
        ),
        (
            (Span(0, 0, 10), Span(LINE_1, 0, 4)),
            [feed(0, 10), feed(1, 8, purpose="evaluate")],
            10,
            [(0, 1, 1, 10)],
        ),
        ((Span(0, 0, 7), Span(1, 0, 5)), [feed(0, None)], 12, [(0, 1, 1, 12)]),
        ((Span(0, 0, 7),), [], 7, []),
    ],
)
def test_samples_are_counted_by_epoch(
    committed: tuple[Span, ...],
    feeds: list[Feed],
    samples: int,
    epochs: list[tuple[int, int, int, int]],
) -> None:
    found = count(manifest(*committed), {one.feed: one for one in feeds}, "exactly-once")
    assert found.samples == samples
    assert [(one.feed, one.first, one.last, one.trained) for one in found.epochs] == epochs


def test_the_digest_of_the_ledger_is_that_of_the_samples_and_not_of_how_they_are_written() -> None:
    one, same, other = (
        count(manifest(*spans), {}, "exactly-once").sha256
        for spans in ((Span(0, 0, 10),), (Span(0, 5, 10), Span(0, 0, 5)), (Span(0, 0, 9),))
    )
    assert one == same
    assert one != other


def test_deaths_after_the_cut_are_not_counted() -> None:
    def start(node: str, inc: int) -> NodeStartedEvent:
        return NodeStartedEvent(t=1.0, node=node, inc=inc)

    before = [
        start("worker-0", 1),
        start("server-0", 2),
        NodeLostEvent(t=2.0, node="worker-0", inc=1, reason="silent"),
        MasterDiedEvent(t=3.0, reason="killed"),
        EpochEvent(t=3.0, epoch_no=2, cut_no=1, undone=5),
    ]
    valid = CutValidEvent(t=4.0, cut_no=4, step=1)
    after = [NodeLostEvent(t=5.0, node="server-0", inc=2, reason="silent")]
    assert deaths_before(manifest(), [*before, valid, *after]) == DeathsSurvived(
        workers=1, servers=0, masters=1, restores=1
    )
    assert deaths_before(manifest(), [*before, *after]).servers == 1
