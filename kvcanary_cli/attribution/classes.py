"""The seventeen root-cause classes: what each means, what it needs, what to do."""

from __future__ import annotations

_REMEDIES = {
    "use_after_free": "remap or drop every holder before a slot is freed; stop-gap: disable the "
    "prefix cache or flush it",
    "double_alloc": "release through one entry point driven by committed and allocated lengths; "
    "stop-gap: turn on the allocator's invariant checks to stop at the second release",
    "late_write": "free only after the newest step in flight is done; stop-gap: "
    "--disable-overlap-schedule (SGLang), --no-async-scheduling (vLLM)",
    "transfer_race": "hold destination and source until the peer or the copy has acknowledged",
    "transfer_mismatch": "pair blocks by absolute position; recompute instead of serving a failed "
    "or partial transfer",
    "stale_mapping": "defer the release of a table row like that of a slot; rebuild frozen block "
    "lists after preemption",
    "bad_translation": "invalidate cached translations on every change of the table; stop-gap: "
    "turn the translation cache off",
    "pad_or_dummy_write": "fill padding with the sentinel slot before metadata is built; "
    "stop-gap: --disable-cuda-graph (SGLang), --enforce-eager (vLLM)",
    "position_misalign": "fix the order of increment and use, and restore positions after capture",
    "wrong_token_fed": "key the future ring by request row; take the known prompt token at chunk "
    "ends; stop-gap: --disable-overlap-schedule",
    "spec_commit": "move the KV of the accepted path, its sidecars with it; stop-gap: top-k 1 or "
    "no speculation",
    "prefix_index": "publish after the forward that writes; withdraw entries when their slots are "
    "freed; stop-gap: disable prefix caching",
    "key_aliasing": "put the missing field (adapter and version, media hash, weights) into the "
    "cache key; flush on reload",
    "rank_divergence": "let one rank decide hits, loads and evictions for all; equal pool sizes",
    "unwritten_read": "run the copy on write, or zero new blocks, before the slot is read",
    "payload_mutation": "carry scales with the values everywhere; look for a writer outside the "
    "recorded ones; fall back to the model's dtype",
    "not_corruption": "compare batch shapes and run deterministically; the KV state is sound",
}


def remedy(cls: str) -> str:
    """One line of advice for a class."""
    return _REMEDIES[cls]
