import os
import time
from pathlib import Path

import pytest

from paceline.agent import facts as agent_facts
from paceline.agent.facts import LOOKED_S, FactsReader, Silence, read_log_tail, read_usage
from paceline.base.cgroups import NodeGroup
from paceline.wire.messages.node import ProcessUp
from paceline.wire.step_ledger import StepLedgerWriter


def up(inc: int, role: str = "worker") -> ProcessUp:
    return ProcessUp(node=f"{role}-0", inc=inc, pid=os.getpid(), role=role)


def write(ledger: StepLedgerWriter, step: int, bpt_s: float, samples: int = 10) -> None:
    ledger.write(
        step=step,
        t_start_s=0.0,
        bpt_s=bpt_s,
        compute_s=bpt_s / 2,
        server_s=bpt_s / 4,
        message_s=bpt_s / 8,
        wait_s=bpt_s / 8,
        data_s=bpt_s / 16,
        samples=samples,
    )


def test_means_are_over_the_steps_since_the_last_read(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.ledger"
    reader = FactsReader(path)
    assert reader.read(up(1)).steps == 0
    ledger = StepLedgerWriter(path, inc=1)
    write(ledger, 1, 1.0)
    write(ledger, 2, 3.0)
    facts = reader.read(up(1))
    assert (facts.steps, facts.step, facts.samples) == (2, 2, 20)
    assert (facts.bpt_s, facts.compute_s, facts.message_s) == (2.0, 1.0, 0.25)
    assert facts.data_s == 0.125
    assert facts.compute_max_s == 1.5
    write(ledger, 3, 8.0)
    assert reader.read(up(1)).bpt_s == 8.0
    nothing_new = reader.read(up(1))
    assert (nothing_new.steps, nothing_new.bpt_s, nothing_new.step) == (0, 0.0, 3)


def test_the_step_of_a_life_is_known_after_its_end_and_no_other_s(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.ledger"
    reader = FactsReader(path)
    assert reader.step_of(1) is None
    StepLedgerWriter(path, inc=1).begin(8)
    assert (reader.step_of(1), reader.step_of(2)) == (8, None)


def test_a_step_without_samples_is_in_no_mean(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.ledger"
    reader = FactsReader(path)
    ledger = StepLedgerWriter(path, inc=1)
    write(ledger, 1, 1.0, samples=6)
    write(ledger, 2, 100.0, samples=0)
    write(ledger, 3, 3.0, samples=8)
    facts = reader.read(up(1))
    assert (facts.step, facts.steps, facts.step_samples, facts.compute_s) == (3, 2, 7.0, 1.0)


def test_the_longest_of_batches_of_several_sizes_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.ledger"
    reader = FactsReader(path)
    ledger = StepLedgerWriter(path, inc=1)
    write(ledger, 1, 4.0, samples=100)
    write(ledger, 2, 4.4, samples=105)
    assert reader.read(up(1)).compute_max_s == 2.2
    # A worker that does its part of a lost one's share has a small batch beside its own.
    write(ledger, 3, 4.0, samples=100)
    write(ledger, 4, 0.2, samples=5)
    assert reader.read(up(1)).compute_max_s == 0.0


def test_a_server_reports_its_own_time_per_round(tmp_path: Path) -> None:
    path = tmp_path / "server-0.ledger"
    reader = FactsReader(path)
    ledger = StepLedgerWriter(path, inc=1)
    write(ledger, 1, 0.4, samples=1)
    write(ledger, 2, 0.8, samples=3)
    facts = reader.read(up(1, "server"))
    assert (facts.step, facts.steps, facts.samples, facts.bpt_s) == (2, 4, 0, 0.0)
    assert facts.server_s == (1 * 0.1 + 3 * 0.2) / 4


def test_the_ledger_of_a_former_life_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.ledger"
    ledger = StepLedgerWriter(path, inc=1)
    write(ledger, 1, 1.0)
    facts = FactsReader(path).read(up(2))
    assert (facts.inc, facts.steps, facts.samples) == (2, 0, 0)


def test_a_new_agent_does_not_report_again_what_its_predecessor_did(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.ledger"
    ledger = StepLedgerWriter(path, inc=1)
    for step in range(1, 6):
        write(ledger, step, 1.0)
    reader = FactsReader(path)
    reader.skip_past()
    write(ledger, 6, 2.0)
    facts = reader.read(up(1))
    assert (facts.steps, facts.bpt_s, facts.samples) == (1, 2.0, 60)


def test_a_file_that_is_no_ledger_leaves_the_kernels_facts(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.ledger"
    path.write_bytes(b"something else, long enough for a header" * 4)
    facts = FactsReader(path).read(up(1))
    assert facts.steps == 0
    assert facts.rss_bytes > 1 << 20


def test_usage_of_a_living_process_is_positive_and_of_a_dead_one_zero() -> None:
    cpu_s, rss_bytes = read_usage(os.getpid())
    assert 0.0 < cpu_s < os.times().elapsed
    assert rss_bytes > 1 << 20
    assert read_usage(1 << 22) == (0.0, 0)


def test_a_log_tail_has_the_last_lines_of_this_life_only(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    assert read_log_tail(log, 0) == ""
    log.write_text("former life\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(30))
    assert read_log_tail(log, start).splitlines() == [f"line {number}" for number in range(10, 30)]
    log.write_text("former life\nlast words\n")
    assert read_log_tail(log, start) == "last words"


def test_what_a_member_is_at_is_told_with_how_long_it_has_been(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.ledger"
    reader = FactsReader(path)
    ledger = StepLedgerWriter(path, inc=1)
    assert (reader.read(up(1)).computing_s, reader.read(up(1)).waiting_s) == (0.0, 0.0)
    ledger.mark(time.monotonic() - 3.0)
    facts = reader.read(up(1))
    assert 3.0 <= facts.computing_s < 5.0
    assert facts.waiting_s == 0.0
    ledger.mark(-(time.monotonic() - 2.0))
    facts = reader.read(up(1))
    assert facts.computing_s == 0.0
    assert 2.0 <= facts.waiting_s < 4.0
    assert reader.read(up(2)).waiting_s == 0.0, "of another life"


def test_silence_counts_while_a_process_does_nothing_and_we_are_there_to_see_it() -> None:
    silence = Silence().after(1, 5.0, 100.0)
    for now_s in (101.0, 102.0, 103.0):
        silence = silence.after(1, 5.0, now_s)
    assert silence.silent_s == 3.0
    assert silence.after(1, 5.03, 104.0).silent_s == 4.0, "a thread that looks around"
    assert silence.after(1, 5.5, 104.0).silent_s == 0.0, "it works"
    assert silence.after(2, 5.0, 104.0).silent_s == 0.0, "another life"
    assert silence.after(1, 5.0, 1000.0).silent_s == 3.0 + LOOKED_S, "we were stopped, too"


def test_who_says_something_is_not_silent(tmp_path: Path) -> None:
    reader = FactsReader(tmp_path / "worker-0.ledger")
    reader.read(up(1))
    time.sleep(0.02)
    assert reader.read(up(1)).silent_s > 0
    reader.heard()
    assert reader.read(up(1)).silent_s == 0.0


def test_a_process_that_has_ended_used_what_it_was_last_seen_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = [(3.0, 100), (0.0, 0), (0.0, 0)]
    monkeypatch.setattr("paceline.agent.facts.read_usage", lambda _: usage.pop(0))
    reader = FactsReader(tmp_path / "ledger")
    found = [reader.read(up(inc)) for inc in (1, 1, 2)]
    assert [(facts.cpu_s, facts.rss_bytes) for facts in found] == [(3.0, 100), (3.0, 100), (0.0, 0)]


def test_of_a_crash_the_thread_that_crashed_is_the_last_word(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    others = ["Thread 0x1 (most recent call first):", '  File "queue.py", line 9 in get', ""] * 20
    frame = '  File "train.py", line 7 in <module>'
    current = ["Current thread 0x2 (most recent call first):", frame]
    said = ["loss 0.3", "Fatal Python error: Segmentation fault", "", *others, *current, "", "Ext"]
    log.write_text("\n".join(said))
    assert read_log_tail(log, 0).splitlines() == [said[1], "", *current]


def test_what_a_process_waits_for_a_processor_is_told_per_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waited = tmp_path / "worker-0.ledger", iter([5.0, 6.0, 9.0])
    monkeypatch.setattr(agent_facts, "read_stolen_s", lambda _: next(waited))
    reader, ledger = FactsReader(path), StepLedgerWriter(path, inc=1)
    write(ledger, 1, 1.0)
    assert reader.read(up(1)).stolen_s == 0.0, "what was before its first step is not known"
    assert reader.read(up(1)).stolen_s == 0.0
    write(ledger, 2, 1.0)
    write(ledger, 3, 1.0)
    assert reader.read(up(1)).stolen_s == 0.5
    write(ledger, 4, 1.0)
    assert reader.read(up(1)).stolen_s == 3.0


def test_the_wait_for_a_processor_is_the_kernels_and_0_where_it_tells_none() -> None:
    assert agent_facts.read_stolen_s(os.getpid()) >= 0.0
    assert agent_facts.read_stolen_s(2**22 + 1) == 0.0


class Throttled(NodeGroup):
    """A group of one processor's quota."""

    seconds, is_cut = 5.0, True

    def throttled_s(self) -> float:
        return self.seconds


def test_what_a_cut_quota_takes_from_a_node_is_said_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waited_s = tmp_path / "worker-0.ledger", 1.0
    monkeypatch.setattr(agent_facts, "read_stolen_s", lambda pid: waited_s)
    group = Throttled({})
    reader, ledger = FactsReader(path, group), StepLedgerWriter(path, inc=1)
    write(ledger, 1, 1.0)
    reader.read(up(1))
    waited_s, group.seconds = 4.0, 7.0
    write(ledger, 2, 1.0)
    facts = reader.read(up(1))
    assert (facts.stolen_s, facts.throttled_s) == (3.0, 2.0)
    # Two of its threads are throttled on two processors.
    waited_s, group.seconds = 5.0, 9.0
    write(ledger, 3, 1.0)
    facts = reader.read(up(1))
    assert (facts.stolen_s, facts.throttled_s) == (1.0, 1.0)
    # A node that needs more than it was granted has as little everywhere.
    waited_s, group.seconds, group.is_cut = 7.0, 11.0, False
    write(ledger, 4, 1.0)
    facts = reader.read(up(1))
    assert (facts.stolen_s, facts.throttled_s) == (2.0, 0.0)
