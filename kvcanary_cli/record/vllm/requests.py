"""What the recorder keeps about requests: their rows and namespaces."""

from __future__ import annotations

import hashlib
import heapq
from typing import Any

#: Names of the states of requests that ended otherwise than by their own account.
_ABORTED = ("FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_IGNORED")


def was_aborted(request: Any) -> bool:
    """Whether a request that has ended did so before it was answered."""
    return getattr(request.status, "name", "") in _ABORTED


class Rows:
    """Table rows of requests: the lowest free one, from the first forward to the end."""

    def __init__(self, rows: int) -> None:
        """All are free but the padding row.

        Args:
            rows: Rows, the padding row included.
        """
        self._of: dict[str, int] = {}
        self._free = list(range(1, rows))

    def of(self, req: str) -> int:
        """The row of ``req``, taken now if it has none."""
        row = self._of.get(req)
        if row is None:
            row = self._of[req] = heapq.heappop(self._free)
        return row

    def release(self, req: str) -> int | None:
        """The row that ``req`` gives up, or None if it had none."""
        row = self._of.pop(req, None)
        if row is not None:
            heapq.heappush(self._free, row)
        return row

    def crowding(self, wanted: set[str]) -> list[str]:
        """Who must give up a row so that each of ``wanted`` has one: who took theirs first."""
        missing = len(wanted.difference(self._of)) - len(self._free)
        others = (req for req in self._of if req not in wanted)
        return [req for req, _ in zip(others, range(missing), strict=False)]


class Namespaces:
    """Names for what keeps requests' prefixes apart: adapter and cache salt."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, request: Any) -> str:
        """Namespace of ``request``; "" is the common one."""
        lora = getattr(request, "lora_request", None)
        name = getattr(lora, "lora_name", None) or getattr(lora, "name", None)
        salt = getattr(request, "cache_salt", None)
        if not name and not salt:
            return ""
        text = "\0".join(str(part or "") for part in (name, salt))
        known = self._known.get(text)
        if known is None:
            if len(self._known) > _MAX_NAMESPACES:
                self._known.clear()
            # Salts may be secrets of users: only which are equal is of interest.
            digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            known = self._known[text] = f"ns-{digest}"
        return known


_MAX_NAMESPACES = 100_000
