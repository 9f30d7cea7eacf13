"""Servers of asynchronous jobs: each handles one contribution after the other."""

import pytest
from paceline_experiments.sim.nodes import Servers
from paceline_experiments.sim.patterns import AnyPattern, Clock, Persistent

from tests.simulated import NOISY, changed

FAST_S = NOISY.traffic.part_s + NOISY.traffic.update_s


def slow(clock: Clock = "seconds", start: float = 0.0) -> Persistent:
    return Persistent(role="server", clock=clock, nodes=(0,), delay_s=3.0, start=start)


def servers_of(pattern: AnyPattern) -> Servers:
    return Servers(changed(NOISY, mode="asp", servers=2, patterns=(pattern,)), 0)


def test_a_contribution_is_over_when_the_slowest_server_is_done_with_all_before() -> None:
    servers = servers_of(slow())
    ends_s = [servers.handle(1.0).over_s for _ in range(3)]
    assert ends_s == pytest.approx([1.0 + count * (3.0 + FAST_S) for count in (1, 2, 3)])


def test_what_disturbs_a_server_counts_from_when_it_comes_to_a_contribution() -> None:
    servers = servers_of(slow(start=FAST_S / 2))
    assert servers.handle(0.0).over_s == pytest.approx(FAST_S)
    assert servers.handle(0.0).over_s == pytest.approx(2 * FAST_S + 3.0)


def test_a_servers_iterations_are_contributions() -> None:
    servers = servers_of(slow("iterations", start=2))
    sent = [servers.handle(0.0) for _ in range(3)]
    assert [one.update_s[0] > 1.0 for one in sent] == [False, False, True]


@pytest.mark.parametrize("clock", ["seconds", "iterations"])
def test_a_fresh_server_handles_what_the_old_one_has_not_begun(clock: Clock) -> None:
    servers = servers_of(slow(clock))
    sent = [servers.handle(0.0) for _ in range(4)]
    first_s = sent[0].over_s
    servers.replace(0, now_s=1.0)
    assert sent[0].over_s == first_s
    assert sent[0].update_s[0] == 0.0  # that was the old one's time
    assert [one.over_s - first_s for one in sent[1:]] == pytest.approx(
        [count * FAST_S for count in (1, 2, 3)]
    )
    assert servers.handle(0.0).over_s == pytest.approx(first_s + 4 * FAST_S)


def test_a_pause_delays_what_is_not_begun() -> None:
    servers = servers_of(slow())
    sent = [servers.handle(0.0) for _ in range(2)]
    before_s = [one.over_s for one in sent]
    servers.pause(now_s=1.0, seconds=5.0)
    assert [one.over_s for one in sent] == pytest.approx([before_s[0], before_s[1] + 5.0])
    assert servers.handle(0.0).over_s == pytest.approx(before_s[1] + 5.0 + 3.0 + FAST_S)
