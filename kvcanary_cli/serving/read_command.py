"""Reads launch commands: in shell scripts, or given directly.

A launch command is ``python -m sglang.launch_server ...``, ``sglang serve ...``,
``python -m sglang_router.launch_server ...`` or a path that ends in ``launch_server.py``, whatever
stands before it (environment, nohup, docker run, ssh).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvcanary_cli.serving.declared_variables import declared_words
from kvcanary_cli.serving.read_raw import MAX_CONFIG_BYTES, RawEnv, RawOption, RawReading
from kvcanary_cli.serving.read_yaml import read_yaml
from kvcanary_cli.serving.shell_words import ShellError, Word, split_commands
from kvcanary_cli.serving.source_signs import MENTIONS_LAUNCH
from kvcanary_cli.serving.values import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LAUNCH_MODULES = frozenset({"sglang.launch_server", "sglang_router.launch_server"})
_MODULE_FILE = re.compile(r"(^|[/\\])launch_server(\.py)?$")
_IMAGE = re.compile(r"sglang[\w./-]*[:@]v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)")
_PINNED = re.compile(r"sglang(?:\[[\w,]*\])?==(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)")
ENV = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
#: A command inside a command inside ...: ssh, bash -c, docker.
_MAX_NESTING = 4


@dataclass(frozen=True, slots=True)
class Located:
    """A word and its place in the source."""

    text: str
    place: Place
    unset: str = ""


@dataclass(slots=True)
class Launch:
    """One launch command.

    Attributes:
        place: Where it begins.
        words: What follows the module's name.
        env: Environment variables that it or the script sets.
        version: Version that an image tag or a pinned package names, or None.
        broken: Place of a backslash that ends the command by accident, or None.
        positional_model: Whether a first plain word is the model (``sglang serve MODEL``).
    """

    place: Place
    words: list[Located]
    env: dict[str, Located] = field(default_factory=dict)
    version: tuple[str, Place] | None = None
    broken: Place | None = None
    positional_model: bool = False


def read_words(words: Sequence[str], *, folder: Path | None = None) -> RawReading:
    """Read ``-- python -m sglang.launch_server ...``.

    Args:
        words: The words after ``--``, as the shell left them.
        folder: Where relative ``--config`` paths begin; None = the working folder.
    """
    reading = RawReading("command line", "command")
    located = [Located(word, Place(f"command line, word {k}")) for k, word in enumerate(words, 1)]
    launches: list[Launch] = []
    find_launch(located, {}, launches, None, 0)
    if not launches:
        if located and located[0].text.startswith("-"):
            launches = [Launch(located[0].place, located)]
        else:
            reading.problem(
                Place("command line"),
                f"no launch command in {' '.join(words)[:200]!r}",
                "expected python -m sglang.launch_server ... or sglang serve ...",
            )
            return reading
    _read_launch(reading, launches[0], [folder] if folder else [])
    return reading


def read_script(text: str, name: str, *, pick: int | None = None) -> RawReading:
    """Read a shell script, or any text that holds a launch command.

    Args:
        text: Its content.
        name: How messages call it.
        pick: Which launch command, from 1; None = the only one.
    """
    reading = RawReading(name, "command")
    launches: list[Launch] = []
    env: dict[str, Located] = {}
    try:
        env = {
            key: Located(word.text, Place(name, word.line, word.column), word.unset)
            for key, word in declared_words(text)
        }
        variables = variables_of(env)
        commands = split_commands(text, variables=variables)
    except ShellError as error:
        reading.problem(Place(name, error.line, error.column), error.text)
        return reading
    for command in commands:
        words = [Located(w.text, Place(name, w.line, w.column), w.unset) for w in command.words]
        broken = command.broken_continuation
        find_launch(words, env, launches, Place(name, *broken) if broken else None, 0)
    return finish(reading, launches, text, pick)


def finish(reading: RawReading, launches: list[Launch], text: str, pick: int | None) -> RawReading:
    """Take the one launch command that counts apart, or note why there is none."""
    name = reading.name
    if not launches:
        reading.problem(
            Place(name, 1, 1),
            "no launch command found",
            "expected python -m sglang.launch_server ... or sglang serve ...",
        )
        return reading
    if pick is None and len(launches) > 1:
        places = ", ".join(f"{k} at {launch.place}" for k, launch in enumerate(launches, 1))
        reading.problem(
            launches[1].place,
            f"{len(launches)} launch commands in one file ({places})",
            "say which with --launch N",
        )
        return reading
    if pick is not None and not 1 <= pick <= len(launches):
        reading.problem(
            launches[0].place,
            f"--launch {pick}: the file holds {len(launches)} launch "
            f"command{'s' if len(launches) > 1 else ''}",
        )
        return reading
    launch = launches[(pick or 1) - 1]
    if launch.version is None and (found := _IMAGE.search(text) or _PINNED.search(text)):
        launch.version = (found.group(1), _place_at(name, text, found.start(1)))
    _read_launch(reading, launch, [] if name == "stdin" else [Path(name).parent])
    return reading


def _place_at(name: str, text: str, at: int) -> Place:
    return Place(name, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def _launch_start(words: Sequence[Located]) -> tuple[int, bool] | None:
    """Index after the module's name, and whether it is ``sglang serve``."""
    for k, word in enumerate(words):
        text = word.text
        before = words[k - 1].text if k else ""
        if text in LAUNCH_MODULES and before == "-m":
            return k + 1, False
        if _MODULE_FILE.search(text) and "=" not in text and not text.startswith("-"):
            return k + 1, False
        if text == "serve" and re.search(r"(^|/)sglang$", before):
            return k + 1, True
    return None


