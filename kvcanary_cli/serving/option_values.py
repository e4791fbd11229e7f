"""Values of options, from text to Python, with the errors that the server gives."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving.numbers import parse_human_int, parse_int
from kvcanary_cli.serving.options import OptionError, withdrawn_is_error
from kvcanary_cli.serving.versions import choose_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.serving.options import Option
    from kvcanary_cli.serving.versions import Release


def parse_option_value(option: Option, words: Sequence[str], version: str | None) -> Any:
    """Parse the words that follow an option.

    Args:
        option: From ``options.lookup``.
        words: The words after it, as passed; empty for a flag.
        version: Version of the server; None = newest known.

    Returns:
        True for a flag, False for a ``--no-x``, a list for list options, else the one value.

    Raises:
        OptionError: Wrong number of words, or a word of the wrong type (reason ``value``).
    """
    release = choose_version(version).release
    if option.kind == "withdrawn" and withdrawn_is_error(version):
        raise _error(option, "it was withdrawn and stops the server")
    if not option.takes_value:
        if words:
            raise _error(option, f"takes no value, got {words[0]!r}")
        return option.kind != "negative"
    if option.takes_list:
        return [_scalar(option, word, release) for word in words]
    if option.kind == "maybe" and not words:
        return True
    if len(words) != 1:
        found = "none" if not words else f"{len(words)}: {' '.join(words)[:60]}"
        raise _error(option, f"expected one argument, got {found}")
    return _scalar(option, words[0], release)


def _scalar(option: Option, word: str, release: Release) -> Any:
    try:
        value = _convert(option.kind, word, release)
    except ValueError as error:
        raise _error(option, str(error)) from None
    if option.choices and isinstance(value, str) and value not in option.choices:
        choices = ", ".join(repr(choice) for choice in option.choices)
        raise _error(option, f"invalid choice: {value!r} (choose from {choices})")
    return value


def _convert(kind: str, word: str, release: Release) -> Any:
    if kind in ("int", "ints"):
        return parse_int(word)
    if kind == "human":
        return parse_human_int(word, release)
    if kind in ("float", "floats"):
        try:
            number = float(word)
        except ValueError:
            raise ValueError(f"invalid float value: {word!r}") from None
        if not math.isfinite(number):
            raise ValueError(f"invalid float value: {word!r}; a finite number is expected")
        return number
    if kind == "json":
        try:
            return json.loads(word)
        except (ValueError, RecursionError):
            raise ValueError(f"invalid JSON: {word[:60]!r}") from None
    return word


def _error(option: Option, what: str) -> OptionError:
    spelled = option.spelling if option.abbreviated is None else option.abbreviated
    return OptionError(f"argument {spelled}: {what}", reason="value")
