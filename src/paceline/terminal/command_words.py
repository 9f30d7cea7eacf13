"""Words of a command line: an option with its value, or a word that is none of ours. Pure."""

from collections.abc import Iterator, Mapping, Sequence, Set

from msgspec import Struct


class Options(Struct, frozen=True):
    """The options that ``paceline run`` itself understands."""

    takes_value: Mapping[str, bool]
    """Whether a value follows, for each option, as ``--batch-size`` or ``-d``."""
    torchrun: Set[str]
    """Options that torchrun has, too."""


class CommandWord(Struct, frozen=True):
    """An option with its value, or a word that is none of ours."""

    words: tuple[str, ...]
    name: str
    """Name of the option; empty: it is none of ours."""

    @property
    def is_unknown(self) -> bool:
        """Whether the word looks like an option."""
        return not self.name and self.words[0].startswith("-") and len(self.words[0]) > 1


def read_words(words: Sequence[str], options: Options) -> Iterator[CommandWord]:
    """Yield the words, each option of ours together with its value."""
    left = list(words)
    while left:
        name, needs_next = _option(left[0], options)
        count = 2 if needs_next and len(left) > 1 else 1
        yield CommandWord(tuple(left[:count]), name)
        del left[:count]


def _option(word: str, options: Options) -> tuple[str, bool]:
    """The option's name (empty: none of ours), and whether its value is the next word."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        takes_value = options.takes_value.get(name)
        return ("", False) if takes_value is None else (name, takes_value and not equals)
    if not word.startswith("-"):
        return "", False
    for index, letter in enumerate(word[1:], 1):
        takes_value = options.takes_value.get(f"-{letter}")
        if takes_value is None:
            return "", False
        if takes_value:
            return f"-{letter}", index == len(word) - 1
    return word[:2] if len(word) > 1 else "", False


def flat(read: Sequence[CommandWord]) -> list[str]:
    """Return the single words again."""
    return [word for each in read for word in each.words]
