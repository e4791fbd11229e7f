"""A package ``sglang`` with the classes that the recorder hooks, a few lines each.

``write_package`` puts it into a folder; the modules have the real names, so that the import hook,
the missing-hook report and the hooks themselves work as in the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0.5.23"

_FILES = {
    "managers/scheduler.py": """
from types import SimpleNamespace
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.model_executor.model_runner import ModelRunner


class Scheduler:
    def __init__(self, slots=64, rows=5, row_len=32):
        kv = MHATokenToKVPool(slots)
        self.server_args = SimpleNamespace(
            model_path="m", api_key="sk-secret", tp_size=1, max_running_requests=rows - 1
        )
        self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(slots, kv)
        self.req_to_token_pool = ReqToTokenPool(rows, row_len)
        self.tree_cache = UnifiedRadixCache(
            self.token_to_kv_pool_allocator, self.req_to_token_pool
        )
        self.tp_worker = SimpleNamespace(model_runner=ModelRunner(self))

    def process_batch_result(self, batch):
        batch.done = True

    def on_idle(self):
        return None
""",
    "managers/schedule_batch.py": """
from sglang.srt.mem_cache.allocation import alloc_for_decode, alloc_for_extend


def release_req(*, req, tree_cache):
    tree_cache.free_kv_row(req.kv, [(0, req.kv.length)])
    tree_cache.req_to_token_pool.free(req)
""",
    "mem_cache/allocation.py": """
import torch


def alloc_for_extend(batch):
    pool, allocator = batch.req_to_token_pool, batch.tree_cache.token_to_kv_pool_allocator
    out = allocator.alloc(sum(batch.extend_lens))
    start = 0
    for req, count in zip(batch.reqs, batch.extend_lens):
        if not req.kv.holds_kv:
            req.kv.req_pool_idx = pool.free_rows.pop()
            pool.req_to_token[req.kv.req_pool_idx, : req.prefix_len] = req.prefix.int()
        row = req.kv.req_pool_idx
        stop = req.prefix_len + count
        pool.req_to_token[row, req.prefix_len : stop] = out[start : start + count].int()
        req.kv.length = stop
        start += count
    return out


def alloc_for_decode(batch, token_per_req):
    out = batch.tree_cache.token_to_kv_pool_allocator.alloc(len(batch.reqs))
    for req, slot in zip(batch.reqs, out):
        batch.req_to_token_pool.req_to_token[req.kv.req_pool_idx, req.kv.length] = int(slot)
        req.kv.length += 1
    return out


def alloc_for_spec_decode():
    raise NotImplementedError
""",
    "mem_cache/allocator/base.py": """
import torch


class BaseTokenToKVPoolAllocator:
    def free_group_begin(self):
        self.group = []

    def free_group_end(self):
        pending, self.group = self.group, None
        if pending:
            self.free(torch.cat(pending))
""",
    "mem_cache/allocator/token.py": """
import torch
from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator


class TokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    def __init__(self, size, kv):
        self.size, self.page_size, self.kv = size, 1, kv
        self.clear()

    def clear(self):
        self.pages, self.group = torch.arange(1, self.size + 1), None

    def get_kvcache(self):
        return self.kv

    def alloc(self, count):
        out, self.pages = self.pages[:count], self.pages[count:]
        return out

    def free(self, slots):
        if self.group is not None:
            self.group.append(slots.clone())
        else:
            self.pages = torch.cat((self.pages, slots))
""",
    "mem_cache/base_prefix_cache.py": """
class BasePrefixCache:
    def free_kv_row(self, kv, ranges):
        row = self.req_to_token_pool.req_to_token[kv.req_pool_idx]
        for start, stop in ranges:
            self.token_to_kv_pool_allocator.free(row[start:stop].long())
""",
    "mem_cache/unified_radix_cache.py": """
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache


class UnifiedRadixCache(BasePrefixCache):
    def __init__(self, allocator, pool):
        self.token_to_kv_pool_allocator, self.req_to_token_pool = allocator, pool
        self.held = None

    def checkpoint_into_tree(self, req, *, up_to):
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        if self.held is None:
            self.held = row[:up_to].long().clone()
        else:
            same = min(up_to, len(self.held))
            duplicates = row[req.kv.cache_protected_len : same].long().clone()
            self.token_to_kv_pool_allocator.free(duplicates)
            row[:same] = self.held[:same].int()
        req.kv.cache_protected_len = up_to

    def _drain_device_frees(self, frees):
        for slots in frees:
            self.token_to_kv_pool_allocator.free(slots)
""",
    "mem_cache/memory_pool.py": """
import torch


class ReqToTokenPool:
    def __init__(self, rows, row_len):
        self.req_to_token = torch.zeros((rows, row_len), dtype=torch.int32)
        self.free_rows = list(range(1, rows))

    def free(self, req):
        self.free_rows.append(req.kv.req_pool_idx)
        req.kv.req_pool_idx = None


class MHATokenToKVPool:
    def __init__(self, size):
        self.k_buffer = [torch.zeros((size + 1, 2, 8), dtype=torch.bfloat16)]

    def move_kv_cache(self, tgt_loc, src_loc):
        self.k_buffer[0][tgt_loc] = self.k_buffer[0][src_loc]
""",
    "model_executor/model_runner.py": """
class ModelRunner:
    def __init__(self, scheduler):
        self.is_draft_worker, self.sliding_window_size = False, None
        self.server_args = scheduler.server_args
        self.token_to_kv_pool_allocator = scheduler.token_to_kv_pool_allocator
        self.req_to_token_pool = scheduler.req_to_token_pool

    def forward(self, batch):
        keys = self.token_to_kv_pool_allocator.kv.k_buffer[0]
        for slot, token, position in zip(batch.out_cache_loc, batch.input_ids, batch.positions):
            keys[slot] = float(token) + float(position) / 64
        return len(batch.rids)
""",
}


def write_package(folder: Path, *, version: str = VERSION, without: str | None = None) -> None:
    """Write the package ``sglang`` into ``folder``.

    Args:
        folder: To go onto ``sys.path``.
        version: What it calls itself.
        without: A function or method (its ``def`` line's name) that is named otherwise, as in a
            version that has moved it.
    """
    root = folder / "sglang"
    for name, text in _FILES.items():
        path = root / "srt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if without is not None:
            text = text.replace(f"def {without}(", f"def {without}_moved(")
        path.write_text(text)
    for package in (root, *[p for p in root.rglob("*") if p.is_dir()]):
        (package / "__init__.py").touch()
    (root / "__init__.py").write_text(f'__version__ = "{version}"\n')
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
