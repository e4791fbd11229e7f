"""One real launch of a case file as statements that the resolution takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.serving import gpus
from kvcanary_cli.serving.options import lookup, spelling_of
from kvcanary_cli.serving.resolve import resolve
from kvcanary_cli.serving.values import Given, Resolution
from kvcanary_cli.serving.versions import Version, parse_version

_OBSERVED_FACTS = {
    "kv_tokens": "kv_tokens",
    "max_total_num_tokens": "kv_tokens",
    "kv_capacity": "kv_tokens",
    "kv_token_slots": "kv_tokens",
    "context_len": "context_len",
    "max_mamba_cache_size": "mamba_slots",
    "mamba_slots": "mamba_slots",
    "slots_per_request": "state_slots_per_request",
    "avail_after_load_gib": "avail_after_load_gib",
    "avail_before_load_gib": "avail_before_load_gib",
    "weights_gib": "weights_gib",
    "k_gib": "k_gib",
    "v_gib": "v_gib",
    "kv_gib": "kv_gib",
}
"""Observed values that may go into a rule, by the fact that they are."""

_PLATFORMS = {"ascend": "npu", "npu": "npu", "musa": "musa"}


class BadFileError(Exception):
    """The file is not a case file."""


def need(condition: bool, what: str) -> None:
    """Raise BadFileError with ``what`` unless ``condition``."""
    if not condition:
        raise BadFileError(what)


@dataclass(frozen=True)
class Case:
    """A launch.

    Attributes:
        id: Identifier in the file.
        version: Version whose rules are held to it; the lower one of a range.
        options: Options by canonical name.
        extra: Inputs that are no options (``tier``, ``speculative``).
        observed: What the source shows.
        gpu: ``name``, ``memory_mib``, ``count``.
        checks: Checks as in the file.
    """

    id: str
    version: Version
    options: dict[str, Any]
    extra: dict[str, Any]
    observed: dict[str, Any]
    gpu: dict[str, Any]
    checks: list[dict[str, Any]] = field(repr=False)

    @property
    def platform(self) -> str:
        name = str(self.gpu.get("name") or "").lower()
        return next((value for key, value in _PLATFORMS.items() if key in name), "cuda")

    @property
    def memory_mib(self) -> int | None:
        stated = self.gpu.get("memory_mib")
        if stated is not None:
            return int(stated)
        named = re.findall(r"(\d+) ?GB", str(self.gpu.get("name") or ""))
        return gpus.parse_gpu_memory(f"{named[-1]}GB").mib if named else None

    def number(self, *names: str) -> float | None:
        """First of the observed values that is a number."""
        for name in names:
            value = self.observed.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value
        return None

    def resolve(
        self,
        *,
        without: tuple[str, ...] = (),
        facts: tuple[str, ...] = (),
        change: dict[str, Any] | None = None,
        version: str | None = None,
    ) -> Resolution:
        """Resolve the launch.

        Args:
            without: Options to leave out, so that their default is computed.
            facts: Observed values that may be used; every other one is withheld.
            change: Further options or facts.
            version: Another version than the case's.
        """
        given = [
            Given(name, value, f"{self.id} input")
            for name, value in self.options.items()
            if name not in without
        ]
        given.append(Given("platform", self.platform, self.id, None, "fact"))
        if self.memory_mib is not None:
            given.append(Given("gpu_memory_mib", self.memory_mib, self.id, None, "fact"))
        for name in facts:
            value = self.number(name)
            if value is not None:
                given.append(
                    Given(_OBSERVED_FACTS[name], value, f"{self.id} observed", None, "fact")
                )
        for name, value in (change or {}).items():
            given = [item for item in given if item.name != name]
            given.append(Given(name, value, f"{self.id} rule text", None, "fact"))
        return resolve(given, version=version or str(self.version))


def read_cases(raw: Any) -> list[Case]:
    """Cases of a parsed file.

    Raises:
        BadFileError: It is not one.
    """
    need(isinstance(raw, dict), "an object with cases is expected")
    rows = raw.get("cases")
    need(isinstance(rows, list) and bool(rows), "no cases")
    for row in rows:
        need(isinstance(row, dict) and isinstance(row.get("id"), str), "a case without an id")
        for key, kind in (("input", dict), ("observed", dict), ("gpu", dict), ("checks", list)):
            need(isinstance(row.get(key), kind), f"{row['id']}: {key} is missing")
        need(isinstance(row["input"].get("values"), dict), f"{row['id']}: input has no values")
        for check in row["checks"]:
            need(
                isinstance(check, dict)
                and isinstance(check.get("rule"), str)
                and check.get("verdict") in ("agree", "disagree", "not_checkable"),
                f"{row['id']}: a check without rule or verdict",
            )
    dated = [(date, version) for row in rows for date, version in [_dated(row)] if version]
    return [_case(row, dated) for row in rows]


def _version(text: str) -> Version | None:
    match = re.search(r"\d+\.\d+\.\d+(?:\.post\d+)?", text)
    return parse_version(match[0]) if match else None


def _dated(row: dict[str, Any]) -> tuple[int, Version | None]:
    """Days (roughly) of a case's date, for the nearest version of a case without one."""
    numbers = [int(part) for part in re.findall(r"\d+", str(row.get("date")))[:3]]
    year, month, day = [*numbers, 6, 15, 15][:3] if len(numbers) == 1 else [*numbers, 15, 15][:3]
    return year * 372 + month * 31 + day, _version(str(row.get("sglang_version")))


def _case(row: dict[str, Any], dated: list[tuple[int, Version]]) -> Case:
    date, version = _dated(row)
    if version is None:
        need(bool(dated), f"{row['id']}: no version")
        version = min(dated, key=lambda item: abs(item[0] - date))[1]
    options: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in row["input"]["values"].items():
        name = _option_name(str(key), str(version))
        if name is None:
            extra[str(key)] = value
        elif value is not None:
            options[name] = value
    return Case(row["id"], version, options, extra, row["observed"], row["gpu"], row["checks"])


def _option_name(key: str, version: str) -> str | None:
    try:
        name = lookup(f"--{key}", version).name
    except KvCanaryError:
        return None
    # "speculative" and "model-architecture" are words of the file, not abbreviations of options.
    spelled = spelling_of(name, version)
    return None if spelled is None or key in ("speculative", "model-architecture") else name
