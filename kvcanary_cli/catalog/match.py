"""Finds the catalogue's messages in pasted text: wrapped, coloured, quoted, prefixed or cut."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import FailReason, fail_reason_labels
from kvcanary_cli.catalog.load import catalogue
from kvcanary_cli.catalog.template import squeeze

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcanary_cli.catalog.entry import Entry

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_REPLY_MARKS = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)
_FRAME = re.compile(r"^[ \t]*[│┃║][ \t]?|[ \t]*[│┃║][ \t]*$", re.MULTILINE)
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe58\ufe63\uff0d", "-"),
        # A word processor's long dash stands for the two of an option.
        **dict.fromkeys("\u2014\u2015", "--"),
        **dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f\u3000", " "),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),
    }
)
_LINE_BREAK = re.compile(r"\n[ \t]*")
_ELLIPSIS = re.compile(r"\s*(?:\.\.\.|…|\[truncated\])[\s\"'`]*\Z")
_CANARY_FRAME = re.compile(r"kv_canary|kvcanary")
# Fixed characters beyond the common beginning that a message cut short must still show.
_ENOUGH_CHARACTERS = 8
# With this many another entry is a rival, and the message stays unexplained.
_RIVAL_CHARACTERS = 3
_COMMON_BEGINNING = "kv-canary:"
LABEL_CODES: Mapping[str, str] = {
    label: f"KVC-V{number:02}"
    for number, reason in enumerate(
        (
            FailReason.VERIFY_CHAIN_HASH_MISMATCH,
            FailReason.VERIFY_POSITION_MISMATCH,
            FailReason.VERIFY_REAL_KV_HASH_MISMATCH,
            FailReason.WRITE_TOKEN_MISMATCH,
            FailReason.WRITE_POSITION_MISMATCH,
            FailReason.VERIFY_TOKEN_MISMATCH,
        ),
        1,
    )
    for label in fail_reason_labels(int(reason))
}
_LABEL_ENTRIES = set(LABEL_CODES.values())
VIOLATION = "KVC-V00"
_BLOCK_CODES = {"KVC-V10", "KVC-V11", "KVC-V12", "KVC-V13"}


@dataclass(frozen=True, slots=True)
class Match:
    """A message that was found.

    Attributes:
        entry: What it is.
        fields: Its placeholders' values, as text.
        start: Where it begins in the cleaned text.
        end: Where it ends.
        whole: False if the text broke off before the message's end.
    """

    entry: Entry
    fields: dict[str, str]
    start: int
    end: int
    whole: bool = True


def plain_marks(text: str) -> str:
    """``text`` with the quotes, dashes and blanks that word processors put in as plain ones."""
    return text if text.isascii() else text.translate(_PLAIN)


def cleaned(text: str) -> str:
    """``text`` without colours, frames, reply marks and the escapes of JSON strings."""
    text = plain_marks(_ESCAPES.sub("", text)).replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\\n", "\n").replace('\\"', '"')
    text = _FRAME.sub("", text)
    if all(line.lstrip().startswith(">") for line in text.splitlines() if line.strip()):
        text = _REPLY_MARKS.sub("", text)
    return text


def find_messages(text: str) -> list[Match]:
    """The messages in ``text``, in order; the more specific entry wins where two overlap."""
    text = cleaned(text)
    found = _whole_text(text)
    if found is not None:
        return [found]
    matches = _find_whole(text)
    if "\n" in text:
        # A break within a value: a terminal folds at its edge, wherever that is.
        joined = _find_whole(_LINE_BREAK.sub("", text))
        matches = max(matches, joined, key=_fixed_characters)
    return _without_parts(matches) or _find_cut(text)


def _fixed_characters(matches: list[Match]) -> int:
    return sum(match.entry.matcher.specificity for match in matches)


def _whole_text(text: str) -> Match | None:
    """An entry whose text is too common to be searched for.

    It counts only as everything that was pasted, or as the end of a traceback of the canary.
    """
    lines = text.strip().strip("\"'`" if text.count("'") % 2 else '"`').splitlines()
    if not lines or (len(lines) > 1 and not _CANARY_FRAME.search(text)):
        return None
    for entry in catalogue().values():
        if not entry.whole:
            continue
        match = entry.matcher.strict.fullmatch(lines[-1].strip())
        if match:
            return Match(entry, entry.matcher.values(match), 0, len(text))
    return None


def _find_whole(text: str) -> list[Match]:
    squeezed = squeeze(text)
    found = [
        Match(entry, entry.matcher.values(match), match.start(), match.end())
        for entry in catalogue().values()
        if not entry.whole and entry.matcher.could_be_in(squeezed)
        for match in entry.matcher.tolerant.finditer(text)
    ]
    found.sort(key=lambda match: (-match.entry.matcher.specificity, match.start, match.entry.code))
    kept: list[Match] = []
    for match in found:
        overlapping = [o for o in kept if match.start < o.end and o.start < match.end]
        if all(_are_labels(match, other) for other in overlapping):
            kept.append(match)
    return sorted(kept, key=lambda match: (match.start, match.entry.code))


def _are_labels(one: Match, other: Match) -> bool:
    """Whether both are reasons, which stand in one list and have an entry each."""
    return {one.entry.code, other.entry.code} <= _LABEL_ENTRIES


def _without_parts(matches: list[Match]) -> list[Match]:
    """Follow a violation by its reasons; leave out the block's other lines, which repeat it."""
    if not any(match.entry.code == VIOLATION for match in matches):
        return matches
    parts: list[Match] = []
    for match in matches:
        if match.entry.code in _BLOCK_CODES:
            continue
        parts.append(match)
        if match.entry.code == VIOLATION:
            parts += [
                Match(catalogue()[code], match.fields, match.start, match.end)
                for label, code in LABEL_CODES.items()
                if label in match.fields["fail_reason"].split("+")
            ]
    return parts


def cut_candidates(text: str) -> list[tuple[int, Match]]:
    """Entries in whose middle ``text`` ends, with the number of fixed characters seen, best first.

    Args:
        text: Cleaned text.
    """
    text = _ELLIPSIS.sub("", text).rstrip(" \t\n\"'`")
    candidates: list[tuple[int, Match]] = []
    for entry in catalogue().values():
        if entry.whole:
            continue
        seen = entry.matcher.cut_short(text)
        if seen is not None:
            length, fields = seen
            candidates.append((length, Match(entry, fields, 0, len(text), whole=False)))
    return sorted(candidates, key=lambda pair: (-pair[0], pair[1].entry.code))


def _find_cut(text: str) -> list[Match]:
    """The one family of messages that ``text`` can be the beginning of, or nothing."""
    candidates = cut_candidates(text)
    if not candidates:
        return []
    beginning = len(_COMMON_BEGINNING) if _COMMON_BEGINNING in squeeze(text) else 0
    most = candidates[0][0]
    rivals = [match for length, match in candidates if length - beginning >= _RIVAL_CHARACTERS]
    if most - beginning < _ENOUGH_CHARACTERS or len({m.entry.family for m in rivals}) > 1:
        return []
    best = [match for length, match in candidates if length == most]
    return [next((m for m in best if m.entry.variant_of is None), best[0])]
