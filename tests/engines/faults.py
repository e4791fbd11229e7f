"""Corruptions put into the live engine between two of its steps, or into one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.engines.sglang_driver import Load

_TAIL = 3


def plant(fault: str, load: Load) -> dict[str, Any] | None:
    """Plant ``fault``; what was done, or None if no request fits it yet."""
    scheduler = load.scheduler
    table = scheduler.req_to_token_pool.req_to_token
    allocator = scheduler.token_to_kv_pool_allocator
    for req in scheduler.running_batch.reqs:
        row, length = req.kv.req_pool_idx, int(req.kv.kv_committed_len)
        own = length - int(req.kv.cache_protected_len)
        left = req.sampling_params.max_new_tokens - len(req.output_ids)
        if row is None or own < 2 * _TAIL or left < 2 * _TAIL:
            continue
        truth = {"req": req.rid, "step": load.forwards, "row": int(row)}
        position = length - _TAIL
        slot = table[row, position : position + 1].long().clone()
        truth |= {"position": position, "slot": int(slot)}
        match fault:
            case "free_live_slot":
                allocator.free(slot)
            case "hand_out_twice":
                import torch

                allocator.free_pages = torch.cat((slot, allocator.free_pages))
            case "swap_cells":
                pair = table[row, position : position + 2].clone()
                table[row, position : position + 2] = pair.flip(0)
            case "kv_bytes":
                keys = allocator.get_kvcache().k_buffer[0]
                import torch

                keys[slot] = (keys[slot].view(torch.int16) ^ 1).view(keys.dtype)
            case "shift_position":
                return truth | {"planted": False}
            case _:
                raise ValueError(f"no fault {fault!r}")
        return truth
    return None


def plant_in_batch(fault: str, load: Load, batch: Any) -> None:
    """Change the next decode batch that has the chosen request."""
    truth = load.truth
    if truth is None or fault != "shift_position" or batch.forward_mode.name != "DECODE":
        return
    if truth["req"] in batch.rids:
        at = batch.rids.index(truth["req"])
        truth |= {"planted": True, "step": load.forwards, "position": int(batch.positions[at])}
        batch.positions[at] += 1
