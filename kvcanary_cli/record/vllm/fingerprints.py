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
    from kvcanary_cli.record.vllm.groups import Group
    from kvcanary_cli.record.vllm.inputs import Inputs
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

    def __init__(self, layouts: dict[int, Layout], mode: str, every: int) -> None:
        """Prepare.

        Args:
            layouts: By number of the group of layers, of the layer whose bytes are folded.
            mode: ``partial`` or ``all``.
            every: Fingerprint what is read in every n-th launch.
        """
        from kvcanary_cli.abi.constants import RealKvHashMode

        self._layouts = layouts
        self._mode = RealKvHashMode.PARTIAL if mode == "partial" else RealKvHashMode.ALL
        self._every = every
        self._launches = dict.fromkeys(layouts, 0)

    @classmethod
    def of(cls, pools: Pools, options: RecordOptions) -> Fingerprints | None:
        """Fingerprints of this pool; None if none are wanted or the layout is not known."""
        if options.kv_hash == "none":
            return None
        layouts: dict[int, Layout] = {}
        for number in [group.number for group in pools.told] or [0]:
            layout, why = layout_of(pools, number if pools.told else None)
            if layout is None:
                log.warning("kvcanary: 'kv_hash' is not recorded: %s", why)
                return None
            layouts[number] = layout
        return cls(layouts, options.kv_hash, options.kv_hash_every)

    def before(self, session: Session, group: Group, inputs: Inputs, longest: int) -> Known | None:
        """Fold what a launch is about to read, if it is this one's turn.

        Args:
            session: Has the copies made.
            group: The group of layers.
            inputs: What the launch is fed.
            longest: Tokens of a request at most, by what the scheduler knows.
        """
        number = self._launches[group.number]
        self._launches[group.number] += 1
        if number % self._every:
            return None
        return self._known(session, group, _read_by(inputs, longest))

    def after(self, session: Session, group: Group, inputs: Inputs) -> Known:
        """Fold what a launch has written."""
        import torch

        return self._known(session, group, torch.as_tensor(inputs.slots).to(torch.int64))

    def _known(self, session: Session, group: Group, slots: torch.Tensor) -> Known:
        import torch

        layout = self._layouts[group.number]
        known = Known(layout.slots)
        if not session.asynchronous:
            # On a device nobody looks which they are.
            slots = torch.from_numpy(each_once(slots.numpy(), layout.slots))
        if len(slots):
            session.defer(known.keep, slots, layout.fold(slots, self._mode))
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
    cell = torch.arange(cells.shape[1], device=cells.device)[None, :]
    inside = cell < lengths[:, None]
    if inputs.gone:
        gone = np.array(inputs.gone, dtype=np.int64) * inputs.block_size
        inside &= cell >= to_device(gone, cells.device)[:, None]
    return (cells * inside).reshape(-1)
