"""Fills the numbers of a message into the catalogue's texts.

``{name}`` is a value of the message or one computed from it; ``{name|word}`` is the same with a
word to show when there is no message; ``[[...]]`` is a stretch that is left out unless all of its
values are known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPTIONAL = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
_VALUE = re.compile(r"\{([a-z_]\w*)(?:\|([^{}]*))?\}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """``text`` with its placeholders filled and its optional stretches decided.

    Args:
        text: A text of the catalogue.
        values: Known values by name.

    Raises:
        KeyError: A placeholder outside an optional stretch has neither a value nor a word.
    """

    def stretch(match: re.Match[str]) -> str:
        needed = {name for name, word in _VALUE.findall(match[1]) if not word}
        return match[1] if needed <= values.keys() else ""

    def value(match: re.Match[str]) -> str:
        known = values.get(match[1])
        if known is not None:
            return known
        if match[2] is None:
            raise KeyError(match[1])
        return match[2]

    return _VALUE.sub(value, _OPTIONAL.sub(stretch, text))
