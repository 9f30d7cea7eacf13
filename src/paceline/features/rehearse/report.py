"""A rehearsal, or a check, as text and as a page without any other file."""

from collections.abc import Iterator
from html import escape

from paceline.features.rehearse.findings import ActVerdict, Check, Rehearsal

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 62em; color: #222;
padding: 0 1em; color-scheme: light dark; background: #fff; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
padding: .35em .8em .35em 0; border-bottom: 1px solid #ddd; }
.good { color: #176b2c; } .bad { color: #a3201c; font-weight: 600; } .note { color: #666; }
li, pre { margin: .4em 0; } .more ul { margin: 0; padding-left: 1.2em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .6em; }
tr:has(+ .more) td { border-bottom: 0; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; }
pre { background: #262626; } td, th { border-color: #444; } .note { color: #aaa; }
.good { color: #7fd18f; } .bad { color: #ff9a92; } }
"""
_GOOD = {"equal", "runs", "left out", "takes it"}


def line_of(verdict: ActVerdict) -> str:
    """Write one act in a line."""
    took = f"{verdict.seconds:5.1f} s" if verdict.seconds else "       "
    first = verdict.message.partition("\n")[0]
    said = f": {first}" if first else ""
    return f"{took}  {_named(verdict)}: {verdict.state}{said}"


def _named(verdict: ActVerdict) -> str:
    same = verdict.act == verdict.strategy
    return verdict.act if same else f"{verdict.strategy}, {verdict.act}"


def details(verdict: ActVerdict) -> Iterator[str]:
    """Yield what was found in one act, line by line."""
    for line in verdict.message.split("\n")[1:]:
        yield f"           {line}"
    for found in verdict.findings:
        yield f"         - {found.what}"
        if found.remedy:
            yield f"           change: {found.remedy}"
    for note in verdict.notes:
        yield f"         ({note})"


def verdict_of(rehearsal: Rehearsal) -> str:
    """The last line."""
    bad = [one for one in rehearsal.verdicts if one.state not in _GOOD]
    took = f"{rehearsal.seconds:.0f} s"
    mere = sum(one.state == "runs" and one.act != one.strategy for one in rehearsal.verdicts)
    if not bad and mere:
        return f"nothing differs ({took}), but of {mere} acts only counts were compared"
    if not bad:
        return f"equal: every act ended as it should ({took})"
    names = "; ".join(f"{_named(one)}: {one.state}" for one in bad)
    return f"not equal ({took}): {names}"


def conditions(rehearsal: Rehearsal) -> Iterator[str]:
    """Yield what the acts were like, and what is taken for rounding."""
    yield (
        f"{rehearsal.epochs} epochs of {rehearsal.batches} batches at most, "
        f"{rehearsal.workers} workers; {rehearsal.tolerance}"
    )
    if rehearsal.links:
        shown = ", ".join(rehearsal.links[:5]) + (", …" if len(rehearsal.links) > 5 else "")
        yield f"linked, not copied, so a script that writes there reached your own: {shown}"


def check_lines(check: Check) -> Iterator[str]:
    """A check, line by line."""
    if check.error:
        yield f"the script itself failed: {check.error}"
        return
    for one in check.strategies:
        yield f"{one.strategy}: {'refused' if one.refused else 'takes it'}"
        for message, place in zip(one.messages, one.places, strict=True):
            yield f"    {place + ': ' if place else ''}{message}"
        yield from (f"    ({note})" for note in one.notes)


def page_of(rehearsal: Rehearsal) -> str:
    """Write a rehearsal as a page."""
    rows = []
    for one in rehearsal.verdicts:
        found = [f"<li>{_code(f.what)}{_remedy(f.remedy)}</li>" for f in one.findings]
        found += [f"<li class=note>{_code(note)}</li>" for note in one.notes]
        message = f"<pre>{escape(one.message)}</pre>" if one.message else ""
        listed = f"<ul>{''.join(found)}</ul>" if found else ""
        rows.append(
            f"<tr><td>{escape(one.strategy)}<td>{escape(one.act)}<td class={_class(one.state)}>"
            f"{one.state}<td>{_took(one.seconds)}"
        )
        if message or listed:
            rows.append(f"<tr class=more><td colspan=4>{message}{listed}")
    head = f"<h1>Rehearsal of {escape(rehearsal.script)}</h1><p class="
    head += f"{'good' if rehearsal.passes else 'bad'}>{escape(verdict_of(rehearsal))}</p>"
    notes = "".join(f"<p class=note>{escape(line)}</p>" for line in conditions(rehearsal))
    table = "<tr><th>strategy<th>act<th>verdict<th>took"
    return _page(f"{head}<table>{table}{''.join(rows)}</table>{notes}")


def page_of_check(check: Check) -> str:
    """Write a check as a page."""
    rows = []
    for one in check.strategies:
        found = [
            f"<li>{_code(f'{place}: ' if place else '')}{_code(message)}</li>"
            for message, place in zip(one.messages, one.places, strict=True)
        ]
        found += [f"<li class=note>{_code(note)}</li>" for note in one.notes]
        word = "refused" if one.refused else "takes it"
        rows.append(
            f"<tr><td>{one.strategy}<td class={_class(word)}>{word}"
            f"<tr class=more><td colspan=2><ul>{''.join(found)}</ul>"
        )
    error = f"<pre>{escape(check.error)}</pre>" if check.error else ""
    return _page(f"<h1>Check of {escape(check.script)}</h1>{error}<table>{''.join(rows)}</table>")


def _page(body: str) -> str:
    head = "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    head += f"<title>paceline</title><style>{_STYLE}</style>"
    return f"{head}{body}\n"


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds else ""


def _class(state: str) -> str:
    return "good" if state in _GOOD else "bad"


def _remedy(remedy: str) -> str:
    return f"<br><b>Change:</b> {_code(remedy)}" if remedy else ""


def _code(text: str) -> str:
    """Text for a page; what stands between backticks is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if odd % 2 else one for odd, one in enumerate(parts))
