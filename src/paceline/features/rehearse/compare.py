"""Compare an act with the act that it should be equal to, and say what differs, where, and why.

A value that differs between the workers of an undisturbed job is one worker's own: it is no
difference. So is a whole number, or the shape of a tensor, that follows from how many workers share
a batch.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from msgspec import structs

from paceline.features.rehearse.findings import Finding
from paceline.features.rehearse.numbers import (
    SpokenText,
    Tolerance,
    alike,
    close,
    differing,
    moved_apart,
    said,
    same,
    shown,
)
from paceline.features.rehearse.observed import CHIEF, ObservedAct
from paceline.features.rehearse.plan import AT_END, BEFORE_STEP, Leaves, PlainLeaf, PrintedLine
from paceline.features.rehearse.remedies import (
    FROM_THE_START,
    MISSING_FILE,
    OF_FILE,
    OF_LINE,
    remedy_of,
    why_weights,
)
from paceline.features.rehearse.source import Changed, How, Source

FIRST = f"{BEFORE_STEP}1"
LOGGED = 0.02
"""Tolerance of a logged value: a mean over the workers' shares, which may differ in size."""
MOST = 8
"""Findings of one kind."""


Place = tuple[str, int]
"""File and line of the script."""


class Heard(NamedTuple):
    """A line that was printed."""

    said: SpokenText
    text: str


class Differences(NamedTuple):
    """Differences between two acts."""

    findings: list[Finding]
    notes: list[str]
    """Differences that are no faults."""


class Names(NamedTuple):
    """Acts, as findings call them: `is 3 {here}, and 5 {there}`."""

    here: str
    there: str


