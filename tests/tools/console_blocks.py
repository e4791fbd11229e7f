"""Commands and their results in a Markdown file: run them, compare them, write them anew.

A block begins with ```` ```console ````, holds one ``$ command`` line, what it prints on stdout,
and ``[exit N]``. ``python -m tests.tools.console_blocks FILE...`` writes the results anew.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```\n", re.DOTALL)
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Block:
    """One command of a Markdown file and the result that stands there."""

    command: str
    output: str


def blocks(text: str) -> list[Block]:
    return [Block(m["command"], m["output"]) for m in _BLOCK.finditer(text)]


def block_output(stdout: str, code: int) -> str:
    """A result as a block holds it: no blanks at line ends, then the exit status."""
    lines = [line.rstrip() for line in stdout.splitlines()]
    return "\n".join([*lines, f"[exit {code}]"]) + "\n"


def _run(command: str) -> str:
    program, *args = shlex.split(command)
    if program != "kvcanary":
        raise SystemExit(f"only kvcanary is run, found {command!r}")
    done = subprocess.run(
        [sys.executable, "-m", "kvcanary_cli", *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return block_output(done.stdout, done.returncode)


def rewrite(text: str) -> str:
    """The file with each block's result as it is now."""
    return _BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{_run(m['command'])}```\n", text)


def main(paths: list[str]) -> int:
    for name in paths:
        path = Path(name)
        path.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
