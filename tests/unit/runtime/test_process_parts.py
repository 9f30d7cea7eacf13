"""Features' parts in a worker, before its script runs."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from paceline.base import features
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.runtime.probe.script_steps import ScriptSteps
from paceline.runtime.process import additions
from paceline.runtime.process.feature_parts import ProcessParts
from paceline.runtime.process.feature_port import Here, ProcessPart
from paceline.wire.messages.features import FeatureTold
from paceline.wire.spec import JobSpec


class Beginning(ProcessPart):
    """Fails in a process of that name."""

    goes_by_steps = True

    def __init__(self, _here: Here) -> None:
        self.begun: list[Any] = []

    def begin(self, process: Any) -> None:
        self.begun.append(process)
        if process == "broken":
            raise OSError(process)
        if process == "lacking":
            raise ConfigError(process)


def here_of(path: Path, strategy: str = "ps") -> Here:
    spec = JobSpec(script="train.py", strategy=strategy)
    return Here(JobDir(path), spec, "worker-0", Inc(1), 0)


def parts_of(
    path: Path, monkeypatch: pytest.MonkeyPatch, *makers: Callable[[Here], Any]
) -> ProcessParts:
    found = [(f"part-{at}", make) for at, make in enumerate(makers)]
    monkeypatch.setattr(features, "parts_of", lambda *_: found)
    return ProcessParts(here_of(path))


def test_a_part_begins_before_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = "this one"
    parts = parts_of(tmp_path, monkeypatch, Beginning, lambda here: None)
    assert [*parts._parts] == ["part-0"] == [*parts.by_steps]
    parts.begin(process)
    assert parts._parts["part-0"].begun == ["this one"]  # type: ignore[attr-defined]
    assert not parts_of(tmp_path, monkeypatch, lambda here: ProcessPart()).by_steps


def test_a_script_whose_steps_cannot_be_seen_runs_and_says_who_lacks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = parts_of(tmp_path, monkeypatch, Beginning, Beginning)

    def broken(_steps: ScriptSteps) -> None:
        raise RuntimeError("another torch")

    monkeypatch.setattr(ScriptSteps, "install", broken)
    process: Any = SimpleNamespace()
    additions._watch(process, parts)
    told = (
        "paceline: steps of the script are not seen (for part-0, part-1): "
        "RuntimeError('another torch')\n"
    )
    assert capsys.readouterr().err == told


def test_only_what_the_machine_lacks_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken: Any = "broken"
    parts = parts_of(tmp_path, monkeypatch, Beginning)
    parts.begin(broken)
    assert "feature part-0 failed (OSError: broken)" in capsys.readouterr().err
    assert not parts.by_steps
    lacking: Any = "lacking"
    with pytest.raises(ConfigError, match="lacking"):
        parts_of(tmp_path, monkeypatch, Beginning).begin(lacking)


class Told(ProcessPart):
    """Takes numbers."""

    def told(self, body: msgspec.Raw) -> None:
        if msgspec.msgpack.decode(body, type=int) < 0:
            raise RuntimeError("below zero")


def test_a_message_that_makes_no_sense_costs_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = parts_of(tmp_path, monkeypatch, lambda here: Told())

    def tell(what: object) -> str:
        body = msgspec.Raw(msgspec.msgpack.encode(what))
        parts.told(FeatureTold(inc=Inc(1), feature="part-0", body=body))
        return capsys.readouterr().err

    assert "a message for feature part-0 makes no sense (ValidationError: " in tell("one")
    assert tell(1) == "" and parts._parts
    assert "feature part-0 failed (RuntimeError: below zero)" in tell(-1)
    assert not parts._parts


class Stepping(ProcessPart):
    """Hears of steps, and does what a test says."""

    def __init__(self, act: Callable[[int], None]) -> None:
        self._act = act

    def script_stepped(self, step: int) -> None:
        self._act(step)


def of_script(_step: int) -> None:
    """Raise as the handler of a signal does, which the script has."""
    namespace: dict[str, Any] = {"__name__": "train"}
    exec("def handler(): raise TimeoutError('the script wants out')", namespace)
    namespace["handler"]()


def test_a_part_that_fails_at_a_step_is_left_out_and_the_script_s_own_error_is_not_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def broken(step: int) -> None:
        raise KeyError(step)

    makers = (lambda _: Stepping(broken), lambda _: Stepping(seen.append))
    parts = parts_of(tmp_path, monkeypatch, *makers)
    parts.script_stepped(1)
    parts.script_stepped(2)
    assert seen == [1, 2] and [*parts._parts] == ["part-1"]
    assert "feature part-0 failed" in capsys.readouterr().err
    parts = parts_of(tmp_path, monkeypatch, lambda _: Stepping(of_script))
    with pytest.raises(TimeoutError):
        parts.script_stepped(3)
    assert [*parts._parts] == ["part-0"]


def test_what_came_with_the_order_to_start_is_told_before_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []

    class Told(ProcessPart):
        def told(self, body: msgspec.Raw) -> None:
            heard.append(bytes(body))

    monkeypatch.setattr(features, "parts_of", lambda *_: [("told", lambda _: Told())])
    orders = {"told": msgspec.Raw(b"\x01"), "absent": msgspec.Raw(b"\x02")}
    ProcessParts(here_of(tmp_path), orders)
    assert heard == [b"\x01"]


class Saying(ProcessPart):
    """Says what cannot be sent."""

    def due(self, now_s: float) -> list[Any]:
        return [object()]


def test_what_cannot_be_sent_or_is_no_part_costs_that_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = parts_of(tmp_path, monkeypatch, lambda here: Saying(), lambda here: 5, Beginning)
    assert "feature part-1 failed (TypeError: its part is 5, and no ProcessPart)" in (
        capsys.readouterr().err
    )
    assert [*parts.due(1.0)] == []
    assert "feature part-0 failed (TypeError: Encoding objects" in capsys.readouterr().err
    assert [*parts._parts] == ["part-2"]
