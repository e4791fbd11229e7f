"""Reads a server's YAML configuration (``--config`` form), every key with line and column.

PyYAML's node tree is used instead of its Python values: it keeps places, duplicate keys and the
text as written, which tells ``010`` from ``8`` and ``no`` from ``false``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from kvcanary_cli.serving.read_raw import RawOption, RawReading, RawScalar
from kvcanary_cli.serving.values import Place

if TYPE_CHECKING:
    from kvcanary_cli.serving.read_raw import YamlTag

_TAGS: dict[str, YamlTag] = {
    "tag:yaml.org,2002:null": "null",
    "tag:yaml.org,2002:bool": "bool",
    "tag:yaml.org,2002:int": "int",
    "tag:yaml.org,2002:float": "float",
    "tag:yaml.org,2002:str": "str",
}
_KINDS = {"null": "null", "bool": "a boolean", "int": "a number", "float": "a number"}
#: Deeper than any option's value; a recursive alias ends here.
_MAX_DEPTH = 20
_MAX_NODES = 10_000
_MAX_DIGITS = 4000


class TooDeepError(Exception):
    """A value that contains itself, or nests beyond all sense."""


def mark_place(name: str, node: yaml.Node) -> Place:
    """Place of a node: 1-based line and column."""
    return Place(name, node.start_mark.line + 1, node.start_mark.column + 1)


def compose(text: str, reading: RawReading) -> yaml.Node | None:
    """The document's node tree, or None if it is empty or a problem was noted."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(reading.name, *((mark.line + 1, mark.column + 1) if mark else (1, 1)))
        reading.problem(place, f"not YAML: {error.problem or error.context}", _yaml_help(error))
        return None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(reading.name, before.count("\n") + 1, error.position - before.rfind("\n"))
        reading.problem(place, f"not YAML: character {error.character!r} is not allowed")
        return None
    except (yaml.YAMLError, ValueError) as error:
        reading.problem(Place(reading.name, 1, 1), f"not YAML: {' '.join(str(error).split())}")
        return None
    except RecursionError:
        reading.problem(Place(reading.name, 1, 1), "not YAML that a server reads: nested too deep")
        return None
    return node


def _yaml_help(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    if "\\t" in problem:
        return "indent with spaces, not tabs"
    if "but found another document" in problem:
        return "one document a file: remove the '---' in the middle"
    return "a configuration is 'name: value' lines"


def read_yaml(text: str, name: str, group: str | None = None) -> RawReading:
    """Take a configuration file apart.

    Args:
        text: Its content.
        name: How messages call it.
        group: Which launch it belongs to; None = a source of its own.
    """
    reading = RawReading(name, "yaml")
    root = compose(text, reading)
    if root is None or (isinstance(root, yaml.ScalarNode) and _TAGS.get(root.tag) == "null"):
        if not reading.problems:
            reading.notice(f"{name}: holds no option; every value is a default")
        return reading
    if not isinstance(root, yaml.MappingNode):
        reading.problem(
            mark_place(name, root),
            f"expected 'name: value' lines, found {_describe(root)}",
            "the server says: Config file must contain a dictionary at root level",
        )
        return reading
    seen: dict[str, Place] = {}
    for key, value in root.value:
        _read_pair(reading, key, value, seen, group or name)
    return reading


def _describe(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    tag = _TAGS.get(node.tag, "str")
    return _KINDS.get(tag, "text")


def _read_pair(
    reading: RawReading, key: yaml.Node, value: yaml.Node, seen: dict[str, Place], group: str
) -> None:
    place = mark_place(reading.name, key)
    if not isinstance(key, yaml.ScalarNode) or _TAGS.get(key.tag) != "str" or not key.value:
        if isinstance(key, yaml.ScalarNode) and key.tag.endswith(":merge"):
            reading.problem(
                place, "the YAML merge key '<<' is not supported", "write the options out"
            )
            return
        shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else _describe(key)
        reading.problem(
            place, f"a key must be an option's name, found {shown}", "for example tp-size: 8"
        )
        return
    spelled = str(key.value)
    folded = spelled.replace("_", "-")
    if folded in seen:
        reading.problem(
            place,
            f"'{spelled}' is given twice, first at {seen[folded]}",
            "remove one: YAML keeps the last one and says nothing",
        )
        return
    seen[folded] = place
    if spelled.startswith("-"):
        reading.problem(
            place, f"'{spelled}' has dashes in front", f"write {spelled.lstrip('-')!r} here"
        )
        return
    try:
        option = _option(reading.name, spelled, value, place, group)
    except (TooDeepError, RecursionError):
        reading.problem(place, f"the value of '{spelled}' is nested too deep or contains itself")
        return
    except ValueError as error:
        reading.problem(mark_place(reading.name, value), f"the value of '{spelled}': {error}")
        return
    if "_" in spelled:
        reading.notice(
            f"'{spelled}' is read as '{folded}', but the server refuses underscores in a "
            f"configuration file (unrecognized arguments: --{spelled})",
            place,
        )
    reading.items.append(option)


def _option(name: str, spelled: str, value: yaml.Node, place: Place, group: str) -> RawOption:
    is_list = isinstance(value, yaml.SequenceNode)
    _refuse_tag(value)
    nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
    budget = [_MAX_NODES]
    values = tuple(_scalar(name, node, budget) for node in nodes)
    return RawOption(spelled, "yaml", values, place, is_list=is_list, group=group)


def _refuse_tag(node: yaml.Node) -> None:
    if node.tag.startswith("!") or ":python/" in node.tag:
        raise ValueError(f"the tag {node.tag} is not read; nothing was run")


def _scalar(name: str, node: yaml.Node, budget: list[int]) -> RawScalar:
    place = mark_place(name, node)
    _refuse_tag(node)
    if isinstance(node, yaml.ScalarNode):
        return RawScalar(node.value, _TAGS.get(node.tag, "str"), scalar_value(node), place)
    tag: YamlTag = "list" if isinstance(node, yaml.SequenceNode) else "map"
    return RawScalar("", tag, node_value(node, budget), place)


def scalar_value(node: yaml.ScalarNode) -> Any:
    """Python value of a scalar; what is neither number, boolean nor null stays text."""
    if node.tag not in _TAGS:
        return str(node.value)
    constructor = yaml.SafeLoader("")
    try:
        return constructor.construct_object(node, deep=True)
    except yaml.YAMLError:
        return str(node.value)
    except ValueError as error:
        if len(node.value) > _MAX_DIGITS:
            raise ValueError(f"{len(node.value)} digits are out of range") from None
        raise ValueError(f"{node.value[:60]!r}: {error}") from None
    except (LookupError, AttributeError, TypeError):
        # An explicit tag on text of another type.
        raise ValueError(f"{node.value[:60]!r} is no {node.tag.rpartition(':')[2]}") from None
    finally:
        constructor.dispose()


def node_value(node: yaml.Node, budget: list[int], depth: int = 0) -> Any:
    """Python value of any node, text for what has no JSON type.

    Raises:
        TooDeepError: It nests too deep, or is larger than a configuration can be.
    """
    budget[0] -= 1
    if depth > _MAX_DEPTH or budget[0] < 0:
        raise TooDeepError
    if isinstance(node, yaml.SequenceNode):
        return [node_value(child, budget, depth + 1) for child in node.value]
    if isinstance(node, yaml.MappingNode):
        out: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError("a key of the inner mapping is no text")
            out[str(key.value)] = node_value(value, budget, depth + 1)
        return out
    assert isinstance(node, yaml.ScalarNode)
    return scalar_value(node)
