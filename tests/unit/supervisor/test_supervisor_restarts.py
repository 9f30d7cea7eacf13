from paceline.supervisor.restarts import BUDGET, MAX_DELAY_S, SAME_DELAYS_S, STEADY_S, Backoff


def test_delays_double_up_to_a_limit_until_the_budget_is_used_up() -> None:
    restarts = Backoff()
    delays_s = [restarts.died(lived_s=0.1) for _ in range(BUDGET + 1)]
    assert delays_s[:5] == [0.0, 0.2, 0.4, 0.8, 1.6]
    assert delays_s[-2] == MAX_DELAY_S
    assert delays_s[-1] is None


def test_a_master_that_lived_long_starts_the_count_anew() -> None:
    restarts = Backoff()
    for _ in range(BUDGET):
        restarts.died(lived_s=0.1)
    assert restarts.died(lived_s=STEADY_S) == 0.0


def test_masters_that_die_for_one_and_the_same_reason_are_few() -> None:
    restarts = Backoff()
    delays_s = [restarts.died(0.1, "the port is taken") for _ in range(len(SAME_DELAYS_S) + 1)]
    assert delays_s == [*SAME_DELAYS_S, None]


def test_a_reason_that_changes_starts_the_count_of_equal_ones_again() -> None:
    restarts = Backoff()
    reasons = ["one", "other", "", "one"] * 4
    assert None not in [restarts.died(0.1, reason) for reason in reasons]
    for _ in range(len(SAME_DELAYS_S)):
        restarts.died(0.1, "other")
    assert restarts.died(STEADY_S, "other") == SAME_DELAYS_S[0]
