"""Merges several sources into the statements that a resolution starts from.

Later sources win, and what a log or a server-info states as resolved wins over arguments. All
problems of all sources end up in one error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.changes import with_change
from kvcanary_cli.serving.options import is_option_name, lookup
from kvcanary_cli.serving.overridden import note_values_in_effect, without_outdated
from kvcanary_cli.serving.read_options import interpret, spelling, unknown_to
from kvcanary_cli.serving.read_raw import Notice, Problem, problems_error
from kvcanary_cli.serving.resolve import resolve
from kvcanary_cli.serving.values import FACTS, Given, Place
from kvcanary_cli.serving.versions import READ_VERSIONS, parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcanary_cli.serving.observed import Observations
    from kvcanary_cli.serving.read_raw import RawReading
    from kvcanary_cli.serving.values import Resolution
    from kvcanary_cli.serving.versions import Version

#: Options that the server itself turns into another value; a difference is no contradiction.
_CHANGED_BY_RULES = frozenset(
    {"chunked_prefill_size", "dp_size", "enable_dp_attention"}
    | {"max_running_requests", "context_length", "max_total_tokens"}
)

INSTALLED = frozenset(
    {"canary_verify_capacity", "canary_write_req_capacity", "canary_write_entry_capacity"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What all sources together state.

    Attributes:
        given: Statements, weakest and earliest first.
        version: Version of the server as stated, else as assumed, else None.
        version_basis: ``given``, or why this version is assumed.
        notices: Warnings.
        observed: Sources that show a load, by name.
        sources: Names of the sources, in order.
    """

    given: tuple[Given, ...]
    version: str | None
    version_basis: str
    notices: tuple[Notice, ...]
    observed: tuple[tuple[str, Observations], ...]
    sources: tuple[str, ...]

    def without_installed(self) -> Reading:
        """The same without the capacities that a running canary has."""
        kept = tuple(one for one in self.given if one.name not in INSTALLED)
        return replace(self, given=kept)

    def resolve(self, changes: Sequence[Given] = ()) -> Resolution:
        """What the server makes of it, with ``changes`` in place of what they name."""
        given = list(self.given)
        for change in changes:
            given = with_change(given, change.name, change.value, change.source)
        found = resolve(given, version=self.version)
        if self.version_basis == "given":
            return found
        # The assumption is told once, with its reason.
        remarks = tuple(one for one in found.remarks if one.text != found.version_basis)
        return replace(
            found, version_basis=self.version_basis, stated_version=None, remarks=remarks
        )


def merge(
    readings: Sequence[RawReading],
    overrides: Sequence[Given] = (),
    *,
    version: str | None = None,
) -> Reading:
    """Merge sources.

    Args:
        readings: Sources in order; later ones win.
        overrides: Statements of our own options; they beat everything.
        version: Version of ``--sglang-version``, or None.

    Raises:
        InputError: There is something to correct in a source; all of it is listed.
    """
    notices: list[Notice] = []
    chosen, basis = _choose_version(readings, version, notices)
    given: list[Given] = []
    problems: list[Problem] = []
    for reading in readings:
        # A source that cannot be taken apart has nothing to interpret, its problems count.
        options = interpret(reading, chosen or str(READ_VERSIONS[-1]))
        stated = _canonical(reading.given, chosen)
        _note_conflicts(given, options, stated, notices)
        given += options
        given += stated
        problems += reading.problems
        notices += reading.notices
    if problems:
        raise problems_error(problems)
    return Reading(
        given=(
            *_version_statement(readings, chosen, version),
            *without_outdated(given, overrides),
            *overrides,
        ),
        version=chosen,
        version_basis=basis,
        notices=tuple(dict.fromkeys(notices)),
        observed=tuple((r.name, r.observed) for r in readings if r.observed is not None),
        sources=tuple(reading.name for reading in readings),
    )


def _choose_version(
    readings: Sequence[RawReading], version: str | None, notices: list[Notice]
) -> tuple[str | None, str]:
    if version is not None:
        return str(parse_version(version)), "given"
    stated: tuple[str, Place] | None = None
    for reading in readings:
        if reading.version is None:
            continue
        try:
            parse_version(reading.version[0])
        except InputError:
            continue
        if stated is not None and stated[0] != reading.version[0]:
            notices.append(
                Notice(
                    f"the version is {reading.version[0]} here and {stated[0]} at {stated[1]}; "
                    "the later source counts",
                    reading.version[1],
                )
            )
        stated = reading.version
    if stated is not None:
        return stated[0], "given"
    return _assume_version(readings)


def _version_statement(
    readings: Sequence[RawReading], chosen: str | None, version: str | None
) -> list[Given]:
    """Where the version stands (image tag, log line, server-info), unless an option gives it."""
    if version is not None:
        return []
    stated = [one.version for one in readings if one.version and one.version[0] == chosen]
    return [Given("sglang_version", text, str(place), place, "fact") for text, place in stated[-1:]]


