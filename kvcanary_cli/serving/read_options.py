"""Interprets options as they were spelled, once the version is known."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving.numbers import FIRST_WITH_SUFFIXES, parse_human_int
from kvcanary_cli.serving.option_values import parse_option_value
from kvcanary_cli.serving.options import OptionError, lookup
from kvcanary_cli.serving.read_raw import Problem, RawEnv, RawScalar
from kvcanary_cli.serving.values import Given, Place
from kvcanary_cli.serving.versions import choose_version

if TYPE_CHECKING:
    from kvcanary_cli.serving.options import Option
    from kvcanary_cli.serving.read_raw import RawOption, RawReading

_JSON_FROM_CONFIG: tuple[int, int, int] = (0, 5, 18)
_CONFIG_TAKES_DEPRECATED: tuple[int, int, int] = (0, 5, 23)
_OCTAL = re.compile(r"[-+]?0[0-7_]+$")
_SEXAGESIMAL = re.compile(r"[-+]?\d[\d_]*(?::[0-5]?\d)+(?:\.\d*)?$")
_YES = frozenset({"true", "1", "yes", "y"})
_NO = frozenset({"false", "0", "no", "n"})
_PREFIX = "SGLANG_KV_CANARY_"
#: Types of the canary's environment variables (SPEC_SERVING_ARGS 1.5).
_ENV_TYPES: dict[str, type] = {
    "RING_CAPACITY": int,
    "STATS_PRINT_EVERY_N_STEPS": int,
    "ENABLE_WRITE_INPUT_ASSERT": bool,
    "ENABLE_VERIFY_TOKEN_ASSERT": bool,
    "ENABLE_TOKEN_ORACLE": bool,
    "ENABLE_MHA_V": bool,
    "SWA_DIVERGENCE_STATS_INTERVAL": int,
    "PERTURB_REQ_TO_TOKEN_PROB": float,
    "PERTURB_REAL_KV_USED_PROB": float,
    "PERTURB_REAL_KV_UNUSED_CACHE_PROB": float,
    "PERTURB_REAL_KV_POST_FORWARD_PROB": float,
    "PERTURB_NEXT_TOKEN_SWAP_PROB": float,
    "PERTURB_TARGET_GROUP": str,
    "PERTURB_WARMUP_STEPS": int,
}
_MAX_ENV_CHARS = 200


def spelling(option: RawOption) -> str:
    """What the server's parser sees: underscores of a YAML key are folded, with a warning."""
    if option.name.startswith("-"):
        return option.name
    name = option.name.replace("_", "-") if option.form == "yaml" else option.name
    return f"--{name}"


def unknown_to(reading: RawReading, version: str) -> list[RawOption]:
    """Options of the source that ``version`` does not take, but some version does."""
    out = []
    for item in reading.items:
        if isinstance(item, RawEnv):
            continue
        try:
            lookup(spelling(item), version)
        except OptionError as error:
            if error.reason == "not_in_version":
                out.append(item)
    return out


def interpret(reading: RawReading, version: str) -> list[Given]:
    """Options and variables of one source as statements; problems and notices go to the source.

    Args:
        reading: What was read.
        version: Version whose options apply.
    """
    out: list[Given] = []
    first: dict[tuple[str, str], RawOption] = {}
    for item in reading.items:
        if isinstance(item, RawEnv):
            out += _variable(reading, item)
            continue
        given = _option(reading, item, version)
        if given is None:
            continue
        option, value = given
        key = (item.group, option.name)
        if item.form == "yaml" and key in first:
            reading.problem(
                item.place,
                f"{item.shown} sets the same as {first[key].shown} at {first[key].place}",
                "remove one: the later line wins and nothing says so",
            )
            continue
        first[key] = item
        if value is _NOTHING:
            continue
        place = item.place
        if option.kind == "negative":
            value = False
        out.append(Given(option.name, value, str(place), place, "argument"))
    return out


_NOTHING = object()


