"""Pictures of the README: true to the table they are made from; frames of a film in their order."""

import re
from pathlib import Path
from xml.etree import ElementTree

from paceline_experiments.pictures.drawing import Pane, Run, Screen, draw
from paceline_experiments.pictures.recovery import draw_recovery, read_arms

DOCS = Path(__file__).parents[3] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_of_recovery_is_that_of_the_table() -> None:
    made = (DOCS / "figures" / "recovery.svg").read_text()
    assert made == draw_recovery((DOCS / "bench.md").read_text())


def test_arms_that_were_not_measured_are_left_out_and_kills_that_nothing_follows_are_told() -> None:
    page = (DOCS / "bench.md").read_text()
    arms = {arm.name: arm for arm in read_arms(page)}
    assert "DLRover as installed" not in arms
    assert arms["torchrun"].never > 0
    never = f"{arms['torchrun'].kills} tries: "
    assert never in draw_recovery(page)


def of_words(*words: str) -> tuple[tuple[Run, ...], ...]:
    return tuple((Run(0, word, "default", bold=False),) for word in words)


def test_a_film_shows_each_screen_once_and_rests_at_the_last() -> None:
    shell = Pane("one", 20, 3, [Screen(0.0, of_words("a<b")), Screen(2.0, of_words("a<b", "██"))])
    other = Pane("other", 20, 2, [Screen(1.0, of_words("a<b"))])
    text = draw("a film", [shell, other])
    film = ElementTree.fromstring(text).find(f".//{SVG}g[@class='film']")
    assert film is not None
    shown = [[use.get("href") for use in frame] for frame in film]
    assert shown == [["#l0"], ["#l0", "#l0"], ["#l0", "#l1", "#l0"]]
    moves = re.findall(r"([\d.]+)%\{transform:translateY\((-?\d+)px\)\}", text)
    height = int(moves[1][1])
    assert [int(y) for _, y in moves] == [0, height, 2 * height, 2 * height]
    assert "prefers-reduced-motion:reduce){.film{animation:none}" in text


def test_a_still_picture_does_not_move() -> None:
    text = draw("a picture", [Pane("one", 20, 3, [Screen(7.0, of_words("word"))])])
    assert "animation" not in text and ">word</text>" in text
