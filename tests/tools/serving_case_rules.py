"""From the prose of a check's rule to the computation that it describes.

Each entry pairs a pattern with a function that computes the prediction from the launch's inputs
and, where the rule says so, from observed values that are not the checked one. A recorded
prediction is never read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from kvcanary_cli.serving import graph_sizes, kv_cell, kv_memory, request_pool
from kvcanary_cli.serving.mem_fraction import multimodal_fraction
from kvcanary_cli.serving.memory_defaults import memory_defaults
from kvcanary_cli.serving.model_config import ModelFacts
from kvcanary_cli.serving.options import lookup
from kvcanary_cli.serving.prefill_admission import admitted_tokens
from kvcanary_cli.serving.speculation import default_running_requests
from tests.tools.serving_case import Case

Check = dict[str, Any]
Rule = Callable[[Case, Check], Any]


class NotComputableError(Exception):
    """The case lacks what the rule needs; the text says what."""


def _known(case: Case, value: Any, what: str) -> Any:
    if value is None:
        raise NotComputableError(f"{what} is unknown for {case.id}")
    return value


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


def _chunk(case: Case, check: Check) -> Any:
    return _known(case, case.resolve().value("chunked_prefill_size"), "C")


def _prefill_budget(case: Case, check: Check) -> Any:
    return case.resolve().value("max_prefill_tokens")


def _fraction(case: Case, check: Check) -> Any:
    found = case.resolve(without=("mem_fraction_static",)).value("mem_fraction_static")
    return _known(case, found, "f")


def _multimodal(case: Case, check: Check) -> Any:
    given = _known(case, case.options.get("mem_fraction_static"), "the given f")
    return multimodal_fraction(case.version.release, given)


def _graph_max(case: Case, check: Check) -> Any:
    """G of the table, whatever was given."""
    if case.memory_mib is None and "tp>=4" in check["rule"]:
        # Every class from 60 GiB on has one G there; what the model needs is at least that much.
        rows = {
            memory_defaults(case.version.release, memory_mib=mib, tp_size=4).cuda_graph_max_bs
            for mib in (81559, 97871, 143771, 183359)
        }
        if len(rows) != 1:
            raise NotComputableError("G depends on the GPU, which is unknown")
        return rows.pop()
    found = case.resolve(without=("cuda_graph_max_bs_decode",)).value("cuda_graph_max_bs")
    return _known(case, found, "G")


def _sizes(case: Case, check: Check) -> list[int]:
    named = re.search(r"\bG=(\d+)", check["rule"])
    change = {"cuda_graph_max_bs_decode": int(named[1])} if named else None
    facts = ("kv_tokens", "max_total_num_tokens", "context_len")
    resolution = case.resolve(facts=facts, change=change)
    found = resolution.value("captured_bs")
    return list(_known(case, found or resolution.value("cuda_graph_bs"), "the capture list"))


def _capture_list(case: Case, check: Check) -> Any:
    """The list, its length, its head or its maximum: whatever the source shows."""
    sizes = _sizes(case, check)
    observed = check.get("observed")
    if "number of" in check["rule"] or "capture sizes" in check["rule"]:
        return len(sizes)
    if isinstance(observed, list):
        return sizes[: len(observed)] if "head" in check["rule"] else sizes
    if observed == case.observed.get("capture_bs_count"):
        return len(sizes)
    return sizes[-1]


def _cut_list(case: Case, check: Check) -> Any:
    return _sizes(case, check)[-1]


def _prefill_list(case: Case, check: Check) -> Any:
    chunk = _known(case, case.resolve().value("chunked_prefill_size"), "C")
    return graph_sizes.prefill_sizes(case.version.release, chunk)


def _table_row(case: Case, check: Check) -> Any:
    version = re.search(r"\d+\.\d+\.\d+", check["rule"])
    change = {"tp_size": 4} if "tp>=4" in check["rule"] else None
    row = case.resolve(change=change, version=version[0] if version else None)
    return [row.value("chunked_prefill_size"), row.value("cuda_graph_max_bs")]


def _cell(case: Case, check: Check) -> Any:
    """Layers, heads per rank and head width are those of the model that the rule names."""
    product = re.search(r"(\d+)(?: layers)? ?\* ?(\d+)(?: heads)? ?\* ?(\d+)", check["rule"])
    if product is None:
        raise NotComputableError("the rule names no shape")
    layers, heads, width = (int(part) for part in product.groups())
    model = ModelFacts(
        architecture="",
        kind="mha",
        layers=layers,
        full_layers=layers,
        kv_heads=heads,
        head_dim=width,
        v_head_dim=width,
        swa_kv_heads=heads,
        swa_head_dim=width,
        swa_v_head_dim=width,
    )
    elem = kv_cell.element_bytes("auto", model) or Fraction(2)
    cell = kv_cell.cell_size(model, elem=elem)
    return None if cell is None else cell.bytes


def _cell_multiple(case: Case, check: Check) -> Any:
    resolution = case.resolve(facts=("kv_tokens", "k_gib", "v_gib"))
    cell = _known(case, resolution.value("cell_bytes"), "the cell")
    unit = _numbers(check["rule"])[0]
    return round(cell / unit) * unit


def _rest(case: Case, check: Check) -> Any:
    text = check["rule"]
    weights = re.search(r"([\d.]+) GiB weights", text)
    facts = ("avail_after_load_gib", "avail_before_load_gib", "weights_gib")
    change: dict[str, Any] = {"weights_gib": float(weights[1])} if weights else {}
    without: tuple[str, ...] = ("mem_fraction_static",)
    given = re.search(r"f=(\.\d+)(?:\*(\.\d+))?", text)
    if given:
        fraction = float(given[1])
        if given[2]:
            fraction = multimodal_fraction(case.version.release, fraction)
        without, change = (), {**change, "mem_fraction_static": fraction}
    rest = case.resolve(facts=facts, change=change, without=without).value("kv_rest_gib")
    return round(_known(case, rest, "the memory for the KV cache"), 4)


def _rest_raises(case: Case, check: Check) -> Any:
    facts = ("avail_after_load_gib", "weights_gib")
    resolution = case.resolve(facts=facts, change={"cell_bytes": 1 << 16})
    return any("KV cache" in refusal.message for refusal in resolution.refusals)


def _smallest_fraction(case: Case, check: Check) -> Any:
    after, weights = case.number("avail_after_load_gib"), case.number("weights_gib")
    before = _known(case, after, "memory after") + _known(case, weights, "the weights")
    return round(kv_memory.smallest_fraction(before=before, after=after or 0.0), 4)


_POOL_FACTS = (
    "kv_tokens",
    "max_total_num_tokens",
    "kv_capacity",
    "kv_token_slots",
    "context_len",
    "max_mamba_cache_size",
    "mamba_slots",
    "slots_per_request",
)


def _max_running(case: Case, check: Check) -> Any:
    change: dict[str, Any] = {}
    hybrid = case.number("max_mamba_cache_size", "mamba_slots") is not None
    if hybrid and case.number("slots_per_request") is None:
        # The strategy with buffers is what a server with a state pool and prefix cache picks.
        change["mamba_radix_cache_strategy"] = "extra_buffer"
    named = re.search(r"(\d+) slots, user (\d+)", check["rule"])
    if named:
        change |= {"mamba_slots": int(named[1]), "max_running_requests": int(named[2])}
    resolution = case.resolve(facts=_POOL_FACTS, change=change)
    return _known(case, resolution.value("max_running_requests"), "max_running_requests")


def _requested(case: Case, check: Check) -> Any:
    change = {"speculative_algorithm": "EAGLE"} if "speculative" in case.extra else None
    resolution = case.resolve(change=change)
    return _known(case, resolution.value("requested_max_running_requests"), "the request")


def _v4_default(case: Case, check: Check) -> Any:
    found = default_running_requests(
        case.version.release,
        str(case.options.get("speculative_algorithm")),
        architecture=str(case.extra.get("model-architecture")),
    )
    return None if found is None else found[0]


def _state_pool_binds(case: Case, check: Check) -> Any:
    observed = _known(case, case.number("max_num_reqs"), "the observed number")
    resolution = case.resolve(facts=("kv_token_slots",))
    return resolution.value("max_running_requests") > observed


def _implied_slots(case: Case, check: Check) -> Any:
    requests = int(_known(case, case.number("max_num_reqs"), "the observed number"))
    each = request_pool.state_slots_per_request(
        radix_cache=True, strategy="extra_buffer", overlap=True
    )
    fits = [n for n in range(1000) if n // (each or 1) == requests]
    return f"{fits[0]}-{fits[-1]}"


def _state_formula(case: Case, check: Check) -> Any:
    """The formula's text, if the computation is that formula on every point of a grid."""
    for user in (1, 16, 300):
        for tokens in (8, 200, 4000):
            for slots in (5, 47, 900):
                pool = request_pool.request_pool(
                    case.version.release,
                    tokens=tokens,
                    context_len=4096,
                    requested=user,
                    state_cap=slots // 5,
                )
                if pool is None or pool.size != min(user, tokens // 2, slots // 5):
                    return f"differs at user {user}, T {tokens}, slots {slots}"
    return "min(user, T//2, mamba//slots)"


def _aligned(case: Case, check: Check) -> Any:
    """Tokens left over after aligning an observed count to the page."""
    tokens = _known(
        case,
        case.number("kv_tokens", "max_total_num_tokens", "kv_token_slots", "full_token"),
        "the token count",
    )
    page = case.resolve().value("page_size")
    named = re.search(r"(?:aligned to|multiple of) (\d+)$", check["rule"])
    if named and not re.search(r"MUSA|Ascend", check["rule"]):
        page = int(named[1])
    found = kv_memory.tokens_from_memory(
        1.0, 1, max_total_tokens=int(tokens), page_size=page
    ).tokens
    return int(tokens) - found


def _covers_peak(case: Case, check: Check) -> Any:
    resolution = case.resolve(facts=("max_total_num_tokens", "context_len"))
    part = next(p for p in resolution.capacity_parts() if "write_req" in p.name)
    return _known(case, part.value, "write_req") >= case.observed["running_req"]["max"]


def _write_entry(case: Case, check: Check) -> Any:
    resolution = case.resolve(facts=("max_total_num_tokens",))
    part = next(p for p in resolution.capacity_parts() if "write_entry" in p.name)
    return _known(case, part.value, "write_entry")


def _draft(case: Case, check: Check) -> Any:
    found = case.resolve().value("speculative_num_draft_tokens")
    return _known(case, found, "D")


def _pool_and_extra(case: Case, check: Check) -> Any:
    resolution = case.resolve()
    return [
        _known(case, resolution.value("req_to_token_pool_size"), "R"),
        resolution.value("extra_request_rows"),
    ]


def _total_cap(case: Case, check: Check) -> Any:
    """With memory for more than the cap, T is the cap."""
    cap = _known(case, case.options.get("max_total_tokens"), "max_total_tokens")
    change = {
        "cell_bytes": 1 << 10,
        "avail_before_load_gib": 75.0,
        "avail_after_load_gib": 60.0,
        "mem_fraction_static": 0.85,
    }
    found = case.resolve(change=change).value("pool_slot_count")
    return found if found <= cap else None


def _explicit_list(case: Case, check: Check) -> Any:
    return _known(case, case.resolve().value("cuda_graph_max_bs"), "G")


def _prefill_side(case: Case, check: Check) -> Any:
    side = case.observed["prefill"]
    change = {
        "tp_size": side["tp"],
        "dp_size": side["dp"],
        "chunked_prefill_size": side["chunked_prefill_size"],
        "max_prefill_tokens": side["max_prefill_tokens"],
        "disaggregation_mode": "prefill",
    }
    # The observed numbers are options of the prefill server, so they are passed as such.
    from kvcanary_cli.serving.resolve import resolve
    from kvcanary_cli.serving.values import Given

    given = [Given(name, value, case.id) for name, value in change.items()]
    given.append(Given("enable_dp_attention", True, case.id))
    resolution = resolve(given, version=str(case.version))
    chunk = resolution.value("chunked_prefill_size")
    return chunk == _numbers(check["rule"])[0] and chunk <= resolution.value("max_prefill_tokens")


def _eager(case: Case, check: Check) -> Any:
    """Whether a graph runs for the batch that the rule names."""
    batch = _numbers(check["rule"])[0]
    return batch <= _known(case, case.resolve().value("cuda_graph_max_bs"), "G")


def _admission(case: Case, check: Check) -> Any:
    length = int(case.observed["max_new_token_in_prefill"]) // int(case.observed["new_seq"])
    old = check["rule"].startswith("<=")
    return admitted_tokens(
        case.version.release if old else (0, 5, 13),
        [length] * 100,
        max_prefill_tokens=case.resolve().value("max_prefill_tokens"),
        chunked_prefill_size=case.options.get("chunked_prefill_size"),
    )


def _usage(case: Case, check: Check) -> Any:
    text = str(case.observed.get("decode", ""))
    token, usage = re.search(r"#token: (\d+)", text), re.search(r"token usage: ([\d.]+)", text)
    used = float(token[1]) if token else case.number("token", "full_token")
    share = float(usage[1]) if usage else case.number("token_usage", "full_token_usage")
    if used is None or share is None:
        raise NotComputableError("no batch line")
    return kv_memory.tokens_from_usage(int(used), share)


def _log_form(case: Case, check: Check) -> Any:
    """0.5.4 replaced the full stop after the batch's name by a comma."""
    mark = "," if case.version.release >= (0, 5, 4) else "."
    return f"Decode batch{mark} #running-req" in str(case.observed.get("decode", ""))


def _limit_from_pool(case: Case, check: Check) -> Any:
    limit = int(_known(case, case.number("max_allowed_input"), "the stated limit"))
    context = case.options["context_length"]
    tokens = request_pool.tokens_from_input_limit(limit, context_len=context)
    return (
        tokens is not None
        and request_pool.input_limit(tokens=tokens, context_len=context) == limit
        and str(tokens) in str(case.observed.get("max_total_num_tokens"))
    )


def _alias(case: Case, check: Check) -> Any:
    option = lookup(check["rule"].split()[-1], str(case.version))
    return case.options.get(option.name)


def _both_spellings(case: Case, check: Check) -> Any:
    names = {
        lookup(spelling, str(case.version)).name
        for spelling in ("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode")
    }
    return names == {"cuda_graph_max_bs_decode"}


RULES: tuple[tuple[str, Rule], ...] = (
    (r"C$|C for |C//dp$", _chunk),
    (r"M$", _prefill_budget),
    (r"f\b", _fraction),
    (r"multimodal factor", _multimodal),
    (r"\S+ row", _table_row),
    (r"G$|G for ", _graph_max),
    (r"prefill list", _prefill_list),
    (r"number of capture sizes|capture sizes|capture list|list\b|head of list", _capture_list),
    (r"R=\d+//\d+ cuts the list", _cut_list),
    (r"cell is a multiple", _cell_multiple),
    (r"cell\b", _cell),
    (r"rest <= 0 raises", _rest_raises),
    (r"rest\b", _rest),
    (r"smallest f", _smallest_fraction),
    (r"max_running|state cap|MTP tier|48//dp|scheduler limit", _max_running),
    (r"speculative default|server_info shows|server_args shows", _requested),
    (r"DeepSeek-V4 sets 256", _v4_default),
    (r"T//2 is not the binding limit", _state_pool_binds),
    (r"mamba slots implied", _implied_slots),
    (r"same formula", _state_formula),
    (r"MUSA page|Ascend page|aligned to|full tokens a multiple", _aligned),
    (r"canary write_req", _covers_peak),
    (r"write_entry", _write_entry),
    (r"draft = |topk 1", _draft),
    (r"R is \d+", _pool_and_extra),
    (r"T = max_total_tokens|T <= max_total_tokens", _total_cap),
    (r"explicit list", _explicit_list),
    (r"prefill C//dp", _prefill_side),
    (r"\d+ > G=", _eager),
    (r"[<>]=0\.5\.1[23]: ", _admission),
    (r"T from usage", _usage),
    (r"log form|full stop form", _log_form),
    (r"limit comes from T", _limit_from_pool),
    (r"alias ", _alias),
    (r"both spellings", _both_spellings),
)


def compute(case: Case, check: Check) -> Any:
    """Predict what a check is about.

    Raises:
        NotComputableError: No rule for the text, or the case lacks an input.
    """
    for pattern, rule in RULES:
        if re.match(pattern, check["rule"]):
            return rule(case, check)
    raise NotComputableError("no computation for this rule's text")
