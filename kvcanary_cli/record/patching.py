"""Wraps functions and methods of an engine, in modules that may not have been imported yet.

Modules are watched through an import hook, so that nothing of the engine is imported early. A
hook's own fault never reaches the engine; what the engine raises passes through unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

log = logging.getLogger("kvcanary.record")

_WRAPPED = "__kvcanary_original__"


@dataclass(frozen=True, slots=True)
class Hook:
    """One function or method to wrap.

    Attributes:
        module: Full name of its module.
        name: ``function`` or ``Class.method``.
        before: Called with the call's arguments; returns a value for ``after``. None = nothing.
        after: Called with that value, the result (None if it raised), whether it raised, and the
            arguments; always called if ``before`` was. None = nothing.
        families: What is not recorded without it.
    """

    module: str
    name: str
    before: Callable[..., Any] | None = None
    after: Callable[..., None] | None = None
    families: tuple[str, ...] = ()


@dataclass(slots=True)
class Patcher:
    """Places hooks and knows which of them stand.

    Attributes:
        hooks: What to place.
        is_active: Whether hooks are to do anything now.
        on_fault: What to do about a hook's own fault.
        placed: ``module:name`` of those that stand.
        missing: ``module:name`` to why not.
    """

    hooks: Sequence[Hook]
    is_active: Callable[[], bool]
    on_fault: Callable[[Exception], None]
    placed: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)

    def install(self) -> None:
        """Place the hooks of modules that are there, and of others when they are imported."""
        names = {hook.module for hook in self.hooks}
        sys.meta_path.insert(0, _Watcher(names, self._place_in))
        for name in names:
            module = sys.modules.get(name)
            if module is not None:
                self._place_in(module)

    def unplaced(self) -> dict[str, Hook]:
        """Hooks that do not stand, by ``module:name``."""
        return {_key(h): h for h in self.hooks if _key(h) not in self.placed}

    def _place_in(self, module: ModuleType) -> None:
        for hook in self.hooks:
            if hook.module == module.__name__ and _key(hook) not in self.placed:
                try:
                    self._place(module, hook)
                except (AttributeError, TypeError) as error:
                    self.missing[_key(hook)] = str(error)
                else:
                    self.placed.add(_key(hook))

    def _place(self, module: ModuleType, hook: Hook) -> None:
        *path, name = hook.name.split(".")
        owner: Any = module
        for part in path:
            # Python would blame a circular import: the module is not finished yet.
            if part not in vars(owner):
                raise AttributeError(f"{hook.module}.{hook.name} does not exist")
            owner = vars(owner)[part]
        # An inherited method is wrapped where it is defined, or it would be wrapped twice.
        if name not in vars(owner):
            raise AttributeError(f"{hook.module}.{hook.name} does not exist")
        original = vars(owner)[name]
        if not callable(original):
            raise TypeError(f"{hook.module}.{hook.name} is no plain function")
        wrapper = self._wrap(original, hook)
        setattr(owner, name, wrapper)
        if owner is module:
            _rebind(module.__name__.partition(".")[0], name, original, wrapper)

    def _wrap(self, original: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
        before, after = hook.before, hook.after
        is_active, on_fault = self.is_active, self.on_fault

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not is_active():
                return original(*args, **kwargs)
            token, result, raised = None, None, True
            if before is not None:
                try:
                    token = before(*args, **kwargs)
                except Exception as error:
                    _tell(on_fault, error)
            try:
                result = original(*args, **kwargs)
                raised = False
            finally:
                if after is not None and is_active():
                    try:
                        after(token, result, raised, *args, **kwargs)
                    except Exception as error:
                        _tell(on_fault, error)
            return result

        setattr(wrapper, _WRAPPED, original)
        return wrapper


def _tell(on_fault: Callable[[Exception], None], error: Exception) -> None:
    """Tell of a hook's fault; one in the telling does not reach the engine either."""
    with contextlib.suppress(Exception):
        on_fault(error)


def _key(hook: Hook) -> str:
    return f"{hook.module}:{hook.name}"


def _rebind(root: str, name: str, original: Any, wrapper: Any) -> None:
    """Modules that did ``from module import name`` before get the wrapper as well."""
    for other in list(sys.modules.values()):
        other_name = getattr(other, "__name__", "")
        inside = isinstance(other_name, str) and other_name.partition(".")[0] == root
        if inside and vars(other).get(name) is original:
            setattr(other, name, wrapper)


class _Watcher(importlib.abc.MetaPathFinder):
    """Runs a function on chosen modules right after they were executed."""

    def __init__(self, names: set[str], loaded: Callable[[ModuleType], None]) -> None:
        self._names, self._loaded = names, loaded
        self._busy: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is not None and spec.loader is not None:
            _after_exec(spec.loader, self._loaded)
        return spec


def _after_exec(loader: Any, loaded: Callable[[ModuleType], None]) -> None:
    exec_module = loader.exec_module

    def exec_and_tell(module: ModuleType) -> None:
        exec_module(module)
        try:
            loaded(module)
        except Exception:
            log.exception("kvcanary: hooks of %s could not be placed", module.__name__)

    loader.exec_module = exec_and_tell
