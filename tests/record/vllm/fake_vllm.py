"""A package ``vllm`` with the classes that the recorder hooks, as small as they can be.

``write_package`` puts it into a folder; the modules have the real names, so that the import hook,
the missing-hook report and the hooks themselves work as in the engine. The engine schedules
chunks, shares full blocks from the moment they are scheduled, preempts the last request when blocks
run out, and answers each request with made-up tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0.32.0"

_FILES = {
    "v1/core/kv_cache_utils.py": """
class KVCacheBlock:
    def __init__(self, block_id):
        self.block_id, self.ref_cnt, self.block_hash, self.is_null = block_id, 0, None, False


class FreeKVCacheBlockQueue:
    def __init__(self, blocks):
        self.blocks = list(blocks)

    def popleft_n(self, n):
        taken, self.blocks = self.blocks[:n], self.blocks[n:]
        return taken

    def append(self, block):
        self.blocks.append(block)

    def append_n(self, blocks):
        self.blocks += blocks

    def prepend_n(self, blocks):
        self.blocks = list(blocks) + self.blocks
""",
    "v1/core/block_pool.py": """
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock


class BlockPool:
    def __init__(self, num_gpu_blocks):
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks = [KVCacheBlock(k) for k in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.cached = {}

    def get_new_blocks(self, count):
        taken = self.free_block_queue.popleft_n(count)
        for block in taken:
            self._maybe_evict_cached_block(block)
            assert block.ref_cnt == 0
            block.ref_cnt = 1
        return taken

    def _maybe_evict_cached_block(self, block):
        if block.block_hash is None:
            return False
        if self.cached.get(block.block_hash) is block:
            del self.cached[block.block_hash]
        block.block_hash = None
        return True

    def touch(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.blocks.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks):
        first, last = [], []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (first if block.block_hash is None else last).append(block)
        self.free_block_queue.prepend_n(first)
        self.free_block_queue.append_n(last)

    def cache_full_blocks(
        self, request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
    ):
        for k in range(num_cached_blocks, num_full_blocks):
            key = tuple(request.all_token_ids[: (k + 1) * block_size])
            blocks[k].block_hash = key
            self.cached.setdefault(key, blocks[k])

    def reset_prefix_cache(self):
        if any(block.ref_cnt for block in self.blocks):
            return False
        for block in self.blocks:
            block.block_hash = None
        self.cached.clear()
        return True
""",
    "v1/core/kv_cache_manager.py": """
from types import SimpleNamespace
from vllm.v1.core.block_pool import BlockPool


class FullAttentionSpec:
    pass


class KVCacheManager:
    def __init__(self, num_blocks, block_size):
        self.block_pool, self.size = BlockPool(num_blocks), block_size
        self.req_to_blocks, self.cached = {}, {}
        one = SimpleNamespace(block_size=block_size, req_to_blocks=self.req_to_blocks)
        self.coordinator = SimpleNamespace(
            single_type_managers=[one],
            get_blocks=lambda name: (self.req_to_blocks.get(name, []),),
        )
        group = SimpleNamespace(kv_cache_spec=FullAttentionSpec(), layer_names=["layer.0"])
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[group])

    def get_computed_blocks(self, request):
        hit = []
        while (len(hit) + 1) * self.size < len(request.all_token_ids):
            key = tuple(request.all_token_ids[: (len(hit) + 1) * self.size])
            block = self.block_pool.cached.get(key)
            if block is None:
                break
            hit.append(block)
        return hit

    def allocate_slots(
        self, request, num_new_tokens, num_new_computed_tokens=0, new_computed_blocks=None,
        num_lookahead_tokens=0, num_external_computed_tokens=0, delay_cache_blocks=False,
    ):
        pool, name = self.block_pool, request.request_id
        held = self.req_to_blocks.get(name, [])
        hit = list(new_computed_blocks.blocks[0]) if new_computed_blocks else []
        before = (
            request.num_computed_tokens + num_new_computed_tokens + num_external_computed_tokens
        )
        need = -(-(before + num_new_tokens) // self.size) - len(held) - len(hit)
        free = len(pool.free_block_queue.blocks) - sum(block.ref_cnt == 0 for block in hit)
        if need > free:
            return None
        pool.touch(hit)
        self.req_to_blocks[name] = held = held + hit + pool.get_new_blocks(max(need, 0))
        if delay_cache_blocks:
            return True
        full = min(before + num_new_tokens, len(request.all_token_ids)) // self.size
        cached = self.cached.get(name, 0) or len(hit)
        if full > cached:
            pool.cache_full_blocks(request, held, cached, full, self.size, 0)
        self.cached[name] = max(full, cached)
        return True

    def free(self, request):
        blocks = self.req_to_blocks.pop(request.request_id, [])
        self.cached.pop(request.request_id, None)
        self.block_pool.free_blocks(reversed(blocks))

    def pop_blocks_for_free(self, request):
        self.cached.pop(request.request_id, None)
        return self.req_to_blocks.pop(request.request_id, [])

    def remove_skipped_blocks(self, request_id, processed_computed_tokens):
        return None

    def get_block_ids(self, name):
        return ([block.block_id for block in self.req_to_blocks.get(name, [])],)
""",
    "v1/core/sched/scheduler.py": """
from types import SimpleNamespace
from vllm.v1.core.kv_cache_manager import KVCacheManager


class Scheduler:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
        self.max_model_len = vllm_config.model_config.max_model_len
        self.max_num_running_reqs = vllm_config.scheduler_config.max_num_seqs
        self.kv_cache_manager = KVCacheManager(
            vllm_config.cache_config.num_gpu_blocks, vllm_config.cache_config.block_size
        )
        self.requests, self.running, self.waiting = {}, [], []
        self.drafts, self.external, self.connector = {}, {}, None
        self.ended = set()

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def _out(self, **fields):
        return SimpleNamespace(kv_cache_block_copies=None, **fields)

    def schedule(self):
        budget = self.vllm_config.scheduler_config.max_num_batched_tokens
        counts, computed, drafts, new = {}, {}, {}, []
        manager, preempted = self.kv_cache_manager, False
        for request in list(self.running):
            if request not in self.running or not budget:
                continue
            name = request.request_id
            fed = self.drafts.pop(name, []) if self._decodes(request) else []
            count = len(request.all_token_ids) - request.num_computed_tokens + len(fed)
            count = min(count, budget)
            while not manager.allocate_slots(request, count):
                preempted = True
                self._preempt_request(self.running[-1], 0.0)
                if request not in self.running:
                    break
            else:
                counts[name], computed[name] = count, request.num_computed_tokens
                budget -= count
                if fed:
                    drafts[name] = fed[: count - 1]
        while self.waiting and budget and not preempted:
            if len(self.running) >= self.max_num_running_reqs:
                break
            request = self.waiting[0]
            name = request.request_id
            hit = manager.get_computed_blocks(request)
            have = len(hit) * manager.size
            brought = min(self.external.pop(name, 0), len(request.all_token_ids) - 1 - have)
            count = min(len(request.all_token_ids) - have - brought, budget)
            blocks = SimpleNamespace(blocks=(hit,))
            if not manager.allocate_slots(
                request, count, have, blocks, num_external_computed_tokens=brought
            ):
                break
            self.running.append(self.waiting.pop(0))
            request.num_computed_tokens = have + brought
            counts[name], computed[name] = count, have + brought
            budget -= count
            new.append(
                SimpleNamespace(
                    req_id=name,
                    num_computed_tokens=have + brought,
                    prompt_token_ids=request.all_token_ids[: request.num_prompt_tokens],
                    prompt_embeds=None,
                    block_ids=manager.get_block_ids(name),
                )
            )
        old = [name for name in counts if name not in {one.req_id for one in new}]
        ended, self.ended = self.ended, set()
        for name, count in counts.items():
            self.requests[name].num_computed_tokens += count
        return self._out(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=old,
                num_computed_tokens=[computed[name] for name in old],
                resumed_req_ids=set(),
                new_block_ids=[None] * len(old),
            ),
            finished_req_ids=ended,
            num_scheduled_tokens=counts,
            scheduled_spec_decode_tokens=drafts,
            computed=computed,
        )

    def _decodes(self, request):
        return request.num_computed_tokens >= request.num_prompt_tokens

    def _preempt_request(self, request, timestamp):
        self.running.remove(request)
        self.kv_cache_manager.free(request)
        request.num_computed_tokens = 0
        self.waiting.insert(0, request)

    def update_from_output(self, scheduler_output, model_runner_output):
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            at = model_runner_output.req_id_to_index[name]
            sampled = model_runner_output.sampled_token_ids[at]
            fed = scheduler_output.scheduled_spec_decode_tokens.get(name, [])
            if fed:
                request.num_computed_tokens -= len(fed) - (len(sampled) - 1)
            request.all_token_ids += sampled
            if request.done():
                request.status = SimpleNamespace(name="FINISHED_STOPPED")
                self.running.remove(request)
                self._free_request(request)
        moved = getattr(model_runner_output, "kv_connector_output", None)
        if moved is not None:
            self._update_from_kv_xfer_finished(moved)

    def finish_requests(self, names, status):
        for name in names:
            request = self.requests.get(name)
            if request is None or request.status.name.startswith("FINISHED"):
                continue
            request.status = SimpleNamespace(name=status)
            (self.running if request in self.running else self.waiting).remove(request)
            self._free_request(request)

    def _free_request(self, request, delay_free_blocks=False):
        delay, params = self._connector_finished(request)
        if not (delay or delay_free_blocks):
            self._free_blocks(request)

    def _free_blocks(self, request):
        self.kv_cache_manager.free(request)
        self.ended.add(request.request_id)
        del self.requests[request.request_id]

    def _connector_finished(self, request):
        if self.connector is None:
            return False, None
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        return self.connector.request_finished(request, blocks)

    def _update_from_kv_xfer_finished(self, kv_connector_output):
        for name in kv_connector_output.finished_sending or ():
            self._free_blocks(self.requests[name])

    def _handle_failed_recving(self, failed_req_ids):
        return set()
