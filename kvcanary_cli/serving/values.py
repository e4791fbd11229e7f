"""What was stated about a server, and what follows from it: the types between readers and rules.

A reader (YAML file, command line, log, server-info JSON) turns its source into ``Given`` values;
``serving.resolve.resolve`` turns those into a ``Resolution``, in which every value names where it
comes from and everything that could not be known is listed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcanary_cli.capacities.launch import CanaryLaunchCapacities

Kind = Literal["argument", "resolved", "fact", "override"]
"""How strong a statement is, weakest first in effect.

``argument``
    An option as it was passed (YAML key, command-line option, environment variable). Its value is
    subject to the server's rules; None counts as not passed.
``fact``
    Something about the machine, the model or the run that no option sets: see ``FACTS``.
``resolved``
    An option's value after the server resolved it (``server_args=`` line, ready line,
    server-info). It beats every rule; None means that the server resolved it to nothing.
    ``max_running_requests`` is the exception to watch: dumps of the arguments show what was
    requested, and the value in effect is the fact ``effective_max_running_requests``.
``override``
    An option of our own command (``--gpu-mem``, ``--set``). It beats everything.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was read: ``config.yaml:7:3``, ``server.log:12``, ``command line``.

    Attributes:
        file: File name as the user gave it, or ``command line``, ``stdin``.
        line: 1-based line, or None.
        column: 1-based column, or None.
    """

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.file]
        if self.line is not None:
            parts.append(str(self.line))
            if self.column is not None:
                parts.append(str(self.column))
        return ":".join(parts)


@dataclass(frozen=True, slots=True)
class Given:
    """One thing that was stated.

    Attributes:
        name: Option by its canonical name (the newest spelling, underscored, no leading dashes:
            ``cuda_graph_max_bs_decode``, ``tp_size``), the name of an entry of ``FACTS``, or an
            environment variable by its own name (``SGLANG_KV_CANARY_RING_CAPACITY``).
        value: Parsed value: int, float, str, bool, list, dict, or None.
        source: For people: ``config.yaml:7``, ``server.log:12 (ready line)``, ``--gpu-mem``.
        place: The same for machines, or None (defaults, our own options).
        kind: See ``Kind``.
    """

    name: str
    value: Any
    source: str
    place: Place | None = None
    kind: Kind = "argument"


FACTS: Mapping[str, str] = {
    "sglang_version": "str: version that a log, a server-info or an image tag states",
    "gpu_memory_mib": "int: smallest memory.total of the GPUs used, as nvidia-smi prints it",
    "gpu_count": "int: GPUs of the whole launch, all nodes",
    "gpu_name": "str: product name (H100, RTX 5090, ...); names of serving.gpus are understood",
    "platform": "str: cuda (default), hip, musa, npu, xpu or cpu",
    "hopper": "bool: GPU of compute capability 9",
    "model_config": "dict: the model's config.json",
    "draft_model_config": "dict: the draft model's config.json",
    "weights_bytes": "int: bytes of weights that one rank loads",
    "weights_gib": "float: mem usage of the 'Load weight end' line",
    "avail_before_load_gib": "float: smallest avail mem over ranks, 'Load weight begin' line",
    "avail_after_load_gib": "float: smallest avail mem over ranks, 'Load weight end' line",
    "avail_after_pool_gib": "float: avail mem of the 'Memory pool end' line",
    "kv_tokens": "int: max_total_num_tokens in effect (ready line) or #tokens of the pool line",
    "swa_kv_tokens": "int: slots of the sliding-window pool (swa_layer_tokens)",
    "k_gib": "float: K size of the KV-cache line",
    "v_gib": "float: V size of the KV-cache line",
    "kv_gib": "float: KV size of the KV-cache line (MLA), or K + V",
    "cell_bytes": "int: bytes of KV cache per token and rank",
    "context_len": "int: context_len in effect (ready line)",
    "effective_max_running_requests": "int: max_running_requests of the ready line, per worker",
    "req_to_token_pool_size": "int: rows of the request table, without padding",
    "capture_bs": "list[int]: decode batch sizes that were captured",
    "capture_num_tokens": "list[int]: prefill token counts that were captured",
    "mamba_slots": "int: max_mamba_cache_size in effect (Mamba Cache line)",
    "state_slots_per_request": "int: state slots a request takes (warning of the state cache)",
    "pool_class": "str: class of the KV pool (attach_canary_buffers line)",
    "device_has_kernels": "bool: the canary's compiled kernels exist for this device",
    "max_req_input_len": "int: longest input that the server takes (server-info, B of the refusal)",
    "canary_verify_capacity": "int: per_forward_verify_capacity of the install line",
    "canary_write_req_capacity": "int: per_forward_write_req_capacity of the install line",
    "canary_write_entry_capacity": "int: per_forward_write_entry_capacity of the install line",
    "canary_buffer_groups": "int: n_buffer_groups of the install line",
}
"""Names of facts, with type, unit and usual origin."""


RESULTS: Mapping[str, str] = {
    "tp_size": "int",
    "pp_size": "int",
    "attn_dp_size": "int: attention DP workers; 1 without DP attention",
    "replicas": "int: independent copies of the server (--dp-size without DP attention)",
    "gpu_memory_mib": "int",
    "cuda_graph_max_bs": "int: G, largest decode batch with a graph; the value the canary counts",
    "cuda_graph_bs": "list[int]: decode batch sizes from G, before they are cut at R",
    "captured_bs": "list[int]: decode batch sizes that are captured; [] if decode graphs are off",
    "cuda_graph_prefill_tokens": "list[int]: prefill token counts; [] if prefill graphs are off",
    "prefill_graph_backend": "str: disabled, piecewise, tc_piecewise, breakable or full",
    "decode_graph": "bool",
    "chunked_prefill_size": "int: C after the DP division; -1 = not chunked",
    "max_prefill_tokens": "int: M",
    "page_size": "int",
    "context_length": "int: ctx",
    "mem_fraction_static": "float: f",
    "max_running_requests": "int: in effect, per DP worker",
    "requested_max_running_requests": "int: what was asked for, after the speculation default",
    "req_to_token_pool_size": "int: R, per DP worker, without padding",
    "extra_request_rows": "int: rows that a PD decode server allocates in advance",
    "max_seq_len_per_req": "int: columns of the request table",
    "pool_slot_count": "int: T, max_total_num_tokens, per DP worker",
    "swa_pool_slot_count": "int: slots of the sliding-window pool",
    "cell_bytes": "int: bytes of KV cache per token and rank",
    "kv_rest_gib": "float: memory for the KV cache, per rank",
    "speculative_algorithm": "str; absent without speculation",
    "speculative_num_steps": "int; absent without speculation",
    "speculative_eagle_topk": "int; absent without speculation",
    "speculative_num_draft_tokens": "int: D; 0 without speculation",
    "forward_managers": "int: max(1, steps - 1)",
    "buffer_groups": "int: 1, or 2 with a sliding-window pool",
    "mamba_slots": "int: state slots, hybrid models only",
    "state_slots_per_request": "int: hybrid models only",
    "pool_class": "str: class of the KV pool",
    "kv_canary": "str: none, log or raise",
    "kv_canary_real_data": "str: none, partial or all",
    "kv_canary_sweep_interval": "int",
    "disaggregation_mode": "str: null, prefill or decode",
    "schedule_conservativeness": "float",
    "enable_mixed_chunk": "bool",
    "enable_dynamic_chunking": "bool",
    "disable_radix_cache": "bool",
}
"""Names that a ``Resolution`` may hold, with type and meaning."""

CAPACITY_INPUTS = (
    "req_to_token_pool_size",
    "max_seq_len_per_req",
    "pool_slot_count",
    "cuda_graph_max_bs",
    "speculative_num_draft_tokens",
    "max_prefill_tokens",
    "chunked_prefill_size",
)
"""Arguments of ``CanaryLaunchCapacities.from_args``, under the names that results use."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value that is known.

    Attributes:
        value: The value.
        source: Where it comes from: a place (``config.yaml:7``), a log line, an option of our
            command, or a rule with what went in (``rule 2.6: 8192 // dp 8``).
        inputs: Names of the results and facts that the rule read; empty if it was stated.
        place: Place of a stated value, or None.
    """

    value: Any
    source: str
    inputs: tuple[str, ...] = ()
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that cannot be known from what was given.

    Attributes:
        name: Name of the result.
        why: What is missing, one clause.
        give: Options that would make it known.
    """

    name: str
    why: str
    give: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A start that the canary, or the server itself, refuses.

    Attributes:
        code: Catalogue code (``KVC-A03``), or ``""`` for a refusal by the server itself.
        message: The exact text, numbers filled in.
        source: What causes it, with its place or rule.
        fix: What to change, one sentence, in the spelling of the version.
        certain: False if it depends on something that is not known; ``source`` says on what.
        when: ``start`` or the first moment at which it is raised (``first sweep``, ``first
            forward``).
    """

    code: str
    message: str
    source: str
    fix: str
    certain: bool = True
    when: str = "start"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that the user should know and that stops nothing: an assumption, an oddity."""

    text: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class CapacityPart:
    """One of the three launch capacities, by itself.

    Attributes:
        name: Field of ``CanaryLaunchCapacities``.
        value: Its value, or None if an input is unknown.
        formula: How it is computed, in the names of ``inputs``.
        inputs: Names of the results that it is computed from.
        source: Where it was stated (install line), or ``formula``.
        unknown: Those of ``inputs`` that are unknown.
    """

    name: str
    value: int | None
    formula: str
    inputs: tuple[str, ...]
    source: str
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a server makes of its arguments.

    Attributes:
        version: Version whose rules were applied (a version that was read, see
            ``serving.versions``).
        version_basis: ``given``, or a sentence that says what was assumed and why.
        stated_version: The version as it was stated, or None.
        values: Known values by name (``RESULTS``).
        unknown: Unknown values by name; a name is never in both.
        refusals: Starts that are refused, in the order in which the server meets them.
        remarks: Assumptions and oddities.
        given: What was stated and used, by name; the strongest statement of each.
    """

    version: str
    version_basis: str
    stated_version: str | None = None
    values: Mapping[str, Resolved]
    unknown: Mapping[str, Unknown]
    refusals: tuple[Refusal, ...] = ()
    remarks: tuple[Remark, ...] = ()
    given: Mapping[str, Given] = field(default_factory=dict)

    def value(self, name: str, default: Any = None) -> Any:
        """The value of ``name``, or ``default`` if it is unknown or does not apply."""
        found = self.values.get(name)
        return default if found is None else found.value

    def source(self, name: str) -> str:
        """Where the value of ``name`` comes from, or why it is unknown; empty if neither."""
        found = self.values.get(name)
        if found is not None:
            return found.source
        missing = self.unknown.get(name)
        return "" if missing is None else missing.why

    def capacities(self) -> CanaryLaunchCapacities | tuple[Unknown, ...]:
        """The launch capacities, or the inputs that are missing for them. Never raises.

        An input that the canary refuses (KVC-B02, listed in ``refusals``) counts as missing.
        """
        from kvcanary_cli.serving.launch_capacities import capacities_of

        return capacities_of(self)

    def capacity_parts(self) -> tuple[CapacityPart, ...]:
        """The three capacities one by one: what is known of them although an input is not."""
        from kvcanary_cli.serving.launch_capacities import parts_of

        return parts_of(self)
