"""Solutions are found by name, and say which of their parameters is wrong."""

import importlib.metadata

import pytest

from paceline.base.errors import ConfigError
from paceline.features.stragglers.policy import registry
from paceline.features.stragglers.policy.solution import Solution
from paceline.features.stragglers.policy.solutions.non_dedicated import NonDedicated
from paceline.features.stragglers.policy.solutions.static import Nothing
from paceline.policy.observation import Observation


class Mine(Solution, frozen=True):
    """A solution of a user."""

    patience: int = 3

    def decide(self, seen: Observation) -> list:  # type: ignore[type-arg]
        del seen
        return []


class Typed(Mine, frozen=True):
    """Its modes became a parameter."""

    modes: tuple[str, ...] = ("bsp",)  # type: ignore[misc]


class Bare(Mine, frozen=True):
    """Its modes are letters."""

    modes = "bsp"  # type: ignore[assignment]


class Picky(Mine, frozen=True):
    """It looks at its parameters itself."""

    def __post_init__(self) -> None:
        if self.patience > 9:
            raise ValueError("nobody is so patient")


def not_a_solution() -> None:
    """An entry point that is a function."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that declares entry points, some of them wrong."""
    entries = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, value, registry.GROUP)
        for name, value in [
            ("mine", f"{__name__}:Mine"),
            ("nd", f"{__name__}:Mine"),
            ("wrong", f"{__name__}:not_a_solution"),
            ("gone", "no_such_package:Solution"),
            ("typed", f"{__name__}:Typed"),
            ("bare", f"{__name__}:Bare"),
            ("picky", f"{__name__}:Picky"),
        ]
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", entries.select)


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_built_in_solutions_are_found_and_need_no_parameters(name: str) -> None:
    assert isinstance(registry.solution(name), registry.BUILT_IN[name])


def test_parameters_are_set_and_may_be_text() -> None:
    found = registry.solution("nd", {"slowness": "1.3", "every_steps": 50})
    assert found == NonDedicated(slowness=1.3, every_steps=50)


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"auto, backup_workers, dd, .*did you mean lb_bsp"):
        registry.solution("lbbsp")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["typed", "bare"])
def test_modes_that_are_none_are_refused_with_how_to_write_them(name: str) -> None:
    with pytest.raises(ConfigError, match=r"\.modes is .*write a tuple of some of bsp, ssp, asp"):
        registry.kind_of(name)


def test_an_unknown_parameter_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match="nd has no parameter lambda; it has every_s, "):
        registry.solution("nd", {"lambda": 1.5})


@pytest.mark.parametrize("value", [0.5, "fast", None])
def test_a_wrong_value_is_named_with_its_key_and_a_remedy(value: object) -> None:
    with pytest.raises(ConfigError, match=r"nd: slowness: .*leave it out for 1\.5") as refused:
        registry.solution("nd", {"slowness": value})
    assert repr(value) in str(refused.value)


@pytest.mark.usefixtures("installed")
def test_a_solution_of_an_installed_package_is_found() -> None:
    found = registry.solution("mine", {"patience": 5})
    assert (type(found).__name__, found.patience) == ("Mine", 5)  # type: ignore[attr-defined]
    assert "mine" in registry.names()


@pytest.mark.usefixtures("installed")
def test_a_built_in_solution_is_not_replaced_by_an_installed_one() -> None:
    assert isinstance(registry.solution("nd"), NonDedicated)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "message"), [("wrong", "derives from"), ("gone", "no_such_package")]
)
def test_an_entry_point_that_is_no_solution_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.solution(name)


@pytest.mark.usefixtures("installed")
def test_parameters_that_the_solution_itself_refuses_are_told_as_a_mistake() -> None:
    assert registry.solution("picky").every_steps == 10
    with pytest.raises(ConfigError, match=r"solution picky: Picky .*: nobody is so patient; set"):
        registry.solution("picky", {"patience": 10})


def test_every_solution_says_how_often_it_is_asked() -> None:
    assert (Nothing().every_steps, Nothing().every_s) == (10, 0.0)
