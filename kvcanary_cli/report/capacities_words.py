"""Words of capacity reports that several renderers share: sizes, values, statuses."""

from __future__ import annotations

import json
import shlex
from typing import Any

from kvcanary_cli.serving.check_result import Status

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_MAX_SHOWN = 60
STATUS_WORDS = {Status.OK: "ok", Status.FAILS: "FAILS", Status.UNKNOWN: "unknown"}


def size(value: int | None) -> str:
    """``6.2 MiB``; negative sizes keep their sign."""
    if value is None:
        return "unknown"
    amount = float(abs(value))
    unit = 0
    while amount >= _STEP and unit < len(_UNITS) - 1:
        amount /= _STEP
        unit += 1
    number = f"{amount:.0f}" if unit == 0 else f"{amount:.1f}"
    return f"{'-' if value < 0 else ''}{number} {_UNITS[unit]}"


def number(value: Any) -> str:
    """A value of a table cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def flag_value(value: Any) -> str:
    """A value as it is written on a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(str(part) for part in value)
    if isinstance(value, dict):
        return shlex.quote(json.dumps(value))
    return "none" if value is None else str(value)


def setting(flag: str, value: Any) -> str:
    """``--cuda-graph-max-bs 64``, ``--disable-radix-cache``, ``NAME=0``."""
    if not flag.startswith("-"):
        return f"{flag}={int(value) if isinstance(value, bool) else flag_value(value)}"
    if value is True:
        return flag
    return f"{flag} {flag_value(value)}"
