"""Attributes that exist and cannot be used."""

from __future__ import annotations

from typing import Any


def attribute(module: str, name: str) -> Any:
    """A class that raises when it is called, for ``module.name``."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(_self: Any, *_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError(f"{module}.{name} is not available here")

    return type(name, (), {"__init__": refuse})
