"""Answers of ``inspect`` as one JSON object (docs/attribution.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvcanary_cli import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.inspect_question import Answer

SCHEMA_VERSION = 1


def json_parts(
    answer: Answer, question: dict[str, Any], path: str, lost_events: int
) -> Iterator[str]:
    """The object.

    Args:
        answer: What was found.
        question: Name and value of what was asked.
        path: The trace.
        lost_events: Events missing in it.
    """
    value = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "kvcanary", "version": __version__},
        "command": "inspect",
        "trace": {"path": path, "lost_events": lost_events},
        "question": question,
        "title": answer.title,
        "facts": {name.replace(" ", "_"): value for name, value in answer.facts},
        "lines": answer.rows,
        "left_out": answer.left_out,
    }
    yield json.dumps(value, ensure_ascii=False) + "\n"
