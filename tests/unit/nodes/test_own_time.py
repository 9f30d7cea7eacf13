"""Time in which the master did not run is nobody's silence."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.master.own_time import STEADY_S, OwnTime
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import Launch, WorkerLost
from paceline.wire.messages.agent import AgentHello
from paceline.wire.spec import RestartSpec

TICK_S = 0.2
LOST_AFTER_S = 1.0


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Watch:
    """A master of one worker, as far as time and silence go."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.own_time = OwnTime(self.clock)
        self.members = Membership(num_workers=1, num_servers=0, restart=RestartSpec())
        self.members.begin(self.own_time())
        hello = AgentHello(node="worker-0", agent="a", agent_pid=50, host="h")
        self.members.hello(hello, self.own_time())

    def tick(self, after_s: float) -> list[type]:
        self.clock.now_s += after_s
        acts = self.members.tick(
            self.own_time(), lost_after_s=LOST_AFTER_S, others_wait=True, any_committed=True
        )
        return [type(act) for act in acts]


@given(st.lists(st.floats(0.0, STEADY_S), max_size=20))
def test_a_clock_that_is_read_steadily_is_the_clock(steps: list[float]) -> None:
    clock = Clock()
    own_time = OwnTime(clock)
    for step_s in steps:
        clock.now_s += step_s
        assert abs(own_time() - clock.now_s) < 1e-9


@given(st.lists(st.floats(0.0, 1e4), max_size=20))
def test_no_pause_counts_for_more_than_the_longest_time_between_two_looks(
    steps: list[float],
) -> None:
    clock = Clock()
    own_time = OwnTime(clock)
    before_s = own_time()
    for step_s in steps:
        clock.now_s += step_s
        now_s = own_time()
        assert -1e-6 <= now_s - before_s <= min(step_s, STEADY_S) + 1e-6
        before_s = now_s


def test_a_paused_master_does_not_take_its_own_pause_for_silence() -> None:
    watch = Watch()
    watch.tick(TICK_S)
    for _ in range(10):
        assert Launch not in watch.tick(5 * LOST_AFTER_S)
        # What had arrived meanwhile is read a little later.
        watch.tick(TICK_S)
        watch.members.heard("worker-0", watch.own_time())


def test_real_silence_is_seen_as_soon_as_before() -> None:
    watch = Watch()
    ticks = 0
    while Launch not in watch.tick(TICK_S):
        ticks += 1
    assert LOST_AFTER_S - TICK_S <= ticks * TICK_S <= LOST_AFTER_S + TICK_S


def test_silence_around_a_pause_adds_up() -> None:
    watch = Watch()
    seen = [Launch in watch.tick(after_s) for after_s in (0.2, 0.2, 30.0, 0.2, 0.2)]
    assert seen == [False, False, False, True, False]


def test_a_life_is_not_given_up_while_a_new_agent_starts() -> None:
    watch = Watch()
    acts = [act for _ in range(20) for act in watch.tick(TICK_S)]
    assert Launch in acts
    assert WorkerLost not in acts