class Comparison:
    """Compares acts of one strategy.

    Args:
        sources: of the script's files, by their names.
        script: name of the script's file.
        own: paths of values that are one worker's own.
        tolerance: what rounding may change.
    """

    def __init__(
        self, sources: Mapping[str, Source], script: str, own: set[str], tolerance: Tolerance
    ) -> None:
        self._sources, self._script = sources, script
        self._own, self._own_names = own, {_base(path) for path in own}
        self._tolerance = tolerance

    def all(self, right: ObservedAct, got: ObservedAct, names: Names) -> Differences:
        """Compare all that can be; causes come first.

        Args:
            right: the act that is right.
            got: the act to judge.
            names: of the two acts.
        """
        variables, notes = self.variables(right, got, names)
        found = [
            *self.printed(right.printed, got.printed, names),
            *self.files(right.files, got.files, names),
            *self.logged(right, got, names),
            *self.weights(right, got, names),
        ]
        if not variables and any(one.kind == "weights" for one in found):
            found = [*self._own_counts(right), *found]
        if found or any(one.lasts for one in variables):
            found = [*variables, *found]
        else:
            notes += [f"{one.what}; nothing else differs" for one in variables]
        if silent := self.silent(right.printed, got.printed):
            more = f", and {len(silent) - 1} more" if len(silent) > 1 else ""
            why = "not printed, since the worker that prints was killed just before"
            notes.append(f"{why}: {silent[0]}{more}")
        return Differences(found, notes)

    # ------------------------------------------------------------------ variables

    def variables(
        self, right: ObservedAct, got: ObservedAct, names: Names, *, ended: bool = True
    ) -> Differences:
        """Compare what the same worker held at the same place.

        Args:
            right: the act that is right.
            got: the act to judge.
            names: of the two acts.
            ended: the script of both acts came to its end.
        """
        found: dict[str, tuple[How, Finding]] = {}
        for node, places in right.variables.items():
            for place, values in places.items():
                if place == AT_END and not ended:
                    continue
                other = got.variables.get(node, {}).get(place)
                for path in differing(values, other or {}, self._tolerance):
                    base = _base(path)
                    if base not in found and not self._is_own_value(path):
                        was, became = shown(values[path]), shown((other or {})[path])
                        said_so = f"is {was} {names.here}, and {became} {names.there}"
                        one = self._variable(path, values[path], f"{said_so} ({node}, {place})")
                        if one is not None:
                            lasts = one[0] in ("counts", "appends") and _lasts(places, path)
                            remedy = FROM_THE_START if place == FIRST else one[1].remedy
                            found[base] = (
                                one[0],
                                structs.replace(one[1], lasts=lasts, remedy=remedy),
                            )
        # What remembers comes before what follows from it.
        ordered = sorted(found.values(), key=lambda pair: pair[0] == "sets")
        drifts = [one for how, one in ordered if how != "loops"]
        notes = [f"{one.what}: {one.remedy}" for how, one in ordered if how == "loops"]
        return Differences(drifts[:MOST], notes[:MOST])

    def beginnings(self, alone: ObservedAct, right: ObservedAct, names: Names) -> list[Finding]:
        """Compare what the script held before the first step, alone and in a job."""
        here = {CHIEF: {FIRST: alone.variables.get("alone", {}).get(FIRST, {})}}
        there = {CHIEF: {FIRST: right.variables.get(CHIEF, {}).get(FIRST, {})}}
        pair = ObservedAct(variables=here), ObservedAct(variables=there)
        return self.variables(*pair, names).findings

    def _is_own_value(self, path: str) -> bool:
        return path in self._own or _base(path) in self._own_names

    def _own_counts(self, right: ObservedAct) -> list[Finding]:
        """Name what each worker counts for itself: steps may depend on it."""
        ends = {node: places.get(AT_END, {}) for node, places in right.variables.items()}
        found = []
        for path in sorted(self._own & ends.get(CHIEF, {}).keys()):
            _, changed = self._changed(path)
            if changed is not None and changed.how in ("counts", "appends"):
                counted = " and ".join(shown(one[path]) for one in ends.values() if path in one)
                what = f"counts what each worker saw: {counted}; a step may depend on it"
                one = self._variable(path, ends[CHIEF][path], what)
                found += [] if one is None else [one[1]]
        return found[:MOST]

    def _variable(self, path: str, right: PlainLeaf, what: str) -> tuple[How, Finding] | None:
        source, changed = self._changed(path)
        how = changed.how if changed else "sets"
        if how == "loops" and path != _base(path):  # another name for a part of something else
            return None
        where = f"{source.file}:{changed.line}" if source and changed else ""
        line = f" ({where})" if where else ""
        remedy = remedy_of(path, right, how)
        one = Finding(kind="variable", what=f"`{path}`{line} {what}", where=where, remedy=remedy)
        return how, one

    def _changed(self, path: str) -> tuple[Source | None, Changed | None]:
        main = self._sources.get(self._script)
        others = [one for name, one in self._sources.items() if name != self._script]
        for source in ([main] if main else []) + others:
            if changed := source.place_of(path):
                return source, changed
        return None, None

    # ------------------------------------------------------------------ what it says

    def printed(
        self, right: list[PrintedLine], got: list[PrintedLine], names: Names
    ) -> list[Finding]:
        """Compare the lines of the first worker. A line may come again in a new life."""
        wanted, heard = _by_place(right), _by_place(got)
        found = []
        for place in {**wanted, **heard}:
            if not self._is_own(place):
                expected, there = wanted.get(place, []), heard.get(place, [])
                found += self._strange_at(place, expected, there, names)
        return found[:MOST]

    def _strange_at(
        self, place: Place, expected: list[Heard], there: list[Heard], names: Names
    ) -> list[Finding]:
        where = f"{place[0]}:{place[1]}" if place[0] else ""
        missing = self._without(expected, there)
        for line in self._without(there, expected)[:1]:
            near = [one for one in missing or expected if one.said.words == line.said.words]
            near += missing or expected
            instead = f"; {names.here}: `{near[0].text}`" if near else f", and not {names.here}"
            what = f"{where or 'the script'} printed `{line.text}` {names.there}{instead}"
            return [Finding(kind="printed", what=what, where=where, remedy=OF_LINE)]
        return []

    def not_printed(
        self, right: list[PrintedLine], got: list[PrintedLine], names: Names
    ) -> list[Finding]:
        """Find lines that are missing in an act in which nobody was killed."""
        return [
            Finding(kind="printed", what=f"{line} is not printed {names.there}", remedy=OF_LINE)
            for line in self.silent(right, got)
        ]

    def silent(self, right: list[PrintedLine], got: list[PrintedLine]) -> list[str]:
        """Lines that were not printed, nor others in their place."""
        wanted, heard = _by_place(right), _by_place(got)
        found = []
        for place, expected in wanted.items():
            there = heard.get(place, [])
            if not self._is_own(place) and not self._without(there, expected):
                missing = self._without(expected, there)
                found += [f"{place[0]}:{place[1]} `{line.text}`" for line in missing]
        return found[:MOST]

    def _without(self, lines: list[Heard], others: list[Heard]) -> list[Heard]:
        """Lines that none of the others is like."""
        return [
            line
            for line in lines
            if not any(alike(line.said, other.said, self._tolerance) for other in others)
        ]

    def _is_own(self, place: Place) -> bool:
        source = self._sources.get(place[0])
        return source is not None and bool(source.names_at(place[1]) & self._own_names)

    def own_lines(self, observed: ObservedAct) -> list[str]:
        """Places that print a value of one worker."""
        places = sorted(place for place in _by_place(observed.printed) if self._is_own(place))
        return [f"{file}:{line}" for file, line in places]

    def logged(self, right: ObservedAct, got: ObservedAct, names: Names) -> list[Finding]:
        """Compare the curves of ``job.log``."""
        found = []
        for name, curve in right.logged.items():
            other = got.logged.get(name, {})
            apart = [
                step
                for step, (value, samples) in curve.items()
                if step in other
                # A worker that was killed may have logged what another one logged again.
                and other[step].samples == samples
                and not close(value, other[step].mean, LOGGED)
            ]
            if apart:
                step = apart[0]
                what = (
                    f"job.log's `{name}` at step {step} is {curve[step].mean:.6g} {names.here}, "
                    f"and {other[step].mean:.6g} {names.there}"
                )
                found.append(Finding(kind="logged", what=what))
        return found[:MOST]

    # ------------------------------------------------------------------ files and weights

    def files(
        self, right: Mapping[str, Leaves], got: Mapping[str, Leaves], names: Names
    ) -> list[Finding]:
        """Compare the files that were written."""
        found = []
        for name in sorted({*right, *got}):
            if name not in got:
                what = f"{name} was written {names.here}, and not {names.there}"
                found.append(Finding(kind="file", what=what, where=name, remedy=MISSING_FILE))
            elif name not in right:
                what = f"{name} was written {names.there}, and not {names.here}"
                found.append(Finding(kind="file", what=what, where=name, remedy=OF_FILE))
            elif paths := self._apart_in(right[name], got[name]):
                path = paths[0]
                of = f"{path} in {name}" if path else name
                here = shown(right[name][path]) if path in right[name] else "not there"
                there = shown(got[name][path]) if path in got[name] else "not there"
                what = f"{of} is {here} {names.here}, and {there} {names.there}"
                found.append(Finding(kind="file", what=what, where=name, remedy=OF_FILE))
        return found[:MOST]

    def _apart_in(self, right: Leaves, got: Leaves) -> list[str]:
        paths = differing(right, got, self._tolerance)
        return paths or sorted(right.keys() ^ got.keys())

    def weights(self, right: ObservedAct, got: ObservedAct, names: Names) -> list[Finding]:
        """Compare the models of all workers with that of the first one."""
        if not right.weights or not got.weights:
            return []
        model = right.weights.get(CHIEF) or next(iter(right.weights.values()))
        for node, other in got.weights.items():
            apart = moved_apart(model, other, right.began)
            far = {name: one for name, one in apart.items() if one > self._tolerance.weights}
            if far:
                worst = max(far, key=lambda name: far[name])
                what = (
                    f"{len(far)} of {len(apart)} tensors of the model of {node} differ "
                    f"{names.there}: {worst} by {far[worst]:.2g} of how far training moved it"
                )
                return [Finding(kind="weights", what=what, remedy=why_weights(right))]
        return []


