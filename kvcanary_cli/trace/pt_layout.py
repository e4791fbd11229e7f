"""Names in the dictionary of a ``.pt`` trace (docs/trace-format.md, section The .pt form).

Shared by reader and writer. One entry for each column, ``KIND.FIELD``, with ``.offsets`` and
``.present`` beside it where the column has them.
"""

from __future__ import annotations

LAYOUT = 1

FORMAT_KEY = "format"
VERSION_KEY = "version"
LAYOUT_KEY = "layout"
HEADER_KEY = "header"
EVENTS_KEY = "events"
TABLES_KEY = "tables"
STRINGS_KEY = "strings"
STRING_OFFSETS_KEY = "strings.offsets"
KIND_KEY = "kind"
INDEX_KEY = "i"


def column_key(kind: str, field: str) -> str:
    return f"{kind}.{field}"


def offsets_key(kind: str, field: str) -> str:
    return f"{kind}.{field}.offsets"


def present_key(kind: str, field: str) -> str:
    return f"{kind}.{field}.present"