""",
    "v1/worker/gpu_model_runner.py": """
import torch
from types import SimpleNamespace
from vllm.v1.core.kv_cache_manager import FullAttentionSpec


def sample(request, count):
    tokens = request.all_token_ids
    return [3 + (7 * tokens[-1] + len(tokens) + k) % 90 for k in range(count)]


class Table:
    def __init__(self, rows, width, block_size, tokens):
        self.block_size, self.max_num_blocks_per_req = block_size, width
        self.cells = torch.zeros((rows, width), dtype=torch.int32)
        self.slot_mapping = SimpleNamespace(gpu=torch.zeros(tokens, dtype=torch.int64))

    def get_device_tensor(self, count):
        return self.cells[:count]


class FlashAttentionBackend:
    pass


def layers(cache):
    '''One layer; in memory a token's heads side by side, or a head's tokens.'''
    heads_first = getattr(cache, "heads_first", False)
    sides = (3, cache.block_size) if heads_first else (cache.block_size, 3)
    kv = torch.zeros((cache.num_gpu_blocks, *sides, 16), dtype=torch.bfloat16)
    kv = kv if heads_first else kv.transpose(1, 2)
    layer = SimpleNamespace(kv_cache=kv, get_attn_backend=lambda: FlashAttentionBackend)
    spec = FullAttentionSpec()
    spec.block_size = cache.block_size
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=["layer.0"])
    return (
        SimpleNamespace(static_forward_context={"layer.0": layer}),
        SimpleNamespace(kv_cache_groups=[group], num_blocks=cache.num_gpu_blocks),
        kv,
    )


