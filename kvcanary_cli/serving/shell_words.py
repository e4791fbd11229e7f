"""Splits shell text into commands of words that know their place; nothing is executed.

Understood: quotes, escapes, comments, line continuation, assignments, arrays, the plain expansions
``$NAME``, ``${NAME}``, ``${NAME:-default}`` and ``"${NAME[@]}"`` of what the text itself assigns,
here-documents (skipped), redirections (dropped) and the operators that end a command. Everything
else stays as it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_EXPANSION = re.compile(r"\$(?:\{([A-Za-z_]\w*)(\[[@*]\])?(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")
_HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_REDIRECT = re.compile(r"\d*(?:>>|>&|<&|&>>|&>|>\||>|<)")
_EXPORTS = frozenset({"export", "declare", "local", "readonly"})
_ENDS = frozenset("\n;|&(){}")
#: An expansion of an expansion of ...; and how much text it may grow to.
_MAX_EXPANSION = 1 << 16


@dataclass(frozen=True, slots=True)
class Word:
    """One word, unquoted and expanded, with the 1-based place where it begins.

    ``unset`` names a variable in it that the text does not set.
    """

    text: str
    line: int
    column: int
    unset: str = ""


@dataclass(slots=True)
class Command:
    """One simple command.

    Attributes:
        words: Its words, assignments in front included.
        broken_continuation: Line on which a backslash is followed by blanks, which ends the
            command there, or None.
    """

    words: list[Word] = field(default_factory=list)
    broken_continuation: tuple[int, int] | None = None


class ShellError(Exception):
    """Text that no shell accepts."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(text)
        self.line, self.column, self.text = line, column, text


