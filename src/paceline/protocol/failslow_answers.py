"""What the ranks of a script have told, put together for the policies that look at all of them."""

from collections.abc import Mapping

from paceline.policy.failslow.profile import ProfileWindow, TimedCall
from paceline.policy.failslow.validation import Measurements
from paceline.wire.call_ring import OPS
from paceline.wire.messages.agent import CallsTold
from paceline.wire.messages.failslow import RankMeasured

WINDOW_STEPS = 20
"""Of a profile, at most."""


def window_of(told: Mapping[int, CallsTold]) -> ProfileWindow | None:
    """Make a window of what agents have told, of the newest steps that all ranks have noted.

    None: there are none, or no call's end is seen (as on GPUs), so that nobody knows what a rank
    computed and for what it waited.
    """
    every = [call for each in told.values() for call in each.noted.calls]
    if every and not any(call.end_s for call in every):
        return None
    by_step = [{step.step: step for step in each.noted.steps} for each in told.values()]
    common = sorted(set.intersection(*map(set, by_step)))[-WINDOW_STEPS:] if by_step else []
    if not common:
        return None
    wanted = set(common)
    calls = [
        TimedCall(
            rank=rank,
            group=group.ranks,
            op=OPS[call.op],
            num_bytes=call.num_bytes,
            seq=call.seq,
            start_s=call.start_s,
            end_s=call.end_s,
            blocked_s=call.end_s - call.wait_s if call.wait_s else None,
        )
        for rank, each in told.items()
        for call in each.noted.calls
        if call.end_s and call.step in wanted and (group := each.noted.groups[call.group])
    ]
    spans = {
        rank: tuple((steps[n].start_s, steps[n].start_s + steps[n].took_s) for n in common)
        for rank, steps in zip(told, by_step, strict=True)
    }
    return ProfileWindow(calls=tuple(calls), steps=spans, same_clock=True)


def measurements_of(measured: Mapping[int, RankMeasured], ranks: Mapping[str, int]) -> Measurements:
    """Put the ranks' measurements together; of a link's two ends the slower one counts."""
    products: dict[int, float] = {}
    hops: dict[tuple[int, int], float] = {}
    for rank, message in measured.items():
        speed = message.speed
        if speed is None:
            continue
        products[rank] = 1e9 / (speed.matmul_flops * speed.cpu_share)
        for link in speed.links:
            hop = (min(rank, ranks[link.node]), max(rank, ranks[link.node]))
            hops[hop] = max(hops.get(hop, 0.0), 1e6 / link.bytes_per_s)
    return Measurements(products_s=products, hops=tuple(hops.items()))