def _assume_version(readings: Sequence[RawReading]) -> tuple[str | None, str]:
    """The newest version that takes every option and writes logs of this form."""
    newest = [r.newest_version for r in readings if r.newest_version]
    oldest = [r.oldest_version for r in readings if r.oldest_version]
    low = max((parse_version(v).release for v, _ in oldest), default=(0, 0, 0))
    high = min((parse_version(v).release for v, _ in newest), default=(99, 0, 0))
    candidates = [v for v in READ_VERSIONS if low <= v.release <= high]
    reasons: list[str] = []
    if not candidates:
        # Parts of one input come from different versions: what needs a newer one decides.
        candidates = [v for v in READ_VERSIONS if low <= v.release] or list(READ_VERSIONS)
    elif newest:
        reasons.append(min(newest, key=lambda item: parse_version(item[0]).release)[1])
    for candidate in reversed(candidates):
        strangers = [item for reading in readings for item in unknown_to(reading, str(candidate))]
        if not strangers:
            return _assumption(candidate, reasons)
        reasons += [f"{spelling(item)} at {item.place}" for item in strangers]
    return _assumption(candidates[-1], [])


def _assumption(version: Version, reasons: list[str]) -> tuple[str | None, str]:
    if not reasons and version is READ_VERSIONS[-1]:
        return None, "no version was stated; the rules of the newest known version apply"
    because = f" that fits {', '.join(dict.fromkeys(reasons))}" if reasons else ""
    return str(version), f"no version was stated; {version} is the newest known{because}"


def _canonical(given: Sequence[Given], version: str | None) -> list[Given]:
    """Statements of dumps under canonical names; fields that no option has are left out."""
    release = parse_version(version).release if version else READ_VERSIONS[-1].release
    config = next((g for g in given if g.name == "cuda_graph_config"), None)
    phases = _graph_phases(config) if config is not None else []
    settled = {one.name for one in phases}
    out: list[Given] = []
    for one in given:
        if one.kind != "resolved":
            out.append(one)
            continue
        name = _canonical_name(one.name, version)
        if name is None:
            continue
        # Since the graph settings have an object of their own, the single fields keep what was
        # passed: None there means "not passed".
        if (
            name.startswith("cuda_graph_")
            and release >= (0, 5, 14)
            and (one.value is None or name in settled or name == "cuda_graph_config")
        ):
            continue
        out.append(replace(one, name=name))
    return out + phases


def _canonical_name(name: str, version: str | None) -> str | None:
    if name.startswith("SGLANG_") or name in FACTS or is_option_name(name):
        return name
    try:
        return lookup("--" + name.replace("_", "-"), version).name
    except InputError:
        pass
    for known in reversed(READ_VERSIONS):
        try:
            option = lookup("--" + name.replace("_", "-"), str(known))
        except InputError:
            continue
        return option.name if option.abbreviated is None else None
    return None


def _graph_phases(config: Given) -> list[Given]:
    """Settings of both phases out of a resolved ``cuda_graph_config``."""
    out: list[Given] = []
    value = config.value if isinstance(config.value, dict) else {}
    for phase in ("decode", "prefill"):
        fields: Any = value.get(phase)
        if not isinstance(fields, dict):
            continue
        for field, name in (
            ("max_bs", f"cuda_graph_max_bs_{phase}"),
            ("bs", f"cuda_graph_bs_{phase}"),
            ("backend", f"cuda_graph_backend_{phase}"),
        ):
            if fields.get(field) is not None:
                out.append(replace(config, name=name, value=fields[field]))
    return out


def _last_arguments(given: Sequence[Given]) -> Mapping[str, Given]:
    return {one.name: one for one in given if one.kind == "argument" and one.value is not None}


def _note_conflicts(
    before: Sequence[Given],
    options: Sequence[Given],
    stated: Sequence[Given],
    notices: list[Notice],
) -> None:
    """Say where sources contradict each other, and which one counts."""
    known = _last_arguments(before)
    for name, one in _last_arguments(options).items():
        old = known.get(name)
        if old is not None and old.value != one.value:
            notices.append(
                Notice(
                    f"{name} is {one.value!r} here and {old.value!r} at {old.source}; "
                    "the later source counts",
                    one.place,
                )
            )
    arguments = {**known, **_last_arguments(options)}
    note_values_in_effect(arguments, stated, notices)
    for one in stated:
        if one.name in _CHANGED_BY_RULES:
            continue
        old = arguments.get(one.name)
        if one.kind != "resolved" or old is None or old.value == one.value:
            continue
        notices.append(
            Notice(
                f"{one.name} is {old.value!r} at {old.source}, but the server resolved it to "
                f"{one.value!r}, which counts",
                one.place,
            )
        )
