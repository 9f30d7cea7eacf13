"""The words after ``paceline run``: which are paceline's, and which the script's. Pure.

    paceline run [FLAGS] SCRIPT [FLAGS] [-- ARGS]            up to --, flags are paceline's
    paceline run --nproc-per-node 2 [FLAGS] SCRIPT [ARGS]    as with torchrun: all after SCRIPT
                                                             is the script's

The second holds where a flag of torchrun's stands before the script and there is no ``--``. A word
that could be meant for either of the two is never taken without a line that says so.
"""

import re
import shlex
from collections.abc import Mapping, Sequence, Set

from msgspec import Struct

from paceline.jobs.script_text import sources_of
from paceline.terminal.command_words import CommandWord, Options, flat, read_words
from paceline.terminal.unknown_flags import Defined, refusal

_BY_SIGNATURE = re.compile(
    r"^\s*(?:from|import)\s+(?:fire|tyro|typer|click|absl|simple_parsing|jsonargparse)\b"
    r"|\b(?:HfArgumentParser|LightningCLI)\b",
    re.MULTILINE,
)
"""Libraries that make flags of the names of parameters or fields: the source has no ``--name``."""


class Own(Struct, frozen=True):
    """The words of a command line that are paceline's own."""

    place: int | None
    """Index of the first word that is neither an option nor its value: the script, or a JOB."""
    options: Mapping[int, str]
    """Names of the options, by their indices."""


def find_own(words: Sequence[str], options: Options) -> Own:
    """Find the script, and paceline's own options, among the words after ``paceline run``."""
    place, names, at = None, dict[int, str](), 0
    for word in read_words(words, options):
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


def arrange(words: Sequence[str], options: Options, defined: Defined) -> tuple[list[str], str]:
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
    first, rest = _until_script(words, options, defined)
    if not rest:
        return [*words], ""
    script, *after = rest
    if "--" in after:
        cut = after.index("--")
        own, args = after[:cut], after[cut + 1 :]
    elif any(word.name in options.torchrun for word in first):
        return [*flat(first), script, "--", *after], _passed_on(script, after, options, defined)
    else:
        own, args = after, []
    read = list(read_words(own, options))
    if any(word.is_unknown for word in read):
        raise refusal(words, options, defined)
    return [*words], _taken(first, script, read, args, defined)


def _until_script(
    words: Sequence[str], options: Options, defined: Defined
) -> tuple[list[CommandWord], list[str]]:
    """Options before the first word that is none, and the rest; nothing: there is no such word.

    Raises:
        ConfigError: a flag that is not paceline's stands before the script.
    """
    first: list[CommandWord] = []
    for word in read_words(words, options):
        if not word.name:
            if word.words == ("--",):
                return first, []
            if word.is_unknown:
                raise refusal(words, options, defined)
            return first, [*words[len(flat(first)) :]]
        first.append(word)
    return first, []


def _passed_on(
    script: str,
    after: Sequence[str],
    options: Options,
    defined: Defined,
) -> str:
    """Say which words look like paceline's and went to a torchrun script."""
    names = {word.name for word in read_words(after, options) if word.name}
    names -= defined(script, names) if names else names
    if not names:
        return ""
    return (
        f"paceline: {', '.join(sorted(names))}: passed to {script}, as everything after the script "
        "of a torchrun command is; paceline's own flags stand before it"
    )


def _taken(
    first: Sequence[CommandWord],
    script: str,
    read: Sequence[CommandWord],
    args: Sequence[str],
    defined: Defined,
) -> str:
    """Say which flags paceline took that the script may have, too."""
    names = {word.name for word in read if word.name}
    both = defined(script, names) if names else names
    if not both:
        return ""
    taken = [word for word in read if word.name in both]
    ours = [*flat(first), script, *flat([w for w in read if w.name and w.name not in both])]
    theirs = [*flat(taken), *flat([word for word in read if not word.name]), *args]
    return (
        f"paceline: {shlex.join(flat(taken))}: taken by paceline, though {script} seems to have "
        f"{'such a flag' if len(both) == 1 else 'such flags'}, too; the script gets what follows "
        f"--: {_command(ours, theirs)}"
    )


def _command(ours: Sequence[str], theirs: Sequence[str]) -> str:
    return f"paceline run {shlex.join(ours)} -- {shlex.join(theirs)}"


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
