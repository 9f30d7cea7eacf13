"""Random histories of a cluster under a scheduling policy, every act checked.

``python -m tests.unit.scheduling.histories --seeds 0:10000`` checks as many as one likes.
"""

import argparse
import random
from collections import Counter

from msgspec.structs import replace

from paceline.features.cluster.policy.base import SchedulingPolicy
from paceline.features.cluster.policy.facts import (
    AnySchedulingAct,
    ClusterDevice,
    ClusterFacts,
    ClusterJob,
    HoldJob,
    ReleaseDevices,
    ReserveDevices,
    StartJob,
    Tenant,
    UpgradeJob,
    after,
    without,
)
from paceline.features.cluster.policy.policies.antman import AntMan
from paceline.features.cluster.policy.policies.plain import Fifo, YarnCs

NUM_EVENTS = 30


class History:
    """One cluster, by its seed: machines, tenants, and jobs that come and end at random."""

    def __init__(self, seed: int, policy: SchedulingPolicy | None = None) -> None:
        self.draw = draw = random.Random(seed)
        self.policy = policy or draw.choice(
            (
                AntMan(
                    wait_s=draw.choice((0.0, 60.0, 600.0)), max_opportunistic=draw.randint(1, 3)
                ),
                AntMan(busy=1.1, reserve_s=draw.choice((1.0, 100.0))),
                Fifo(),
                YarnCs(elastic=draw.random() < 0.5),
            )
        )
        devices = tuple(
            ClusterDevice(f"n{node}/{at}", f"n{node}")
            for node in range(draw.randint(1, 4))
            for at in range(draw.randint(1, 4))
        )
        left, tenants = len(devices), []
        for name in "abcd"[: draw.randint(1, 4)]:
            quota = draw.randint(0, left)
            left -= quota
            tenants.append(Tenant(name, quota))
        self.facts = ClusterFacts(now_s=1000.0, tenants=tuple(tenants), devices=devices)
        self.started: set[str] = set()
        self.num_jobs = 0
        self.seen = {
            kind.__name__: 0 for kind in (StartJob, UpgradeJob, ReserveDevices, ReleaseDevices)
        }

    def run(self) -> None:
        """Let things happen, then nothing but ends: every job must have started at last."""
        for _ in range(NUM_EVENTS):
            self.happen()
            self.settle()
        while self.facts.jobs:
            running = [job for job in self.facts.jobs if job.kind]
            assert running, f"nothing runs, and these wait: {self.facts.jobs}"
            self.end(self.draw.choice(running))
            self.settle()
        assert len(self.started) == self.num_jobs

    def happen(self) -> None:
        """One thing."""
        jobs = self.facts.jobs
        if not jobs or self.draw.random() < 0.6:
            self.submit()
        elif running := [job for job in jobs if job.kind]:
            self.end(self.draw.choice(running))
        loads = {name for job in self.facts.jobs for name in job.devices}
        devices = tuple(
            replace(one, load=self.draw.random() if one.name in loads else 0.0)
            for one in self.facts.devices
        )
        now_s = self.facts.now_s + self.draw.choice((0.0, 1.0, 30.0, 300.0))
        self.facts = replace(self.facts, devices=devices, now_s=now_s)

    def submit(self) -> None:
        """A job comes, unless it could never start."""
        draw, facts = self.draw, self.facts
        job = ClusterJob(
            job_id=f"j{self.num_jobs:03}",
            tenant=draw.choice(facts.tenants).name,
            asked=draw.choice(("guaranteed", "opportunistic", "auto")),
            size=draw.choice((1, 1, 2, 3, 4, 8)),
            one_node=draw.random() < 0.5,
            expected_s=draw.choice((None, 5.0, 100.0, 1000.0)),
            submitted_s=facts.now_s,
        )
        if not self.policy.refusal(facts, job):
            self.num_jobs += 1
            self.facts = replace(facts, jobs=(*facts.jobs, job))

    def end(self, job: ClusterJob) -> None:
        """A running job is over, and with it the load of its devices."""
        facts = without(self.facts, job.job_id)
        busy = {name for one in facts.jobs for name in one.devices}
        devices = tuple(
            one if one.name in busy else replace(one, load=0.0) for one in facts.devices
        )
        if not busy:
            devices = tuple(replace(one, load=0.0) for one in devices)
        # Long enough for the newest jobs to be part of their devices' load.
        self.facts = replace(facts, devices=devices, now_s=facts.now_s + 20.0)

    def settle(self) -> None:
        """Do what the policy says until it says nothing more."""
        for _ in range(len(self.facts.jobs) + 2):
            acts = self.policy.decide(self.facts)
            self.check_holds(acts)
            for act in acts:
                self.check(act)
                self.facts = after(self.facts, act)
                self.check_state()
            if all(isinstance(act, HoldJob) for act in acts):
                return
        raise AssertionError("the policy comes to no end")

    # ------------------------------------------------------------------ what must hold

    def check_holds(self, acts: list[AnySchedulingAct]) -> None:
        """Every job that goes on waiting has one reason, and no other job has one."""
        facts = self.facts
        for act in acts:
            facts = after(facts, act)
        held = [act.job_id for act in acts if isinstance(act, HoldJob)]
        assert sorted(held) == [job.job_id for job in facts.jobs if job.kind is None]
        assert all(act.reason for act in acts)

    def check(self, act: AnySchedulingAct) -> None:
        """What is ordered is allowed at this moment."""
        job = next(one for one in self.facts.jobs if one.job_id == act.job_id)
        match act:
            case StartJob():
                assert job.kind is None
                self.check_devices(job, act.devices)
                assert act.kind == "opportunistic" or job.asked != "opportunistic" or self.is_plain
                self.check_first(job, act)
                if act.kind == "guaranteed":
                    kept = [one.reserved for one in self.facts.jobs if one != job]
                    assert set().union(*kept).isdisjoint(act.devices)
                self.started.add(job.job_id)
            case UpgradeJob():
                assert (job.asked, job.kind) == ("auto", "opportunistic")
            case ReserveDevices():
                assert job.kind is None and not job.reserved
                self.check_devices(job, act.devices)
            case ReleaseDevices():
                assert job.reserved and job.reserved_until_s <= self.facts.now_s
            case HoldJob():
                return
        self.seen[type(act).__name__] += 1

    def check_devices(self, job: ClusterJob, names: tuple[str, ...]) -> None:
        """A gang has all of its devices, on one machine if it must."""
        nodes = {one.name: one.node for one in self.facts.devices}
        assert len(set(names)) == len(names) == job.size
        assert len({nodes[name] for name in names}) == 1 or not job.one_node

    def check_first(self, job: ClusterJob, act: StartJob) -> None:
        """No job of the same line was submitted before."""
        earlier = [one for one in self.facts.jobs if one.kind is None and one.job_id < job.job_id]
        if not isinstance(self.policy, Fifo):
            earlier = [one for one in earlier if one.tenant == job.tenant]
        if self.is_plain:
            assert not earlier
        elif act.kind == "guaranteed":
            quota = self.facts.quota_of(job.tenant)
            assert all(
                one.asked == "opportunistic" or (one.asked == "auto" and one.size > quota)
                for one in earlier
            )
        else:
            assert all(one.asked != "opportunistic" for one in earlier)

    @property
    def is_plain(self) -> bool:
        return not isinstance(self.policy, AntMan)

    def check_state(self) -> None:
        """Quotas, one guaranteed job for each device, the cap, reservations without overlap.

        Counted here, and not with the functions that the policies themselves use.
        """
        jobs = self.facts.jobs
        guaranteed, others = (
            Counter(name for job in jobs if job.kind == kind for name in job.devices)
            for kind in ("guaranteed", "opportunistic")
        )
        assert max(guaranteed.values(), default=0) <= 1
        if self.policy.has_quotas:
            used = Counter[str]()
            for job in jobs:
                used[job.tenant] += job.size if job.kind == "guaranteed" else 0
            assert all(used[one.name] <= one.quota for one in self.facts.tenants)
        if isinstance(self.policy, AntMan):
            assert max(others.values(), default=0) <= self.policy.max_opportunistic
        else:
            assert max(others.values(), default=0) <= 1
            assert guaranteed.keys().isdisjoint(others)
        reserved = [name for job in jobs for name in job.reserved]
        assert len(set(reserved)) == len(reserved)
        assert all(job.kind is None for job in jobs if job.reserved)


def main() -> None:
    """Run histories, and say what happened in them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:behind the last")
    first, _, last = parser.parse_args().seeds.partition(":")
    seen: dict[str, int] = {}
    for seed in range(int(first), int(last)):
        history = History(seed)
        try:
            history.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {history.policy}") from error
        for kind, count in {**history.seen, "jobs": history.num_jobs}.items():
            seen[kind] = seen.get(kind, 0) + count
    print(f"{int(last) - int(first)} histories: {seen}")


if __name__ == "__main__":
    main()