def own_values(
    undisturbed: ObservedAct, alone: ObservedAct | None, tolerance: Tolerance
) -> set[str]:
    """Paths of values that are one worker's own, or follow from the number of workers.

    Args:
        undisturbed: act with several workers.
        alone: act of the script alone, if it can be compared.
        tolerance: what rounding may change.
    """
    first = undisturbed.variables.get(CHIEF, {})
    own = set[str]()
    for node, places in undisturbed.variables.items():
        if node != CHIEF:
            own |= _paths_apart(first, places, tolerance)
    if alone is not None:
        single = alone.variables.get("alone", {})
        for place in first.keys() & single.keys():
            here, there = first[place], single[place]
            apart = differing(here, there, tolerance)
            own |= {path for path in apart if _follows_from_shares(here[path], there[path])}
    return own


def _follows_from_shares(here: PlainLeaf, there: PlainLeaf) -> bool:
    """Tell whether values differ as two numbers of samples do, or tensors of so many samples."""
    is_shape = bool(here.some and there.some) and here.text != there.text
    return (here.whole and there.whole) or is_shape


def _paths_apart(
    first: Mapping[str, Leaves], places: Mapping[str, Leaves], tolerance: Tolerance
) -> set[str]:
    common = first.keys() & places.keys()
    found = (differing(first[place], places[place], tolerance) for place in common)
    return {path for paths in found for path in paths}


def _by_place(lines: Iterable[PrintedLine]) -> dict[Place, list[Heard]]:
    found: dict[Place, list[Heard]] = {}
    for line in lines:
        found.setdefault((line.file, line.line), []).append(Heard(said(line.text), line.text))
    return found


def _lasts(places: Mapping[str, Leaves], path: str) -> bool:
    """Tell whether a value is carried from epoch to epoch, and not started over in each."""
    at_ends = (values for place, values in places.items() if place.startswith("the end of "))
    ends = [values[path] for values in at_ends if path in values]
    return any(not same(one, other, EQUAL) for one, other in pairwise(ends))


EQUAL = Tolerance(values=0.0, weights=0.0)


def _base(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]