def _option(reading: RawReading, item: RawOption, version: str) -> tuple[Option, Any] | None:
    spelled = spelling(item)
    try:
        option = lookup(spelled, version)
    except OptionError as error:
        reading.problems.append(_lookup_problem(item, error))
        return None
    _note_deprecation(reading, item, option, version)
    try:
        if item.form == "yaml":
            words = _yaml_words(item, option, version)
            if words is None:
                return option, _NOTHING
        else:
            words = [word.text for word in item.values]
            _check_words(item, option)
        return option, parse_option_value(option, words, version)
    except OptionError as error:
        place = _value_place(item)
        help = _unset_help(item) or error.hint or _number_help(item)
        reading.problem(place, error.message, help)
    except _ValueProblem as problem:
        reading.problem(problem.place, problem.text, problem.help)
    return None


class _ValueProblem(Exception):
    def __init__(self, place: Place, text: str, help: str = "") -> None:
        super().__init__(text)
        self.place, self.text, self.help = place, text, help


def _lookup_problem(item: RawOption, error: OptionError) -> Problem:
    hint = error.hint or ""
    if error.reason == "unknown":
        text = f"unknown option {item.shown}"
        if error.candidates:
            found = error.candidates[0]
            hint = f"did you mean {found.lstrip('-') if item.form == 'yaml' else found}?"
        else:
            hint = "no option of the server looks like it"
        return Problem(item.place, text, hint)
    return Problem(item.place, error.message, hint)


def _note_deprecation(reading: RawReading, item: RawOption, option: Option, version: str) -> None:
    release = choose_version(version).release
    refused = item.form == "yaml" and option.deprecated
    if refused and release >= _CONFIG_TAKES_DEPRECATED and option.takes_value:
        refused = False
    if refused:
        instead = f"; write {option.successor.lstrip('-')}" if option.successor else ""
        reading.notice(
            f"{item.shown} is deprecated in {version}, which refuses it in a configuration file "
            f"(Unsupported config option){instead}",
            item.place,
        )


def _value_place(item: RawOption) -> Place:
    if item.values:
        place: Place = item.values[0].place
        return place
    return item.place


def _unset_help(item: RawOption) -> str:
    if item.form == "command":
        for word in item.values:
            if word.unset:
                return f"the text does not set ${word.unset}; put the number in its place"
    return ""


def _number_help(item: RawOption) -> str:
    """``128k`` as the plain number that the option takes."""
    for value in item.values:
        text = str(value.value) if isinstance(value, RawScalar) else value.text
        if not text.lstrip("+-").isdigit():
            try:
                return f"write {parse_human_int(text.replace('_', ''), FIRST_WITH_SUFFIXES)}"
            except ValueError:
                continue
    return ""


def _check_words(item: RawOption, option: Option) -> None:
    """Plain words after an option that takes fewer are arguments of nobody."""
    if item.inline and not option.takes_value:
        raise _ValueProblem(
            item.place, f"{item.shown} takes no value, found '={item.values[0].text}'"
        )
    limit = 0 if not option.takes_value else None if option.takes_list else 1
    if limit is not None and len(item.values) > limit:
        extra = item.values[limit]
        raise _ValueProblem(
            extra.place,
            f"{extra.text!r} belongs to no option"
            + (f": {item.shown} takes one value" if limit else f": {item.shown} takes none"),
            "the server says: unrecognized arguments",
        )


def _yaml_words(item: RawOption, option: Option, version: str) -> list[str] | None:
    """The words that the server makes of a YAML value (1.1); None = it passes nothing on."""
    if not option.takes_value and option.kind != "withdrawn":
        return _yaml_switch(item)
    if item.is_list and not item.values:
        return None
    if item.is_list and not option.takes_list and len(item.values) != 1:
        raise _ValueProblem(
            item.place,
            f"{item.shown} takes one value, found a list of {len(item.values)}",
            "the server says: unrecognized arguments",
        )
    if option.kind == "json" and len(item.values) == 1 and item.values[0].tag in ("map", "list"):
        return [_yaml_json(item, version)]
    return [_yaml_word(item, value, option) for value in item.values]


