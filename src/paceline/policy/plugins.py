"""Policies of one kind by name: paceline's own, and those that installed packages declare."""

import difflib
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from paceline.base.errors import ConfigError

P = TypeVar("P", bound=msgspec.Struct)


class Plugins(Generic[P]):
    """All policies of one kind.

    Args:
        what: what one is called.
        group: of entry points, by which packages declare more.
        base: what each derives from.
        built_in: paceline's own; each comes before an entry point of the same name.
        check: raises ConfigError for a class that is declared wrongly.
    """

    def __init__(
        self,
        what: str,
        group: str,
        base: type[P],
        built_in: Mapping[str, type[P]],
        check: Callable[[str, type[P]], None] = lambda _name, _kind: None,
    ) -> None:
        self._what, self._group, self._base = what, group, base
        self._built_in, self._check = built_in, check

    def names(self) -> list[str]:
        """Return all names."""
        return sorted({*self._built_in, *importlib.metadata.entry_points(group=self._group).names})

    def kind_of(self, name: str) -> type[P]:
        """The class of this name.

        Raises:
            ConfigError: there is none, or it cannot be loaded.
        """
        return self._built_in.get(name) or self._installed(name)

    def make(self, name: str, parameters: Mapping[str, object] | None = None) -> P:
        """The policy of this name, with its parameters set.

        Args:
            name: one of `names`.
            parameters: by field of the class; numbers may be given as text.

        Raises:
            ConfigError: there is none, or it does not have or take these parameters.
        """
        kind = self.kind_of(name)
        known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        values: dict[str, Any] = {}
        for key, value in (parameters or {}).items():
            if key not in known:
                raise ConfigError(
                    f"{self._what} {name} has no parameter {key}; it has {', '.join(sorted(known))}"
                )
            try:
                values[key] = msgspec.convert(value, known[key].type, strict=False)
            except msgspec.ValidationError as refused:
                default = known[key].default
                raise ConfigError(
                    f"{self._what} {name}: {key}: {value!r}: {refused}; leave it out for "
                    f"{default!r}"
                ) from refused
        try:
            return kind(**values)
        except Exception as refused:  # a user's class may run code here, as ``__post_init__``
            raise ConfigError(
                f"{self._what} {name}: {kind.__name__} cannot be made of its parameters: "
                f"{refused}; set others, or mend the package that declares it"
            ) from refused

    def _installed(self, name: str) -> type[P]:
        for entry in importlib.metadata.entry_points(group=self._group, name=name):
            try:
                kind = entry.load()
            except Exception as failed:  # of any kind: the module's code runs here
                raise ConfigError(
                    f"{self._what} {name}: {entry.value} cannot be loaded: {failed}; install or "
                    "mend the package that declares it"
                ) from failed
            if isinstance(kind, type) and issubclass(kind, self._base):
                self._check(name, kind)
                return kind
            raise ConfigError(
                f"{self._what} {name}: {entry.value} is {kind!r}; declare a class that derives "
                f"from {self._base.__module__}.{self._base.__name__}"
            )
        near = difflib.get_close_matches(name, self.names(), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"no {self._what} {name!r}; there are {', '.join(self.names())}{meant}")
