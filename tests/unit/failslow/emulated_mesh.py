"""A hybrid-parallel job in virtual time: what each rank records of its calls, each on its own clock."""

import dataclasses
import random
from collections import Counter, defaultdict

from paceline.features.failslow.policy.profile import ProfileWindow, TimedCall

FORWARD_S, BACKWARD_S, ALL_REDUCE_S, TENSOR_S, TRANSFER_S = 0.010, 0.020, 0.030, 0.001, 0.002


@dataclasses.dataclass
class EmulatedMesh:
    """Tensor ranks are next to each other, then replicas, then stages."""

    tp: int = 2
    dp: int = 2
    pp: int = 2
    micro_batches: int = 4
    noise: float = 0.02
    seed: int = 1
    factors: dict[int, float] = dataclasses.field(default_factory=dict)
    """Computing of these ranks takes so many times as long."""
    links: dict[tuple[int, ...], float] = dataclasses.field(default_factory=dict)
    """Transfers of these groups take so many times as long."""
    shared: dict[int, int] = dataclasses.field(default_factory=dict)
    """Micro-batches of a replica."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = defaultdict[int, float](float)
        self.numbers = Counter[tuple[int, ...]]()
        self.calls: list[TimedCall] = []
        self.skew = defaultdict[int, float](lambda: self.random.uniform(0.0, 1000.0))

    @property
    def size(self) -> int:
        return self.tp * self.dp * self.pp

    def rank(self, stage: int, replica: int, tensor: int) -> int:
        return (stage * self.dp + replica) * self.tp + tensor

    def compute(self, rank: int, seconds: float) -> None:
        noise = 1.0 + self.noise * abs(self.random.gauss(0.0, 1.0))
        self.now[rank] += seconds * self.factors.get(rank, 1.0) * noise

    def meet(
        self, group: tuple[int, ...], ops: tuple[str, ...], num_bytes: int, seconds: float
    ) -> None:
        """A call that none leaves before the last has come."""
        if len(group) < 2:
            return
        noise = 1.0 + self.noise * abs(self.random.gauss(0.0, 1.0))
        end_s = max(self.now[rank] for rank in group) + seconds * self.links.get(group, 1.0) * noise
        self.numbers[group] += 1
        for place, rank in enumerate(group):
            skew = self.skew[rank]
            self.calls.append(
                TimedCall(
                    rank,
                    group,
                    ops[place % len(ops)],
                    num_bytes,
                    self.numbers[group],
                    self.now[rank] + skew,
                    end_s + skew,
                    end_s - self.now[rank],
                )
            )
            self.now[rank] = end_s

    def half(self, replica: int, seconds: float, *, down: bool) -> None:
        """All micro-batches of a replica, one way through its stages."""
        stages = range(self.pp) if down else range(self.pp - 1, -1, -1)
        for _ in range(self.shared.get(replica, self.micro_batches)):
            for stage in stages:
                ranks = tuple(self.rank(stage, replica, tensor) for tensor in range(self.tp))
                for rank in ranks:
                    self.compute(rank, seconds)
                self.meet(ranks, ("all_reduce",), 1 << 20, TENSOR_S)
                after = stage + 1 if down else stage - 1
                if 0 <= after < self.pp:
                    for tensor in range(self.tp):
                        pair = self.rank(stage, replica, tensor), self.rank(after, replica, tensor)
                        self.meet(pair, ("isend", "irecv"), 1 << 21, TRANSFER_S)

    def window(self, steps: int = 8) -> ProfileWindow:
        spans = defaultdict[int, list[tuple[float, float]]](list)
        for _ in range(steps):
            starts = {rank: self.now[rank] + self.skew[rank] for rank in range(self.size)}
            for replica in range(self.dp):
                self.half(replica, FORWARD_S, down=True)
                self.half(replica, BACKWARD_S, down=False)
            for stage in range(self.pp):
                for tensor in range(self.tp):
                    group = tuple(self.rank(stage, replica, tensor) for replica in range(self.dp))
                    self.meet(group, ("_allreduce_",), 1 << 24, ALL_REDUCE_S)
            for rank, start_s in starts.items():
                spans[rank].append((start_s, self.now[rank] + self.skew[rank]))
        return ProfileWindow(
            calls=tuple(self.calls),
            steps={rank: tuple(each) for rank, each in spans.items()},
            work={
                self.rank(stage, replica, tensor): float(count)
                for replica, count in self.shared.items()
                for stage in range(self.pp)
                for tensor in range(self.tp)
            },
        )
