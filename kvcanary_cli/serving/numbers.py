"""Numbers as the server's command line reads them (SPEC_SERVING_ARGS 1.3)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.serving.versions import Release

FIRST_WITH_SUFFIXES: Release = (0, 5, 10)

_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_WITH_SUFFIX = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")
# int() refuses longer ones on its own, with a text about an interpreter limit.
_MAX_DIGITS = 40


def parse_int(text: str) -> int:
    """A plain integer.

    Raises:
        ValueError: It is not one; the text says how it reads.
    """
    plain = text.strip()
    if len(plain) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(plain)} characters is out of every range")
    try:
        return int(plain)
    except ValueError:
        raise ValueError(f"invalid int value: {text!r}") from None


def parse_human_int(text: str, release: Release) -> int:
    """An integer with an optional suffix: ``128k`` = 128000, ``128Ki`` = 131072.

    Args:
        text: As it was passed.
        release: Before 0.5.10 only plain integers are taken.

    Raises:
        ValueError: It is not one; the text says what is wrong with it.
    """
    plain = text.strip()
    match = _WITH_SUFFIX.fullmatch(plain) if len(plain) <= _MAX_DIGITS else None
    if match is not None:
        number, suffix = match.groups()
        if release < FIRST_WITH_SUFFIXES:
            raise ValueError(
                f"invalid int value: {text!r}; suffixes are understood from 0.5.10 on, "
                f"write {_scaled(number, suffix)}"
            )
        if suffix in _BINARY and "." in number:
            raise ValueError(
                f"invalid value: {text!r}; decimals do not go with {suffix}, "
                f"write {_scaled(number, suffix)} or {number}{suffix[0]}"
            )
        return _scaled(number, suffix)
    try:
        return parse_int(plain)
    except ValueError as error:
        if re.fullmatch(r"[0-9.]+\s*[A-Za-z]+", plain):
            raise ValueError(
                f"invalid int value: {text!r}; suffixes are k, M, G, T (powers of 1000) and Ki, "
                "Mi, Gi, Ti (powers of 1024), case counts"
            ) from None
        raise ValueError(str(error)) from None


def _scaled(number: str, suffix: str) -> int:
    return int(Decimal(number) * (_BINARY.get(suffix) or _DECIMAL.get(suffix, 1)))
