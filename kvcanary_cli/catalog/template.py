"""A message with placeholders, and the ways to find it in text.

Two forms of search: strictly, within one line of a log; and tolerantly, where blanks and line
breaks may stand anywhere, since terminals and mail programs wrap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{([a-z_]\w*)\}")
_BREAK = r"[ \t]*\n[ \t]*"

# Lengths are bounded so that no line, however long, makes a search slow.
_REPR = r"(?:'[^']{0,300}'|\"[^\"]{0,300}\"|\S{1,300})"

# type -> what it looks like on one line; what it looks like before more text that may be wrapped.
_FORMS = {
    "int": (r"-?\d+", r"-?\d[\d\s]*?"),
    "number": (r"-?\d+(?:\.\d+)?", r"-?\d[\d.\s]*?"),
    "hexbyte": (r"0x[0-9A-F]{2}", r"0x[0-9A-F\s]+?"),
    "hex64": (r"0x[0-9a-f]{16}", r"0x[0-9a-f\s]+?"),
    "upper": (r"[A-Z0-9_]+", r"[A-Z0-9_]+"),
    "type": (r"[a-z][\w.]{1,30}", r"[a-z][\w.]{1,30}"),
    "word": (r"\S{1,300}", rf"\S{{1,300}}?(?:{_BREAK}\S{{1,300}}?)?"),
    "text": (r"[^\n]{1,2000}?", r"(?s:.){1,2000}?"),
    "repr": (_REPR, _REPR),
    "tuple": (r"\([^()]{0,300}\)", r"\([^()]{0,300}\)"),
    "list": (r"\[[^\[\]]{0,2000}\]", r"\[[^\[\]]{0,2000}\]"),
    "json": (r"\{[^{}\n]{0,2000}\}", r"\{[^{}]{0,2000}\}"),
    "labels": (r"[a-z_]+(?:\+[a-z_]+)*", r"[a-z_+\s]+?"),
    "canary variable": (
        r"SGLANG_(?:KV_CANARY|PHASE_CHECKER|GEMMA)\w*",
        r"SGLANG_(?:KV_CANARY|PHASE_CHECKER|GEMMA)\w*",
    ),
    "target tail": (
        r"(?: when \S+ perturbation is enabled)?",
        r"(?:when\s+\S+\s+perturbation\s+is\s+enabled)?",
    ),
}
# Types in whose values a line break is never part of the value.
_SOLID = {"int", "number", "hexbyte", "hex64", "word", "labels"}
_LAST = {"text": r"[^\n]{1,2000}", "word": r"\S{1,300}", "labels": r"[a-z_]+(?:\+[a-z_]+)*"}
_AROUND = "\"'`,;"


def squeeze(text: str) -> str:
    """``text`` without any white space."""
    return "".join(text.split())


def _choice(kind: str) -> str | None:
    if words := Piece("", kind).words():
        return "(?:" + "|".join(map(re.escape, words)) + ")"
    if kind.startswith("labels with "):
        label = kind.removeprefix("labels with ")
        return rf"(?:[a-z_]+\+)*{label}(?:\+[a-z_]+)*(?![a-z_])"
    return None


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of fixed text, or a placeholder with its type (``kind`` None = fixed text)."""

    text: str
    kind: str | None = None

    def words(self) -> list[str]:
        """All the values that a placeholder can have, where they are few; else none."""
        kind = self.kind or ""
        return kind.removeprefix("one of ").split("|") if kind.startswith("one of ") else []

    def strict(self, *, last: bool) -> str:
        """The expression for one line."""
        if self.kind is None:
            return re.escape(self.text)
        form = _choice(self.kind) or (
            _LAST.get(self.kind, _FORMS[self.kind][0]) if last else _FORMS[self.kind][0]
        )
        return f"(?P<{self.text}>{form})"

    def tolerant(self, *, last: bool) -> str:
        """The expression for wrapped text."""
        if self.kind is None:
            return r"\s*".join(re.escape(char) for char in squeeze(self.text))
        if last and self.kind != "target tail":
            return self.strict(last=True)
        return f"(?P<{self.text}>{_choice(self.kind) or _FORMS[self.kind][1]})"

    def clean(self, value: str) -> str:
        """A value as the message had it, without the marks of wrapping and quoting."""
        if self.kind in _SOLID:
            return squeeze(value)
        value = " ".join(value.split())
        if self.kind == "repr":
            value = value.strip("'\"")
        return value