def _yaml_switch(item: RawOption) -> list[str] | None:
    value = item.values[0] if len(item.values) == 1 and not item.is_list else None
    if isinstance(value, RawScalar) and value.tag == "bool":
        return [] if value.value else None
    found = "a list" if item.is_list else repr(value.text if value else "")
    raise _ValueProblem(
        _value_place(item),
        f"{item.shown} is a switch: expected true or false, found {found}",
        "quotes make text of true and false: leave them out",
    )


def _yaml_json(item: RawOption, version: str) -> str:
    if choose_version(version).release < _JSON_FROM_CONFIG:
        raise _ValueProblem(
            _value_place(item),
            f"{item.shown}: {version} passes a mapping on as Python text, not as JSON",
            "write the JSON as quoted text",
        )
    return json.dumps(item.values[0].value)


def _yaml_word(item: RawOption, value: RawScalar, option: Option) -> str:
    if value.tag in ("map", "list"):
        what = "mapping" if value.tag == "map" else "list"
        raise _ValueProblem(value.place, f"{item.shown} takes one value, found a {what}")
    if value.tag == "null":
        raise _ValueProblem(
            value.place,
            f"{item.shown} has no value: YAML's null reaches the server as the text 'None'",
            _null_help(option),
        )
    if value.tag == "bool":
        raise _ValueProblem(
            value.place,
            f"{item.shown} takes a value, but YAML reads {value.text} as "
            f"{'true' if value.value else 'false'}",
            _bool_help(value, option),
        )
    if value.tag == "int" and option.kind != "str":
        _refuse_odd_number(item, value)
    if value.tag == "float" and _SEXAGESIMAL.match(value.text):
        _refuse_odd_number(item, value)
    if value.tag in ("int", "float"):
        try:
            return str(value.value)
        except ValueError:
            raise _ValueProblem(
                value.place, f"{item.shown}: a number of {len(value.text)} digits is out of range"
            ) from None
    return str(value.value)


def _bool_help(value: RawScalar, option: Option) -> str:
    if option.choices:
        return f"write {', '.join(option.choices[:-1])} or {option.choices[-1]}"
    return f'quote it: "{value.text}"' if option.kind == "str" else "write the number"


def _null_help(option: Option) -> str:
    if "null" in option.choices:
        return 'remove the line, or quote it: "null"'
    return "remove the line to get the default"


def _refuse_odd_number(item: RawOption, value: RawScalar) -> None:
    plain = value.text.replace("_", "")
    if _OCTAL.match(value.text):
        raise _ValueProblem(
            value.place,
            f"{item.shown}: {value.text} is octal in YAML and means {value.value}",
            f"write {value.value} or {plain.lstrip('+-0') or '0'}",
        )
    if _SEXAGESIMAL.match(value.text):
        raise _ValueProblem(
            value.place,
            f"{item.shown}: {value.text} counts in sixties in YAML and means {value.value}",
            f"write {value.value}",
        )


def _variable(reading: RawReading, item: RawEnv) -> list[Given]:
    name = item.name
    if not name.startswith(_PREFIX):
        return [Given(name, item.text, str(item.place), item.place)]
    wanted = _ENV_TYPES.get(name.removeprefix(_PREFIX))
    if wanted is None:
        close = _closest_variable(name)
        reading.problem(
            item.place,
            f"unknown variable {name}",
            f"did you mean {close}?" if close else "the server would pass over it",
        )
        return []
    try:
        value = _variable_value(item.text, wanted)
    except ValueError:
        kind = {int: "an integer", float: "a number", bool: "true or false"}[wanted]
        reading.notice(
            f"{name}={item.text[:60]!r} is not {kind}: the server warns and uses the default "
            "(KVC-A13)",
            item.place,
        )
        return []
    return [Given(name, value, str(item.place), item.place)]


def _variable_value(text: str, wanted: type) -> Any:
    if len(text) > _MAX_ENV_CHARS:
        raise ValueError
    if wanted is bool:
        if text.lower() in _YES:
            return True
        if text.lower() in _NO:
            return False
        raise ValueError
    return wanted(text)


def _closest_variable(name: str) -> str | None:
    import difflib

    known = [_PREFIX + tail for tail in _ENV_TYPES]
    found = difflib.get_close_matches(name[:80], known, n=1)
    return found[0] if found else None
