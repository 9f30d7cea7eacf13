"""The memory of cores that jobs share: a limit that holds, spill and return, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.base.errors import ConfigError
from paceline.features.sharing import compiled as compiling
from paceline.features.sharing.compiled import CPU_ARENA, compiled

TRAINING = Path(__file__).with_name("limited_training.py")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arena, compiled."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_HOME", str(folder))
        try:
            return compiled(CPU_ARENA)
        except ConfigError as error:
            if "no C++ compiler" not in str(error):
                raise
            pytest.skip(str(error))


def train(library: Path, steps: int, *arms: str) -> dict[str, Any]:
    """What a training process tells that changes its limits as each arm says."""
    command = [sys.executable, str(TRAINING), str(library), str(steps), *arms]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(output)
    return found


def check_random(found: dict[str, Any]) -> None:
    looks = found["random"]["looks"]
    assert all(look["peak"] <= look["limit"] for look in looks)
    assert any(look["spilled"] for look in looks)
    assert found["random"]["losses"] == found["free"]["losses"]


def test_a_limit_holds_and_what_is_spilled_returns(library: Path) -> None:
    found = train(library, 50, "free", "raised", "random")
    limit, looks = found["raised"]["limit"], found["raised"]["looks"]
    free, limited, raised = looks[:3], looks[3:6], looks[6:]
    assert all(look["peak"] > limit and not look["spilled"] for look in free)
    assert all(look["peak"] <= limit for look in limited), "by not a single byte"
    assert all(look["spilled"] >= free[-1]["peak"] - limit for look in limited)
    assert all(look["host"] for look in limited), "the newest loss"
    assert not any(look["host"] or look["spilled"] for look in raised[1:])
    assert raised[-1]["peak"] == free[-1]["peak"]
    assert found["raised"]["losses"] == found["free"]["losses"], "bit by bit"
    check_random(found)
    assert found["left"] == {"device": 0, "host": 0}


@pytest.mark.soak
def test_ten_thousand_limits(library: Path) -> None:
    check_random(train(library, 10_000, "free", "random"))


def test_a_library_is_compiled_once(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(library.parents[1]))
    monkeypatch.setattr(compiling, "COMPILERS", ())
    assert compiled(CPU_ARENA) == library
    assert [path.name for path in library.parent.iterdir()] == [library.name]


def test_without_a_compiler_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler \(no-such-compiler\).*apt install"):
        compiled(CPU_ARENA)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ConfigError, match=r"false failed for cpu_arena.cpp; .* set CXX"):
        compiled(CPU_ARENA)
    assert not list((tmp_path / "compiled").iterdir())
