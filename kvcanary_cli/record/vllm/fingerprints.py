"""Real-KV fingerprints (specification 2.3) of what a launch of the model reads and writes.

Bytes are folded where they are, behind what was queued there before. Which forwards a launch is
told as is known later, on the session's thread: until then ``Known`` keeps the hashes of it all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.copies import to_device
from kvcanary_cli.record.slots import each_once, first_of_each
from kvcanary_cli.record.vllm.kv_layouts import layout_of

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.vllm.batches import Inputs
    from kvcanary_cli.record.vllm.kv_layouts import Layout
    from kvcanary_cli.record.vllm.pools import Pools

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

log = logging.getLogger("kvcanary.record")


class Known:
    """Hashes of slots at one moment of a launch; empty until they are on the host.

    Attributes:
        bound: Slots of the pool.
    """

    def __init__(self, bound: int) -> None:
        """Nothing is known yet.

        Args:
            bound: Slots of the pool.
        """
        self.bound = bound
        self._slots = self._hashes = np.zeros(0, dtype=np.int64)

    def keep(self, slots: Ints, hashes: Ints) -> list[Event]:
        """They are on the host: [n] slots, with repeats and slots that are none, and hashes."""
        first = first_of_each(slots, self.bound)
        order = first[np.argsort(slots[first])]
        self._slots, self._hashes = slots[order], hashes[order]
        return []

    def look_up(self, slots: Ints) -> tuple[Ints, Ints]:
        """Where in ``slots`` those stand whose hash is known, and the hashes."""
        if not len(self._slots):
            return self._slots, self._hashes
        at = np.searchsorted(self._slots, slots).clip(max=len(self._slots) - 1)
        found = np.flatnonzero(self._slots[at] == slots)
        return found, self._hashes[at[found]]


class Fingerprints:
    """Folds KV bytes where they are."""

    def __init__(self, layout: Layout, mode: str, every: int) -> None:
        """Prepare.

        Args:
            layout: Of the layer whose bytes are folded.
            mode: ``partial`` or ``all``.
            every: Fingerprint what is read in every n-th launch.
        """
        from kvcanary_cli.abi.constants import RealKvHashMode

        self._layout = layout
        self._mode = RealKvHashMode.PARTIAL if mode == "partial" else RealKvHashMode.ALL
        self._every = every
        self._launches = 0

    @classmethod
    def of(cls, pools: Pools, options: RecordOptions) -> Fingerprints | None:
        """Fingerprints of this pool; None if none are wanted or the layout is not known."""
        if options.kv_hash == "none":
            return None
        layout, why = layout_of(pools)
        if layout is None:
            log.warning("kvcanary: 'kv_hash' is not recorded: %s", why)
            return None
        return cls(layout, options.kv_hash, options.kv_hash_every)

    def before(self, session: Session, inputs: Inputs, longest: int) -> Known | None:
        """Fold what a launch is about to read, if it is this one's turn.

        Args:
            session: Has the copies made.
            inputs: What the launch is fed.
            longest: Tokens of a request at most, by what the scheduler knows.
        """
        self._launches += 1
        if (self._launches - 1) % self._every:
            return None
        return self._known(session, _read_by(inputs, longest))

    def after(self, session: Session, inputs: Inputs) -> Known:
        """Fold what a launch has written."""
        import torch

        return self._known(session, torch.as_tensor(inputs.slots).to(torch.int64))

    def _known(self, session: Session, slots: torch.Tensor) -> Known:
        import torch

        known = Known(self._layout.slots)
        if not session.asynchronous:
            # On a device nobody looks which they are.
            slots = torch.from_numpy(each_once(slots.numpy(), self._layout.slots))
        if len(slots):
            session.defer(known.keep, slots, self._layout.fold(slots, self._mode))
        return known


def told(phase: str, step: int, slots: Ints, known: Known) -> list[Event]:
    """The ``kv_hash`` event of ``slots``, none if no hash is known.

    Args:
        phase: ``before`` or ``after``.
        step: The forward's.
        slots: Slots that it reads or writes, with repeats.
        known: Their hashes.
    """
    slots = each_once(slots, known.bound)
    found, hashes = known.look_up(slots)
    if not len(found):
        return []
    event = {"kind": "kv_hash", "phase": phase, "step": step}
    return [{**event, "slots": slots[found], "hash": hashes}]


def _read_by(inputs: Inputs, longest: int) -> torch.Tensor:
    """Slots of the batch's prefixes, row by row, 0 in between."""
    import torch

    lengths = torch.as_tensor(inputs.seq_lens[: len(inputs.reqs)]).to(torch.int64)
    lengths = lengths - to_device(inputs.counts, lengths.device)
    blocks = torch.as_tensor(inputs.tables_of(longest)).to(torch.int64)
    at = torch.arange(inputs.block_size, device=blocks.device)
    cells = (blocks[:, :, None] * inputs.block_size + at).flatten(1)
    inside = torch.arange(cells.shape[1], device=cells.device)[None, :] < lengths[:, None]
    return (cells * inside).reshape(-1)
