"""Default of mem_fraction_static, version by version (SPEC_SERVING_ARGS 2.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.serving.versions import Release

_FLOOR_MIB = 10 * 1024
_FLOOR_FROM_MIB = 60 * 1024
_MLA_GRAPHS_MIB = 1.5 * 1024
_MANY_DP_GRAPHS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class FractionInputs:
    """What the default depends on. C and G are the values before the division by the DP size.

    Attributes:
        memory_mib: memory.total in MiB, or None if the server cannot tell.
        tp_size: Tensor parallel size.
        pp_size: Pipeline parallel size.
        dp_size: Attention DP size; 1 without DP attention.
        chunked_prefill_size: C; zero or below = not chunked.
        max_prefill_tokens: M.
        cuda_graph_max_bs: G.
        speculative_algorithm: Upper case, or None.
        draft_tokens: D as configured, or None.
        max_running_requests: As given, or None.
        disaggregation_mode: ``null``, ``prefill`` or ``decode``.
        decode_graph: Decode graphs are on.
        prefill_sizes: Token counts of prefill graphs; None = prefill graphs are off.
        prefill_max_tokens: Largest of them as configured, or None.
        mla: The model's attention is MLA (or derived from it).
        breakable: Prefill graphs are of the breakable kind.
        deepep: MoE all-to-all runs over DeepEP.
        xpu: Intel GPU.
        post_capture: KV memory is sized after graph capture.
    """

    memory_mib: int | None
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    chunked_prefill_size: int
    max_prefill_tokens: int
    cuda_graph_max_bs: int
    speculative_algorithm: str | None = None
    draft_tokens: int | None = None
    max_running_requests: int | None = None
    disaggregation_mode: str = "null"
    decode_graph: bool = True
    prefill_sizes: tuple[int, ...] | None = None
    prefill_max_tokens: int | None = None
    mla: bool = False
    breakable: bool = False
    deepep: bool = False
    xpu: bool = False
    post_capture: bool = False


def default_fraction(release: Release, given: FractionInputs) -> float:
    """mem_fraction_static of a text model to which none was given, three digits."""
    if release < (0, 4, 7):
        return _by_rank_count(release, given)
    if given.memory_mib is None:
        return 0.95 if release >= (0, 5, 20) else 0.88
    reserved = _reserved_mib(release, given)
    return round((given.memory_mib - reserved) / given.memory_mib, 3)


def _by_rank_count(release: Release, given: FractionInputs) -> float:
    ranks = given.tp_size * (given.pp_size if release >= (0, 4, 6) else 1)
    mib = given.memory_mib
    fraction = 0.88
    if release < (0, 4, 5) or mib is None or mib <= 81920:
        for least, value in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87)):
            if ranks >= least:
                fraction = value
                break
    elif release < (0, 4, 6):
        fraction = round((mib - 13 * 1024) / mib, 3)
    if release >= (0, 4, 6) and mib is not None and mib > 96 * 1024:
        fraction = min(fraction + 48 * 1024 * (1 - fraction) / mib, (mib - 18 * 1024) / mib)
    return fraction


def _reserved_mib(release: Release, given: FractionInputs) -> float:
    if release < (0, 5, 3):
        return _reserved_by_class(release, given)
    if given.post_capture and release >= (0, 5, 16):
        base = 512 if release < (0, 5, 18) else 1536
        return base + given.tp_size * given.pp_size / 8 * 1024
    if release >= (0, 5, 15):
        return _reserved_by_phase(given)
    return _reserved_by_work(release, given)


def _reserved_by_class(release: Release, given: FractionInputs) -> float:
    ranks = given.tp_size * given.pp_size
    mib = given.memory_mib or 0
    if mib < 35 * 1024:
        gib = 2.8 + ranks / 10
    elif mib < 90 * 1024:
        gib = 9.5 + ranks / 2
    elif mib < 160 * 1024:
        gib = 12 + ranks / 2
    else:
        gib = 32.0
    if given.speculative_algorithm is not None:
        standalone = given.speculative_algorithm == "STANDALONE" and release >= (0, 5, 2)
        gib += 6 if standalone else 2
    if given.dp_size > 1:
        gib += 4
    return gib * 1024


def _activation_tokens(given: FractionInputs) -> int:
    chunk = given.chunked_prefill_size
    return max(chunk if chunk > 0 else given.max_prefill_tokens, 2048)


def _dp_graphs_mib(given: FractionInputs) -> float:
    if given.dp_size <= 1:
        return 0
    per_size = 3.0 if given.cuda_graph_max_bs <= _MANY_DP_GRAPHS else 4.5
    return per_size * given.cuda_graph_max_bs * given.dp_size


def _reserved_by_work(release: Release, given: FractionInputs) -> float:
    """0.5.3 to 0.5.14."""
    mib = 512 + 1.5 * _activation_tokens(given) + 2 * given.cuda_graph_max_bs
    mib += given.tp_size * given.pp_size / 8 * 1024 + _dp_graphs_mib(given)
    prefill = given.prefill_sizes
    if prefill is not None and release >= (0, 5, 8):
        mib += _MLA_GRAPHS_MIB if given.mla and release >= (0, 5, 10) else 8 * len(prefill)
    if (given.memory_mib or 0) > _FLOOR_FROM_MIB:
        mib = max(mib, _FLOOR_MIB)
    if prefill is not None and (0, 5, 5) <= release < (0, 5, 8):
        mib += (given.prefill_max_tokens or 0) // (4 if release < (0, 5, 7) else 8)
    algorithm = given.speculative_algorithm
    if algorithm is not None and release < (0, 5, 14):
        if algorithm == "STANDALONE":
            mib += 6 * 1024
        elif algorithm != "NGRAM":
            mib += (2 if release < (0, 5, 10) else 4) * 1024
    return mib


def _reserved_by_phase(given: FractionInputs) -> float:
    """Since 0.5.15: what the phases that this server runs need."""
    prefill_server = given.disaggregation_mode == "prefill"
    decode_server = given.disaggregation_mode == "decode"
    tokens = _activation_tokens(given)
    if decode_server:
        requests = given.max_running_requests or given.cuda_graph_max_bs or 1
        tokens = max(requests * (given.draft_tokens or 1), 2048)
    mib = 512 + 1.5 * tokens + given.tp_size * given.pp_size / 8 * 1024
    if not prefill_server:
        mib += (2 * given.cuda_graph_max_bs if given.decode_graph else 0) + _dp_graphs_mib(given)
    if not decode_server and given.prefill_sizes is not None:
        mib += _MLA_GRAPHS_MIB if given.mla else 8 * len(given.prefill_sizes)
        if given.breakable and given.deepep:
            mib += 1024
    if (given.memory_mib or 0) > _FLOOR_FROM_MIB:
        mib = max(mib, _FLOOR_MIB)
    if given.deepep and given.decode_graph and not prefill_server:
        mib += 2 * 1024
    return mib + (2 * 1024 if given.xpu else 0)


def multimodal_fraction(
    release: Release,
    fraction: float,
    *,
    vision_layers: int | None = None,
    vision_hidden: int | None = None,
) -> float:
    """Fraction of a multimodal model.

    Args:
        release: Version of the rules.
        fraction: f of 2.5; the 0.5 versions lower only a default one, not a given one.
        vision_layers: Layers of the vision tower, or None if it has no such number.
        vision_hidden: Its hidden size, or None.
    """
    fraction *= 0.95
    if release < (0, 5, 0) or vision_layers is None or vision_hidden is None:
        return fraction
    ratio = vision_layers * vision_hidden**2 / (24 * 1024**2)
    return fraction * min(max(1 - 0.1 * (ratio - 1), 0.8), 1.05)
