"""From a launch that counted violations to the entries that violated, with the expected side.

A ring row names a slot but neither request, step, expected position, predecessor nor
fingerprints. A launch that found something is therefore worked out again on the host, entry by
entry in plan order, from the same plan and the same rows. Clean launches cost nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import FailReason, RealKvHashMode
from kvcanary_cli.backends.reference.hashes import chain_step, to_signed, to_unsigned
from kvcanary_cli.replay.chains import HEAD, slot_hash
from kvcanary_cli.replay.lanes import get_rows
from kvcanary_cli.replay.violations import CHAIN_POSITION, INPUT_ASSERT, VERIFY

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.backends.interface import Backend
    from kvcanary_cli.canary.endpoint import Endpoint

    Ints = NDArray[np.int64]

_CHAIN = int(FailReason.VERIFY_CHAIN_HASH_MISMATCH)
_POSITION = int(FailReason.VERIFY_POSITION_MISMATCH)
_KV = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
_TOKEN = int(FailReason.VERIFY_TOKEN_MISMATCH)
_WRITE_TOKEN = int(FailReason.WRITE_TOKEN_MISMATCH)
_WRITE_POSITION = int(FailReason.WRITE_POSITION_MISMATCH)


@dataclass(slots=True)
class LaunchFindings:
    """Violations that one launch saw, in plan order.

    Attributes:
        check: ``verify``, ``input_assert`` or ``chain_position``.
        index: [n] entry of the verify plan, or token of the batch.
        bits: [n] fail reason bits.
        columns: Columns of ``ViolationChunk`` that the launch itself knows.
    """

    check: str
    index: Ints
    bits: Ints
    columns: dict[str, NDArray[Any]]

    def head(self, count: int) -> LaunchFindings:
        """The first ``count`` of them."""
        return LaunchFindings(
            self.check,
            self.index[:count],
            self.bits[:count],
            {name: column[:count] for name, column in self.columns.items()},
        )


def _host(tensor: torch.Tensor, count: int | None = None) -> Ints:
    values: Ints = tensor[:count].cpu().numpy()
    return values


def explain_verify(
    endpoint: Endpoint, plan: VerifyPlan, *, backend: Backend, tokens_compared: bool
) -> LaunchFindings:
    """The entries of ``plan`` that fail, as specification 3.2 says."""
    import torch

    count = int(plan.verify_num_valid.item())
    slots = _host(plan.verify_slot_indices, count)
    prevs = _host(plan.verify_prev_slot_indices, count)
    positions = _host(plan.verify_expected_positions, count)
    rows = get_rows(endpoint.canary_buf, slots)
    known = prevs != 0
    prev_hash = slot_hash(get_rows(endpoint.canary_buf, prevs), prevs)
    expected_hash = np.where(known, prev_hash, rows[:, 2])
    kv = np.zeros(count, dtype=np.int64)
    if endpoint.sources:
        kv = (
            backend.real_kv_hash(
                slots=torch.from_numpy(slots.copy()).to(endpoint.canary_buf.device),
                real_kv_sources=endpoint.sources,
                real_kv_hash_mode=RealKvHashMode.ALL,
            )
            .cpu()
            .numpy()
        )
    tokens = np.full(count, -1, dtype=np.int64)
    if tokens_compared:
        tokens = _host(plan.verify_expected_tokens, count)
    bits = np.where(known & (rows[:, 2] != expected_hash), _CHAIN, 0)
    bits |= np.where((tokens != -1) & (rows[:, 0] != tokens), _TOKEN, 0)
    bits |= np.where(rows[:, 1] != positions, _POSITION, 0)
    bits |= np.where(rows[:, 3] != kv, _KV, 0)
    bits[slots == 0] = 0
    hit = np.flatnonzero(bits)
    return LaunchFindings(
        VERIFY,
        hit,
        bits[hit].astype(np.int64),
        {
            "slot": slots[hit],
            "position": rows[hit, 1],
            "expected_position": positions[hit],
            "prev_slot": prevs[hit],
            "stored_token": rows[hit, 0],
            "expected_token": tokens[hit],
            "token_checked": tokens[hit] != -1,
            "stored_chain_hash": rows[hit, 2],
            "expected_chain_hash": expected_hash[hit],
            "chain_known": known[hit],
            "stored_kv_hash": rows[hit, 3],
            "expected_kv_hash": kv[hit],
            "kv_checked": np.full(len(hit), bool(endpoint.sources)),
        },
    )


@dataclass(slots=True)
class SeedRows:
    """Rows of a write plan's seeds before the launch, which may overwrite them."""

    seeds: Ints
    rows: Ints

    @classmethod
    def of(cls, endpoint: Endpoint, plan: WritePlan) -> SeedRows:
        seeds = _host(plan.write_seed_slot_indices, int(plan.write_num_valid_reqs.item())).copy()
        return cls(seeds, get_rows(endpoint.canary_buf, seeds))


