"""The time of a job goes on whatever is done to the machine's clock."""

from paceline.master.job_clock import JobClock, boot_id, since_boot_s


class Machine:
    """Two clocks, of which people set one."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s, self.boot = 1000.0, 50.0, "first"

    def clock(self) -> JobClock:
        """Of a master that starts now."""
        return JobClock(lambda: self.wall_s, lambda: self.steady_s, self.boot)

    def live(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def test_a_jump_of_the_machine_s_clock_changes_no_time() -> None:
    machine = Machine()
    clock = machine.clock()
    for jump_s in (-7200.0, 7200.0):
        before_s = clock()
        machine.wall_s += jump_s
        machine.live(3.0)
        assert clock() - before_s == 3.0


def test_the_next_master_counts_on_from_the_first_start_over_a_jump() -> None:
    machine = Machine()
    first = machine.clock()
    machine.live(10.0)
    machine.wall_s -= 7200.0
    second = machine.clock()
    second.go_on(first.started)
    machine.live(5.0)
    assert second() - second.started.started_s == 15.0


def test_on_another_run_of_the_machine_its_clock_is_all_there_is() -> None:
    machine = Machine()
    first = machine.clock()
    machine.wall_s, machine.steady_s, machine.boot = 5000.0, 1.0, "second"
    second = machine.clock()
    second.go_on(first.started)
    machine.live(5.0)
    assert second() - second.started.started_s == 4005.0


def test_the_kernel_says_which_run_it_is_and_how_long() -> None:
    assert boot_id()
    assert since_boot_s() > 0