@dataclass(frozen=True)
class Template:
    """A message as alternating fixed text and placeholders."""

    pieces: tuple[Piece, ...]

    @classmethod
    def parse(cls, text: str, kinds: Mapping[str, str]) -> Template:
        """Split ``text`` at its placeholders, whose types are in ``kinds``."""
        pieces: list[Piece] = []
        end = 0
        for match in PLACEHOLDER.finditer(text):
            if match.start() > end:
                pieces.append(Piece(text[end : match.start()]))
            pieces.append(Piece(match[1], kinds[match[1]]))
            end = match.end()
        if end < len(text):
            pieces.append(Piece(text[end:]))
        return cls(tuple(pieces))

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """The fixed stretches without white space, in order."""
        return tuple(squeeze(piece.text) for piece in self.pieces if piece.kind is None)

    @cached_property
    def specificity(self) -> int:
        """Number of fixed characters, white space not counted."""
        return sum(map(len, self.literals))

    @cached_property
    def anchor(self) -> str:
        """The longest fixed stretch: a line without it cannot hold the message."""
        return max((piece.text for piece in self.pieces if piece.kind is None), key=len).strip()

    @cached_property
    def strict(self) -> re.Pattern[str]:
        """Finds the message within one line."""
        last = len(self.pieces) - 1
        return re.compile(
            "".join(piece.strict(last=n == last) for n, piece in enumerate(self.pieces))
        )

    @cached_property
    def tolerant(self) -> re.Pattern[str]:
        """Finds the message in text that may be wrapped anywhere."""
        return self._begin(len(self.pieces), at_end=False)

    def could_be_in(self, squeezed: str) -> bool:
        """Whether the fixed stretches stand in ``squeezed``, in order; cheap."""
        return self._literals_in(squeezed) == len(self.literals)

    def values(self, match: re.Match[str]) -> dict[str, str]:
        """The placeholders' values of a match."""
        found = match.groupdict()
        cleaned: dict[str, str] = {}
        for n, piece in enumerate(self.pieces):
            value = found.get(piece.text) if piece.kind is not None else None
            if value is None:
                continue
            cleaned[piece.text] = piece.clean(value)
            if n in {0, len(self.pieces) - 1} and piece.kind in {"word", "text"}:
                cleaned[piece.text] = cleaned[piece.text].strip(_AROUND)
        return cleaned

    def cut_short(self, text: str) -> tuple[int, dict[str, str]] | None:
        """How far ``text`` goes along the message before it ends.

        Args:
            text: Text that ends in the middle of the message.

        Returns:
            Number of fixed characters seen and the values so far, or None if the text does not
            end in the middle of this message.
        """
        squeezed = squeeze(text)
        seen = self._literals_in(squeezed)
        if seen == 0:
            return self._first_literal_begun(squeezed)
        fixed = sum(map(len, self.literals[:seen]))
        places = [n for n, piece in enumerate(self.pieces) if piece.kind is None]
        after = places[seen - 1] + 1
        if after == len(self.pieces):
            return None
        # The text ends right behind the fixed stretch that was seen last ...
        match = self._begin(after, at_end=True).search(text)
        if match:
            return fixed, self.values(match)
        # ... or within one of the words that may follow it ...
        for match in self._begin(after, at_end=False).finditer(text):
            rest = squeeze(text[match.end() :])
            if any(word.startswith(rest) for word in self.pieces[after].words()):
                return fixed, self.values(match)
        # ... or in the placeholder that follows it, or early in the next fixed stretch.
        following = self.literals[seen] if seen < len(self.literals) else ""
        for match in self._begin(after + 1, at_end=False).finditer(text):
            rest = squeeze(text[match.end() :])
            if following.startswith(rest) and (rest or match.end() == len(text)):
                return fixed + len(rest), self.values(match)
        return None

    def _literals_in(self, squeezed: str) -> int:
        """How many of the fixed stretches stand in ``squeezed``, in order."""
        at = 0
        for number, literal in enumerate(self.literals):
            at = squeezed.find(literal, at)
            if at < 0:
                return number
            at += len(literal)
        return len(self.literals)

    def _first_literal_begun(self, squeezed: str) -> tuple[int, dict[str, str]] | None:
        if self.pieces[0].kind is not None:
            return None
        literal = self.literals[0]
        for length in range(min(len(literal) - 1, len(squeezed)), 0, -1):
            if squeezed.endswith(literal[:length]):
                return length, {}
        return None

    def _begin(self, count: int, *, at_end: bool) -> re.Pattern[str]:
        """The first ``count`` pieces; the last of them as if nothing followed."""
        expression = r"\s*".join(
            piece.tolerant(last=n == count - 1) for n, piece in enumerate(self.pieces[:count])
        )
        return re.compile(expression + (r"\s*\Z" if at_end else ""))
