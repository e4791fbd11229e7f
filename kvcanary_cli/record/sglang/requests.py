"""What the recorder keeps about requests: their tokens, rows, namespaces."""

from __future__ import annotations

import hashlib
from typing import Any


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

    def namespaces(self, names: list[str | None]) -> list[str | None] | None:
        """Namespace of each request, None for padding; None if all are in the common one."""
        found = [None if name is None else self.namespace(self.by_id.get(name)) for name in names]
        return found if any(found) else None

    def namespace(self, req: Any) -> str:
        """A name for what keeps prefixes apart (adapter, extra key, salt); "" = nothing does."""
        parts = tuple(
            str(value)
            for value in (getattr(req, "extra_key", None), getattr(req, "cache_salt", None))
            if value
        )
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
