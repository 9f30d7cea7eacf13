"""Memory among opportunistic jobs: exchanged in small steps that stay if they help. Pure.

Speeds are mini-batches in a window, each as a part of the worker's faster one of both windows.
"""

from paceline.features.sharing.policy.division import MemoryDivision
from paceline.features.sharing.policy.memory_facts import MemoryExchange, MemoryState
from paceline.features.sharing.wire import MemoryCause, MemoryLimit


def climb(
    state: MemoryState, division: MemoryDivision
) -> tuple[MemoryState, tuple[MemoryLimit, ...]]:
    """Judge the exchange that is under way, or begin one; the state of all that was decided."""
    facts, rules = division.facts, division.rules
    exchange, refused = state.exchange, state.refused
    since_s, made = state.since_s, state.made
    own = {exchange.taker} if exchange is not None else set[str]()
    shares = {worker.name: division.shares[worker.name] for worker in division.others}
    now = {name: (share.batches, share.batch_at_s) for name, share in shares.items()}
    if division.told.keys() - own or now.keys() != made.keys():
        exchange, since_s, made = None, facts.now_s, now
    elif division.told or _is_pending(division):
        since_s, made = facts.now_s, now
    elif facts.now_s - since_s >= rules.step_s:
        rates = {name: _rate(made[name], now[name]) for name in now}
        if exchange is not None and not _helped(exchange.rates, rates, rules.gain):
            refused = {**refused, (exchange.giver, exchange.taker): facts.now_s}
            _move(division, exchange.taker, exchange.giver, exchange.amount, "worse")
            exchange = None
        else:
            if exchange is not None:
                refused = {**refused, (exchange.taker, exchange.giver): facts.now_s}
            exchange = _begin(division, rates, refused)
        since_s, made = facts.now_s, now
    after = MemoryState(
        shares=division.shares,
        came_s=division.came_s,
        goes_on=division.goes_on,
        since_s=since_s,
        made=made,
        exchange=exchange,
        refused=refused,
    )
    return after, tuple(division.told.values())


def _rate(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return mini-batches per second; from one to another, so that no part of one counts."""
    took_s = after[1] - before[1]
    return (after[0] - before[0]) / took_s if took_s > 0 else 0.0


def _is_pending(division: MemoryDivision) -> bool:
    """Tell whether a limit is not in effect yet."""
    return any(
        division.shares[worker.name].owed or not division.shares[worker.name].taken
        for worker in division.others
    )


def _helped(before: dict[str, float], after: dict[str, float], gain: float) -> bool:
    """Tell whether the sum of speeds has risen."""
    best = {name: max(before.get(name, 0.0), after[name], 1e-9) for name in after}
    earlier = sum(before.get(name, 0.0) / best[name] for name in after)
    return sum(after[name] / best[name] for name in after) > earlier * (1 + gain)


def _begin(
    division: MemoryDivision, rates: dict[str, float], refused: dict[tuple[str, str], float]
) -> MemoryExchange | None:
    """Give a worker that spills some of another one's, if that is not known to be wrong."""
    facts, rules = division.facts, division.rules
    if facts.is_unstable or facts.is_paused or not facts.is_steady:
        return None
    for taker in sorted(division.others, key=lambda one: -division.shares[one.name].lacks):
        if not division.shares[taker.name].lacks:
            break
        for giver in sorted(division.others, key=division.spare, reverse=True):
            tried_s = refused.get((giver.name, taker.name), -rules.refused_s)
            amount = min(rules.step * facts.room, division.spare(giver))
            if giver is not taker and amount >= 1 and facts.now_s - tried_s >= rules.refused_s:
                _move(division, giver.name, taker.name, amount, "climb")
                return MemoryExchange(
                    giver=giver.name, taker=taker.name, amount=amount, rates=rates
                )
    return None


def _move(
    division: MemoryDivision, giver: str, taker: str, amount: float, cause: MemoryCause
) -> None:
    division.order(giver, division.shares[giver].limit - amount, cause, by=taker)
    division.owe(taker, amount, cause)
