"""Stands in for SGLang's kernel package, of which there is no CPU build on the registry.

SGLang takes its native torch paths on this kind of CPU; what it calls nevertheless, in speculative
decoding and for its cache on the host, is here in plain torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgl_kernel.speculative import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_tree_kernel_efficient_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    verify_tree_greedy_cpu,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]
__version__ = "0.4.0"


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{__name__}.{name} has no CPU implementation here")

    return missing
