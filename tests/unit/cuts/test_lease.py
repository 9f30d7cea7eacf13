"""One run of a job writes at a URL: who has the lease, and who finds out that it is gone."""

import threading
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError
from paceline.cuts import lease
from paceline.cuts.lease import BEING_WRITTEN, LEASE, Lease, LeaseKeeper, UrlLease


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {"RENEW_S": 0.05, "WATCH_S": 0.6, "SETTLE_S": 0.2, "LOOK_S": 0.1}.items():
        monkeypatch.setattr(lease, name, value)
    return f"file://{tmp_path}/store"


def never(line: str) -> None:
    raise AssertionError(line)


def test_a_lease_that_nobody_has_is_taken_at_once(url: str, tmp_path: Path) -> None:
    one = UrlLease(url, "one")
    one.take(never)
    assert one.renew() == ""
    UrlLease(url, "one").take(never)
    one.give_back()
    assert not (tmp_path / "store" / LEASE).exists()


def test_the_lease_of_a_run_that_died_runs_out(url: str) -> None:
    UrlLease(url, "dead").take(never)
    told: list[str] = []
    UrlLease(url, "next").take(told.append)
    assert len(told) == 1
    assert "had the lease of this job" in told[0]
    assert UrlLease(url, "dead").renew(), "a run that was only paused must find out"


def test_the_lease_of_a_run_that_lives_is_refused(url: str) -> None:
    keeper = LeaseKeeper(UrlLease(url, "living"))
    try:
        while UrlLease(url, "x")._read() is None:
            pass
        with pytest.raises(ConfigError, match="got a job that runs on"):
            UrlLease(url, "next").take(lambda _: None)
        assert keeper.taken_by == ""
    finally:
        keeper.close(give_back=True)
    UrlLease(url, "next").take(never)


def test_half_a_lease_is_not_taken_for_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    living, following = UrlLease(url, "living"), UrlLease(url, "next")
    assert not living.renew()
    looks = iter(range(9))
    read = following._read

    def look() -> Lease | None:
        if next(looks) == 1:  # the first look after the lease was found
            following._remote.write_note(LEASE, b'{"holder": "liv')
            assert read() == BEING_WRITTEN
            found = read()
            assert not living.renew(), "it writes on"
            return found
        return read()

    monkeypatch.setattr(following, "_read", look)
    with pytest.raises(ConfigError, match="got a job that runs on"):
        following.take(lambda _: None)


def test_of_several_commands_at_once_one_has_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    won, lost = list[str](), list[str]()
    begin = threading.Barrier(5)
    monkeypatch.setattr(lease, "SETTLE_S", 1.0)  # all have written by then, on a busy machine, too

    class Late(UrlLease):
        """It has seen that nobody has the lease; all the others have, too."""

        def _read(self) -> Lease | None:
            found = super()._read()
            if not self._renewals:
                begin.wait()
            return found

    def take(name: str) -> None:
        mine = Late(url, name)
        try:
            mine.take(lambda _: None)
        except ConfigError as error:
            lost.append(str(error))
        else:
            won.append(name)

    threads = [threading.Thread(target=take, args=(str(number),)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert all("another command resumes this job now" in told for told in lost)
    assert UrlLease(url, won[0]).renew() == ""


def test_a_keeper_whose_lease_was_taken_says_so_and_removes_nothing(url: str) -> None:
    keeper = LeaseKeeper(UrlLease(url, "one"))
    other = UrlLease(url, "other")
    while not keeper.taken_by:  # its own word may come between
        other._write()
    keeper.close(give_back=True)
    assert other.renew() == ""


def test_half_a_lease_that_stays_runs_out(url: str, tmp_path: Path) -> None:
    UrlLease(url, "one").take(never)
    (tmp_path / "store" / LEASE).write_bytes(b'{"holder":"o\x97')
    told: list[str] = []
    UrlLease(url, "two").take(told.append)
    assert len(told) == 1
    assert told[0].startswith("a run on another machine had the lease")
    assert UrlLease(url, "one").renew(), "a run that was only paused must find out"
