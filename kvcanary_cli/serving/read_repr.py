"""Parses printed Python values: ``ServerArgs(tp_size=8, ...)`` and ``{'tp_size': 8, ...}``.

A parser for what ``repr`` prints, nothing is evaluated. Objects and enumerations that have no
literal form become text, so that one odd field does not spoil the others.
"""

from __future__ import annotations

import re
from typing import Any

_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan)\b")
_WORD = re.compile(r"[A-Za-z_][\w.]*")
_STRING = re.compile(r"[bBrRuU]{0,2}('''|\"\"\"|'|\")")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ENUM = re.compile(r"<[\w.]+: ")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_MAX_DEPTH = 30
_MAX_DIGITS = 400


class ReprError(Exception):
    """Text that is no printed Python value; ``at`` is where it stops making sense."""

    def __init__(self, at: int, text: str) -> None:
        super().__init__(text)
        self.at = at


def parse_fields(text: str, at: int = 0) -> tuple[dict[str, Any], bool]:
    """Fields of ``Name(field=value, ...)`` or ``{'field': value, ...}`` that begins at ``at``.

    Returns:
        Fields as far as they can be read, and whether the text was whole.

    Raises:
        ReprError: There is no such thing at ``at``.
    """
    parser = _Parser(text)
    parser.at = at
    fields: dict[str, Any] = {}
    word = _WORD.match(text, at)
    try:
        if word and text[word.end() : word.end() + 1] == "(":
            parser.at = word.end() + 1
            parser.arguments(fields, 1)
        elif text[at : at + 1] == "{":
            parser.at = at + 1
            parser.items(fields, 1)
        else:
            raise ReprError(at, "expected Name(...) or {...}")
    except ReprError:
        if not fields:
            raise
        return fields, False
    return fields, True


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self) -> str:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.text[self.at : self.at + 1]

    def expect(self, char: str) -> None:
        if self.skip() != char:
            raise ReprError(self.at, f"expected {char!r}")
        self.at += 1

    def arguments(self, into: dict[str, Any], depth: int) -> None:
        """``a=1, b=2)``; positional values are numbered."""
        while self.skip() != ")":
            word = _WORD.match(self.text, self.at)
            if word and self.text[word.end() : word.end() + 1] == "=":
                self.at = word.end() + 1
                into[word.group()] = self.value(depth)
            else:
                into[str(len(into))] = self.value(depth)
            if self.skip() == ",":
                self.at += 1
            elif self.skip() != ")":
                raise ReprError(self.at, "expected ',' or ')'")
        self.at += 1

    def items(self, into: dict[str, Any], depth: int) -> None:
        """``'a': 1, 'b': 2}``; the members of a set map to None."""
        while self.skip() != "}":
            key = self.value(depth)
            if self.skip() == ":":
                self.at += 1
                into[str(key)] = self.value(depth)
            else:
                into[str(key)] = None
            if self.skip() == ",":
                self.at += 1
            elif self.skip() != "}":
                raise ReprError(self.at, "expected ',' or '}'")
        self.at += 1

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ReprError(self.at, "nested too deep")
        char = self.skip()
        if not char:
            raise ReprError(self.at, "the text ends here")
        if _STRING.match(self.text, self.at):
            return self.string()
        if char == "{":
            self.at += 1
            inner: dict[str, Any] = {}
            self.items(inner, depth + 1)
            return inner
        if char in "[(":
            return self.sequence(_CLOSING[char], depth)
        if char == "<":
            return self.angled(depth)
        number = _NUMBER.match(self.text, self.at)
        if number:
            self.at = number.end()
            return _number(number.group(), self.at)
        word = _WORD.match(self.text, self.at)
        if word is None:
            raise ReprError(self.at, f"unexpected {char!r}")
        self.at = word.end()
        if self.text[self.at : self.at + 1] == "(":
            self.at += 1
            inner = {}
            self.arguments(inner, depth + 1)
            return inner
        return _WORDS.get(word.group(), word.group())

    def sequence(self, closing: str, depth: int) -> list[Any]:
        self.at += 1
        out: list[Any] = []
        while self.skip() != closing:
            out.append(self.value(depth + 1))
            if self.skip() == ",":
                self.at += 1
            elif self.skip() != closing:
                raise ReprError(self.at, f"expected ',' or {closing!r}")
        self.at += 1
        return out

    def angled(self, depth: int) -> Any:
        """``<Mode.LOG: 'log'>`` is its value, ``<object at 0x...>`` is text."""
        enum = _ENUM.match(self.text, self.at)
        start = self.at
        if enum:
            self.at = enum.end()
            value = self.value(depth + 1)
            self.expect(">")
            return value
        open_ = 0
        for k in range(start, len(self.text)):
            open_ += {"<": 1, ">": -1}.get(self.text[k], 0)
            if not open_:
                self.at = k + 1
                return self.text[start : self.at]
        raise ReprError(start, "'<' is not closed")

    def string(self) -> str:
        opening = _STRING.match(self.text, self.at)
        assert opening is not None
        quote = opening.group(1)
        raw = "r" in opening.group().lower()
        start = at = opening.end()
        while True:
            end = self.text.find(quote, at)
            if end < 0:
                raise ReprError(self.at, "the text ends inside a string")
            backslashes = len(self.text[start:end]) - len(self.text[start:end].rstrip("\\"))
            if backslashes % 2 == 0:
                break
            at = end + 1
        self.at = end + len(quote)
        body = self.text[start:end]
        return body if raw else _ESCAPE.sub(_unescape, body)


def _unescape(found: re.Match[str]) -> str:
    code = found.group(1) or found.group(2) or found.group(3)
    if code is None:
        char = found.group(4)
        return "" if char == "\n" else _SIMPLE.get(char, char)
    number = int(code, 16)
    return chr(number) if number < 0x110000 else "?"


def _number(text: str, at: int) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise ReprError(at, "a number of too many digits")
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
