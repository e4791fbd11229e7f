"""Variables that a text declares for its command, besides a shell's own assignments.

systemd units (``Environment=NAME=value "OTHER=a b"``) and Dockerfiles (``ENV NAME=value``,
``ENV NAME value``, ``ARG NAME=default``).
"""

from __future__ import annotations

import re

from kvcanary_cli.serving.shell_words import Word, split_commands

_UNIT = re.compile(r"^\s*\[Service\]\s*$", re.MULTILINE)
_UNIT_LINE = re.compile(r"^[ \t]*Environment[ \t]*=((?:.*\\\n)*.*)$", re.MULTILINE)
_DOCKERFILE = re.compile(r"^[ \t]*FROM[ \t]+\S", re.MULTILINE | re.IGNORECASE)
_DOCKER_LINE = re.compile(r"^[ \t]*(?:ENV|ARG)[ \t]+((?:.*\\\n)*.*)$", re.MULTILINE | re.IGNORECASE)
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")


def declared_words(text: str) -> list[tuple[str, Word]]:
    """Name and value, with its place, of each declared variable, in order.

    Raises:
        ShellError: A quote of a declaration is not closed.
    """
    out: list[tuple[str, Word]] = []
    clean = text.replace("\r\n", "\n").replace("\r", "\n")
    if _UNIT.search(clean):
        for found in _UNIT_LINE.finditer(clean):
            out += _pairs(_words(clean, found))
    if _DOCKERFILE.search(clean):
        for found in _DOCKER_LINE.finditer(clean):
            words = _words(clean, found)
            if words and _NAME.match(words[0].text) and len(words) > 1:
                value = " ".join(word.text for word in words[1:])
                out.append((words[0].text, Word(value, words[1].line, words[1].column)))
            else:
                out += _pairs(words)
    return out


def _words(text: str, found: re.Match[str]) -> list[Word]:
    start = found.start(1)
    line = text.count("\n", 0, start) + 1
    column = start - text.rfind("\n", 0, start)
    commands = split_commands(found.group(1), line=line, column=column)
    return [word for command in commands for word in command.words]


def _pairs(words: list[Word]) -> list[tuple[str, Word]]:
    pairs = [(word, _PAIR.match(word.text)) for word in words]
    return [
        (found.group(1), Word(found.group(2), word.line, word.column))
        for word, found in pairs
        if found is not None
    ]
