"""What the recorder keeps about requests: their tokens, rows, namespaces."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class Requests:
    """Requests that hold a row.

    Attributes:
        by_id: Request id to SGLang's ``Req``.
        of_row: Table row to request id.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Any] = {}
        self.of_row: dict[int, str] = {}
        self._namespaces: dict[str, str] = {}
        self._adapters: dict[str, tuple[str, int]] = {}

    def enter(self, req: Any) -> str:
        """``req`` takes part in a batch; its id."""
        name = str(req.rid)
        self.by_id[name] = req
        row = getattr(req.kv, "req_pool_idx", None)
        if row is not None:
            self.of_row[int(row)] = name
        return name

    def leave(self, name: str, row: int) -> None:
        self.by_id.pop(name, None)
        self.of_row.pop(row, None)

    def namespaces(self, names: Iterable[str | None]) -> dict[str, str]:
        """Namespace of each request that is not in the common one."""
        found = {name: self.namespace(self.by_id.get(name)) for name in names if name is not None}
        return {name: namespace for name, namespace in found.items() if namespace}

    def adapter_loaded(self, ref: Any) -> dict[str, Any]:
        """A LoRA adapter has these weights from now on; the event that says so."""
        name = str(ref.lora_name or ref.lora_id)
        version = self._adapters.get(str(ref.lora_id), (name, 0))[1] + 1
        self._adapters[str(ref.lora_id)] = (name, version)
        return {"kind": "adapter", "name": name, "version": f"v{version}"}

    def namespace(self, req: Any) -> str:
        """A name for what keeps prefixes apart (adapter, extra key, salt); "" = nothing does."""
        if req is None:
            return ""
        adapter = str(getattr(req, "lora_id", None) or "")
        # SGLang appends the adapter to the key; what it computes with is the adapter itself.
        key = str(getattr(req, "extra_key", None) or "").removesuffix(adapter)
        parts = tuple(part for part in (key, str(getattr(req, "cache_salt", None) or "")) if part)
        if not adapter:
            return self._digest(parts)
        name, version = self._adapters.get(adapter, (self._digest((adapter,)), 1))
        rest = self._digest(parts)
        return f"lora={name}@v{version}" + (f"+{rest}" if rest else "")

    def _digest(self, parts: tuple[str, ...]) -> str:
        if not parts:
            return ""
        text = "\0".join(parts)
        known = self._namespaces.get(text)
        if known is None:
            if len(self._namespaces) > _MAX_NAMESPACES:
                self._namespaces.clear()
            # Keys may be secrets of users: only which are equal is of interest.
            digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            known = self._namespaces[text] = f"ns-{digest}"
        return known


_MAX_NAMESPACES = 100_000
