"""Every option of the server's command line, version by version (SPEC_SERVING_ARGS 1.2 to 1.4).

``data/options.json`` holds, for each spelling, the canonical name of what it sets and the versions
that know it. Options without a rule of their own are in it as well: they are real, so they are no
mistake, and they do not reach the capacities (``REACHES_CAPACITIES`` has those that do).
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.option_facts import CHOICES, REACHES_CAPACITIES, REPLACED_BY
from kvcanary_cli.serving.versions import NEWEST, parse_version

if TYPE_CHECKING:
    from kvcanary_cli.serving.versions import Version

ValueKind = Literal[
    "flag",  # no value
    "negative",  # --no-x of a switch that has both forms
    "boolean",  # --x of a switch that has both forms
    "int",
    "human",  # integer with an optional suffix
    "float",
    "str",
    "json",
    "maybe",  # zero or one value
    "ints",
    "floats",
    "strs",
    "withdrawn",  # understood, without effect or with an error of its own
]
Reason = Literal["unknown", "ambiguous", "not_in_version", "value"]

_VALUELESS = frozenset({"flag", "negative", "boolean", "withdrawn"})
_LISTS = frozenset({"ints", "floats", "strs"})
_FIRST_WITH_HARMLESS_WITHDRAWN = (0, 5, 10)


class OptionError(InputError):
    """An option or value that this version does not take; the caller adds the place.

    Args:
        message: One sentence without a place.
        hint: What to write instead, or None.
        reason: ``unknown``, ``ambiguous``, ``not_in_version`` or ``value``.
        candidates: Spellings that may be meant, best first.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        reason: Reason = "unknown",
        candidates: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.candidates = candidates


@dataclass(frozen=True, slots=True)
class Option:
    """One spelling of an option in one version.

    Attributes:
        spelling: ``--cuda-graph-max-bs``.
        name: Canonical name of what it sets: ``cuda_graph_max_bs_decode``.
        kind: What value it takes.
        deprecated: The version warns about this spelling.
        successor: What to write instead: an option, or an option with a value; ``""`` if nothing.
        abbreviated: What was written, if it was an abbreviation; else None.
    """

    spelling: str
    name: str
    kind: ValueKind
    deprecated: bool = False
    successor: str = ""
    abbreviated: str | None = None

    @property
    def takes_value(self) -> bool:
        """A value follows (one; one or more for lists; at most one for ``maybe``)."""
        return self.kind not in _VALUELESS

    @property
    def takes_list(self) -> bool:
        """Several values may follow."""
        return self.kind in _LISTS

    @property
    def reaches_capacities(self) -> bool:
        """A rule reads it; otherwise it is known and has no part in the capacities."""
        return self.name in REACHES_CAPACITIES

    @property
    def choices(self) -> tuple[str, ...]:
        """Values that are taken, or empty if there is no short list."""
        return CHOICES.get(self.name, ())


@dataclass(frozen=True, slots=True)
class _Segment:
    first: int
    last: int
    kind: ValueKind
    deprecated: bool
    successor: str


@dataclass(frozen=True, slots=True)
class _Table:
    versions: tuple[Version, ...]
    names: dict[str, str]
    history: dict[str, tuple[_Segment, ...]]


@cache
def _table() -> _Table:
    raw = json.loads(Path(__file__).with_name("data").joinpath("options.json").read_text("utf-8"))
    versions = tuple(parse_version(version) for version in raw["versions"])
    index = {str(version): at for at, version in enumerate(versions)}
    names: dict[str, str] = {}
    history: dict[str, tuple[_Segment, ...]] = {}
    for spelling, name, segments in raw["options"]:
        names[spelling] = name
        history[spelling] = tuple(
            _Segment(index[first], index[last], kind, bool(rest), rest[0] if rest else "")
            for first, last, kind, *rest in segments
        )
    return _Table(versions, names, history)


def _version_index(version: str | None) -> int:
    table = _table()
    wanted = parse_version(version or NEWEST)
    at = [i for i, known in enumerate(table.versions) if known.release <= wanted.release]
    return at[-1] if at else 0


def _in_version(spelling: str, at: int) -> Option | None:
    table = _table()
    for segment in table.history.get(spelling, ()):
        if segment.first <= at <= segment.last:
            return Option(
                spelling, table.names[spelling], segment.kind, segment.deprecated, segment.successor
            )
    return None


@cache
def _spellings(at: int) -> tuple[str, ...]:
    return tuple(name for name in _table().history if _in_version(name, at) is not None)


def known_spellings(version: str | None) -> tuple[str, ...]:
    """Every spelling that ``version`` takes, sorted. None = newest known version."""
    return _spellings(_version_index(version))