class GPUModelRunner:
    def __init__(self, config):
        self.config = self.vllm_config = config
        self.max_num_reqs = config.scheduler_config.max_num_seqs
        self.compilation_config, self.kv_cache_config, self.kv = layers(config.cache_config)
        size, rows = config.cache_config.block_size, config.scheduler_config.max_num_seqs
        tokens = config.scheduler_config.max_num_batched_tokens
        width = -(-config.model_config.max_model_len // size)
        table = Table(rows, width, size, tokens)
        self.input_batch = SimpleNamespace(num_reqs=0, req_ids=[], block_table=[table])
        self.input_ids = SimpleNamespace(gpu=torch.zeros(tokens, dtype=torch.int32))
        self.positions = torch.zeros(tokens, dtype=torch.int64)
        self.seq_lens = torch.zeros(rows, dtype=torch.int32)

    def initialize_kv_cache(self, kv_cache_config):
        return None

    def execute_model(self, scheduler_output, scheduler=None):
        held, table = self.input_batch, self.input_batch.block_table[0]
        counts = scheduler_output.num_scheduled_tokens
        held.req_ids, held.num_reqs = list(counts), len(counts)
        at = 0
        for row, (name, count) in enumerate(counts.items()):
            before = scheduler_output.computed[name]
            blocks = torch.tensor(scheduler.kv_cache_manager.get_block_ids(name)[0])
            table.cells[row, : len(blocks)] = blocks
            fed = scheduler.requests[name].all_token_ids[before : before + count]
            fed = (fed + scheduler_output.scheduled_spec_decode_tokens.get(name, []))[:count]
            here = torch.arange(before, before + count)
            self.input_ids.gpu[at : at + count] = torch.tensor(fed)
            self.positions[at : at + count] = here
            size = table.block_size
            table.slot_mapping.gpu[at : at + count] = blocks[here // size] * size + here % size
            self.seq_lens[row] = before + count
            at += count
        self.total = at
        self._model_forward(input_ids=self.input_ids.gpu, positions=self.positions)
        sampled = []
        for name, count in counts.items():
            request = scheduler.requests[name]
            if scheduler_output.computed[name] + count < len(request.all_token_ids):
                sampled.append([])
                continue
            fed, said = scheduler_output.scheduled_spec_decode_tokens.get(name, []), []
            for draft in [*fed, None]:
                probe = SimpleNamespace(all_token_ids=request.all_token_ids + said)
                said += sample(probe, 1)
                if draft != said[-1]:
                    break
            sampled.append(said)
        return SimpleNamespace(
            sampled_token_ids=sampled, req_id_to_index={name: k for k, name in enumerate(counts)}
        )

    def _model_forward(self, input_ids=None, positions=None):
        self.write(input_ids[: self.total], positions[: self.total])

    def write(self, input_ids, positions):
        table = self.input_batch.block_table[0]
        slots = table.slot_mapping.gpu[: self.total]
        size = table.block_size
        values = (7 * input_ids + 31 * positions) % 251
        self.kv.transpose(1, 2)[slots // size, slots % size] = values[:, None, None].to(
            self.kv.dtype
        )
""",
    "v1/worker/gpu/model_runner.py": """
import numpy as np
from types import SimpleNamespace
from vllm.v1.worker import gpu_model_runner


class GPUModelRunner:
    def __init__(self, config):
        self.old = gpu_model_runner.GPUModelRunner(config)
        self.vllm_config, self.max_num_reqs = config, config.scheduler_config.max_num_seqs
        self.compilation_config = self.old.compilation_config
        self.kv_cache_config = self.old.kv_cache_config
        table = self.old.input_batch.block_table[0]
        self.block_tables = SimpleNamespace(
            block_sizes=[table.block_size], block_tables=[SimpleNamespace(gpu=table.cells)]
        )

    def initialize_kv_cache(self, kv_cache_config):
        return None

    def execute_model(self, scheduler_output, scheduler=None):
        old = self.old

        def prepared(input_ids=None, positions=None):
            held = old.input_batch
            counts = [scheduler_output.num_scheduled_tokens[name] for name in held.req_ids]
            starts = np.cumsum([0, *counts])
            self.prepare_attn(
                SimpleNamespace(
                    req_ids=held.req_ids,
                    num_reqs=held.num_reqs,
                    query_start_loc=starts,
                    seq_lens=old.seq_lens,
                    input_ids=input_ids,
                    positions=positions,
                )
            )
            old.write(input_ids[: old.total], positions[: old.total])

        old._model_forward = prepared
        return old.execute_model(scheduler_output, scheduler)

    def prepare_attn(self, input_batch):
        table = self.old.input_batch.block_table[0]
        return (table.cells[: input_batch.num_reqs],), table.slot_mapping.gpu[None]
""",
    "v1/engine/core.py": """
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu import model_runner as gpu_model_runner_v2


class UniProcExecutor:
    def __init__(self, runner):
        self.driver_worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))

    def execute_model(self, output, scheduler):
        return self.driver_worker.worker.model_runner.execute_model(output, scheduler)


