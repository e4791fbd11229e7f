"""A root-cause class as one JSON object (docs/output.md)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvcanary_cli import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.classes import ClassPage

SCHEMA_VERSION = 1


def json_parts(page: ClassPage) -> Iterator[str]:
    """The object; ``needs`` are alternatives of record families, in order of their names."""
    fields = asdict(page) | {"needs": [sorted(way) for way in page.needs]}
    value = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "kvcanary", "version": __version__},
        "command": "replay --explain-class",
        "class": fields.pop("name"),
        **fields,
    }
    yield json.dumps(value, ensure_ascii=False) + "\n"
