"""A cut of shards is loaded by any number of members, and put together for whoever takes it out.

Members are simulated one after the other, by torch's fake process group.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Adam
from torch.optim.lr_scheduler import StepLR
from torch.testing._internal.distributed.fake_pg import FakeStore

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.samples import Span
from paceline.cuts.manifest import CutManifest, write_manifest
from paceline.runtime.checkpoint.assembly import replica_of
from paceline.runtime.checkpoint.contents import read_contents
from paceline.runtime.checkpoint.cutfile import read_cut, write_save
from paceline.runtime.group.transports import keep_to_network
from paceline.runtime.holding.shards.shards import Shards, check_sharded
from paceline.runtime.holding.shards.shares import Evenly
from paceline.runtime.state.skeleton import rows_of_part
from paceline.wire.messages.group import Division
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import JobSpec


@contextmanager
def member(number: int, count: int) -> Iterator[None]:
    """Be this one of so many."""
    dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def built(seed: int) -> tuple[nn.Module, Adam, StepLR]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.Linear(7, 1).bfloat16())
    fully_shard(model)
    optimizer = Adam(model.parameters(), lr=0.1)
    return model, optimizer, StepLR(optimizer, step_size=1, gamma=0.5)


def write(folder: Path, count: int) -> Path:
    """The cut of so many members after one step, whose gradients count up."""
    files = {}
    for number in range(count):
        with member(number, count):
            model, optimizer, scheduler = built(1)
            for param in model.parameters():
                whole = torch.arange(param.numel(), dtype=param.dtype).reshape(param.shape)
                rows = rows_of_part(len(whole), (number, count))
                local = whole[rows.start : rows.stop]
                assert isinstance(param, DTensor)
                param.grad = DTensor.from_local(
                    local,
                    param.device_mesh,
                    param.placements,
                    run_check=False,
                    shape=whole.shape,
                    stride=whole.stride(),
                )
            model[1].running_mean.fill_(number)
            optimizer.step()
            scheduler.step()
            saved = Shards([model], [optimizer], [scheduler], part=(number, count)).save()
            files[f"w-{number}"] = write_save(folder, f"w-{number}", saved)[0]
    manifest = CutManifest(
        cut_no=1,
        epoch_no=1,
        position=1,
        step=1,
        committed=(),
        schema=ModelSchema(),
        files=files,
        num_bytes=1,
    )
    write_manifest(folder, manifest)
    return folder


def own_rows(whole: Tensor, part: tuple[int, int]) -> Tensor:
    rows = rows_of_part(len(whole), part)
    return whole[rows.start : rows.stop]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Model and first moments of one member that holds everything."""
    cut = write(tmp_path_factory.mktemp("one"), 1)
    with member(0, 1):
        model, optimizer, scheduler = built(2)
        Shards([model], [optimizer], [scheduler], part=(0, 1)).load_cut(cut)
        values = {name: local(one) for name, one in model.state_dict().items()}
        moments = [local(state["exp_avg"]) for state in optimizer.state_dict()["state"].values()]
        names = [name for name, _ in model.named_parameters()]
    return values, dict(zip(names, moments, strict=True))


def local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).clone()


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 5)])
def test_any_number_of_members_loads_a_cut(
    before: int,
    after: int,
    whole: tuple[dict[str, Tensor], dict[str, Tensor]],
    tmp_path: Path,
) -> None:
    cut = write(tmp_path, before)
    values, moments = whole
    for number in range(after):
        with member(number, after):
            model, optimizer, scheduler = built(2)
            Shards([model], [optimizer], [scheduler], part=(number, after)).load_cut(cut)
            for name, param in model.named_parameters():
                assert torch.equal(local(param), own_rows(values[name], (number, after))), name
                moment = optimizer.state[param]["exp_avg"]
                assert isinstance(moment, DTensor) and moment.shape == param.shape
                assert torch.equal(local(moment), own_rows(moments[name], (number, after))), name
                assert optimizer.state[param]["step"] == 1
            assert model[1].running_mean[0] == number % before
            assert scheduler.last_epoch == 1 and optimizer.param_groups[0]["lr"] == 0.05


