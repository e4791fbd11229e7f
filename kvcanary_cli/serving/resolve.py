"""From statements to what the server resolves, in its own order (SPEC_SERVING_ARGS 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.serving import (
    refusals,
    resolve_graphs,
    resolve_launch,
    resolve_memory,
    resolve_phases,
    resolve_requests,
)
from kvcanary_cli.serving.launch_capacities import STATED_CAPACITIES, refused_input
from kvcanary_cli.serving.option_facts import DEFAULTS
from kvcanary_cli.serving.refused_values import check_graph_config
from kvcanary_cli.serving.resolve_state import State, strongest
from kvcanary_cli.serving.values import Refusal, Resolution
from kvcanary_cli.serving.versions import choose_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.serving.values import Given

_FLAGS = ("enable_mixed_chunk", "enable_dynamic_chunking", "disable_radix_cache")
_DP_CONSERVATIVENESS = 0.3


def resolve(given: Sequence[Given], *, version: str | None = None) -> Resolution:
    """Apply the rules of a version to what was stated.

    Args:
        given: Statements of all sources, in the order of the sources: among equally strong ones
            the last counts.
        version: Version of the server. None = the stated ``sglang_version``, or the newest known.

    Returns:
        Values with their sources, what is unknown, what is refused, and what should be known.

    Raises:
        InputError: The version, or a value that a rule reads, is not what it should be.
        UsageError: ``--gpu`` or ``--gpu-mem`` names nothing known.
    """
    chosen = strongest(given)
    stated = version
    if stated is None and "sglang_version" in chosen:
        stated = str(chosen["sglang_version"].value)
    choice = choose_version(stated)
    state = State(chosen, choice)
    if choice.basis != "given":
        state.remark(choice.basis)
    _run(state)
    resolution = Resolution(
        version=str(choice.rules),
        version_basis=choice.basis,
        stated_version=None if choice.stated is None else str(choice.stated),
        values=state.values,
        unknown=state.unknown,
        refusals=tuple(state.refusals),
        remarks=tuple(state.remarks),
        given=chosen,
    )
    return _with_refused_input(resolution)


def _run(state: State) -> None:
    for name in STATED_CAPACITIES:
        state.integer(name, least=1)
    check_graph_config(state)
    resolve_launch.read_models(state)
    platform = resolve_launch.resolve_machine(state)
    resolve_launch.resolve_parallel(state)
    _simple_options(state)
    resolve_launch.resolve_speculation_options(state)
    resolve_graphs.resolve_chunk_and_graph(state, platform)
    resolve_launch.resolve_page_size(state, platform)
    resolve_phases.resolve_phases(state, platform)
    resolve_phases.resolve_decode_sizes(state, platform)
    resolve_phases.resolve_prefill_sizes(state)
    resolve_memory.resolve_fraction(state, platform)
    _clamp_prefill_sizes(state)
    resolve_memory.resolve_cell(state)
    resolve_memory.resolve_tokens(state)
    resolve_requests.resolve_context(state)
    resolve_requests.resolve_state_slots(state)
    resolve_requests.resolve_requests(state)
    resolve_requests.resolve_captured(state)
    resolve_requests.resolve_table(state)
    if state.model is None:
        state.remark(
            "no config.json was given: the model is taken as one whose prompts can be chunked"
        )
    refusals.server_refusals(state)
    refusals.resolve_canary(state, platform)


def _simple_options(state: State) -> None:
    mode = state.text("disaggregation_mode", "null").lower()
    state.put_default("disaggregation_mode", "disaggregation_mode", mode, "null")
    for name in _FLAGS:
        state.put_default(name, name, state.flag(name), False)
    item = state.stated("schedule_conservativeness")
    value = state.number("schedule_conservativeness")
    if value is None:
        value = float(str(DEFAULTS["schedule_conservativeness"]))
    if state.get("attn_dp_size") > 1 and (item is None or item.kind == "argument"):
        scaled = round(value * _DP_CONSERVATIVENESS, 6)
        state.put("schedule_conservativeness", scaled, f"rule 2.6: {value:g} * 0.3")
    else:
        state.put_default("schedule_conservativeness", "schedule_conservativeness", value, value)


def _clamp_prefill_sizes(state: State) -> None:
    """With DP attention the prefill graphs end at the divided C; memory was computed before."""
    sizes, chunk = state.get("cuda_graph_prefill_tokens"), state.get("chunked_prefill_size")
    if state.get("attn_dp_size") > 1 and sizes and chunk is not None and 0 < chunk < sizes[-1]:
        kept = [size for size in sizes if size <= chunk]
        state.put(
            "cuda_graph_prefill_tokens", kept, f"rule 2.6: up to {chunk}", ("chunked_prefill_size",)
        )


def _with_refused_input(resolution: Resolution) -> Resolution:
    text = refused_input(resolution)
    if text is None:
        return resolution
    import dataclasses

    code = "KVC-B02" if "non-negative" in text else "KVC-B01"
    name = text.removeprefix("kv-canary: ").split(" ")[0]
    refusal = Refusal(
        code, text, resolution.source(name), f"give another value for {name}, at least 1"
    )
    return dataclasses.replace(resolution, refusals=(*resolution.refusals, refusal))
