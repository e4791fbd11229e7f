"""Statements of our own command's options: ``--gpu-mem``, ``--model-config``, ``--set``, ..."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.serving.gpus import is_hip, is_hopper, memory_of_gpu, parse_gpu_memory
from kvcanary_cli.serving.option_values import parse_option_value
from kvcanary_cli.serving.options import (
    OptionError,
    is_option_name,
    lookup,
    normalise,
    option_named,
)
from kvcanary_cli.serving.read_raw import MAX_CONFIG_BYTES
from kvcanary_cli.serving.values import FACTS, RESULTS, Given, Place

_BYTES = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([kmgt]i?b?|b)?", re.IGNORECASE)
#: What people call these values, and logs print.
_ALIASES = {"max_total_num_tokens": "pool_slot_count", "swa_pool_slot_count": "swa_kv_tokens"}
#: Values that follow from others only, and what to set instead.
_DERIVED = {
    "requested_max_running_requests": "max_running_requests",
    "state_slots_per_request": "mamba_slots",
}
_SCALE = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str, option: str) -> int:
    """``2GiB``, ``2GB``, ``1500000``: bytes.

    Raises:
        UsageError: Not a size.
    """
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{option}: {text[:40]!r} is not a size", hint=f"for example {option} 2GiB"
        )
    unit = (found.group(2) or "b").lower()
    base = 1024 if "i" in unit else 1000
    return int(float(found.group(1)) * base ** _SCALE.get(unit[0], 0))


def gpu_statements(
    *, memory: str | None, name: str | None, count: int | None
) -> tuple[list[Given], list[str]]:
    """Statements of ``--gpu-mem``, ``--gpu`` and ``--gpus``, and what was taken for what.

    Raises:
        UsageError: Not a size, not a known product, or no GPU.
    """
    out: list[Given] = []
    notes: list[str] = []
    if name is not None:
        product = memory_of_gpu(name)
        out += [
            Given("gpu_name", name, "--gpu", None, "override"),
            Given("hopper", is_hopper(name), "--gpu", None, "override"),
        ]
        if is_hip(name):
            out.append(Given("platform", "hip", "--gpu", None, "override"))
        if memory is None:
            source = f"--gpu {product.text}"
            out.append(Given("gpu_memory_mib", product.mib, source, None, "override"))
    if memory is not None:
        size = parse_gpu_memory(memory)
        if not size.exact:
            notes.append(f"--gpu-mem {memory}: {size.text}")
        source = f"--gpu-mem {memory}"
        out.append(Given("gpu_memory_mib", size.mib, source, None, "override"))
    if count is not None:
        if count < 1:
            raise UsageError(f"--gpus: expected at least 1, found {count}")
        out.append(Given("gpu_count", count, "--gpus", None, "override"))
    return out, notes


def model_statement(path: str, fact: str = "model_config") -> Given:
    """The model's ``config.json``, or the folder that holds it.

    Raises:
        InputError: It cannot be read, or is no model configuration.
    """
    place = Path(path)
    if place.is_dir():
        place = place / "config.json"
    try:
        if place.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"{place}: larger than any model configuration")
        value = json.loads(place.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"{place}: cannot be read: {error.strerror or error}",
            hint="--model-config takes the model's config.json or its folder",
        ) from error
    except json.JSONDecodeError as error:
        raise InputError(f"{place}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}:1:1: not JSON: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise InputError(
            f"{place}:1:1: expected the model's config.json, found {type(value).__name__}"
        )
    return Given(fact, value, f"--{fact.replace('_', '-')} {path}", Place(str(place)), "override")


def set_statement(text: str, version: str | None) -> Given:
    """``key=value`` of ``--set``: an option of the server, a fact or a resolved value.

    Raises:
        UsageError: No ``=``, an unknown key, or a value of the wrong type.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UsageError(
            f"--set: expected key=value, found {text[:60]!r}",
            hint="for example --set max_total_num_tokens=400000",
        )
    source = f"--set {key}"
    folded = _ALIASES.get(key.lstrip("-").replace("-", "_"), key.lstrip("-").replace("-", "_"))
    if folded in _DERIVED:
        raise UsageError(
            f"--set: {folded} follows from other values", hint=f"set {_DERIVED[folded]} instead"
        )
    if folded in FACTS:
        return Given(folded, _typed(FACTS[folded], value, source), source, None, "override")
    if folded in RESULTS and not is_option_name(folded):
        return Given(folded, _typed(RESULTS[folded], value, source), source, None, "override")
    if key.startswith("SGLANG_"):
        return Given(key, _plain(value), source, None, "override")
    return _option_statement(key, folded, value, source, version)


def _option_statement(key: str, folded: str, value: str, source: str, version: str | None) -> Given:
    try:
        option = lookup(normalise(key), version)
    except OptionError as error:
        named = option_named(folded, version) if is_option_name(folded) else None
        if named is None:
            hint = (
                error.hint or "keys are options of the server, or values as the report names them"
            )
            raise UsageError(f"{source}: {error.message}", hint=hint) from None
        option = named
    if not option.takes_value:
        return Given(option.name, _switch(value, source), source, None, "override")
    if value in ("None", "none", "null") and "none" not in option.choices:
        return Given(option.name, None, source, None, "override")
    words = value.replace(",", " ").split() if option.takes_list else [value]
    try:
        parsed = parse_option_value(option, words, version)
    except OptionError as error:
        raise UsageError(f"{source}: {error.message}", hint=error.hint) from None
    return Given(option.name, parsed, source, None, "override")


def _switch(value: str, source: str) -> bool:
    if value.lower() in ("true", "1", "yes", "on"):
        return True
    if value.lower() in ("false", "0", "no", "off"):
        return False
    raise UsageError(f"{source}: expected true or false, found {value[:40]!r}")


def _typed(description: str, value: str, source: str) -> Any:
    """A value of the type with which ``FACTS`` and ``RESULTS`` describe a name."""
    kind = re.split(r"[:;]", description)[0].strip()
    try:
        match kind:
            case "int":
                if len(value) > 20:
                    raise ValueError
                return int(value)
            case "float":
                return float(value)
            case "bool":
                return _switch(value, source)
            case "list[int]":
                return [int(part) for part in value.strip("[]").replace(",", " ").split()]
            case "dict":
                parsed = json.loads(value)
                if not isinstance(parsed, dict):
                    raise ValueError
                return parsed
            case _:
                return value
    except (ValueError, RecursionError):
        raise UsageError(f"{source}: expected {kind}, found {value[:40]!r}") from None


def _plain(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return int(value) if len(value) < 20 else value
    except ValueError:
        return value
