"""Stands in for SGLang's kernel package, of which there is no CPU build on the registry.

SGLang takes its native torch paths on this kind of CPU, so that nothing here is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__version__ = "0.4.0"


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{__name__}.{name} has no CPU implementation here")

    return missing
