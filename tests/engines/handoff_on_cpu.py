"""Lets SGLang hand requests from a prefill server to a decode server without a network.

The engine's own pretending sender and receiver stand in for a transfer engine, on both sides: all
that a scheduler does about a transfer is done, no byte moves.
"""

from __future__ import annotations

from typing import Any


def allow() -> None:
    """Patch this process's engine."""
    from sglang.srt.disaggregation import decode, prefill, utils

    from tests.engines.host_cache_on_cpu import allow as allow_host_memory

    allow_host_memory()
    plain = utils.get_kv_class

    def get_kv_class(_backend: Any, class_type: Any) -> Any:
        return plain(utils.TransferBackend.FAKE, class_type)

    for module in (utils, decode, prefill):
        module.get_kv_class = get_kv_class
