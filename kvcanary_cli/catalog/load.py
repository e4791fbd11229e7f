"""Reads the catalogue from the package's data."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from kvcanary_cli.catalog.entry import Case, Entry, Phase, Severity

_OPTIONAL = {"template", "whole", "variant_of", "values", "shared", "cases"}
_REQUIRED = {
    "code",
    "title",
    "severity",
    "raised_as",
    "phase",
    "versions",
    "message",
    "fields",
    "meaning",
    "when",
    "do",
    "example",
    "related",
}


def _entry(data: dict[str, Any], shared: dict[str, str]) -> Entry:
    keys = set(data)
    if not keys >= _REQUIRED or keys - _REQUIRED - _OPTIONAL:
        raise ValueError(f"{data.get('code')}: wrong keys: {sorted(keys ^ _REQUIRED)}")
    return Entry(
        code=data["code"],
        title=data["title"],
        severity=Severity(data["severity"]),
        raised_as=data["raised_as"],
        phase=Phase(data["phase"]),
        first=data["versions"]["first"],
        last=data["versions"]["last"],
        message=data["message"],
        template=data.get("template", data["message"]),
        fields=data["fields"],
        whole=data.get("whole", False),
        variant_of=data.get("variant_of"),
        values=data.get("values", {}),
        meaning=(*data["meaning"], *(shared[name] for name in data.get("shared", ()))),
        when=tuple(data["when"]),
        do=tuple(data["do"]),
        cases=tuple(Case(**case) for case in data.get("cases", ())),
        before=tuple(data["example"]["before"]),
        after=tuple(data["example"]["after"]),
        related=tuple(data["related"]),
    )


@cache
def catalogue() -> dict[str, Entry]:
    """All entries by code, in the order of the groups' files.

    Raises:
        ValueError: The data have a key too many or too few, or a code twice.
    """
    folder = files("kvcanary_cli.catalog") / "data"
    shared = json.loads((folder / "shared.json").read_text(encoding="utf-8"))
    entries: dict[str, Entry] = {}
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if not path.name.endswith(".json") or path.name == "shared.json":
            continue
        for data in json.loads(path.read_text(encoding="utf-8"))["entries"]:
            entry = _entry(data, shared)
            if entry.code in entries:
                raise ValueError(f"{entry.code}: stands twice in the catalogue")
            entries[entry.code] = entry
    return entries


def entry_of(code: str) -> Entry | None:
    """The entry with this code in any case, ``KVC-`` optional, or None."""
    wanted = code.strip().upper().replace("_", "-")
    if not wanted.startswith("KVC"):
        wanted = f"KVC-{wanted}"
    return catalogue().get(wanted)
