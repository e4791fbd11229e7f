"""Serving arguments without what must not leave the machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

REMOVED = "(removed)"
# "token" alone would take max_total_tokens and tokenizer_path with it.
_SECRET_NAME = re.compile(
    r"api_?key|password|passwd|secret|credential|private|ssl|cert|cookie|authori[sz]ation|salt"
    r"|(^|_)(auth|access|bearer|hf|hub|admin)_?(key|token)s?($|_)|(^|_)token$|_keyfile|key_file",
    re.IGNORECASE,
)
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_INLINE = re.compile(
    r"((?:api[_-]?key|password|secret|token|authorization)[\"']?\s*[=:]\s*[\"']?)[^\s\"',}&]+",
    re.IGNORECASE,
)
_MAX_DEPTH = 4


def scrub(args: Mapping[str, Any]) -> dict[str, Any]:
    """``args`` as JSON values, secrets replaced.

    An argument whose name tells of a secret loses its value; logins in addresses and
    ``key=value`` secrets within text are taken out of the rest.
    """
    return {
        str(name): REMOVED if _is_secret(str(name), value) else _plain(value, 0)
        for name, value in args.items()
        if not str(name).startswith("_")
    }


def _is_secret(name: str, value: Any) -> bool:
    return value not in (None, "", False) and _SECRET_NAME.search(name) is not None


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _INLINE.sub(rf"\1{REMOVED}", _URL_LOGIN.sub("", value))
    if depth < _MAX_DEPTH and isinstance(value, dict):
        return {
            str(k): REMOVED if _is_secret(str(k), v) else _plain(v, depth + 1)
            for k, v in value.items()
        }
    if depth < _MAX_DEPTH and isinstance(value, list | tuple):
        return [_plain(v, depth + 1) for v in value]
    # An object's text may hold anything.
    return f"({type(value).__name__})"
