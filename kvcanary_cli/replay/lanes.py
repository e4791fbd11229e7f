"""A lane: the canary rows of one pool, and what the trace says of them besides.

Lanes follow from the worker, never from the forward mode: the target's FULL pool, its SWA pool if
there is one, and the draft's own pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import SLOT_BYTES
from kvcanary_cli.backends.cpu.event_records import LANE, LINE, NEVER, UNTOLD, make_records
from kvcanary_cli.backends.cpu.pages import zeros
from kvcanary_cli.canary.buffer_group import CanaryBufferGroup
from kvcanary_cli.replay.fingerprints import RecordedFingerprints

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.abi.constants import PoolKind
    from kvcanary_cli.replay.known import Known


class Lineages:
    """Numbers the chains whose beginning is unknown, for all lanes and tiers of a replay."""

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> int:
        self._last += 1
        return self._last

    def met(self, lineage: NDArray[np.int64]) -> None:
        """These numbers are in use."""
        self._last = max(self._last, int(lineage.max(initial=0)))


class Lane:
    """Canary rows of one pool.

    Attributes:
        worker: ``target`` or ``draft``.
        kind: FULL or SWA.
        window: Positions that a SWA lane verifies, in tokens; 0 = the whole prefix.
        group: Its buffers.
        kv: Half (``k``, ``v``) to recorded fingerprints, empty if none are checked.
        unlinked: [num_slots] bool: written as a tree node that does not follow the node before it,
            so that its stored chain value says nothing about its parent.
        unknown: [num_slots] bool, or None: the slot may hold content from before the recording.
        lineage: [num_slots] int32, or None: the beginning that the slot's chain value descends
            from, 0 = a chain head. A row that was written behind unknown content starts a lineage
            of its own; links between two lineages say nothing.
        proposal: [num_slots] bool, or None: last written by an inner draft step, whose tokens are
            proposals.
        written_at: [num_slots] int32, serial number of the last write, 0 = never.
        records: [num_slots] ``LANE``: that, and what ``known`` keeps of each slot; ``read`` is
            ``UNTOLD`` where no read can tell whether the content is right.
        known: What need not be checked again, None = everything is checked each time.
    """

    def __init__(
        self,
        *,
        worker: str,
        kind: PoolKind,
        num_slots: int,
        device: str,
        v_half: bool,
        check_kv: bool,
        lut: torch.Tensor | None,
        starts_mid_run: bool,
        lineages: Lineages,
        window: int = 0,
    ) -> None:
        self.worker = worker
        self.kind = kind
        self.window = window
        self.num_slots = num_slots
        self.kv: dict[str, RecordedFingerprints] = {}
        if check_kv:
            halves = ("k", "v") if v_half else ("k",)
            self.kv = {half: RecordedFingerprints(num_slots, device) for half in halves}
        k_head, k_tail = _head_and_tail(num_slots, device)
        v_head, v_tail = _head_and_tail(num_slots, device) if v_half else (None, None)
        self.group = CanaryBufferGroup(
            kind=kind,
            k_head=k_head,
            k_tail=k_tail,
            v_head=v_head,
            v_tail=v_tail,
            real_kv_sources_k=(self.kv["k"].source,) if "k" in self.kv else (),
            real_kv_sources_v=(self.kv["v"].source,) if "v" in self.kv else (),
            swa_index_lut=lut,
            kv_token_id_vs_position_offset=1 if worker == "draft" else 0,
        )
        self.unlinked = np.zeros(num_slots, dtype=np.bool_)
        self.any_unlinked = False
        self.starts_mid_run = starts_mid_run
        self.unknown = np.ones(num_slots, dtype=np.bool_) if starts_mid_run else None
        self.lineage: NDArray[np.int32] | None = None
        self._lineages = lineages
        self.proposal: NDArray[np.bool_] | None = None
        self.records: NDArray[Any] = make_records(num_slots, LANE)
        self.written_at: NDArray[np.int32] = self.records["written_at"]
        self._serial = 0
        self._any_untold = False
        self.known: Known | None = None

    def keep_known(self, known: Known) -> None:
        """From now on tell ``known`` of every slot that changes."""
        self.known = known
        for kv in self.kv.values():
            kv.known = known

    def move_records(self, records: NDArray[Any]) -> None:
        """Go on with ``records``, which have the fields of ``LANE`` and others beside them."""
        assert LANE.names is not None
        for name in LANE.names:
            records[name] = self.records[name]
        self.records, self.written_at = records, records["written_at"]
        if self.known is not None:
            self.known.move_records(records)

    def touched(self, slots: NDArray[np.int64]) -> None:
        """Rows, or what the trace says of them, changed."""
        if self.known is not None:
            self.known.forget_slots(slots)

    def cannot_tell(self, slots: NDArray[np.int64]) -> None:
        """Nothing was there to compare the content of ``slots`` with, until they are written."""
        if len(slots):
            self.records["read"][slots] = UNTOLD
            self._any_untold = True

    @property
    def name(self) -> str:
        return f"{self.worker}/{self.kind.name}"

    @property
    def serial(self) -> int:
        """Serial number of the last write."""
        return self._serial

    def go_on_from(self, serial: int) -> None:
        """The last write was number ``serial``; ``written_at`` says so already."""
        self._serial = serial

    @property
    def halves(self) -> tuple[str, ...]:
        return ("k", "v") if self.group.has_v_half else ("k",)

    def buffers(self) -> dict[tuple[str, str], torch.Tensor]:
        """(half, ``head`` or ``tail``) to canary rows, [num_slots, 32] uint8."""
        group = self.group
        out = {("k", "head"): group.k_head, ("k", "tail"): group.k_tail}
        if group.v_head is not None and group.v_tail is not None:
            out |= {("v", "head"): group.v_head, ("v", "tail"): group.v_tail}
        return {key: buffer[:, :SLOT_BYTES] for key, buffer in out.items()}

    def note_written(self, slots: NDArray[np.int64]) -> None:
        """A forward or copy wrote the canary rows of ``slots``."""
        self.touched(slots)
        self._serial += 1
        self.written_at[slots] = self._serial
        if self._any_untold:
            reads = self.records["read"]
            reads[slots[reads[slots] == UNTOLD]] = NEVER
        if self.unknown is not None:
            self.unknown[slots] = False
        if self.any_unlinked:
            self.unlinked[slots] = False
        if self.lineage is not None:
            self.lineage[slots] = 0
        if self.proposal is not None:
            self.proposal[slots] = False

    def note_proposed(self, slots: NDArray[np.int64]) -> None:
        """The tokens written to ``slots`` are proposals."""
        self.touched(slots)
        if self.proposal is None:
            self.proposal = np.zeros(self.num_slots, dtype=np.bool_)
        self.proposal[slots] = True

    def new_lineage(self) -> int:
        """Number of a chain whose beginning is unknown."""
        if self.lineage is None:
            self.lineage = np.zeros(self.num_slots, dtype=np.int32)
        return self._lineages.new()

    def set_lineage(self, slots: NDArray[np.int64], lineage: NDArray[np.int64]) -> None:
        """Restore the beginnings that the chain values of ``slots`` descend from."""
        self.touched(slots)
        if self.lineage is None:
            self.lineage = np.zeros(self.num_slots, dtype=np.int32)
        self.lineage[slots] = lineage
        self._lineages.met(lineage)

    def lineage_of(self, slots: NDArray[np.int64]) -> NDArray[np.int32]:
        """``lineage`` of ``slots`` [n]."""
        if self.lineage is None:
            return np.zeros(len(slots), dtype=np.int32)
        return self.lineage[slots]

    def says_nothing(self, slots: NDArray[np.int64], prevs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which links from ``slots`` to their predecessors (-1 = head) cannot be checked."""
        out: NDArray[np.bool_] = self.unlinked[slots].copy()
        if self.lineage is not None:
            of_prev = np.where(prevs > 0, self.lineage[np.maximum(prevs, 0)], 0)
            out |= (self.lineage[slots] != of_prev) & (prevs != 0)
        return out

    def set_write_order(self, slots: NDArray[np.int64], written_at: NDArray[np.int64]) -> None:
        """Restore the order in which ``slots`` were last written."""
        self.written_at[slots] = written_at
        self._serial = max(self._serial, int(written_at.max(initial=0)))

    def unlink(self, slots: NDArray[np.int64]) -> None:
        """The chain value stored in ``slots`` does not come from their parents."""
        if len(slots):
            self.touched(slots)
            self.unlinked[slots] = True
            self.any_unlinked = True

    def put_rows(self, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Store canary rows [n, 4] int64 in every buffer; head rows carry no fingerprint."""
        for (_half, end), buffer in self.buffers().items():
            values = rows.copy()
            if end == "head":
                values[:, 3] = 0
            set_rows(buffer, slots, values)
        self.note_written(slots)

    def copy(self, src: NDArray[np.int64], dst: NDArray[np.int64], *, canary: bool) -> None:
        """KV bytes moved from ``src`` to ``dst``, and the canary rows too if ``canary``."""
        if not canary:
            for kv in self.kv.values():
                # A row without a fingerprint of its own goes on without one.
                known = ~kv.unhashed[src] & ~kv.unhashed[dst]
                kv.copy(src[known], dst[known])
            return
        for kv in self.kv.values():
            kv.copy(src, dst)
        for buffer in self.buffers().values():
            set_rows(buffer, dst, get_rows(buffer, src))
        moved = self.unlinked[src].copy()
        lineage = None if self.lineage is None else self.lineage[src].copy()
        unknown = None if self.unknown is None else self.unknown[src].copy()
        self.note_written(dst)
        self.unlink(dst[moved])
        if self.lineage is not None and lineage is not None:
            self.lineage[dst] = lineage
        if self.unknown is not None and unknown is not None:
            self.unknown[dst] = unknown

    def forget(self, slots: NDArray[np.int64]) -> None:
        """``slots`` now hold rows that the trace cannot tell."""
        if not len(slots):
            return
        self.touched(slots)
        if self.unknown is None:
            self.unknown = np.zeros(self.num_slots, dtype=np.bool_)
        self.unknown[slots] = True


def _head_and_tail(num_slots: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two buffers of ``num_slots`` zero rows, never written.

    On the CPU a slot's rows lie in one line of the cache, since who touches one mostly touches the
    other: both buffers have rows of 64 bytes, of which the second half is not their own.
    """
    import torch

    if device != "cpu":
        both = torch.zeros((2, num_slots, SLOT_BYTES), dtype=torch.uint8, device=device)
        return both[0], both[1]
    memory = torch.from_numpy(zeros((num_slots + 1) * LINE, np.uint8))
    size = num_slots * LINE
    head, tail = memory[:size], memory[SLOT_BYTES : SLOT_BYTES + size]
    return head.view(num_slots, LINE), tail.view(num_slots, LINE)


def get_rows(buffer: torch.Tensor, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Canary rows of ``slots`` [n] as [n, 4] int64 on the host; negative slots give row 0."""
    import torch

    if buffer.is_cpu:
        # Without torch's threads, which cost more than a short gather.
        cells: NDArray[np.int64] = buffer.numpy().view(np.int64)[:, :4]
        found: NDArray[np.int64] = cells[np.maximum(slots, 0)]
        return found
    fields = buffer.view(torch.int64)[:, :4]
    index = torch.from_numpy(np.maximum(slots, 0)).to(buffer.device)
    rows: NDArray[np.int64] = fields[index].cpu().numpy()
    return rows


def set_rows(buffer: torch.Tensor, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    import torch

    if buffer.is_cpu:
        buffer.numpy().view(np.int64)[slots, :4] = rows
        return
    index = torch.from_numpy(np.ascontiguousarray(slots)).to(buffer.device)
    buffer.view(torch.int64)[index, :4] = torch.from_numpy(np.ascontiguousarray(rows)).to(
        buffer.device
    )
