"""Launch capacities for a trace: from its header's arguments, or from what the user names.

The rules are those of ``check-capacities``; the trace itself states two facts, the size of the
pool and of the request table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.result import Capacities
from kvcanary_cli.serving.read_source import read_source
from kvcanary_cli.serving.read_sources import merge
from kvcanary_cli.serving.resolve import resolve
from kvcanary_cli.serving.values import Given

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcanary_cli.serving.read_sources import Reading
    from kvcanary_cli.serving.values import Resolution
    from kvcanary_cli.trace.header import TraceHeader

HEADER = "serving_args"
# What the capacities follow from, as headers spell it; nothing else of a header is looked at.
_NAMES: Mapping[str, str] = {
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
    "cuda_graph_max_bs_decode": "cuda_graph_max_bs_decode",
    "max_running_requests": "max_running_requests",
    "max_prefill_tokens": "max_prefill_tokens",
    "chunked_prefill_size": "chunked_prefill_size",
    "speculative_num_draft_tokens": "speculative_num_draft_tokens",
}
_TELLING = frozenset({*_NAMES.values(), "max_total_tokens", "kv_tokens"})
_UNCHUNKED = -1


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration, script, log or server-info, read once for any number of traces.

    Attributes:
        name: As the user named it.
        reading: What it states.
    """

    name: str
    reading: Reading


def read_config(name: str) -> Config:
    """Read what stands instead of the arguments in a trace's header.

    Raises:
        InputError: It cannot be used, or says nothing that capacities follow from.
    """
    reading = merge([read_source(name)])
    if not {one.name for one in reading.given} & _TELLING:
        raise InputError(
            f"{name}: holds none of the arguments that the capacities follow from",
            hint="for example max-running-requests, cuda-graph-max-bs, max-prefill-tokens, "
            "chunked-prefill-size",
        )
    return Config(name, reading)


def capacities_of_trace(header: TraceHeader, config: Config | None) -> Capacities:
    """Capacities that the server of this trace had.

    Args:
        header: The trace's header.
        config: What to use instead of the header's arguments.

    Raises:
        InputError: The server would refuse the arguments, or they are of the wrong type.
    """
    if config is not None:
        reading = config.reading
        stated = {one.name for one in reading.given}
        given = [*_facts(header, stated), *reading.given]
        version = reading.version or _version(header)
        return _capacities(given, version, f"config: {config.name}")
    if header.serving_args is None:
        return NOT_CHECKED
    arguments = _header_arguments(header.serving_args)
    if not arguments:
        return NOT_CHECKED
    # The header tells of the very server that was recorded: its table is the request pool.
    return _capacities([*_facts(header, set()), *arguments], _version(header), HEADER)


def _version(header: TraceHeader) -> str | None:
    return header.engine_version if header.engine_name == "sglang" else None


def _facts(header: TraceHeader, stated: set[str]) -> list[Given]:
    """What the trace states, unless the source states it itself."""
    facts = []
    if not stated & {"max_total_tokens", "kv_tokens"}:
        facts.append(Given("kv_tokens", header.pool.slots, "the trace's pool", None, "fact"))
    if not stated & {"max_running_requests", "effective_max_running_requests"}:
        facts.append(
            Given(
                "req_to_token_pool_size",
                header.pool.rows - 1,
                "the trace's request table",
                None,
                "fact",
            )
        )
    return facts


def _header_arguments(args: Mapping[str, Any]) -> list[Given]:
    found = []
    for key, value in args.items():
        name = _NAMES.get(str(key).lstrip("-").replace("-", "_"))
        if name is None or value is None:
            continue
        if type(value) is not int:
            raise InputError(
                f"the trace's {HEADER}: '{key}' must be an integer, found {value!r}",
                hint="give the number that the server was started with, or --config",
            )
        found.append(Given(name, value, HEADER, None, "resolved"))
    return found


def _capacities(given: Sequence[Given], version: str | None, source: str) -> Capacities:
    resolution = resolve(given, version=version)
    refused = next((r for r in resolution.refusals if r.code in ("KVC-B01", "KVC-B02")), None)
    if refused is not None:
        raise InputError(
            f"{source}: {refused.message}", hint="the server would refuse these arguments"
        )
    notes = []
    parts = {part.name: part for part in resolution.capacity_parts()}
    entry = parts["per_forward_write_entry_capacity"]
    write_entry = entry.value
    if write_entry is None and set(entry.unknown) == {"chunked_prefill_size"}:
        write_entry = _largest_entry_capacity(given, version)
        notes.append(
            "chunked_prefill_size is not known: taken as unlimited, so that only a sure overflow "
            "is reported"
        )
    for name in ("cuda_graph_max_bs", "req_to_token_pool_size", "pool_slot_count"):
        if name in resolution.unknown:
            notes.append(f"{name} is not known: {resolution.unknown[name].why}")
    write_req = parts["per_forward_write_req_capacity"].value
    if write_req is None and resolution.value("req_to_token_pool_size") is not None:
        # The decode graphs' batch can only add to it.
        notes.append("the request capacity is not known: --capacity write_req=N states it")
    return Capacities(
        verify=parts["per_forward_verify_capacity"].value,
        write_req=write_req,
        write_entry=write_entry,
        source=source,
        notes=tuple(notes),
    )


def _largest_entry_capacity(given: Sequence[Given], version: str | None) -> int | None:
    unchunked = Given("chunked_prefill_size", _UNCHUNKED, "upper bound", None, "resolved")
    resolution: Resolution = resolve([*given, unchunked], version=version)
    parts = {part.name: part for part in resolution.capacity_parts()}
    return parts["per_forward_write_entry_capacity"].value
