"""Changes flags in a user's YAML file and leaves everything else as it is, byte for byte."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import yaml

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.options import OptionError, lookup
from kvcanary_cli.serving.read_options import interpret
from kvcanary_cli.serving.read_raw import RawOption
from kvcanary_cli.serving.read_yaml import read_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.serving.check_result import Change
    from kvcanary_cli.serving.read_raw import RawReading

_ADDED = "  # added by kvcanary suggest-flags"
_BY_HAND = "use --as flags and change it by hand"
_ALIAS = re.compile(r"\*[^\s,\[\]{}]+")


def yaml_value(value: Any) -> str:
    """A value as YAML writes it in one line; a mapping as quoted JSON, as every version takes."""
    if isinstance(value, str):
        return yaml.safe_dump(value, default_flow_style=True, width=10**9).splitlines()[0]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(yaml_value(part) for part in value) + "]"
    if isinstance(value, dict):
        return "'" + json.dumps(value).replace("'", "''") + "'"
    return str(value)


def rewrite(text: str, changes: Sequence[Change], version: str, name: str) -> str:
    """The file with these flags changed or added at its end.

    The result is read again: it states what the file stated, with the changes and nothing else.

    Args:
        text: A configuration that was read without a problem.
        changes: Options to set; environment variables are not part of a configuration.
        version: Version whose spellings the file is in.
        name: How messages call it.

    Raises:
        InputError: A line cannot be changed without changing another one's meaning.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.ScalarNode) and root.tag.endswith(":null"):
        root = None
    if root is not None and (not isinstance(root, yaml.MappingNode) or root.flow_style):
        raise InputError(
            f"{name}:1:1: is not written as one option a line, so single lines cannot be changed",
            hint=_BY_HAND,
        )
    options = [change for change in changes if change.flag.startswith("-")]
    edits: list[tuple[int, int, str]] = []
    added: list[str] = []
    for change in options:
        places = [] if root is None else _values_of(root, change.name, version)
        for key, value in places:
            edits.append(_edit(text, key, value, yaml_value(change.after), name))
            spelled = str(key.value)
            if spelled != change.flag.lstrip("-") and _is_refused(spelled, version):
                edits.append((key.start_mark.index, key.end_mark.index, change.flag.lstrip("-")))
        if not places:
            added.append(f"{change.flag.lstrip('-')}: {yaml_value(change.after)}{_ADDED}")
    if added:
        indent = 0 if root is None else root.start_mark.column
        edits.append(_addition(text, [" " * indent + line for line in added]))
    new = text
    for start, end, part in sorted(edits, reverse=True):
        new = new[:start] + part + new[end:]
    _check(text, new, options, version, name)
    return new


def _edit(
    text: str, key: yaml.ScalarNode, value: yaml.Node, new: str, name: str
) -> tuple[int, int, str]:
    """Start, end and new text of one option's value."""
    after_key = key.end_mark.index
    if value.start_mark.index < key.start_mark.index:
        # The parser resolves an alias, so the node's marks are those of its anchor.
        found = _ALIAS.search(text, after_key)
        if found is None:
            raise InputError(f"{name}: the alias of '{key.value}' is not found", hint=_BY_HAND)
        return found.start(), found.end(), new
    start, end = value.start_mark.index, _end(text, value)
    if text[start : start + 1] == "&" and (anchor := _used_anchor(text, start, end)):
        raise InputError(
            f"{name}:{value.start_mark.line + 1}:{value.start_mark.column + 1}: other lines take "
            f"their value from {anchor}, so '{key.value}' cannot be changed alone",
            hint=_BY_HAND,
        )
    if start == end:
        return start, end, f" {new}" if text[start - 1 : start] == ":" else new
    block = isinstance(value, yaml.CollectionNode) and not value.flow_style
    if block:
        # The value then stands on the key's own line.
        return after_key + text[after_key:].index(":") + 1, end, f" {new}"
    return start, end, new


def _end(text: str, node: yaml.Node) -> int:
    """Where a value's own text ends: a block's end mark is that of the next key."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        inner: yaml.Node = last[1] if isinstance(last, tuple) else last
        if inner.start_mark.index < node.start_mark.index:
            # Its last part is an alias.
            return node.start_mark.index + len(
                text[node.start_mark.index : node.end_mark.index].rstrip()
            )
        node = inner
    start, end = int(node.start_mark.index), int(node.end_mark.index)
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return start + len(text[start:end].rstrip())
    return end


def _used_anchor(text: str, start: int, end: int) -> str:
    """The anchor of a value that is used elsewhere, or empty."""
    tokens = list(yaml.scan(text, Loader=yaml.SafeLoader))
    used = {token.value for token in tokens if isinstance(token, yaml.AliasToken)}
    for token in tokens:
        if isinstance(token, yaml.AnchorToken) and start <= token.start_mark.index < end:
            return f"&{token.value}" if token.value in used else ""
    return ""


def _addition(text: str, lines: list[str]) -> tuple[int, int, str]:
    """New lines at the end of the document, before the mark that ends it."""
    newline = "\r\n" if "\r\n" in text else "\n"
    at = len(text)
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.DocumentEndToken):
            at = token.start_mark.index
            break
    before = newline if at and text[at - 1] != "\n" else ""
    return at, at, before + newline.join(lines) + newline


def _check(text: str, new: str, changes: Sequence[Change], version: str, name: str) -> None:
    """Read both texts and compare what they state.

    Raises:
        InputError: Something else changed, or the new text is no configuration.
    """
    reading = read_yaml(new, name)
    changed = {change.name: change.after for change in changes}
    before, after = _raw_values(read_yaml(text, name), version), _raw_values(reading, version)
    set_now = {one.name: one.value for one in interpret(reading, version)}
    wrong = [key for key, value in changed.items() if set_now.get(key, _check) != value]
    wrong += [
        key
        for key in sorted({*before, *after} - changed.keys())
        if before.get(key) != after.get(key)
    ]
    if wrong:
        raise InputError(
            f"{name}: the way it is written allows no change of single lines: "
            f"{', '.join(wrong)} would come out otherwise",
            hint=_BY_HAND,
        )


def _raw_values(reading: RawReading, version: str) -> dict[str, tuple[Any, ...]]:
    """What each key is set to, by option where the version has it."""
    out: dict[str, tuple[Any, ...]] = {}
    for item in reading.items:
        if isinstance(item, RawOption):
            # A line that ends the file gets its line end from the option added after it.
            values = tuple(
                (value.tag, value.value.rstrip() if value.tag == "str" else value.value)
                for value in item.values
            )
            out[_option_name(item.name, version) or item.name] = (item.is_list, values)
    return out


def _option_name(spelled: str, version: str) -> str | None:
    try:
        return lookup("--" + spelled.replace("_", "-"), version).name
    except OptionError:
        return None


def _is_refused(spelled: str, version: str) -> bool:
    """The server takes no underscores and no deprecated spelling from a configuration."""
    return "_" in spelled or lookup(f"--{spelled}", version).deprecated


def _values_of(
    root: yaml.MappingNode, name: str, version: str
) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Key and value of every line that sets an option."""
    out: list[tuple[yaml.ScalarNode, yaml.Node]] = []
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if _option_name(str(key.value), version) == name:
            out.append((key, value))
    return out
