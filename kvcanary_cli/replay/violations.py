"""Violations in columns: a corrupt trace can hold millions, so they are objects only on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import LaunchTag, fail_reason_labels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

VERIFY = "verify"
INPUT_ASSERT = "input_assert"
CHAIN_POSITION = "chain_position"
PRIMARY = "primary"
SEAM = "seam"

NO_REQUEST = -1
#: Columns of a chunk that hold one int64 per violation.
INT_COLUMNS = (
    "slot",
    "position",
    "expected_position",
    "req",
    "row",
    "prev_slot",
    "stored_token",
    "expected_token",
    "stored_chain_hash",
    "expected_chain_hash",
    "stored_kv_hash",
    "expected_kv_hash",
    "kv_tags",
)
#: Columns that hold a flag per violation.
BOOL_COLUMNS = ("token_checked", "kv_checked", "chain_known", "seam")


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One violation per step, lane and checked entry.

    Attributes:
        step: Step of the forward, or of the sweep.
        event: ``i`` of the forward's event, or of the event at which the sweep ran.
        forward_mode: Mode of the forward; None in a sweep.
        worker: ``target`` or ``draft``.
        pool_kind: ``FULL`` or ``SWA``.
        launch_tags: Launches that saw it, in launch order.
        check: ``verify``, ``input_assert`` or ``chain_position``.
        slot: Slot checked or written.
        position: Stored position (verify), or the one written.
        expected_position: Position that was read for; for a write, the predecessor's plus one.
        req: Request of the batch row, None in a sweep or where the row names none.
        row: Row of the request table, None in a sweep.
        prev_slot: Predecessor; -1 = chain head, 0 = unknown.
        stored_token: Stored token (verify), or the one written.
        expected_token: None if the token was not compared.
        stored_chain_hash: Stored value (verify), or the running value before the write; int64.
        expected_chain_hash: None for writes, and where the predecessor is unknown.
        stored_kv_hash: None if fingerprints were not compared.
        expected_kv_hash: None if fingerprints were not compared.
        fail_reasons: Labels of specification 1.11, in bit order.
        kv_tags: Those of ``launch_tags`` that found the fingerprint to differ: HEAD has none to
            compare, and the K and the V half have their own.
        role: ``primary``, or ``seam``: the slot is intact, only its predecessor was replaced.
    """

    step: int
    event: int
    forward_mode: str | None
    worker: str
    pool_kind: str
    launch_tags: tuple[str, ...]
    check: str
    slot: int
    position: int
    expected_position: int
    req: str | None
    row: int | None
    prev_slot: int
    stored_token: int
    expected_token: int | None
    stored_chain_hash: int
    expected_chain_hash: int | None
    stored_kv_hash: int | None
    expected_kv_hash: int | None
    fail_reasons: tuple[str, ...]
    kv_tags: tuple[str, ...]
    role: str


@dataclass(slots=True)
class ViolationChunk:
    """The violations of one step, lane and check.

    Attributes:
        columns: ``INT_COLUMNS`` as [n] int64 and ``BOOL_COLUMNS`` as [n] bool; ``req`` is an index
            into ``ViolationTable.requests`` or -1.
        bits: [n] int64 fail reason bits.
        tags: [n] int64, bit k set = seen by launch tag k.
    """

    step: int
    event: int
    forward_mode: str | None
    worker: str
    pool_kind: str
    check: str
    columns: dict[str, NDArray[Any]]
    bits: NDArray[np.int64]
    tags: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bits)

    def select(self, mask: NDArray[np.bool_]) -> ViolationChunk:
        return ViolationChunk(
            self.step,
            self.event,
            self.forward_mode,
            self.worker,
            self.pool_kind,
            self.check,
            {name: column[mask] for name, column in self.columns.items()},
            self.bits[mask],
            self.tags[mask],
        )


@dataclass(slots=True)
class ViolationTable:
    """All violations of a replay, in order."""

    requests: list[str] = field(default_factory=list)
    chunks: list[ViolationChunk] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)

    def request_code(self, req: str | None) -> int:
        """Index of ``req`` in ``requests``, added if new; -1 for None."""
        if req is None:
            return NO_REQUEST
        code = self._codes.get(req)
        if code is None:
            code = self._codes[req] = len(self.requests)
            self.requests.append(req)
        return code

    def add(self, chunk: ViolationChunk) -> None:
        if len(chunk):
            self.chunks.append(chunk)

    def select(self, reqs: frozenset[str], slots: frozenset[int]) -> ViolationTable:
        """The violations of these requests and slots; an empty set lets all pass."""
        out = ViolationTable(requests=self.requests, _codes=self._codes)
        codes = [code for code, req in enumerate(self.requests) if req in reqs]
        for chunk in self.chunks:
            mask = np.ones(len(chunk), dtype=np.bool_)
            if reqs:
                mask &= np.isin(chunk.columns["req"], codes)
            if slots:
                mask &= np.isin(chunk.columns["slot"], list(slots))
            out.add(chunk.select(mask))
        return out

    def __iter__(self) -> Iterator[Violation]:
        for chunk in self.chunks:
            for k in range(len(chunk)):
                yield self._violation(chunk, k)

    def _violation(self, chunk: ViolationChunk, k: int) -> Violation:
        value = {name: int(chunk.columns[name][k]) for name in INT_COLUMNS}
        flag = {name: bool(chunk.columns[name][k]) for name in BOOL_COLUMNS}
        is_verify = chunk.check == VERIFY
        return Violation(
            step=chunk.step,
            event=chunk.event,
            forward_mode=chunk.forward_mode,
            worker=chunk.worker,
            pool_kind=chunk.pool_kind,
            launch_tags=_tag_names(int(chunk.tags[k])),
            check=chunk.check,
            slot=value["slot"],
            position=value["position"],
            expected_position=value["expected_position"],
            req=None if value["req"] == NO_REQUEST else self.requests[value["req"]],
            row=None if value["row"] < 0 else value["row"],
            prev_slot=value["prev_slot"],
            stored_token=value["stored_token"],
            expected_token=value["expected_token"] if flag["token_checked"] else None,
            stored_chain_hash=value["stored_chain_hash"],
            expected_chain_hash=(
                value["expected_chain_hash"] if is_verify and flag["chain_known"] else None
            ),
            stored_kv_hash=value["stored_kv_hash"] if flag["kv_checked"] else None,
            expected_kv_hash=value["expected_kv_hash"] if flag["kv_checked"] else None,
            fail_reasons=fail_reason_labels(int(chunk.bits[k])),
            kv_tags=_tag_names(value["kv_tags"]),
            role=SEAM if flag["seam"] else PRIMARY,
        )


def _tag_names(mask: int) -> tuple[str, ...]:
    return tuple(tag.name for tag in LaunchTag if mask >> tag & 1)


def filled_columns(count: int, **given: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Columns of a chunk: those given, the others 0 or False (``row`` and ``req`` -1)."""
    columns: dict[str, NDArray[Any]] = {}
    for name in INT_COLUMNS:
        default = -1 if name in ("row", "req") else 0
        columns[name] = given.get(name, np.full(count, default, dtype=np.int64))
    for name in BOOL_COLUMNS:
        columns[name] = given.get(name, np.zeros(count, dtype=np.bool_))
    return columns
