"""A launch of vLLM's model: what it was fed, the forwards that it is told as, and their hashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.vllm.fingerprints import told

if TYPE_CHECKING:
    from kvcanary_cli.record.vllm.batches import Batch
    from kvcanary_cli.record.vllm.fingerprints import Known
    from kvcanary_cli.record.vllm.groups import Group
    from kvcanary_cli.record.vllm.inputs import Inputs

    Event = dict[str, Any]


@dataclass(slots=True)
class Launch:
    """A launch of the model, as far as one group of its layers is concerned.

    Attributes:
        group: The group.
        rows: Each request's table row, by its name in the trace, as below.
        namespaces: Those of requests that are not in the common one.
        hits: Slots that requests were served from since the last launch.
        gone: [bs] blocks of the pool that each table has lost at its beginning, or empty.
        inputs: What it is fed; None where that is derived.
        read, wrote: Hashes of what it reads and, once it has run, of what it wrote; None where
            they are not taken.
        parts: The forwards that it is told as, once they are known.
        first: Number of the first.
    """

    group: Group
    rows: dict[str, int]
    namespaces: dict[str, str]
    hits: dict[str, set[int]]
    gone: tuple[int, ...]
    inputs: Inputs | None = None
    read: Known | None = None
    wrote: Known | None = None
    parts: list[Batch] = field(default_factory=list)
    first: int = 0

    def hashes_before(self, k: int) -> list[Event]:
        """Hashes of what its ``k``-th forward reads, if they were taken."""
        if self.read is None:
            return []
        slots, step = self.parts[k].prefix_slots(), self.first + k
        if not k or self.wrote is None:
            return told("before", step, slots, self.read)
        # What the forwards before it wrote stood otherwise when the launch began.
        new = np.isin(slots, np.concatenate([part.slots for part in self.parts[:k]]))
        old = told("before", step, slots[~new], self.read)
        return old + told("before", step, slots[new], self.wrote)

    def hashes_after(self, k: int) -> list[Event]:
        """Hashes of what its ``k``-th forward wrote, if they were taken."""
        if self.wrote is None:
            return []
        return told("after", self.first + k, self.parts[k].slots, self.wrote)