def test_a_cut_of_shards_is_taken_out_whole(
    whole: tuple[dict[str, Tensor], dict[str, Tensor]], tmp_path: Path
) -> None:
    write(tmp_path, 3)
    manifest, saves = read_cut(tmp_path)
    state = replica_of(saves)
    for name, value in whole[0].items():
        if value.dtype == torch.float32 and "running" not in name:
            np.testing.assert_array_equal(state["modules"][0][name].array, value.numpy())
    contents = read_contents(manifest, tmp_path)
    assert contents.strategy == "fsdp"
    assert {row.name: row.shape for row in contents.tensors}["0.weight"] == (7, 3)
    with pytest.raises(PermanentError, match="2 of 3 shards"):
        replica_of({name: arrays for name, arrays in saves.items() if name != "w-1"})


def test_a_damaged_shard_is_not_loaded(tmp_path: Path) -> None:
    cut = write(tmp_path, 2)
    image = bytearray((tmp_path / "w-1").read_bytes())
    image[8 + int.from_bytes(image[:8], "little")] ^= 1
    (tmp_path / "w-1").write_bytes(image)
    with member(1, 2):
        model, optimizer, scheduler = built(2)
        shards = Shards([model], [optimizer], [scheduler], part=(1, 2))
        with pytest.raises(PermanentError, match="w-1: checksum differs"):
            shards.load_cut(cut)


def test_what_torch_does_not_average_is_refused() -> None:
    with member(0, 2):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        fully_shard(model[0])
        params = list(model.parameters())
        check_sharded([model], params[:2], 2)
        with pytest.raises(ConfigError, match=r"1\.weight is not sharded.*fully_shard\(model\)"):
            check_sharded([model], params, 2)
        other = nn.Linear(4, 4)
        fully_shard(other, shard_placement_fn=lambda param: Shard(param.ndim - 1))
        with pytest.raises(ConfigError, match="weight is placed as"):
            check_sharded([other], list(other.parameters()), 2)


def test_shards_that_are_not_in_memory_are_refused() -> None:
    with member(0, 2), torch.device("meta"):
        model = nn.Linear(4, 4)
        fully_shard(model)
        with pytest.raises(ConfigError, match=r"weight is on meta; .*CPU only"):
            check_sharded([model], list(model.parameters()), 2)


def test_shares_are_even_or_all_of_it() -> None:
    sharing, division = Evenly(6), Division()
    assert sharing.runs((Span(0, 0, 6),), 3, division) == [range(2), range(2, 4), range(4, 6)]
    assert sharing.runs((Span(0, 0, 4),), 3, division) == [range(4)] * 3


def test_where_gloo_listens_is_for_the_spec_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "exported")
    keep_to_network(JobSpec(script="a", env={"GLOO_SOCKET_IFNAME": "named"}), "GLOO_SOCKET_IFNAME")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "exported", "the agent has set what the spec names"
    keep_to_network(JobSpec(script="a"), "GLOO_SOCKET_IFNAME", "=")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "=lo"


def test_a_model_without_buffers_becomes_what_the_cut_holds(tmp_path: Path) -> None:
    def plain(seed: int) -> tuple[nn.Module, Shards]:
        torch.manual_seed(seed)
        model = nn.Linear(3, 7)
        fully_shard(model)
        return model, Shards([model], [Adam(model.parameters())], [], part=(0, 1))

    with member(0, 1):
        model, shards = plain(1)
        checksum, size = write_save(tmp_path, "worker-0.safetensors", shards.save())
        manifest = CutManifest(
            cut_no=1,
            epoch_no=1,
            position=1,
            step=1,
            committed=(),
            schema=ModelSchema(),
            files={"worker-0.safetensors": checksum},
            num_bytes=size,
        )
        write_manifest(tmp_path, manifest)
        other, target = plain(2)
        target.load_cut(tmp_path)
        assert torch.equal(other.weight.to_local(), model.weight.to_local())  # type: ignore[operator, union-attr]
