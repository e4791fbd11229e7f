"""From what a command names to the traces to replay: folders, globs and URLs, in a fixed order."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kvcanary_cli.errors import InputError, KvCanaryError, UsageError
from kvcanary_cli.trace.manifest import is_trace_folder
from kvcanary_cli.trace.reader import STDIN, unreadable
from kvcanary_cli.trace.remote import RemotePath, is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUFFIXES = (".jsonl", ".jsonl.zst", ".pt", ".kvtrace")


@dataclass(frozen=True, slots=True)
class Input:
    """One trace to replay, or what stands in the way.

    Attributes:
        name: Path or URL as messages call it.
        found_in: The folder that it was found in, None if it was named itself.
        problem: Why there is nothing to replay under this name, or None.
    """

    name: str
    found_in: str | None = None
    problem: KvCanaryError | None = None


def expand(names: Sequence[str]) -> list[Input]:
    """The traces that ``names`` stand for.

    A folder stands for the traces in it and in its subfolders, in order of their names with
    numbers by value (``rank2`` before ``rank10``). Names keep the order given.
    """
    out: list[Input] = []
    for name in names:
        if name == STDIN:
            out.append(Input(name))
            continue
        try:
            for place in _places(name):
                named = not place.is_dir() or is_trace_folder(place)
                out += [Input(str(place))] if named else _inside(place)
        except (KvCanaryError, OSError) as error:
            out.append(_in_the_way(name, error))
    return out


def _in_the_way(name: str, error: KvCanaryError | OSError) -> Input:
    known = error if isinstance(error, KvCanaryError) else unreadable(name, error)
    return Input(name, problem=known)


def refuse_pipes(inputs: Sequence[Input]) -> None:
    """Refuse what only this process can read.

    Raises:
        UsageError: One of ``inputs`` is stdin or a pipe.
    """
    for one in inputs:
        is_pipe = one.name == STDIN
        if not is_pipe and not is_remote(one.name):
            path = Path(one.name)
            is_pipe = path.is_fifo() or path.is_char_device()
        if is_pipe:
            raise UsageError(
                f"{one.name}: a pipe cannot be handed to another process",
                hint="save it to a file first, or leave --jobs and --cluster out",
            )


def _places(name: str) -> list[Path]:
    if not is_remote(name):
        return [Path(name)]
    found = sorted(RemotePath(name).matches(), key=lambda place: _by_number(str(place)))
    if not found:
        raise InputError(f"{name}: matches nothing", hint="check the address")
    # They have the methods of a Path that are used here.
    return cast("list[Path]", found)


def _inside(folder: Path) -> list[Input]:
    found = list(_walk(folder, ()))
    if not found:
        raise InputError(
            f"{folder}: the folder holds no trace",
            hint="expected a .kvtrace folder, or files .jsonl, .jsonl.zst or .pt in it",
        )
    return found


def _walk(folder: Path, above: tuple[str, ...]) -> Iterator[Input]:
    name = str(folder)
    here = RemotePath(name).real if is_remote(name) else os.path.realpath(name)
    if here in above:
        return  # a link that leads back
    try:
        children = sorted(folder.iterdir(), key=lambda place: _by_number(place.name))
    except (KvCanaryError, OSError) as error:
        yield _in_the_way(name, error)
        return
    for child in children:
        if child.name.startswith("."):
            continue
        try:
            is_folder = child.is_dir() and not is_trace_folder(child)
        except (KvCanaryError, OSError) as error:
            # What stands beside it is replayed nevertheless.
            yield _in_the_way(str(child), error)
            continue
        if is_folder:
            yield from _walk(child, (*above, here))
        elif child.name.endswith(SUFFIXES):
            yield Input(str(child), found_in=name)


def _by_number(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Sort key with digits by value; equal ones by the text itself."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(p), "") if k % 2 else (0, p) for k, p in enumerate(parts)), name
