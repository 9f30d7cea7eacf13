"""The state that a member hands to another: in parts, verified, and nothing but data."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from paceline.base.errors import ConfigError, PermanentError
from paceline.cuts.manifest import CutManifest, write_manifest
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.holding.replicas.direct import read_memory
from paceline.runtime.state import replica as replica_module
from paceline.runtime.state.replica import Arriving, Photograph, Replica
from paceline.runtime.state.skeleton import put_together
from paceline.runtime.state.tree import take_apart
from paceline.wire.schema import ModelSchema


def trained(seed: int, steps: int) -> tuple[Replica, nn.Module, Adam]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = Adam(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
    for _ in range(steps):
        model(torch.randn(8, 3)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return Replica([model], [optimizer], [scheduler]), model, optimizer


def hand_over(source: Photograph, arriving: Arriving, order: list[int] | None = None) -> None:
    """All parts, the first one first."""
    for part in [0, *(order or range(1, source.num_parts))]:
        frame, digest = source.part(part)
        assert arriving.take(part, source.num_parts, memoryview(bytearray(frame)), digest)


@pytest.mark.parametrize("part_bytes", [7, 64, 1 << 20])
def test_who_copies_becomes_the_same(part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "PART_BYTES", part_bytes)
    first, model, optimizer = trained(1, steps=5)
    second, other, other_optimizer = trained(2, steps=0)
    assert first.describe() == second.describe()
    arriving = Arriving()
    photograph = first.photograph()
    hand_over(photograph, arriving, list(reversed(range(1, photograph.num_parts))))
    assert arriving.whole
    second.load(arriving)
    for _ in range(2):
        for one, opt in ((model, optimizer), (other, other_optimizer)):
            torch.manual_seed(9)
            one(torch.randn(8, 3)).pow(2).mean().backward()
            opt.step()
            opt.zero_grad()
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert other_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("in_place", [True, False])
def test_state_is_read_out_of_a_process_that_holds_still(in_place: bool) -> None:
    first, model, _ = trained(1, steps=5)
    second, other, optimizer = trained(2, steps=1)
    mine = {name: one.data_ptr() for name, one in other.state_dict().items()}
    photograph = first.photograph()
    arriving = Arriving()
    frame, digest = photograph.part(0)
    arriving.take(0, photograph.num_parts, memoryview(frame), digest)
    assert arriving.layout is not None
    targets = second.targets(arriving.layout, in_place=in_place)
    read_memory(os.getpid(), photograph.addresses, targets)
    arriving.read(targets)
    assert not arriving.whole, "it is to be confirmed"
    arriving.unconfirmed = False
    assert arriving.whole
    second.load(arriving)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert {name: one.data_ptr() for name, one in other.state_dict().items()} == mine
    assert second.describe() == first.describe()
    exp_avg = optimizer.state[other[0].weight]["exp_avg"]
    assert (exp_avg.data_ptr() in {one.data_ptr() for one in targets}) or not in_place


def write_cut(directory: Path, replica: Replica) -> Path:
    """As a member makes one; where its file is."""
    name = "worker-0-1.safetensors"
    checksum, num_bytes = cutfile.write_save(directory, name, replica.save())
    manifest = CutManifest(
        cut_no=1,
        epoch_no=1,
        position=5,
        step=5,
        committed=(),
        schema=ModelSchema(),
        files={name: checksum},
        num_bytes=num_bytes,
    )
    write_manifest(directory, manifest)
    return directory / name


def tensors_of(replica: Replica) -> Sequence[torch.Tensor]:
    return take_apart(replica._state())[1]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_cut_is_loaded_into_the_tensors_that_are_there(tmp_path: Path, steps: int) -> None:
    first, _, _ = trained(1, steps=5)
    write_cut(tmp_path, first)
    second, other, optimizer = trained(2, steps=steps)
    addresses = [one.data_ptr() for one in tensors_of(second)]
    second.load_cut(tmp_path)
    assert take_apart(second._state())[0] == take_apart(first._state())[0]
    for one, expected in zip(tensors_of(second), tensors_of(first), strict=True):
        assert torch.equal(one, expected)
    found = [one.data_ptr() for one in tensors_of(second)]
    assert found[: len(addresses)] == addresses
    assert (len(found) == len(addresses)) == (steps > 0), "a fresh optimizer has no state"
    other(torch.randn(8, 3)).pow(2).mean().backward()
    optimizer.step()


def test_what_a_changed_script_prepares_otherwise_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def built(lr: Any) -> tuple[Replica, SGD]:
        model = nn.Linear(2, 1)
        optimizer = SGD(model.parameters(), lr=lr)
        return Replica([model], [optimizer], [StepLR(optimizer, step_size=1)]), optimizer

    first, optimizer = built(0.5)
    optimizer.param_groups[0]["lr"] = 0.25  # by the loop, or a scheduler
    write_cut(tmp_path / "1", first)
    same, _ = built(0.5)
    same.load_cut(tmp_path / "1")
    assert "script_differs" not in caplog.text
    changed, optimizer = built(torch.tensor(0.125))
    for _ in range(2):
        changed.load_cut(tmp_path / "1")
    assert caplog.text.count("value=groups.0.0.lr script=0.125 job=0.5;") == 1
    assert float(optimizer.param_groups[0]["lr"]) == 0.25
    write_cut(tmp_path / "2", changed)
    caplog.clear()
    same.load_cut(tmp_path / "2")
    assert "script_differs" not in caplog.text


def test_a_damaged_cut_is_an_error_and_an_older_one_makes_the_state_whole(tmp_path: Path) -> None:
    older, _, _ = trained(1, steps=3)
    newer, _, _ = trained(1, steps=5)
    write_cut(tmp_path / "1", older)
    path = write_cut(tmp_path / "2", newer)
    image = bytearray(path.read_bytes())
    image[-300] ^= 1
    path.write_bytes(image)
    mine, _, _ = trained(2, steps=1)
    with pytest.raises(PermanentError, match="checksum differs"):
        mine.load_cut(tmp_path / "2")
    mine.load_cut(tmp_path / "1")
    assert take_apart(mine._state())[0] == take_apart(older._state())[0]
    for one, expected in zip(tensors_of(mine), tensors_of(older), strict=True):
        assert torch.equal(one, expected)


def test_tied_and_short_tensors_are_loaded_from_a_cut(tmp_path: Path) -> None:
    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3).bfloat16())
        made[1].weight = made[0].weight
        return made

    first, second = model(1), model(2)
    write_cut(tmp_path, Replica([first], [], []))
    Replica([second], [], []).load_cut(tmp_path)
    assert second[1].weight is second[0].weight
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="memory of process"):
        read_memory(os.getpid(), [1 << 45], [torch.empty(8)])
    with pytest.raises(OSError, match="memory of process"):
        read_memory(1 << 22, [1 << 45], [torch.empty(8)])


def test_tensors_that_lie_in_no_order_travel_in_parts() -> None:
    assert Photograph(*take_apart([torch.ones(3, 4).T])).addresses == ()
    assert len(Photograph(*take_apart([torch.ones(3, 4), torch.ones(2)])).addresses) == 2


def test_a_damaged_part_is_not_kept_and_asked_for_again() -> None:
    source = trained(1, steps=1)[0].photograph()
    arriving = Arriving()
    frame, digest = source.part(0)
    assert arriving.ask(4) == [0]
    assert not arriving.take(0, source.num_parts, memoryview(b"x" + frame[1:]), digest)
    arriving.ask_again()
    assert arriving.ask(4) == [0]
    assert arriving.take(0, source.num_parts, memoryview(frame), digest)
    assert not arriving.take(0, source.num_parts, memoryview(frame), digest), "it is here"


def test_only_a_few_parts_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "PART_BYTES", 16)
    source = trained(1, steps=1)[0].photograph()
    arriving = Arriving()
    frame, digest = source.part(0)
    arriving.take(0, source.num_parts, memoryview(frame), digest)
    assert arriving.ask(2) == [1, 2]
    assert arriving.ask(2) == []
    frame, digest = source.part(2)
    arriving.take(2, source.num_parts, memoryview(bytearray(frame)), digest)
    assert arriving.ask(2) == [3]


def test_nonsense_is_no_state() -> None:
    import zlib

    for frame in (b"{}", b"no json", b'{"skeleton": 1, "tensors": [["nonsense", [1]]]}'):
        with pytest.raises(PermanentError, match="cannot be read"):
            Arriving().take(0, 1, memoryview(frame), zlib.crc32(frame))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2.5, "text", True, float("inf"), float("-inf"), float("nan")],
        {"a": (1, [None]), 3: {"b": torch.arange(4)}},
        [torch.tensor(3.0), torch.zeros(2, 0), torch.ones(2, dtype=torch.bfloat16)],
    ],
)
def test_nested_state_survives(value: Any) -> None:
    skeleton, tensors = take_apart(value)
    again = put_together(skeleton, tensors)
    assert repr(again) == repr(value)


def test_what_is_no_data_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"state\['hook'\]\[1\] is a function"):
        take_apart({"hook": [1, lambda: None]})
    with pytest.raises(PermanentError, match="damaged state"):
        put_together(["tensor", 3], [])


def test_other_models_and_optimizers_are_told_apart() -> None:
    def described(model: nn.Module, kind: Any = SGD) -> str:
        return Replica([model], [kind(model.parameters(), lr=0.1)], []).describe()

    assert described(nn.Linear(2, 3)) == described(nn.Linear(2, 3))
    assert described(nn.Linear(2, 3)) != described(nn.Linear(3, 2))
    assert described(nn.Linear(2, 3)) != described(nn.Linear(2, 3), Adam)
    assert described(nn.Linear(2, 3)).startswith("9 parameters, SGD, ")
    assert described(nn.Linear(2, 3, device="meta")).startswith("9 parameters on meta, SGD, ")


def test_a_scaler_is_handed_over_before_and_after_it_was_used() -> None:
    def scaled(times: int, **options: Any) -> tuple[Replica, torch.amp.GradScaler]:
        model = nn.Linear(2, 2)
        optimizer = SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2, **options)
        for _ in range(times):
            scaler.scale(model(torch.ones(1, 2)).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        return Replica([model], [optimizer], [], scalers=[scaler]), scaler

    first, own = scaled(5)
    assert own.get_scale() == 32.0
    for times in (0, 1):
        second, other = scaled(times)
        arriving = Arriving()
        hand_over(first.photograph(), arriving)
        second.load(arriving)
        assert other.state_dict() == own.state_dict()
        second.load_saved(first.save())
        assert other.state_dict() == own.state_dict()
    idle, _ = scaled(1, enabled=False)
    idle.load_saved(idle.save())
    assert idle.describe() != Replica(idle.modules, idle.optimizers, []).describe()


def test_schedulers_with_functions_and_their_own_state_can_be_handed_over() -> None:
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    plateau = ReduceLROnPlateau(optimizer)
    schedulers = [
        plateau,
        LambdaLR(optimizer, lambda step: 0.9**step),
        OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
    ]
    replica = Replica([model], [optimizer], schedulers)
    arriving = Arriving()
    hand_over(replica.photograph(), arriving)
    replica.load(arriving)
    plateau.step(1.0)
