"""Where a replay takes the launch capacities from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.capacities.launch import CanaryLaunchCapacities
from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.replay.result import Capacities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcanary_cli.trace.header import TraceHeader

NOT_CHECKED = Capacities(verify=None, write_req=None, write_entry=None, source="none")
# Stands for "no limit known" where a manager wants a number.
_NO_LIMIT = 1 << 62
_DEFAULT_MAX_PREFILL_TOKENS = 16384
_OVERRIDES = {"verify": "verify", "write_req": "write_req", "write_entry": "write_entry"}
# Anything else in the arguments does not reach the capacities.
_RELEVANT = frozenset(
    {
        "cuda_graph_max_bs",
        "cuda_graph_max_bs_decode",
        "disable_cuda_graph",
        "max_running_requests",
        "max_total_tokens",
        "max_total_num_tokens",
        "max_prefill_tokens",
        "chunked_prefill_size",
        "speculative_num_draft_tokens",
    }
)


def parse_capacity_option(text: str) -> dict[str, int]:
    """Parse ``write_req=8,write_entry=64,verify=1024``, any of them.

    Raises:
        UsageError: Unknown name, or a value that is no positive integer.
    """
    out: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        name = name.strip().replace("-", "_")
        if name not in _OVERRIDES:
            raise UsageError(
                f"--capacity: unknown name {name!r}, expected {', '.join(_OVERRIDES)}",
                hint="for example --capacity write_req=8,write_entry=8192",
            )
        if not value.strip().isdigit() or int(value) <= 0:
            raise UsageError(f"--capacity: {name} must be a positive integer, found {value!r}")
        out[name] = int(value)
    return out


def from_serving_args(
    args: Mapping[str, Any], header: TraceHeader, *, source: str, where: str
) -> Capacities:
    """Capacities that a server with these arguments had, for this trace's pool.

    What the arguments leave out comes from the trace where it states a fact (pool size, request
    table); what is left is named in ``notes``.

    Args:
        args: Argument name, dashed or underscored, to value.
        header: The trace's header.
        source: What ``Capacities.source`` says.
        where: File or header, for errors.

    Raises:
        InputError: A value of the wrong type, or one that the server refuses.
    """
    given = {str(key).lstrip("-").replace("-", "_"): value for key, value in args.items()}
    if not _RELEVANT & given.keys():
        return NOT_CHECKED
    notes: list[str] = []

    def integer(*names: str) -> int | None:
        for name in names:
            value = given.get(name)
            if value is None:
                continue
            if type(value) is not int:
                raise InputError(
                    f"{where}: '{name}' must be an integer, found {value!r}",
                    hint="give the number that the server was started with",
                )
            return value
        return None

    graph_bs = integer("cuda_graph_max_bs_decode", "cuda_graph_max_bs")
    requests = integer("max_running_requests")
    if requests is None:
        requests = header.pool.rows - 1
        notes.append(f"request pool size {requests} taken from the trace's request table")
    if graph_bs is None and not given.get("disable_cuda_graph"):
        notes.append(
            f"cuda_graph_max_bs is not given: the request capacity counts only the request pool "
            f"({requests})"
        )
    max_prefill = integer("max_prefill_tokens")
    if max_prefill is None:
        max_prefill = _DEFAULT_MAX_PREFILL_TOKENS
        notes.append(f"max_prefill_tokens is not given: the default {max_prefill} is used")
    chunk = integer("chunked_prefill_size")
    if chunk is None:
        notes.append("chunked_prefill_size is not given: taken as unlimited")
    try:
        capacities = CanaryLaunchCapacities.from_args(
            req_to_token_pool_size=requests,
            max_seq_len_per_req=header.pool.row_len,
            pool_slot_count=header.pool.slots,
            cuda_graph_max_bs=graph_bs,
            speculative_num_draft_tokens=integer("speculative_num_draft_tokens"),
            max_prefill_tokens=max_prefill,
            chunked_prefill_size=chunk,
        )
    except ValueError as error:
        raise InputError(
            f"{where}: {error}", hint="the server would refuse these arguments"
        ) from error
    return Capacities(
        verify=capacities.per_forward_verify_capacity,
        write_req=capacities.per_forward_write_req_capacity,
        write_entry=capacities.per_forward_write_entry_capacity,
        source=source,
        notes=tuple(notes),
    )


def with_overrides(base: Capacities, overrides: Mapping[str, int]) -> Capacities:
    """``base`` with the numbers of ``--capacity`` instead where given."""
    if not overrides:
        return base
    return Capacities(
        verify=overrides.get("verify", base.verify),
        write_req=overrides.get("write_req", base.write_req),
        write_entry=overrides.get("write_entry", base.write_entry),
        source="--capacity" if base.source == "none" else f"--capacity, {base.source}",
        notes=base.notes,
    )


def for_manager(capacities: Capacities) -> CanaryLaunchCapacities | None:
    """The numbers for a manager: None if none is known, unknown ones without limit."""
    if not capacities.known:
        return None
    return CanaryLaunchCapacities(
        per_forward_verify_capacity=capacities.verify or _NO_LIMIT,
        per_forward_write_req_capacity=capacities.write_req or _NO_LIMIT,
        per_forward_write_entry_capacity=capacities.write_entry or _NO_LIMIT,
    )
