"""The words after ``paceline run``: which are paceline's, and which the script's. Pure.

    paceline run [FLAGS] SCRIPT [FLAGS] [-- ARGS]            up to --, flags are paceline's
    paceline run --nproc-per-node 2 [FLAGS] SCRIPT [ARGS]    as with torchrun: all after SCRIPT
                                                             is the script's

The second holds where a flag of torchrun's stands before the script and there is no ``--``. A word
that could be meant for either of the two is never taken without a line that says so.
"""

import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from msgspec import Struct

from paceline.base.errors import ConfigError
from paceline.jobs.script_text import sources_of

_BY_SIGNATURE = re.compile(
    r"^\s*(?:from|import)\s+(?:fire|tyro|typer|click|absl|simple_parsing|jsonargparse)\b"
    r"|\b(?:HfArgumentParser|LightningCLI)\b",
    re.MULTILINE,
)
"""Libraries that make flags of the names of parameters or fields: the source has no ``--name``."""


class Options(Struct, frozen=True):
    """The options that ``paceline run`` itself understands."""

    takes_value: Mapping[str, bool]
    """Whether a value follows, for each option, as ``--batch-size`` or ``-d``."""
    torchrun: Set[str]
    """Options that torchrun has, too."""


class _Word(Struct, frozen=True):
    """An option with its value, or a word that is none of ours."""

    words: tuple[str, ...]
    name: str
    """Name of the option; empty: it is none of ours."""

    @property
    def is_unknown(self) -> bool:
        """Whether the word looks like an option."""
        return not self.name and self.words[0].startswith("-") and len(self.words[0]) > 1


class Own(Struct, frozen=True):
    """The words of a command line that are paceline's own."""

    place: int | None
    """Index of the first word that is neither an option nor its value: the script, or a JOB."""
    options: Mapping[int, str]
    """Names of the options, by their indices."""


def find_own(words: Sequence[str], options: Options) -> Own:
    """Find the script, and paceline's own options, among the words after ``paceline run``."""
    place, names, at = None, dict[int, str](), 0
    for word in _read(words, options):
        if word.words == ("--",):
            break
        if word.name:
            names[at] = word.name
        elif place is None and not word.is_unknown:
            place = at
            if not options.torchrun.isdisjoint(names.values()):
                break
        at += len(word.words)
    return Own(place, names)


def arrange(
    words: Sequence[str], options: Options, defined: Callable[[str, Set[str]], Set[str]]
) -> tuple[list[str], str]:
    """Divide the words between paceline and the script.

    Args:
        words: after ``paceline run``.
        options: paceline's own.
        defined: which of these flags a script seems to have, too.

    Returns:
        The words, with ``--`` where the script's begin, and a line to be printed; empty: none.

    Raises:
        ConfigError: a flag that is not paceline's stands where paceline's do.
    """
    first, rest = _until_script(words, options)
    if not rest:
        return [*words], ""
    script, *after = rest
    if "--" in after:
        cut = after.index("--")
        own, args = after[:cut], after[cut + 1 :]
    elif any(word.name in options.torchrun for word in first):
        return [*_flat(first), script, "--", *after], _passed_on(script, after, options, defined)
    else:
        own, args = after, []
    read = list(_read(own, options))
    if unknown := next((word.words[0] for word in read if word.is_unknown), None):
        ours = [*_flat(first), script, *_flat([word for word in read if word.name])]
        theirs = [*_flat([word for word in read if not word.name]), *args]
        raise ConfigError(
            f"{unknown}: got a flag that `paceline run` does not have{_near(unknown, options)}, "
            f"expected the script's own after --; write {_command(ours, theirs)}"
        )
    return [*words], _taken(first, script, read, args, defined)


def _until_script(words: Sequence[str], options: Options) -> tuple[list[_Word], list[str]]:
    """Options before the first word that is none, and the rest; nothing: there is no such word.

    Raises:
        ConfigError: a flag that is not paceline's stands before the script.
    """
    first: list[_Word] = []
    for word in _read(words, options):
        if not word.name:
            if word.words == ("--",):
                return first, []
            if word.is_unknown:
                raise ConfigError(
                    f"{word.words[0]}: got a flag that `paceline run` does not have"
                    f"{_near(word.words[0], options)}, expected the script's own after the script "
                    f"and --; write e.g. paceline run train.py -- {word.words[0]}"
                )
            return first, [*words[len(_flat(first)) :]]
        first.append(word)
    return first, []


def _read(words: Sequence[str], options: Options) -> Iterator[_Word]:
    left = list(words)
    while left:
        name, needs_next = _option(left[0], options)
        count = 2 if needs_next and len(left) > 1 else 1
        yield _Word(tuple(left[:count]), name)
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


def _flat(read: Sequence[_Word]) -> list[str]:
    return [word for each in read for word in each.words]


def _passed_on(
    script: str,
    after: Sequence[str],
    options: Options,
    defined: Callable[[str, Set[str]], Set[str]],
) -> str:
    """Say which words look like paceline's and went to a torchrun script."""
    names = {word.name for word in _read(after, options) if word.name}
    names -= defined(script, names) if names else names
    if not names:
        return ""
    return (
        f"paceline: {', '.join(sorted(names))}: passed to {script}, as everything after the script "
        "of a torchrun command is; paceline's own flags stand before it"
    )


def _taken(
    first: Sequence[_Word],
    script: str,
    read: Sequence[_Word],
    args: Sequence[str],
    defined: Callable[[str, Set[str]], Set[str]],
) -> str:
    """Say which flags paceline took that the script may have, too."""
    names = {word.name for word in read if word.name}
    both = defined(script, names) if names else names
    if not both:
        return ""
    taken = [word for word in read if word.name in both]
    ours = [*_flat(first), script, *_flat([w for w in read if w.name and w.name not in both])]
    theirs = [*_flat(taken), *_flat([word for word in read if not word.name]), *args]
    return (
        f"paceline: {shlex.join(_flat(taken))}: taken by paceline, though {script} seems to have "
        f"{'such a flag' if len(both) == 1 else 'such flags'}, too; the script gets what follows "
        f"--: {_command(ours, theirs)}"
    )


def _command(ours: Sequence[str], theirs: Sequence[str]) -> str:
    return f"paceline run {shlex.join(ours)} -- {shlex.join(theirs)}"


def _near(unknown: str, options: Options) -> str:
    name = unknown.partition("=")[0].replace("_", "-")
    known = [known for known in options.takes_value if known.startswith("--")]
    close = difflib.get_close_matches(name, known, 1, 0.8)
    return f" (did you mean {close[0]}?)" if close else ""


def defined_in(script: str, names: Set[str]) -> Set[str]:
    """Return the flags that a script seems to define, itself or in a module of its folder.

    Args:
        script: a file, or a module that is found from this folder.
        names: of flags.
    """
    text = "\n".join(text for _, text in sources_of(script))
    by_signature = _BY_SIGNATURE.search(text) is not None
    return {name for name in names if _is_in(name, text, by_signature=by_signature)}


def _is_in(name: str, text: str, *, by_signature: bool) -> bool:
    if not name.startswith("--"):
        return re.search(rf"[\"']{name}[\"']", text) is not None
    word = name[2:].replace("-", "[-_]")
    pattern = rf"\b{word}\b" if by_signature else rf"--{word}(?![-\w])"
    return re.search(pattern, text) is not None