def find_launch(
    words: list[Located],
    env: dict[str, Located],
    launches: list[Launch],
    broken: Place | None,
    depth: int,
) -> None:
    """Add the launch command among ``words``, if any; note what else sets the environment."""
    start = _launch_start(words)
    if start is None:
        for word in words:
            if (
                " " in word.text.strip()
                and depth < _MAX_NESTING
                and MENTIONS_LAUNCH.search(word.text)
            ):
                _find_nested(word, env, launches, depth)
                return
        _environment_of(words, env)
        return
    index, is_serve = start
    own = dict(env)
    _environment_of(words[:index], own)
    version = None
    for word in words[:index]:
        if found := _IMAGE.search(word.text):
            version = (found.group(1), word.place)
    launches.append(
        Launch(words[0].place, words[index:], own, version, broken, positional_model=is_serve)
    )


def variables_of(env: dict[str, Located]) -> dict[str, list[Word]]:
    """Environment variables as what a shell's text expands to."""
    return {
        name: [Word(value.text, value.place.line or 1, value.place.column or 1, value.unset)]
        for name, value in env.items()
    }


def _find_nested(
    word: Located, env: dict[str, Located], launches: list[Launch], depth: int
) -> None:
    line, column = word.place.line or 1, word.place.column or 1
    variables = variables_of(env)
    try:
        commands = split_commands(word.text, line=line, column=column + 1, variables=variables)
    except ShellError:
        return
    for command in commands:
        inner = [
            Located(w.text, Place(word.place.file, *_known(word.place, w)), w.unset)
            for w in command.words
        ]
        find_launch(inner, env, launches, None, depth + 1)


def _known(place: Place, word: Word) -> tuple[int | None, int | None]:
    return (None, None) if place.line is None else (word.line, word.column)


def _environment_of(words: Sequence[Located], env: dict[str, Located]) -> None:
    for word in words:
        text = word.text
        for prefix in ("--env=", "-e"):
            if text.startswith(prefix) and "=" in text[len(prefix) :]:
                text = text[len(prefix) :]
        found = ENV.match(text)
        if found:
            env[found.group(1)] = Located(found.group(2), word.place, word.unset)


def _read_launch(reading: RawReading, launch: Launch, folders: list[Path]) -> None:
    reading.version = launch.version
    if launch.broken is not None:
        reading.problem(
            launch.broken,
            "a backslash followed by blanks: the command ends on this line",
            "remove the blanks after the backslash",
        )
    for name, value in launch.env.items():
        # The others matter only as what a word of the command expands to.
        if not name.startswith("SGLANG_"):
            continue
        reading.items.append(RawEnv(name, value.text, value.place))
    options = list(_options(reading, launch))
    _merge_config(reading, options, folders)
    reading.items += options


def _looks_like_option(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NEGATIVE_NUMBER.match(text)


def _options(reading: RawReading, launch: Launch) -> Iterator[RawOption]:
    """Group the words: an option takes the plain words up to the next option."""
    words = launch.words
    k = 0
    while k < len(words):
        word = words[k]
        k += 1
        if not _looks_like_option(word.text):
            if launch.positional_model and k == 1:
                yield RawOption("model-path", "command", (word,), word.place, group="command")
                continue
            reading.problem(
                word.place,
                f"{word.text!r} belongs to no option",
                "the server says: unrecognized arguments; quote values that hold blanks",
            )
            continue
        name, equals, joined = word.text.partition("=")
        values: list[Located] = [Located(joined, word.place, word.unset)] if equals else []
        while not equals and k < len(words) and not _looks_like_option(words[k].text):
            values.append(words[k])
            k += 1
        yield RawOption(
            name.removeprefix("--") if name.startswith("--") else name,
            "command",
            tuple(values),
            word.place,
            inline=bool(equals),
            group="command",
        )


def _merge_config(reading: RawReading, options: list[RawOption], folders: list[Path]) -> None:
    """Read the file of ``--config`` and put its options in front, as the server does (1.1)."""
    found = [option for option in options if option.name == "config"]
    if not found:
        return
    for option in found:
        options.remove(option)
    if any(option.inline for option in found):
        reading.problem(
            found[0].place,
            "--config=FILE is not read by the server",
            "write it as two words: --config FILE",
        )
        return
    if len(found) > 1:
        reading.problem(
            found[1].place,
            "--config is given twice",
            "the server says: Multiple config files specified! Only one allowed.",
        )
        return
    place, values = found[0].place, found[0].values
    if not values:
        reading.problem(place, "--config has no file after it")
        return
    for extra in values[1:]:
        reading.problem(
            extra.place, f"{extra.text!r} belongs to no option", "--config takes one file"
        )
    inner = _config_file(reading, values[0], folders)
    if inner is not None:
        reading.items += inner.items
        reading.problems += inner.problems
        reading.notices += inner.notices


def _config_file(reading: RawReading, value: Located, folders: list[Path]) -> RawReading | None:
    name = value.text
    if not name.endswith((".yaml", ".yml")):
        reading.problem(
            value.place,
            f"--config {name}: expected a .yaml or .yml file",
            "the server says: Config file must be YAML format",
        )
        return None
    places = [Path(name), *(folder / name for folder in folders)]
    for path in places:
        try:
            if not path.is_file():
                continue
            if path.stat().st_size > MAX_CONFIG_BYTES:
                reading.problem(value.place, f"--config {name}: larger than any configuration")
                return None
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reading.problem(value.place, f"--config {name}: cannot be read: {error}")
            return None
        return read_yaml(text, str(path), group=f"{path}")
    reading.problem(
        value.place,
        f"--config {name}: no such file",
        "put a copy of the file there, or remove --config here and give its keys with --set",
    )
    return None
