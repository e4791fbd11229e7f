"""Serving arguments without what must not leave the machine."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

REMOVED = "(removed)"
# "token" alone would take max_total_tokens and tokenizer_path with it, "key" anything's keywords.
_SECRET_NAME = re.compile(
    r"api_?key|passw|passphrase|pwd|secret|credential|private|ssl|cert|cookie|authori[sz]ation"
    r"|bearer|salt|signature|jwt|dsn|watermark_config"
    r"|(^|_)(auth|access|hf|hub|admin)_?(key|token)s?($|_)"
    r"|(^|_)token$|(^|_)(key|auth|pass|sig)($|_)|key_?file",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: A name in text, with what stands between it and its value; only an option has a blank there.
_NAME = re.compile(
    r"(?<![\w.-])(?:(?P<name>-{0,2}[A-Za-z][\w.-]*)[\"']?\s*[=:]|(?P<option>--?[A-Za-z][\w.-]*)(?=\s))"
    r"\s*"
)
#: A value: quoted, or up to the next blank, with the word before it that says how it is meant.
_VALUE = re.compile(
    r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|(?:(?:bearer|basic|token)\s+)?\S+", re.IGNORECASE
)
#: Names and beginnings of values that have more than one word behind them.
_TO_THE_END_OF_LINE = re.compile(r"authori[sz]ation|cookie", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [^-]+-----.*", re.DOTALL)
#: The part of an address that logs in, whatever its password is made of.
_LOGIN = re.compile(r"(?<=://)(?:[^/@\s:]+:(?!\d+(?:[/\s]|$))\S*@|[^/\s]*@)")
_BARE_LOGIN = re.compile(r"(?<![\w/:])[\w.+-]+:[^\s@/:\"']+@(?=[\w.-])")
#: Secrets that are known by how they begin.
_KNOWN = re.compile(
    r"(?<![\w-])(?:sk-[\w-]{6,}|hf_\w{6,}|gh[opsu]_\w{6,}|github_pat_\w+|glpat-[\w-]+"
    r"|xox[a-z]-[\w-]+|A(?:KI|SI)A[0-9A-Z]{12,}|AIza[\w-]{20,}|eyJ[\w-]+\.[\w-]+\.[\w-]*"
    r"|(?<=bearer )\S+|(?<=basic )\S+)",
    re.IGNORECASE,
)
_MAX_DEPTH = 6


def scrub(args: Mapping[str, Any]) -> dict[str, Any]:
    """``args`` as JSON values, secrets replaced.

    An argument whose name tells of a secret loses its value, however deep it lies, also in text
    that is JSON, a command line or ``name=value``. Logins in addresses, and what looks like a key
    of a well-known kind, are taken out of the rest.
    """
    return {
        _text(str(name)): REMOVED if _is_secret(str(name), value) else _plain(value, 0)
        for name, value in args.items()
        if not str(name).startswith("_")
    }


def scrub_text(text: str) -> str:
    """``text`` without the secrets in it."""
    return _text(text)


def _tells_of_secret(name: str) -> bool:
    return (
        _SECRET_NAME.search(_CAMEL.sub("_", name).replace("-", "_").replace(".", "_")) is not None
    )


def _is_secret(name: str, value: Any) -> bool:
    return value not in (None, "", False) and _tells_of_secret(name)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _string(value, depth)
    if depth < _MAX_DEPTH and isinstance(value, dict):
        return {
            _text(str(k)): REMOVED if _is_secret(str(k), v) else _plain(v, depth + 1)
            for k, v in value.items()
        }
    if depth < _MAX_DEPTH and isinstance(value, list | tuple):
        return _list(value, depth)
    # An object's text may hold anything.
    return f"({type(value).__name__})"


def _list(values: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    """A list, which may be a command line: the word behind a secret's option is the secret."""
    out: list[Any] = []
    is_value = False
    for value in values:
        option, assigned, _ = value.partition("=") if isinstance(value, str) else ("", "", "")
        is_secret = option.startswith("-") and _tells_of_secret(option.lstrip("-"))
        if is_secret and assigned:
            out.append(f"{option}={REMOVED}")
        else:
            out.append(REMOVED if is_value else _plain(value, depth + 1))
        is_value = is_secret and not assigned
    return out


def _string(value: str, depth: int) -> str:
    if value.lstrip()[:1] in ("{", "["):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            pass
        else:
            return json.dumps(_plain(parsed, depth))
    return _text(value)


def _text(value: str) -> str:
    value = _LOGIN.sub("", _PEM.sub(REMOVED, value))
    return _KNOWN.sub(REMOVED, _pairs(_BARE_LOGIN.sub("", value)))


def _pairs(value: str) -> str:
    """``value`` without what is said behind the name of a secret."""
    out: list[str] = []
    at = 0
    while (found := _NAME.search(value, at)) is not None:
        name = found["name"] or found["option"]
        out.append(value[at : found.end()])
        at = found.end()
        if _tells_of_secret(name.lstrip("-")) and at < len(value):
            out.append(REMOVED)
            at = _end_of_secret(name, value, at)
    return "".join([*out, value[at:]])


def _end_of_secret(name: str, value: str, at: int) -> int:
    """Where a secret's value ends that begins at ``at``; of one in brackets nothing is kept."""
    if value[at] in "{[(":
        return len(value)
    if _TO_THE_END_OF_LINE.search(name):
        end = value.find("\n", at)
        return len(value) if end < 0 else end
    found = _VALUE.match(value, at)
    return len(value) if found is None else found.end()