def explain_write(
    plan: WritePlan,
    before: SeedRows,
    *,
    input_ids: Ints,
    positions: Ints,
    out_cache_loc: Ints,
    expected_tokens: Ints | None,
    expected_positions: Ints | None,
    chain_assert: bool,
) -> list[LaunchFindings]:
    """Run the write step of specification 3.3 again, keeping only what it would have reported."""
    offsets = _host(plan.write_offsets)
    written: dict[int, tuple[int, int, int]] = {}
    found: dict[str, list[dict[str, int]]] = {INPUT_ASSERT: [], CHAIN_POSITION: []}
    for r, seed in enumerate(before.seeds.tolist()):
        first, last = int(offsets[r]), int(offsets[r + 1])
        if last <= first:
            continue
        token, position, prev = written.get(seed, tuple(before.rows[r, :3].tolist()))
        running = int(HEAD)
        if seed >= 0:
            running = chain_step(to_unsigned(prev), token, position)
        check_chain, last_position, last_slot = seed >= 0 and chain_assert, position, seed
        for i in range(first, last):
            slot = int(out_cache_loc[i])
            if slot < 0:
                continue
            token, position = int(input_ids[i]), int(positions[i])
            cell = {
                "index": i,
                "slot": slot,
                "position": position,
                "prev_slot": last_slot,
                "stored_token": token,
                "stored_chain_hash": to_signed(running),
            }
            if expected_tokens is not None and expected_positions is not None:
                bits = _WRITE_TOKEN if token != expected_tokens[i] else 0
                bits |= _WRITE_POSITION if position != expected_positions[i] else 0
                if bits:
                    found[INPUT_ASSERT].append(
                        cell
                        | {
                            "bits": bits,
                            "expected_token": int(expected_tokens[i]),
                            "expected_position": int(expected_positions[i]),
                        }
                    )
            if check_chain:
                wanted = to_signed(to_unsigned(last_position + 1))
                if position != wanted:
                    found[CHAIN_POSITION].append(
                        cell
                        | {
                            "bits": _WRITE_POSITION,
                            "expected_token": token,
                            "expected_position": wanted,
                        }
                    )
                last_position = position
            written[slot] = (token, position, to_signed(running))
            running = chain_step(running, token, position)
            last_slot = slot
    return [_findings(check, cells) for check, cells in found.items() if cells]


def first_rows(found: list[LaunchFindings], count: int) -> list[LaunchFindings]:
    """What the first ``count`` ring rows of a launch hold.

    The ring goes entry by entry; where one entry gives two rows, the parts are in ring order.
    """
    part = np.repeat(np.arange(len(found)), [len(each.index) for each in found])
    index = np.concatenate([each.index for each in found]) if found else part
    kept = np.lexsort((part, index))[:count]
    heads = np.bincount(part[kept], minlength=len(found)).tolist()
    return [each.head(head) for each, head in zip(found, heads, strict=True)]


def _findings(check: str, cells: list[dict[str, int]]) -> LaunchFindings:
    columns: dict[str, NDArray[Any]] = {
        name: np.array([cell[name] for cell in cells], dtype=np.int64) for name in cells[0]
    }
    columns["token_checked"] = np.full(len(cells), check == INPUT_ASSERT)
    return LaunchFindings(check, columns.pop("index"), columns.pop("bits"), columns)


def merge(parts: list[tuple[int, LaunchFindings]]) -> tuple[LaunchFindings, Ints]:
    """Findings of several launches over the same entries as one per entry.

    Args:
        parts: (launch tag, findings), all of one check.

    Returns:
        The findings in entry order with the bits of all launches, and [n] bit masks of the tags
        that saw each. Where launches hold different values the first one counts, except for
        fingerprints, which come from the launch that found them to differ, or else compared them.
    """
    index = np.concatenate([part.index for _tag, part in parts])
    unique, first, inverse = np.unique(index, return_index=True, return_inverse=True)
    bits, tags, kv_tags = np.zeros((3, len(unique)), dtype=np.int64)
    names = list(parts[0][1].columns)
    columns = {
        name: np.concatenate([part.columns[name] for _tag, part in parts])[first] for name in names
    }
    at = 0
    for tag, part in parts:
        where = inverse[at : at + len(part.index)]
        at += len(part.index)
        np.bitwise_or.at(bits, where, part.bits)
        np.bitwise_or.at(tags, where, 1 << tag)
        if "kv_checked" in columns:
            differs = (part.bits & _KV) != 0
            better = part.columns["kv_checked"] & ~columns["kv_checked"][where]
            better |= differs & (kv_tags[where] == 0)
            for name in ("stored_kv_hash", "expected_kv_hash", "kv_checked"):
                columns[name][where[better]] = part.columns[name][better]
            np.bitwise_or.at(kv_tags, where[differs], 1 << tag)
    columns["kv_tags"] = kv_tags
    return LaunchFindings(parts[0][1].check, unique, bits, columns), tags
