"""A slice of the seeded chaos runs, with solutions and replaced servers; ``make chaos`` runs 200."""

import itertools
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import grouped, hunt, interrupted, models
from tests.chaos.faults import ROLES, kinds_for, pace_connections, unpace_quietly
from tests.chaos.moments import SUMS, WHATS
from tests.chaos.run import SOLUTIONS, case_of, full_case_of, run, summary

SLICE = (84, 85, 87, 89, 91, 92)
"""Every mode and role, and most solutions, in few seeds."""
IN_CI = (87,)
"""The others are of the long suite; CI has test_in_short, too."""
ALL = range(200)
SENDER = """
import socket, sys, time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while True:
    sock.sendall(bytes(100))
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def test_the_slice_covers_every_mode_and_role() -> None:
    cases = [full_case_of(seed) for seed in SLICE]
    assert {case.mode for case in cases} == {"bsp", "ssp", "asp"}
    assert {case.samples for case in cases} == {"exactly-once", "at-least-once", "at-most-once"}
    roles = {fault.role for case in cases for fault in case.faults}
    assert roles == {"worker", "server", "agent", "master", "supervisor"}
    assert "replace" in {fault.kind for case in cases for fault in case.faults}
    assert len({case.solution for case in cases}) >= 6


def test_a_case_is_a_function_of_its_seed() -> None:
    assert [full_case_of(seed) for seed in ALL] == [full_case_of(seed) for seed in ALL]


def test_100_seeds_run_every_solution_in_every_mode_and_replace_servers_under_each() -> None:
    cases = [full_case_of(seed) for seed in ALL[:100]]
    assert {(case.mode, case.solution) for case in cases} == set(
        itertools.product(("bsp", "ssp", "asp"), SOLUTIONS)
    )
    moved = {case.solution for case in cases for fault in case.faults if fault.kind == "replace"}
    assert moved == {*SOLUTIONS}


def test_200_seeds_do_everything_to_everybody_by_samples_and_by_time() -> None:
    faults = [fault for seed in ALL for fault in case_of(seed).faults]
    assert {(fault.role, fault.kind) for fault in faults} == {
        (role, kind) for role in ROLES for kind in kinds_for(role, tcp=True)
    }
    by_time = {(fault.role, fault.at_committed is None) for fault in faults}
    assert by_time == {(role, timed) for role in ROLES for timed in (False, True)}
    assert 0.15 < sum(fault.at_committed is None for fault in faults) / len(faults) < 0.35


def test_200_seeds_do_everything_in_every_mode() -> None:
    cases = [case_of(seed) for seed in ALL]
    modes = {(case.mode, case.samples) for case in cases}
    assert len(modes) == 7
    met = {
        (case.mode, case.samples, value)
        for case in cases
        for value in (
            *(fault.role for fault in case.faults),
            f"set-up {case.setup_s}",
            f"record {case.record_s}",
            case.data_plane.transport,
        )
    }
    assert len(met) == len(modes) * (len(ROLES) + 2 + 2 + 2)
    assert {case.staleness for case in cases if case.mode == "ssp" and case.record_s} == {1, 3}


@pytest.mark.soak  # it goes by the clock
def test_a_delayed_connection_is_a_trickle_until_it_is_taken_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", SENDER, port]) as sender:
            sock, _ = listener.accept()
            try:
                free = received_in(sock, 0.3)
                assert pace_connections(sender.pid, 1_000) == 1
                received_in(sock, 0.1)  # what was on its way
                paced = received_in(sock, 0.3)
                unpace_quietly(sender.pid)
                received_in(sock, 1.0)  # the time of the last packet
                freed = received_in(sock, 0.3)
            finally:
                sender.kill()
                sock.close()
    assert free > 1_000
    assert paced <= 500
    assert freed > 1_000


def received_in(sock: socket.socket, for_s: float) -> int:
    """Bytes that arrive in the next seconds."""
    end_s = time.monotonic() + for_s
    num_bytes = 0
    while (left_s := end_s - time.monotonic()) > 0:
        sock.settimeout(left_s)
        try:
            num_bytes += len(sock.recv(1 << 16))
        except TimeoutError:
            break
    return num_bytes


def test_the_summary_names_failed_and_slow_seeds() -> None:
    text = summary({3: 4.0, 4: 5.0, 5: 21.5}, [4])
    assert text == ("3 seeds, 1 failed [4], 1 took longer than 15 s [5], median 5.0 s, max 21.5 s")


def in_slice(seed: int) -> Any:
    """Mark a seed with what its run proves: who is killed, where each sample counts once."""
    case = full_case_of(seed)
    deaths = tuple({fault.role for fault in case.faults if fault.kind == "kill"})
    proves = pytest.mark.proves(
        form="batches", strategy=f"ps {case.mode}", death=deaths, ends="counted"
    )
    marks = [pytest.mark.soak] * (seed not in IN_CI)
    return pytest.param(seed, marks=marks + [proves] * (case.samples == "exactly-once"))


@pytest.mark.parametrize("seed", [in_slice(seed) for seed in SLICE])
def test_planted_counts_hold_whatever_dies(seed: int) -> None:
    run(full_case_of(seed))


GROUPED = (51, 3, 32)
"""Workers that are cut off, silent, slow, and killed as a group forms and in a sum, with what is
around them."""


def grouped_case(seed: int, *, deterministic: bool = False) -> grouped.Case:
    case = grouped.with_solution(grouped.case_of(seed), deterministic=deterministic)
    return grouped.with_sum(grouped.with_moment(case))


def test_the_slice_of_groups_does_most_things_to_workers() -> None:
    cases = [grouped_case(seed) for seed in GROUPED]
    kinds = {fault.kind for case in cases for fault in case.faults if fault.role == "worker"}
    assert kinds >= {"kill", "cut", "silence", "slow"}
    assert {case.solution[0] for case in cases} >= {"dd", "nd", "auto"}
    assert {moment.what for case in cases for moment in case.moments} >= {SUMS}


def test_35_seeds_kill_workers_under_every_solution() -> None:
    killed = {
        case.solution[0]
        for case in map(grouped_case, range(35))
        for fault in case.faults
        if (fault.role, fault.kind) == ("worker", "kill")
    }
    assert killed == {name for name, _ in grouped.SOLUTIONS}


def test_20_seeds_kill_workers_at_every_moment_also_of_the_first_group() -> None:
    moments = [moment for seed in range(20) for moment in grouped_case(seed).moments]
    assert {moment.what for moment in moments} == {*WHATS, SUMS}
    assert not all(moment.from_committed for moment in moments)


@pytest.mark.soak
@pytest.mark.proves(form="batches", strategy="allreduce", death="worker", ends="counted")
@pytest.mark.parametrize("seed", [3, 51, 32])
def test_a_group_survives(seed: int) -> None:
    grouped.run(grouped_case(seed))


@pytest.mark.soak
@pytest.mark.proves(form="batches", strategy="allreduce", death="worker")
def test_a_deterministic_group_ends_with_the_bits_of_one_worker() -> None:
    grouped.run(grouped_case(106, deterministic=True), deterministic=True)


@pytest.mark.soak
@pytest.mark.proves(form="batches", strategy="{strategy}", death="worker")
@pytest.mark.parametrize(("strategy", "seed"), [("ps", 11), ("allreduce", 20)])
def test_a_model_ends_as_if_nothing_had_happened(strategy: models.Strategy, seed: int) -> None:
    """Workers are killed on servers, and in a group, also as it forms."""
    models.run(models.case_of(seed, strategy))


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "bug", [bug for bug in hunt.BUGS if bug.kit is hunt.MODELS], ids=lambda bug: bug.name
)
def test_a_planted_bug_of_models_is_found(bug: hunt.Bug) -> None:
    assert hunt.hunt(bug)


@pytest.mark.soak
@pytest.mark.proves(form="batches", strategy="fsdp", death="worker", ends="counted")
def test_a_group_of_shards_survives() -> None:
    grouped.run(grouped.with_moment(grouped.with_shards(grouped.case_of(4))))


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["allreduce", "fsdp", "ps"])
def test_whatever_calls_itself_a_cut_is_whole(strategy: str) -> None:
    facts = interrupted.run(strategy, kills=2, seed=0, ballast=1 << 20)
    assert facts["cuts_checked"]
