"""Base of all events: time and node, and how they become a line and a sentence."""

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import ClassVar, Self

import msgspec
from msgspec import structs

from paceline.base.numbering import NO_INC, Inc


def _tag(name: str) -> str:
    """``CutValidEvent``: ``cut_valid``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.removesuffix("Event")).lower()


class Event(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag=_tag
):
    """Something has changed; the base of all events."""

    t: float = 0.0
    """Unix time by the job's clock, s; set when the event is written."""
    node: str = ""
    """Empty: it concerns the whole job."""
    inc: Inc = NO_INC
    """The life of the node; 0: it had none yet."""

    is_usual: ClassVar[bool] = False
    """Whether every healthy job has such events."""
    clause_words: ClassVar[str] = ""
    """Words for what happened, without the node; ``{0}`` is the event."""
    sentence_words: ClassVar[str] = ""
    """Words of a whole sentence for people; empty: name, node and clause."""

    @property
    def name(self) -> str:
        """The name in the file."""
        return str(self.__struct_config__.tag)

    @property
    def is_news(self) -> bool:
        """Whether a person who watches the job must see it; a healthy job has no news."""
        return not self.is_usual

    @property
    def clause(self) -> str:
        """Words for what happened: the ``reason`` of the line."""
        return self.clause_words.format(self)

    @property
    def after_colon(self) -> str:
        """The clause as the end of a sentence; empty: there is none."""
        return f": {self.clause}" if self.clause else ""

    def sentence(self) -> str:
        """Say what happened, for people."""
        if self.sentence_words:
            return self.sentence_words.format(self)
        return " ".join(filter(None, (self.name.replace("_", " "), self.node))) + self.after_colon

    def at(self, t: float) -> Self:
        """Give it a time."""
        return structs.replace(self, t=t)

    def line(self) -> dict[str, object]:
        """Make a line, as values that JSON knows."""
        line: dict[str, object] = {"t": self.t, "event": self.name}
        if self.node or self.inc:
            line |= {"node": self.node, "inc": self.inc}
        line |= {"reason": self.clause} if self.clause else {}
        fields: dict[str, object] = msgspec.to_builtins(self)
        return line | {name: value for name, value in fields.items() if name not in line}

    def text(self) -> str:
        """Make a line of the file, its end included."""
        return msgspec.json.encode(self.line()).decode() + "\n"


class ReasonedEvent(Event, frozen=True, kw_only=True):
    """Something whose cause is known in words: an error's, a person's, a verdict's."""

    reason: str = ""

    clause_words = "{0.reason}"


class PlainEvent(ReasonedEvent, frozen=True, kw_only=True):
    """A line of an event that the reader does not know: it knows the words, and keeps the fields.

    So a line of a feature is read, also where the feature is not installed; and so is a line of
    another version. The feature itself reads the line again (`known_by`).
    """

    kind: str
    """Name of the event in the file."""
    feature: str = ""
    """Feature that told it; empty: none, or one of another version."""
    words: str = ""
    """Sentence for people; empty: it is made of name, node and reason."""
    usual: bool = False
    """True: every healthy job has such events."""
    source: bytes = b""
    """The line, without its end."""

    @property
    def name(self) -> str:
        return self.kind

    @property
    def is_news(self) -> bool:
        return not self.usual

    def sentence(self) -> str:
        return self.words or super().sentence()

    def line(self) -> dict[str, object]:
        if self.source:
            line: dict[str, object] = msgspec.json.decode(self.source)
            return line
        line = super().line()
        del line["kind"]
        return line


class FeatureEvent(Event, frozen=True, kw_only=True):
    """Base of the events that features tell.

    A line has the event's words beside its fields, so that the core, which knows no feature's
    events, reads it as a `PlainEvent`.
    """

    feature_name: ClassVar[str] = ""
    """Name of the feature."""

    def line(self) -> dict[str, object]:
        line = super().line() | {"feature": self.feature_name, "words": self.sentence()}
        return line | ({} if self.is_news else {"usual": True})


def known_by(events: Iterable[Event], decode: Callable[[bytes], Event]) -> list[Event]:
    """Read lines of a feature's events by the feature's own union.

    Args:
        events: of a job, as the core has read them.
        decode: decodes a line; raises `msgspec.ValidationError` for one that it does not know.
    """
    found: list[Event] = []
    for event in events:
        if isinstance(event, PlainEvent) and event.source:
            with contextlib.suppress(msgspec.ValidationError):
                event = decode(event.source)
        found.append(event)
    return found
