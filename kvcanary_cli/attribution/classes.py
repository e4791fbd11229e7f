"""The seventeen root-cause classes: what each means, what it needs, what to do (``classes.toml``).

The families that a class needs stand in one table, ``replay.coverage.CLASS_NEEDS``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from kvcanary_cli.attribution.result import CLASSES
from kvcanary_cli.replay.coverage import CLASS_NEEDS

_DATA = Path(__file__).with_name("classes.toml")


@dataclass(frozen=True, slots=True)
class Subtype:
    """A finer kind within a class; ``remedy`` None = that of the class."""

    name: str
    meaning: str
    remedy: str | None


@dataclass(frozen=True, slots=True)
class UpstreamFix:
    """A public change that cured an instance of the class."""

    ref: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPage:
    """One class.

    Attributes:
        name: As in ``CLASSES``.
        title: One line.
        meaning: What happens.
        check: The rule, in words.
        look_at: What to look at in a report.
        remedy: What to change.
        stop_gap: What to switch meanwhile.
        upstream: Public fixes.
        related: Classes that look alike.
        subtypes: In the order of the data file.
        needs: Alternatives of record families that show it; empty = it needs several ranks, or
            nothing but the others.
    """

    name: str
    title: str
    meaning: str
    check: str
    look_at: tuple[str, ...]
    remedy: str
    stop_gap: str
    upstream: tuple[UpstreamFix, ...]
    related: tuple[str, ...]
    subtypes: tuple[Subtype, ...]
    needs: tuple[frozenset[str], ...]

    def subtype(self, name: str) -> Subtype | None:
        """The sub-type called ``name``, None if it has no words of its own."""
        return next((s for s in self.subtypes if fnmatchcase(name, s.name)), None)


@cache
def class_pages() -> dict[str, ClassPage]:
    """All pages by name, in the order of ``CLASSES``."""
    with _DATA.open("rb") as file:
        data: dict[str, Any] = tomllib.load(file)
    return {name: _page(name, data[name]) for name in CLASSES}


def _page(name: str, data: dict[str, Any]) -> ClassPage:
    return ClassPage(
        name=name,
        title=data["title"],
        meaning=data["meaning"],
        check=data["check"],
        look_at=tuple(data["look_at"]),
        remedy=data["remedy"],
        stop_gap=data["stop_gap"],
        upstream=tuple(UpstreamFix(u["ref"], u["what"]) for u in data.get("upstream", ())),
        related=tuple(data["related"]),
        subtypes=tuple(
            Subtype(key, sub["meaning"], sub.get("remedy"))
            for key, sub in data.get("subtypes", {}).items()
        ),
        needs=CLASS_NEEDS.get(name, ()),
    )


def remedy(cls: str, subtype: str = "") -> str:
    """One line of advice for a class and, where there is any, its sub-type."""
    page = class_pages()[cls]
    fine = page.subtype(subtype)
    advice = page.remedy if fine is None or fine.remedy is None else fine.remedy
    return f"{advice}; stop-gap: {page.stop_gap}"
