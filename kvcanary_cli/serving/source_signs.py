"""By what a source gives away its kind; apart from the readers, which are imported when needed."""

from __future__ import annotations

import re

MENTIONS_LAUNCH = re.compile(
    r"sglang\.launch_server|sglang_router\.launch_server|launch_server\.py"
    r"|\bsglang\s+serve\b"
)
LOG_SIGNS = re.compile(
    r"server_args=(?:ServerArgs\(|\{)|max_total_num_tokens=\d|KV Cache is allocated|"
    r"(?:Prefill|Decode) batch|Capture [\w ]*graph|Load weight (?:begin|end)|Memory pool end|"
    r"kv_canary violation|install_canary: |kv-canary: |\[canary\] step=|"
    r"^\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d",
    re.MULTILINE,
)
