"""Bracket a model's forward with the canary's inner operations (specification 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.canary.forward_batch import ForwardBatch
from kvcanary_cli.canary.object_patch import wrap_method

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.canary.manager import CanaryManager


def _find_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ForwardBatch:
    for candidate in (kwargs.get("forward_batch"), *args):
        if isinstance(candidate, ForwardBatch):
            return candidate
    raise AssertionError("kv-canary: patched model.forward called without a ForwardBatch")


def patch_model_forward(model: object, manager: CanaryManager) -> None:
    """Make ``model.forward`` run pre-operations, the model, post-operations.

    The batch is the keyword ``forward_batch``, else the first positional argument of that type.
    Nested calls are counted; only the outermost one does canary work.

    Raises:
        AttributeError, RuntimeError: KVC-A07, KVC-A08. The patched forward raises AssertionError
            KVC-R02 without a batch.
    """
    depth = 0

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth:
                return original(*args, **kwargs)
            batch = _find_batch(args, kwargs)
            depth += 1
            try:
                manager.pre_ops_maybe_inside_graph(batch)
                result = original(*args, **kwargs)
                manager.post_ops_maybe_inside_graph(batch)
            finally:
                depth -= 1
            return result

        return forward

    wrap_method(model, "forward", make)
