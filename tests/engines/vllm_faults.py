"""Corruptions put into the live vLLM engine between two of its steps, or into one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.engines.vllm_driver import Load

_LEFT = 12


def plant(fault: str, load: Load) -> dict[str, Any] | None:
    """Plant ``fault``; what was done, or None if no request fits it yet."""
    scheduler, manager = load.scheduler, load.scheduler.kv_cache_manager
    pool, size, group = manager.block_pool, 32, load.run["fault_group"]
    if fault == "free_while_sending":
        return _free_while_sending(scheduler)
    for request in scheduler.running:
        name = request.request_id
        blocks = manager.coordinator.get_blocks(name)[group]
        full = request.num_computed_tokens // size
        left = request.max_tokens - request.num_output_tokens
        if full < 2 or left < _LEFT or request.num_computed_tokens % size > size - 3:
            continue
        if request.num_computed_tokens < request.num_prompt_tokens:
            continue
        mine = [k for k in range(full) if blocks[k].ref_cnt == 1 and not blocks[k].is_null]
        if not mine:
            continue
        k = mine[-1]
        block, position = blocks[k], mine[-1] * size + 3
        truth = {"req": name, "launch": load.launches, "position": position}
        truth["slot"] = block.block_id * size + 3
        match fault:
            case "free_live_block":
                pool.free_blocks([block])
            case "hand_out_twice":
                _hand_out(pool, block)
            case "swap_cells":
                row = load.runner.input_batch.req_id_to_index[name]
                table = load.runner.input_batch.block_table[group].block_table.np
                # Of a window, the end: its beginning is read by nobody any more.
                first = full - 2 if group else 0
                table[row, [first, first + 1]] = table[row, [first + 1, first]]
                truth |= {"position": first * size, "slot": blocks[first + 1].block_id * size}
            case "kv_bytes":
                _flip(load.runner, group, block.block_id, 3)
            case "shift_position" | "shift_slot":
                others = [r for r in scheduler.running if r.request_id != name]
                others = [r for r in others if r.num_computed_tokens > 2 * size]
                if not others:
                    continue
                theirs = manager.coordinator.get_blocks(others[0].request_id)[0][0]
                truth |= {"planted": False, "fault": fault, "other": others[0].request_id}
                truth["target"] = theirs.block_id * size + 5
            case _:
                raise ValueError(f"no fault {fault!r}")
        return truth
    return None


def _free_while_sending(scheduler: Any) -> dict[str, Any] | None:
    """A request that has ended gives its blocks back before the connector has named it."""
    manager = scheduler.kv_cache_manager
    if not scheduler.waiting and not scheduler.running:
        return None
    for name, request in scheduler.requests.items():
        if request.is_finished():
            blocks = [block.block_id for block in manager.coordinator.get_blocks(name)[0]]
            manager.free(request)
            return {"req": name, "blocks": blocks}
    return None


def _hand_out(pool: Any, stolen: Any) -> None:
    """The next block that is asked for is ``stolen``, which somebody uses."""
    queue = pool.free_block_queue
    take = queue.popleft_n

    def popleft_n(count: int) -> list[Any]:
        if count < 1:
            return take(count)
        queue.popleft_n = take
        rest = take(count - 1)
        stolen.ref_cnt = 0
        return [stolen, *rest]

    queue.popleft_n = popleft_n


def _flip(runner: Any, group: int, block: int, offset: int) -> None:
    """Change one bit of K in the first layer of ``group``, at ``offset`` of ``block``."""
    import torch

    name = runner.kv_cache_config.kv_cache_groups[group].layer_names[0]
    cache = runner.compilation_config.static_forward_context[name].kv_cache
    cache.view(torch.int16)[block, 0].view(-1)[offset] ^= 1


def plant_in_batch(load: Load, positions: Any) -> None:
    """Change the next batch in which the chosen request decodes."""
    truth, held = load.truth, load.runner.input_batch
    assert truth is not None
    counts = load.runner.num_scheduled_tokens.np[: held.num_reqs]
    index = held.req_id_to_index.get(truth["req"])
    if index is None or counts[index] != 1:
        return
    at = int(counts[:index].sum())
    truth |= {"planted": True, "launch": load.launches, "position": int(positions[at])}
    if truth["fault"] == "shift_position":
        positions[at] += 1
    else:
        held.block_table[0].slot_mapping.gpu[at] = truth["target"]