class _Lexer:
    def __init__(self, text: str, variables: dict[str, list[Word]], line: int, column: int) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.column = column
        self.variables = variables
        self.commands: list[Command] = []
        self.current = Command()
        self.heredocs: list[tuple[str, bool]] = []

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.text[at] if at < len(self.text) else ""

    def advance(self, count: int = 1) -> str:
        taken = self.text[self.at : self.at + count]
        self.at += len(taken)
        newlines = taken.count("\n")
        if newlines:
            self.line += newlines
            self.column = len(taken) - taken.rfind("\n")
        else:
            self.column += len(taken)
        return taken

    def run(self) -> list[Command]:
        while self.at < len(self.text):
            self._step()
        self._end_command()
        return self.commands

    def _step(self) -> None:
        char = self.peek()
        if char == "\\" and self.peek(1) == "\n":
            self.advance(2)
        elif char == "\\" and re.match(r"\\[ \t]+(\n|$)", self.text[self.at : self.at + 200]):
            self.current.broken_continuation = (self.line, self.column)
            self.advance()
        elif char in " \t":
            self.advance()
        elif char == "#":
            end = self.text.find("\n", self.at)
            self.advance((end if end >= 0 else len(self.text)) - self.at)
        elif found := _HEREDOC.match(self.text, self.at):
            self.heredocs.append((found.group(3), bool(found.group(1))))
            self.advance(len(found.group()))
        elif found := _REDIRECT.match(self.text, self.at):
            self._redirect(found)
        elif char in _ENDS:
            self.advance()
            self._end_command()
            if char == "\n":
                self._skip_heredocs()
        else:
            self._word()

    def _redirect(self, found: re.Match[str]) -> None:
        self.advance(len(found.group()))
        while self.peek() and self.peek() in " \t":
            self.advance()
        before = len(self.current.words)
        if self.peek() and self.peek() not in _ENDS | {"<", ">"}:
            self._word()
            del self.current.words[before:]

    def _skip_heredocs(self) -> None:
        for name, dashed in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                self.advance(len(line) + 1)
                if (line.lstrip("\t") if dashed else line) == name:
                    break
        self.heredocs.clear()

    def _end_command(self) -> None:
        if not self.current.words:
            return
        first, *rest = self.current.words
        assigned = rest if first.text in _EXPORTS else self.current.words
        if all(_ASSIGNMENT.match(word.text) for word in assigned):
            for word in assigned:
                self._assign(word)
        self.commands.append(self.current)
        self.current = Command()

    def _assign(self, word: Word) -> None:
        found = _ASSIGNMENT.match(word.text)
        if found:
            old = self.variables.get(found.group(1), []) if found.group(2) else []
            value = "".join(part.text for part in old) + word.text[found.end() :]
            self.variables[found.group(1)] = [Word(value, word.line, word.column, word.unset)]

    def _word(self) -> None:
        line, column = self.line, self.column
        assignment = _ASSIGNMENT.match(self.text, self.at)
        if assignment and self.text[assignment.end() : assignment.end() + 1] == "(":
            self._array(assignment)
            return
        text = ""
        unset = ""
        split: list[Word] | None = None
        start = self.at
        while self.peek() and self.peek() not in " \t" and self.peek() not in _ENDS | {"<", ">"}:
            char = self.peek()
            if char == "\\":
                text += self._escape()
            elif char == "'":
                text += self._single()
            elif char == '"':
                piece, missing, split = self._double(first=self.at == start)
                text += piece
                unset = unset or missing
            elif char == "$" and (found := _EXPANSION.match(self.text, self.at)):
                values, missing = self._expansion(found)
                unset = unset or missing
                alone = self.at == start and self._word_ends(len(found.group()))
                self.advance(len(found.group()))
                if alone and not missing:
                    split = [
                        Word(
                            part,
                            *((value.line, value.column) if found.group(2) else (line, column)),
                        )
                        for value in values
                        for part in value.text.split()
                    ]
                else:
                    text += " ".join(value.text for value in values)
            elif char == "$" and self.peek(1) in "({":
                text += self._nested()
            elif char == "`":
                text += self._backticks()
            else:
                text += self.advance()
        if split is not None and not text:
            self.current.words += split
        else:
            self.current.words.append(Word(text, line, column, unset))

    def _word_ends(self, ahead: int) -> bool:
        char = self.peek(ahead)
        return not char or char in " \t" or char in _ENDS

    def _escape(self) -> str:
        self.advance()
        if self.peek() == "\n":
            self.advance()
            return ""
        return self.advance()

    def _single(self) -> str:
        line, column = self.line, self.column
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise ShellError(line, column, "the quote ' is not closed")
        return self.advance(end + 1 - self.at)[1:-1]

    def _double(self, *, first: bool) -> tuple[str, str, list[Word] | None]:
        line, column = self.line, self.column
        self.advance()
        text = unset = ""
        split: list[Word] | None = None
        at_start = True
        while self.peek() != '"':
            char = self.peek()
            if not char:
                raise ShellError(line, column, 'the quote " is not closed')
            if char == "\\":
                self.advance()
                following = self.advance()
                text += {"\n": ""}.get(
                    following, following if following in '"\\$`' else "\\" + following
                )
            elif char == "$" and (found := _EXPANSION.match(self.text, self.at)):
                values, missing = self._expansion(found)
                unset = unset or missing
                ends = self.peek(len(found.group())) == '"'
                self.advance(len(found.group()))
                if first and at_start and ends and found.group(2) and self._word_ends(1):
                    split = values
                else:
                    text += " ".join(value.text for value in values)
            else:
                text += self.advance()
            at_start = False
        self.advance()
        return text, unset, split

    def _expansion(self, found: re.Match[str]) -> tuple[list[Word], str]:
        """Values of an expansion; if nothing sets it, its own text and its name."""
        name = found.group(1) or found.group(4)
        values = self.variables.get(name)
        if values is not None and sum(len(value.text) for value in values) <= _MAX_EXPANSION:
            return values, next((value.unset for value in values if value.unset), "")
        if found.group(3) is not None:
            return [Word(found.group(3), self.line, self.column)], ""
        return [Word(found.group(), self.line, self.column)], name

    def _nested(self) -> str:
        """``$(...)`` or ``${...}`` that is not expanded: taken as it is written."""
        line, column = self.line, self.column
        text = self.advance(2)
        closing = {"(": ")", "{": "}"}
        stack = [closing[text[1]]]
        while stack:
            char = self.advance()
            if not char:
                raise ShellError(line, column, f"{text[:2]} is not closed")
            text += char
            if char == stack[-1]:
                stack.pop()
            elif char in closing:
                stack.append(closing[char])
        return text

    def _backticks(self) -> str:
        line, column = self.line, self.column
        end = self.text.find("`", self.at + 1)
        if end < 0:
            raise ShellError(line, column, "the quote ` is not closed")
        return self.advance(end + 1 - self.at)

    def _array(self, assignment: re.Match[str]) -> None:
        line, column = self.line, self.column
        self.advance(len(assignment.group()) + 1)
        outer, self.current = self.current, Command()
        while self.peek() != ")":
            if not self.peek():
                raise ShellError(line, column, "the ( of an array is not closed")
            if self.peek() in "\n;&|(){}":
                self.advance()
            else:
                self._step()
        self.advance()
        words = self.current.words
        self.current = outer
        old = self.variables.get(assignment.group(1), []) if assignment.group(2) else []
        self.variables[assignment.group(1)] = [*old, *words]


def split_commands(
    text: str, *, line: int = 1, column: int = 1, variables: dict[str, list[Word]] | None = None
) -> list[Command]:
    """Split shell text into simple commands.

    Args:
        text: The text.
        line, column: Place of its first character.
        variables: Variables that are set; grows with the text's assignments.

    Raises:
        ShellError: A quote or bracket is not closed.
    """
    # A lone carriage return is a typing accident of another system's editor.
    clean = text.replace("\r\n", "\n").replace("\r", "\n")
    return _Lexer(clean, {} if variables is None else variables, line, column).run()
