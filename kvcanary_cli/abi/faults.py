"""Defined values and one clear error where upstream's device and reference paths differ.

Upstream's device kernels clamp or read outside a buffer where its host reference raises or wraps
(specification 3.1 to 3.3). Here every backend does the same two things: the offending cell gets a
defined value, and the largest ``pack_fault(code, value)`` of the launch is left in a one-cell
int64 tensor. A launch without a caller's cell reads its own cell back and raises; a launch inside
a captured graph is given a cell, and whoever owns it calls ``raise_on_fault`` outside the graph.

| code | what was met | defined value |
|---|---|---|
| SWA_SLOT | a slot beyond the full-to-SWA table | slot 0 (skipped), predecessor 0 (unknown) |
| PREFIX | a negative prefix or one beyond the request table's width | the row is inactive |
| REQUEST_ROW | a request index outside the request table | the row is inactive |
| VERIFY_SLOT | a verify slot outside the canary buffer or negative | counted, then skipped |
| VERIFY_PREV | a predecessor beyond the canary buffer | unknown (as 0) |
| WRITE_SLOT | an out_cache_loc beyond the canary buffer | not written, not counted (as negative) |
| WRITE_SEED | a seed beyond the canary buffer | chain head (as negative) |
| WRITE_OFFSETS | offsets that leave the token arrays | the row is cut to what exists |
| REAL_KV_SLOT | a slot beyond the rows of a real-KV source | that source is folded as empty (0) |

SWA_SLOT's defined value for a seed is slot 0, as for a predecessor. Faults are noted only for what
a launch looks at: a plan that overflows looks at no entry (but at rows and seeds), a disabled
verify at nothing, a verify entry of slot 0 not at its predecessor, a write row that is empty after
its offsets were cut not at its seed. In the free-standing fingerprint a negative slot is a
REAL_KV_SLOT, unless the mode is NONE, which looks at nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_VALUE_BITS = 40
_VALUE_BIAS = 1 << (_VALUE_BITS - 1)
_VALUE_MASK = (1 << _VALUE_BITS) - 1


class Fault(IntEnum):
    """Kinds of faulty input that only the data itself can show."""

    SWA_SLOT = 1
    PREFIX = 2
    REQUEST_ROW = 3
    VERIFY_SLOT = 4
    VERIFY_PREV = 5
    WRITE_SLOT = 6
    WRITE_SEED = 7
    WRITE_OFFSETS = 8
    REAL_KV_SLOT = 9


FAULT_VALUE_BITS = _VALUE_BITS
FAULT_VALUE_BIAS = _VALUE_BIAS


def pack_fault(code: int, value: int) -> int:
    """One positive int64 for a fault: larger code wins, then larger value.

    ``value`` is clamped to [-2^39, 2^39 - 1].
    """
    clamped = max(-_VALUE_BIAS, min(_VALUE_BIAS - 1, value))
    return (code << _VALUE_BITS) | (clamped + _VALUE_BIAS)


def unpack_fault(packed: int) -> tuple[Fault, int]:
    return Fault(packed >> _VALUE_BITS), (packed & _VALUE_MASK) - _VALUE_BIAS


def new_fault_cell(device: torch.device | str = "cpu") -> torch.Tensor:
    """A cleared fault cell: [1] int64, 0 = no fault."""
    import torch

    return torch.zeros(1, dtype=torch.int64, device=device)


def raise_on_fault(cell: torch.Tensor, **sizes: int) -> None:
    """Raise for the fault in ``cell``, if any, and clear it. Synchronises with the device.

    Args:
        cell: [1] int64.
        **sizes: Bounds named in the text: ``lut_len``, ``row_len``, ``rows``, ``num_slots``,
            ``num_tokens``.

    Raises:
        ValueError: KVC-C04 for SWA_SLOT, else a text of the same form.
    """
    packed = int(cell.item())
    if packed == 0:
        return
    cell.zero_()
    fault, value = unpack_fault(packed)
    if fault is Fault.SWA_SLOT:
        raise ValueError(
            f"kv-canary: SWA slot {value} is outside full_to_swa_index_mapping length "
            f"{sizes.get('lut_len', '?')}"
        )
    what, bound = {
        Fault.PREFIX: (
            "prefix length",
            f"[0, req_to_token row length {sizes.get('row_len', '?')}]",
        ),
        Fault.REQUEST_ROW: ("request row", f"[0, req_to_token rows {sizes.get('rows', '?')})"),
        Fault.VERIFY_SLOT: ("verify slot", f"[0, canary slots {sizes.get('num_slots', '?')})"),
        Fault.VERIFY_PREV: ("predecessor", f"[.., canary slots {sizes.get('num_slots', '?')})"),
        Fault.WRITE_SLOT: ("out_cache_loc", f"[.., canary slots {sizes.get('num_slots', '?')})"),
        Fault.WRITE_SEED: ("seed slot", f"[.., canary slots {sizes.get('num_slots', '?')})"),
        Fault.WRITE_OFFSETS: ("write offset", f"[0, tokens {sizes.get('num_tokens', '?')}]"),
        Fault.REAL_KV_SLOT: ("slot", "the rows of its real-KV source"),
    }[fault]
    raise ValueError(f"kv-canary: {what} {value} is outside {bound}")
