"""Where a member's shard has its second copy."""

import pytest

from paceline.protocol.holding.group.member import second_machine
from paceline.wire.messages.group import Member


def members(machines: str) -> list[Member]:
    """One member for each letter; those of ``a`` are on the master's machine."""
    return [
        Member(number, f"worker-{number}", "door", name != "a", "" if name == "a" else f"{name}{number}")
        for number, name in enumerate(machines)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("machines", "found"),
    [
        ("a", [""]),
        ("aa", ["", ""]),
        ("aabb", ["b2", "b3", "", ""]),
        ("abc", ["b1", "", ""]),
        ("aaab", ["b3", "b3", "b3", ""]),
        ("bb", ["", ""]),
    ],
)
def test_a_shard_of_the_masters_machine_is_copied_to_another_one(
    machines: str, found: list[str]
) -> None:
    """One of another machine has its copy on the master's."""
    there = members(machines)
    assert [second_machine(one.inc, there) for one in there] == found
