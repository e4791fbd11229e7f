"""Type checks of single field values, before they become array items."""

from __future__ import annotations

import json
from array import array
from typing import Any

import numpy as np

from kvcanary_cli.trace.schema import Field, FieldType

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_SHOWN_CHARS = 40
_ONLY_INT = {int}


class FieldError(ValueError):
    """A field of an event does not fit the schema.

    Args:
        message: Which field, what was expected, what was found.
        column: Name of the field.
    """

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.message = message
        self.column = column


def printable(text: str, limit: int = 80) -> str:
    """``text`` for a message: control characters and broken Unicode escaped, long text cut."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)


def describe(value: Any) -> str:
    """``value`` as short JSON text, for error messages."""
    if isinstance(value, list) and len(value) > _SHOWN_CHARS:
        return f"a list of {len(value)} items"
    if isinstance(value, str):
        value = value[: _SHOWN_CHARS + 1]
    text: str = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def is_int64(value: Any) -> bool:
    return type(value) is int and _INT64_MIN <= value <= _INT64_MAX


def check_value(f: Field, value: Any) -> Any:
    """Check that ``value`` has the type of field ``f``.

    Returns:
        The value to store; a list of integers comes back as ``array("q")``.

    Raises:
        FieldError: It has not.
    """
    # The most frequent types first: this runs for every field of every event.
    kind = f.type
    if kind is FieldType.INTS:
        return _check_ints(f, value)
    if kind is FieldType.INT:
        good = is_int64(value)
    elif kind is FieldType.STR:
        good = isinstance(value, str)
    elif kind is FieldType.STRS:
        good = isinstance(value, list) and all(v is None or isinstance(v, str) for v in value)
    else:
        good = kind is FieldType.JSON or isinstance(value, bool)
    if not good:
        null = "; leave the field out instead" if value is None and not f.required else ""
        raise FieldError(
            f"'{f.name}' must be {f.type.value}, found {describe(value)}{null}", f.name
        )
    return value


def _check_ints(f: Field, value: Any) -> array[int]:
    if isinstance(value, list):
        # True and False would pass as integers below, so the exact type is asked for first.
        if value and set(map(type, value)) != _ONLY_INT:
            bad = next(k for k, item in enumerate(value) if type(item) is not int)
            raise _item_error(f, bad, value[bad])
        try:
            return array("q", value)
        except OverflowError:
            bad = next(k for k, item in enumerate(value) if not is_int64(item))
            raise _item_error(f, bad, value[bad]) from None
    if isinstance(value, array) and value.typecode == "q":
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        if value.dtype == np.uint64 and len(value) and int(value.max()) > _INT64_MAX:
            raise FieldError(f"'{f.name}' must hold 64-bit signed integers", f.name)
        return array("q", value.astype(np.int64).tobytes())
    raise FieldError(f"'{f.name}' must be {f.type.value}, found {describe(value)}", f.name)


def _item_error(f: Field, position: int, item: Any) -> FieldError:
    return FieldError(
        f"'{f.name}'[{position}] must be a 64-bit integer, found {describe(item)}", f.name
    )
