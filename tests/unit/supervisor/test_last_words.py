"""What a dying master says reaches its supervisor, whatever disks do."""

import errno
import os

from paceline.base.errors import ConfigError, PermanentError, TransientError
from paceline.wire import last_words
from paceline.wire.last_words import LastWords, explain


def through_a_pipe(words: LastWords) -> LastWords | None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    last_words.say(words, writer)
    os.close(writer)
    try:
        return last_words.read(reader)
    finally:
        os.close(reader)


def test_words_arrive_as_they_were_said() -> None:
    words = LastWords("the journal is damaged", final=True)
    assert through_a_pipe(words) == words


def test_long_words_are_cut_and_still_understood() -> None:
    heard = through_a_pipe(LastWords('"\\' * 50_000, traceback="\x01" * 50_000 + "end"))
    assert heard is not None
    assert len(heard.reason) == last_words.MAX_REASON
    assert heard.traceback.endswith("end")


def test_a_master_that_was_killed_has_said_nothing() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    assert last_words.read(reader) is None
    os.close(writer)
    assert last_words.read(reader) is None
    os.close(reader)


def test_a_master_whose_supervisor_is_gone_dies_of_its_own_error() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.close(reader)
    last_words.say(LastWords("damaged"), writer)
    os.close(writer)


def test_only_what_no_successor_could_mend_is_final() -> None:
    assert explain(PermanentError("damaged")) == LastWords("damaged", final=True)
    assert explain(ConfigError("wrong")).final
    assert not explain(TransientError("taken")).final
    full = explain(OSError(errno.ENOSPC, "text", "/jobs/1/x"))
    assert (full.reason, full.final) == ("no space left on /jobs/1/x", False)
    assert explain(KeyError("node")).reason == "KeyError: 'node'"
