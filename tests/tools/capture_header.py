"""The header of a SGLang capture's trace: pool, arguments, and what tests need beside the events.

``canary`` (the recorded canary's configuration) and ``ground_truth`` (a planted bug) are fields
that the format does not know; readers keep them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvcanary_cli.trace.schema import FORMAT

if TYPE_CHECKING:
    from tests.tools.capture_rows import Event

#: The graph runner's batch limit counts for the canary even with graphs disabled; this is what
#: the recorded servers resolved it to.
CUDA_GRAPH_MAX_BS = 32
KV_HASH_MODES = ("none", "partial", "all")
#: The recorder notes neither time zone nor clock; a fixed date keeps conversion deterministic.
CREATED_AT = "2026-11-30T00:00:00Z"


def sglang_header(capture: dict[str, Any], records: list[str]) -> Event:
    """Header of ``capture``'s trace with the families ``records``."""
    meta = json.loads(capture["meta"])
    rows, row_len = meta["req_to_token_shape"]
    page_size, slots = meta["page_size"], meta["max_total_num_tokens"]
    swa = capture.get("canary_swa")
    pool = {
        "slots": slots,
        "page_size": page_size,
        "rows": rows,
        "row_len": row_len,
        "swa_slots": len(swa["k_head"]) - 1 if swa else 0,
        "swa_window": swa["swa_window"] if swa else 0,
    }
    if page_size > 1:
        pool["max_slot"] = slots + page_size - 1
        pool["reserved"] = list(range(page_size))
    header: Event = {
        "kind": "header",
        "format": FORMAT,
        "version": 1,
        "engine": {"name": capture["engine"], "version": capture["engine_version"]},
        "rank": {"tp": 0, "tp_size": 1, "pp": 0, "pp_size": 1, "dp": 0, "dp_size": 1},
        "pool": pool,
        "chain": "splitmix64-mix3",
        "tokens": "raw",
        "records": records,
        "serving_args": _serving_args(capture, meta),
        "created_at": CREATED_AT,
        "capture": {"name": capture["name"], "seed": meta["seed"], "model": meta["model"]},
    }
    if "canary" in capture:
        header["canary"] = json.loads(capture["canary"]["config"])
    if capture.get("ground_truth"):
        header["ground_truth"] = json.loads(capture["ground_truth"])
    return header


def _serving_args(capture: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {
        "max_total_tokens": meta["max_total_num_tokens"],
        "max_running_requests": meta["max_running_requests"],
        "chunked_prefill_size": meta["chunked_prefill_size"],
        "max_prefill_tokens": meta["max_prefill_tokens"],
        "page_size": meta["page_size"],
        "cuda_graph_max_bs": CUDA_GRAPH_MAX_BS,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": not meta["overlap"],
        "enable_mixed_chunk": meta["mixed_chunk"],
        "device": "cpu",
        "dtype": "bfloat16",
    }
    args |= json.loads(meta["spec"]) if meta["spec"] else {}
    if "canary" in capture:
        config = json.loads(capture["canary"]["config"])
        args["kv_canary"] = config["mode"]
        args["kv_canary_real_data"] = KV_HASH_MODES[config["real_kv_hash_mode"]]
        args["kv_canary_sweep_interval"] = config["sweep_interval"]
    return args
