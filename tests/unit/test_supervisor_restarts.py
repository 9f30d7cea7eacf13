from paceline.supervisor.restarts import BUDGET, MAX_DELAY_S, STEADY_S, Restarts


def test_delays_double_up_to_a_limit_until_the_budget_is_used_up() -> None:
    restarts = Restarts()
    delays_s = [restarts.died(lived_s=0.1) for _ in range(BUDGET + 1)]
    assert delays_s[:5] == [0.0, 0.2, 0.4, 0.8, 1.6]
    assert delays_s[-2] == MAX_DELAY_S
    assert delays_s[-1] is None


def test_a_master_that_lived_long_starts_the_count_anew() -> None:
    restarts = Restarts()
    for _ in range(BUDGET):
        restarts.died(lived_s=0.1)
    assert restarts.died(lived_s=STEADY_S) == 0.0
