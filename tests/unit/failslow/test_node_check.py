"""The check of a node in its process: when it is made, what is said of it, and until when."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from paceline.base import features
from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.features.failslow.process.part import NodeCheck, WatchedScript, make
from paceline.features.failslow.wire import Checked, CheckKept, CheckNode
from paceline.runtime.group.store import GroupOver
from paceline.runtime.process.feature_parts import ProcessParts
from paceline.runtime.process.feature_port import Here, ProcessPart
from paceline.wire.codec import encode
from paceline.wire.messages.base import Link
from paceline.wire.spec import JobSpec

CPU = torch.device("cpu")
LINKS = (Link("worker-1", 1e9, 1e-4),)


def here_of(path: Path, **spec: Any) -> Here:
    return Here(JobDir(path), JobSpec(script="train.py", **spec), "worker-0", Inc(1), 0)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProcessParts]:
    def made(*, asked: bool, more: tuple[Any, ...] = ()) -> ProcessParts:
        found = [("failslow", make), *((f"more-{at}", one) for at, one in enumerate(more))]
        monkeypatch.setattr(features, "parts_of", lambda *_: found)
        told = {"failslow": msgspec.Raw(encode(CheckNode()))} if asked else {}
        return ProcessParts(here_of(tmp_path), told)

    return made


def said(parts: ProcessParts) -> list[Checked]:
    return [msgspec.msgpack.decode(one.body, type=Checked) for one in parts.due(0.0)]


def test_a_node_is_measured_once_and_told_until_it_is_kept(
    parts: Callable[..., ProcessParts],
) -> None:
    here = parts(asked=True)
    measure = here.measuring(CPU)
    assert measure is not None and here.measuring(CPU) is None
    assert not said(here)
    measure(lambda: LINKS)
    (told,) = said(here)
    assert said(here) == [told] == [told for _ in here.rest()]
    assert told.speed is not None and told.speed.links == LINKS and not told.error
    part: Any = here._parts["failslow"]
    part.told(encode(CheckKept()))
    assert not said(here)


def test_a_node_whose_check_nobody_asks_for_is_not_measured(
    parts: Callable[..., ProcessParts],
) -> None:
    assert parts(asked=False).measuring(CPU) is None


def test_a_group_that_breaks_is_nobody_s_fault_and_all_is_measured_again(
    parts: Callable[..., ProcessParts],
) -> None:
    here = parts(asked=True)
    measure = here.measuring(CPU)
    assert measure is not None

    def broken() -> tuple[Link, ...]:
        raise GroupOver("worker-1 is gone")

    with pytest.raises(GroupOver):
        measure(broken)
    assert not said(here)
    measure(lambda: LINKS)
    (told,) = said(here)
    assert told.speed is not None and told.speed.links == LINKS


def test_links_that_cannot_be_measured_are_said_and_end_the_group(
    parts: Callable[..., ProcessParts],
) -> None:
    here = parts(asked=True)
    measure = here.measuring(CPU)
    assert measure is not None

    def failing() -> tuple[Link, ...]:
        raise ValueError("no such link")

    with pytest.raises(ValueError, match="no such link"):
        measure(failing)
    (told,) = said(here)
    assert told.error == "links: ValueError('no such link')" and told.speed is not None


class Failing(ProcessPart):
    is_to_measure = True

    def __init__(self, _here: Here) -> None: ...

    def measure(self, device: torch.device, links: Any) -> None:
        raise KeyError(device)


def test_peers_get_their_links_though_a_part_fails(
    parts: Callable[..., ProcessParts], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = 0

    def links() -> tuple[Link, ...]:
        nonlocal asked
        asked += 1
        return LINKS

    here = parts(asked=True, more=(Failing,))
    measure = here.measuring(CPU)
    assert measure is not None
    measure(links)
    assert asked == 1 and said(here)[0].speed is not None
    assert "feature more-0 failed" in capsys.readouterr().err
    alone = parts(asked=False, more=(Failing,)).measuring(CPU)
    assert alone is not None
    alone(links)
    assert asked == 2


def test_a_script_by_itself_is_watched_unless_its_spec_says_no(tmp_path: Path) -> None:
    assert isinstance(make(here_of(tmp_path)), NodeCheck)
    watched = make(here_of(tmp_path, strategy="script"))
    assert isinstance(watched, WatchedScript) and watched.goes_by_steps
    assert make(here_of(tmp_path, strategy="script", watch=False)) is None
