"""Commands shown in the documents, with what they print.

A fenced ``console`` block holds commands behind ``$ `` and under each what it prints on stdout.
``python tests/tools/refresh_docs.py FILE...`` runs them and rewrites the blocks; the tests run
them and compare. ``kvcanary ... | head -N`` keeps the first N lines, a trailing backslash
continues a command, and where ``[exit N]`` stands below a result it shows the exit status.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
EXIT = re.compile(r"^\[exit \d+\]$")
HEAD = re.compile(r"\s*\|\s*head -(\d+)\s*$")


def commands(block: str) -> list[tuple[str, str]]:
    """(command, what stands under it) of a block."""
    out: list[tuple[str, list[str]]] = []
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + next(lines)
            out.append((command, []))
        elif out:
            out[-1][1].append(line)
    return [(command, "\n".join(shown)) for command, shown in out]


def run(command: str, shown: str) -> str | None:
    """What ``command`` prints, or None if it is not kvcanary's (install steps and the like).

    Args:
        command: As it stands behind ``$ ``.
        shown: What stands under it; says whether the exit status is shown.
    """
    text = command.replace("\\\n", " ")
    head = HEAD.search(text)
    if head:
        text = text[: head.start()]
    words = shlex.split(text)
    if words[0] != "kvcanary" or "|" in words or ">" in words:
        return None
    from kvcanary_cli.cli.main import main

    here, stdout = Path.cwd(), io.StringIO()
    os.environ["NO_COLOR"] = "1"
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(io.StringIO()):
            code = main(words[1:])
    finally:
        os.chdir(here)
    lines = [line.rstrip() for line in stdout.getvalue().rstrip().splitlines()]
    lines = lines[: int(head[1])] if head else lines
    if EXIT.match(shown.rstrip().rpartition("\n")[2]):
        lines.append(f"[exit {code}]")
    return "\n".join(lines)


def refreshed(text: str) -> str:
    """``text`` with every block as it prints today."""

    def block(match: re.Match[str]) -> str:
        parts = []
        for command, shown in commands(match[1]):
            printed = run(command, shown)
            now = shown.rstrip() if printed is None else printed
            parts.append(f"$ {command}\n" + (f"{now}\n" if now else ""))
        return "```console\n" + "\n".join(parts) + "```"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(refreshed(path.read_text()))
