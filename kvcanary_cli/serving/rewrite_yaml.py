"""Changes flags in a user's YAML file and leaves everything else as it is, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.options import OptionError, lookup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.serving.check_result import Change

_ADDED = "  # added by kvcanary suggest-flags"


def yaml_value(value: Any) -> str:
    """A value as YAML writes it in one line."""
    if isinstance(value, str):
        return yaml.safe_dump(value, default_flow_style=True).splitlines()[0]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(yaml_value(part) for part in value) + "]"
    return str(value)


def rewrite(text: str, changes: Sequence[Change], version: str, name: str) -> str:
    """The file with these flags changed or added at its end.

    Args:
        text: A configuration that was read without a problem.
        changes: Options to set; environment variables are not part of a configuration.
        version: Version whose spellings the file is in.
        name: How messages call it.

    Raises:
        InputError: The file is no block mapping, so that a line cannot be changed alone.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and (not isinstance(root, yaml.MappingNode) or root.flow_style):
        raise InputError(
            f"{name}:1:1: is not written as one option a line, so single lines cannot be changed",
            hint="use --as flags and change it by hand",
        )
    edits: list[tuple[int, int, str]] = []
    added: list[str] = []
    newline = "\r\n" if "\r\n" in text else "\n"
    for change in changes:
        if not change.flag.startswith("-"):
            continue
        places = [] if root is None else _values_of(root, change.name, version)
        for key, value in places:
            # The last scalar line ends where its value ends; a block value ends at the next key.
            end = value.end_mark.index
            start = value.start_mark.index
            new = yaml_value(change.after)
            if start == end:
                new = f" {new}" if text[start - 1 : start] == ":" else new
            elif isinstance(value, yaml.CollectionNode) and not value.flow_style:
                end = start + len(text[start:end].rstrip())
                new, start = (
                    f" {new}",
                    key.end_mark.index + text[key.end_mark.index :].index(":") + 1,
                )
            edits.append((start, end, new))
            spelled = str(key.value)
            if spelled != change.flag.lstrip("-") and _is_refused(spelled, version):
                edits.append((key.start_mark.index, key.end_mark.index, change.flag.lstrip("-")))
        if not places:
            added.append(f"{change.flag.lstrip('-')}: {yaml_value(change.after)}{_ADDED}")
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    if added:
        if text and not text.endswith("\n"):
            text += newline
        text += newline.join(added) + newline
    return text


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
        try:
            option = lookup("--" + str(key.value).replace("_", "-"), version)
        except OptionError:
            continue
        if option.name == name:
            out.append((key, value))
    return out