def normalise(text: str) -> str:
    """``tp_size``, ``tp-size`` and ``--tp-size`` as a spelling: ``--tp-size``."""
    return "--" + text.strip().lstrip("-").replace("_", "-")


def lookup(text: str, version: str | None) -> Option:
    """Find an option as the server's own parser does: exact, else a unique abbreviation.

    Args:
        text: Spelling with dashes, without a value: ``--tp``. No underscore is folded, because
            the server folds none; see ``normalise``.
        version: Version of the server; None = newest known.

    Raises:
        OptionError: Unknown, ambiguous, or not in this version.
    """
    at = _version_index(version)
    exact = _in_version(text, at)
    if exact is not None:
        return exact
    matches = [name for name in _spellings(at) if name.startswith(text)] if len(text) > 2 else []
    if text in _table().history:
        raise _not_in_version(text, at, matches, version or NEWEST)
    if len(matches) == 1:
        found = _in_version(matches[0], at)
        if found is not None:
            return Option(
                found.spelling, found.name, found.kind, found.deprecated, found.successor, text
            )
    if matches:
        raise OptionError(
            f"ambiguous option: {text} could match {', '.join(matches)}",
            hint="write the option out",
            reason="ambiguous",
            candidates=tuple(matches),
        )
    close = did_you_mean(text, version)
    raise OptionError(
        f"unrecognized option {text}",
        hint=f"did you mean {close[0]}?" if close else None,
        candidates=close,
    )


def _not_in_version(text: str, at: int, matches: list[str], version: str) -> OptionError:
    table = _table()
    segments = table.history[text]
    successor = successor_of(text, version)
    if at < segments[0].first:
        since = table.versions[segments[0].first]
        message = f"{text} is not known in {version}; it exists since {since}"
    else:
        last = table.versions[segments[-1].last]
        message = (
            f"{text} is not known in {version}; {last} is the last version that was read with it"
        )
    if len(matches) > 1:
        message = f"ambiguous option: {text} could match {', '.join(matches)} ({message})"
    hint = f"write {successor} instead" if successor else None
    return OptionError(
        message,
        hint=hint,
        reason="not_in_version",
        candidates=(successor,) if successor else (),
    )


def successor_of(spelling: str, version: str | None) -> str:
    """What to write in ``version`` instead of ``spelling``; empty if nothing replaces it."""
    name = _table().names.get(spelling)
    if name is None:
        return ""
    current = spelling_of(name, version)
    if current is not None and current != spelling:
        return current
    at = _version_index(version)
    for segment in reversed(_table().history[spelling]):
        if segment.successor:
            first = segment.successor.split("=")[0].split(" ")[0].split("{")[0]
            if any(known.startswith(first) for known in _spellings(at)):
                return segment.successor
    replacement = REPLACED_BY.get(name, "")
    first = replacement.split("=")[0].split(" ")[0]
    return replacement if first and _in_version(first, at) is not None else ""


def spelling_of(name: str, version: str | None) -> str | None:
    """The spelling of canonical ``name`` in ``version``, not a deprecated one if there is another.

    Returns:
        ``--cuda-graph-max-bs`` for ``cuda_graph_max_bs_decode`` before 0.5.14, or None if the
        version has no such option.
    """
    at = _version_index(version)
    found = [
        option
        for spelling, canonical in _table().names.items()
        if canonical == name and (option := _in_version(spelling, at)) is not None
        if option.kind != "negative"
    ]
    if not found:
        return None
    own = "--" + name.replace("_", "-")
    found.sort(key=lambda option: (option.deprecated, option.spelling != own, option.spelling))
    return found[0].spelling


def option_named(name: str, version: str | None) -> Option | None:
    """The option that sets canonical ``name`` in ``version``, or None."""
    spelling = spelling_of(name, version)
    return None if spelling is None else _in_version(spelling, _version_index(version))


def is_option_name(name: str) -> bool:
    """Some version has an option with this canonical name."""
    return name in _canonical_names()


@cache
def _canonical_names() -> frozenset[str]:
    return frozenset(_table().names.values())


def did_you_mean(text: str, version: str | None) -> tuple[str, ...]:
    """Spellings of ``version`` that look like ``text``, best first, three at most."""
    wanted = normalise(text)[:80]
    return tuple(difflib.get_close_matches(wanted, known_spellings(version), n=3, cutoff=0.72))


def withdrawn_is_error(version: str | None) -> bool:
    """A withdrawn option stops the server (before 0.5.10) instead of being ignored."""
    at = _version_index(version)
    return _table().versions[at].release < _FIRST_WITH_HARMLESS_WITHDRAWN
