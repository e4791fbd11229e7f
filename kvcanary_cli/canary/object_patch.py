"""Wrap one method of one object, once (KVC-A07, KVC-A08)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = "_kvcanary_wrapped"


def wrap_method(
    target: object, method: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Replace ``target.method`` on this object by ``make(original bound method)``.

    Raises:
        AttributeError: KVC-A07 without such a method.
        RuntimeError: KVC-A08 if it is wrapped already.
    """
    name = type(target).__name__
    original = getattr(target, method, None)
    if original is None:
        raise AttributeError(f"kv-canary: {name} missing required method {method}")
    if getattr(original, _MARK, False):
        raise RuntimeError(f"kv-canary: {name}.{method} already wrapped by kv-canary")
    wrapper = make(original)
    setattr(wrapper, _MARK, True)
    setattr(target, method, wrapper)
