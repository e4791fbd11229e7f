"""Argument checks in front of a launcher."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")


def checked_by(check: Callable[..., None]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Check the arguments of a launcher, all of them keywords, before it is entered.

    Args:
        check: Takes those of the launcher's arguments that it looks at, by the same names and with
            the same defaults, and raises where one does not fit.
    """
    names = tuple(inspect.signature(check).parameters)

    def decorate(launch: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(launch)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            check(**{name: kwargs[name] for name in names if name in kwargs})
            return launch(*args, **kwargs)

        return checked

    return decorate
