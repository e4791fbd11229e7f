"""Lines of a server log that state something, version by version (SPEC_SERVING_ARGS 4)."""

from __future__ import annotations

import re

_GIB = r"(\d{1,9}(?:\.\d{1,9})?)"
ARGS = re.compile(r"server_args=(?=ServerArgs\(|\{)")
READY = re.compile(
    r"max_total_num_tokens=(\d{1,18})(?:, chunked_prefill_size=(-?\d{1,18}|None))?, "
    r"max_prefill_tokens=(\d{1,18}), "
    r"max_running_requests=(\d{1,18}), context_len=(\d{1,18})"
    rf"(?:, available_(?:gpu|cpu)_mem={_GIB} GB)?"
)
WEIGHTS_BEGIN = re.compile(rf"Load weight begin\. avail mem={_GIB} GB")
WEIGHTS_END = re.compile(rf"Load weight end\..*?avail mem={_GIB} GB(?:, mem usage={_GIB} GB)?")
POOL = re.compile(
    r"(?:KV Cache is allocated\.|KV cache allocated\.)(?: dtype: (\S+?),)? #tokens: (\d{1,18}), "
    rf"(?:K size: {_GIB} GB, V size: {_GIB} GB|KV size: {_GIB} GB)"
)
POOL_END = re.compile(rf"Memory pool end\. avail mem={_GIB} GB")
SWA = re.compile(r"full_layer_tokens=(\d{1,18}), swa_layer_tokens=(\d{1,18})")
MAMBA = re.compile(r"Mamba Cache is allocated\. max_mamba_cache_size: (\d{1,18})")
MAMBA_CAP = re.compile(
    r"max_running_requests is capped to (\d{1,18}) by the mamba state cache "
    r"\(max_mamba_cache_size=(\d{1,18})"
)
REDUCED = re.compile(
    r"max_running_requests was reduced from (?:the )?requested (\d{1,18}) to (\d{1,18})"
)
NUM_REQS = re.compile(r"finalized token capacity: max_num_reqs=(\d{1,18})")
CAPTURE_OLD = re.compile(r"Capture cuda graph bs (\[[\d, ]*\])")
CAPTURE_NEW = re.compile(
    r"Capture target (?:decode|verify) .{1,40}?(?:begin|end)\..*?\bbs=(\[[\d, ]*\])"
)
CAPTURE_TOKENS = re.compile(
    r"Capture cuda graph num tokens (\[[\d, ]*\])"
    r"|Capture target prefill .{1,40}?(?:begin|end)\..*?num_tokens=(\[[\d, ]*\])"
)
ATTACH = re.compile(r"attach_canary_buffers: pool=(\S+) .*?n_groups=(\d{1,18})")
NO_ATTACHER = re.compile(r"no attacher registered for pool class (\w+)")
INSTALL = re.compile(
    r"per_forward_verify_capacity=(\d{1,18}), per_forward_write_req_capacity=(\d{1,18}), "
    r"per_forward_write_entry_capacity=(\d{1,18})"
)
INSTALL_MODE = re.compile(r"CanaryConfig\(mode=(?:<CanaryMode\.\w+: '(\w+)'>|'?(\w+)'?)")
INSTALL_FIELD = re.compile(r"\b(ring_capacity|sweep_interval|n_buffer_groups)=(\d{1,18})")
INPUT_LIMIT = re.compile(
    r"Input length \(\d+ tokens\) exceeds the maximum allowed length \((\d{1,18}) tokens\)"
)
VERSION = re.compile(
    r"(?:sglang(?:\[[\w,]*\])?==|sglang[ _]version[:= ]+'?\"?v?|lmsysorg/sglang:v)"
    r"(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)",
    re.IGNORECASE,
)
#: Some part of each line that is read; the others are passed over at once.
TELLTALE = re.compile(
    r"server_args=|max_total_num_tokens=|avail mem=|#tokens: |layer_tokens=|Mamba Cache|"
    r"max_running_requests |max_num_reqs=|[Cc]anary|batch[.,\[ ]|Capture |sglang|pool class|"
    r"exceeds the maximum allowed"
)
