"""What was probably meant: codes and entries near to something that is in no entry."""

from __future__ import annotations

import re
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING

from kvcanary_cli.catalog.load import catalogue
from kvcanary_cli.catalog.match import cleaned, cut_candidates

if TYPE_CHECKING:
    from kvcanary_cli.catalog.entry import Entry

_WORD = re.compile(r"[A-Za-z_][\w.]*")
_MAX_CHARACTERS = 4000
# Below this share of a message's rarer words the likeness is chance.
_LEAST_LIKENESS = 0.3


def nearest_codes(code: str) -> list[str]:
    """Codes that look like ``code``, best first, three at most."""
    wanted = code.strip().upper().replace("_", "-").replace("O", "0")
    letters = re.fullmatch(r"(?:KVC-?)?([A-Z0]?)-?(\d+)", wanted)
    known = list(catalogue())
    if letters:
        group = "O" if letters[1] == "0" else letters[1]
        exact = f"KVC-{group}{int(letters[2]):02}"
        if exact in catalogue():
            return [exact]
        wanted = exact
    return get_close_matches(wanted, known, n=3, cutoff=0.6)


def nearest_entries(text: str, *, count: int = 3) -> list[Entry]:
    """Entries whose message is like ``text``, best first.

    Args:
        text: Text in which no message was found.
        count: How many at most.
    """
    text = cleaned(text)[:_MAX_CHARACTERS]
    begun = [match.entry for length, match in cut_candidates(text) if length >= len("kv-canary:k")]
    if begun:
        return begun[:count]
    words = set(_WORD.findall(text.lower()))
    how_common: dict[str, int] = {}
    for entry in catalogue().values():
        for word in set(_WORD.findall(entry.template.lower())):
            how_common[word] = how_common.get(word, 0) + 1
    scored = []
    for entry in catalogue().values():
        own = set(_WORD.findall(entry.template.lower())) - set(entry.fields)
        weight = sum(1 / how_common[word] for word in own)
        shared = sum(1 / how_common[word] for word in own & words)
        if weight and shared / weight >= _LEAST_LIKENESS:
            likeness = SequenceMatcher(None, text[:400], entry.template, autojunk=False).ratio()
            scored.append((shared / weight + likeness, entry.code, entry))
    scored.sort(key=lambda item: (-item[0], item[1]))
    return [entry for _, _, entry in scored[:count]]