class MultiprocExecutor:
    def __init__(self, runner):
        self._elsewhere = runner

    def execute_model(self, output, scheduler):
        return self._elsewhere.execute_model(output, scheduler)


class EngineCore:
    def __init__(self, vllm_config, runner="v1", executor="uni", before=None):
        if before is not None:
            before()
        module = gpu_model_runner_v2 if runner == "v2" else gpu_model_runner
        runner = module.GPUModelRunner(vllm_config)
        runner.initialize_kv_cache(None)
        kind = UniProcExecutor if executor == "uni" else MultiprocExecutor
        self.model_executor = kind(runner)
        self.scheduler = Scheduler(vllm_config)

    def step(self):
        output, connector = self.scheduler.schedule(), self.scheduler.connector
        if output.num_scheduled_tokens or connector is not None:
            result = SimpleNamespace(sampled_token_ids=[], req_id_to_index={})
            if output.num_scheduled_tokens:
                result = self.model_executor.execute_model(output, self.scheduler)
            if connector is not None:
                done, _ = connector.get_finished(set())
                result.kv_connector_output = SimpleNamespace(
                    finished_sending=done, finished_recving=None
                )
            self.scheduler.update_from_output(output, result)

    def shutdown(self):
        return None
""",
}


def write_package(folder: Path, *, version: str = VERSION, without: str = "") -> None:
    """Write the package into ``folder``.

    Args:
        folder: Where to.
        version: Version that it says it has.
        without: Name of a function or method that is called something else there.
    """
    files = {"__init__.py": f'__version__ = "{version}"\n', **_FILES}
    for name, text in files.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents:
            if parent.name:
                (folder / parent / "__init__.py").touch()
        path.write_text(text.replace(without, f"{without}_renamed") if without else text)
