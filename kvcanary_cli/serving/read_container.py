"""Reads launch commands in compose files and Kubernetes manifests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

from kvcanary_cli.serving.read_command import (
    ENV,
    Launch,
    Located,
    find_launch,
    finish,
    variables_of,
)
from kvcanary_cli.serving.read_raw import RawReading
from kvcanary_cli.serving.read_yaml import compose, mark_place
from kvcanary_cli.serving.shell_words import ShellError, Word, split_commands
from kvcanary_cli.serving.values import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Manifests nest deep, but not deeper.
_MAX_DEPTH = 40
_RUNTIME_EXPANSION = re.compile(r"\$\$(?=[\w{(])|\$\(([A-Za-z_]\w*)\)")


def read_container(text: str, name: str, *, pick: int | None = None) -> RawReading:
    """Read a compose file or a Kubernetes manifest that holds a launch command."""
    reading = RawReading(name, "command")
    launches: list[Launch] = []
    env: dict[str, Located] = {}
    for document in _documents(text, reading):
        for node in _mappings(document, 0):
            _from_mapping(name, node, env, launches)
    if reading.problems:
        return reading
    for launch in launches:
        launch.env = {**env, **launch.env}
    if not launches:
        reading.problem(
            Place(name, 1, 1),
            "a manifest without a launch command: no container runs python -m "
            "sglang.launch_server or sglang serve",
            "the image's own entry point is not in the file: give the command with --, or the "
            "values as YAML",
        )
        return reading
    return finish(reading, launches, text, pick)


def _documents(text: str, reading: RawReading) -> list[yaml.Node]:
    try:
        return [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node]
    except (yaml.YAMLError, ValueError, RecursionError):
        # Once more for a problem with a place; several documents are fine here, errors are not.
        node = compose(text, reading)
        return [] if node is None or reading.problems else [node]


def _mappings(node: yaml.Node, depth: int) -> Iterator[yaml.MappingNode]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, yaml.MappingNode):
        yield node
        for _, value in node.value:
            yield from _mappings(value, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _mappings(child, depth + 1)


def _from_mapping(
    name: str, node: yaml.MappingNode, env: dict[str, Located], launches: list[Launch]
) -> None:
    """Command and environment of one service or container."""
    own: dict[str, Located] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in ("environment", "env"):
            own.update(_environment(name, value))
    words: list[Located] = []
    for wanted in ("entrypoint", "command", "args"):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == wanted:
                words += _command_words(name, value, own)
    if words:
        find_launch(words, own, launches, None, 0)
    elif own:
        env.update(own)


def _expanded(text: str, env: dict[str, Located]) -> str:
    """``$(NAME)`` as the container runtime expands it, and ``$$`` as the dollar it stands for."""

    def value(found: re.Match[str]) -> str:
        if found.group(1) is None:
            return "$"
        known = env.get(found.group(1))
        return found.group() if known is None else known.text

    return _RUNTIME_EXPANSION.sub(value, text)


def _command_words(name: str, value: yaml.Node, env: dict[str, Located]) -> list[Located]:
    nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
    out: list[Located] = []
    for node in nodes:
        if not isinstance(node, yaml.ScalarNode):
            continue
        place = mark_place(name, node)
        text = _expanded(node.value, env)
        if isinstance(value, yaml.ScalarNode):
            try:
                for command in split_commands(text, variables=variables_of(env)):
                    out += [Located(w.text, _inner(place, node, w), w.unset) for w in command.words]
            except ShellError:
                out.append(Located(text, place))
        else:
            out.append(Located(text, place))
    return out


def _inner(place: Place, node: yaml.ScalarNode, word: Word) -> Place:
    """Line of a word inside a scalar; exact for block scalars, whose text begins a line below."""
    below = 1 if node.style in ("|", ">") else 0
    return Place(place.file, (place.line or 1) + below + word.line - 1, None)


def _environment(name: str, value: yaml.Node) -> dict[str, Located]:
    out: dict[str, Located] = {}
    if isinstance(value, yaml.MappingNode):
        for key, text in value.value:
            if isinstance(key, yaml.ScalarNode) and isinstance(text, yaml.ScalarNode):
                out[key.value] = Located(text.value, mark_place(name, text))
    elif isinstance(value, yaml.SequenceNode):
        for item in value.value:
            if isinstance(item, yaml.ScalarNode) and (found := ENV.match(item.value)):
                out[found.group(1)] = Located(found.group(2), mark_place(name, item))
            elif isinstance(item, yaml.MappingNode):
                pair = {
                    k.value: v
                    for k, v in item.value
                    if isinstance(k, yaml.ScalarNode) and isinstance(v, yaml.ScalarNode)
                }
                if "name" in pair and "value" in pair:
                    out[pair["name"].value] = Located(
                        pair["value"].value, mark_place(name, pair["value"])
                    )
    return out
