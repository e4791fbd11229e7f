"""A server on the fake engine: ``python fake_server.py FORWARDS [pause seconds a forward]``.

It starts nothing of the recorder by itself. Standard output says ``forward N`` after each forward.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any


class FakeServer:
    """Runs requests of one prefill and some decodes, one after the other."""

    def __init__(self, prompt: list[int] | None = None) -> None:
        from sglang.srt.managers.scheduler import Scheduler

        self.scheduler: Any = Scheduler()
        self.prompt = prompt or [11, 12, 13, 14]
        self.requests = 0

    def start(self, prefix: Any = None) -> Any:
        """A request after its prefill."""
        import torch
        from sglang.srt.mem_cache.allocation import alloc_for_extend

        prefix = torch.zeros(0, dtype=torch.int64) if prefix is None else prefix
        kv = SimpleNamespace(req_pool_idx=None, cache_protected_len=len(prefix), length=0)
        req = SimpleNamespace(
            rid=f"r{self.requests}",
            prefix=prefix,
            prefix_len=len(prefix),
            origin_input_ids=list(self.prompt),
            output_ids=[],
            finished_reason=None,
            to_finish=None,
            kv=_Kv(kv),
        )
        self.requests += 1
        fresh = len(self.prompt) - len(prefix)
        out = alloc_for_extend(self._batch([req], extend_lens=[fresh]))
        self._forward("EXTEND", [req], self.prompt[len(prefix) :], out, fresh)
        return req

    def decode(self, reqs: list[Any]) -> None:
        from sglang.srt.mem_cache.allocation import alloc_for_decode

        for req in reqs:
            req.output_ids.append(100 + len(req.output_ids))
        out = alloc_for_decode(self._batch(reqs), 1)
        self._forward("DECODE", reqs, [req.output_ids[-1] for req in reqs], out, 1)

    def finish(self, req: Any, *, cache: bool = True) -> None:
        scheduler = self.scheduler
        req.finished_reason = SimpleNamespace()
        kv = req.kv
        if cache:
            scheduler.tree_cache.checkpoint_into_tree(req, up_to=kv.length)
        scheduler.tree_cache.free_kv_row(kv, [(kv.cache_protected_len, kv.length)])
        scheduler.req_to_token_pool.free(req)

    def _batch(self, reqs: list[Any], **fields: Any) -> Any:
        scheduler = self.scheduler
        return SimpleNamespace(
            reqs=reqs,
            req_to_token_pool=scheduler.req_to_token_pool,
            tree_cache=scheduler.tree_cache,
            **fields,
        )

    def _forward(self, mode: str, reqs: list[Any], ids: list[int], out: Any, count: int) -> None:
        import numpy as np
        import torch

        lengths = [req.kv.length for req in reqs]
        extend = mode == "EXTEND"
        positions = [p for n in lengths for p in range(n - count, n)]
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(name=mode),
            rids=[req.rid for req in reqs],
            req_pool_indices=torch.tensor([req.kv.req_pool_idx for req in reqs]),
            seq_lens=torch.tensor(lengths),
            seq_lens_cpu=np.array(lengths),
            input_ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            out_cache_loc=out.clone(),
            spec_info=None,
            extend_seq_lens=torch.tensor([count] * len(reqs)) if extend else None,
            extend_prefix_lens=torch.tensor([n - count for n in lengths]) if extend else None,
        )
        self.scheduler.tp_worker.model_runner.forward(batch)
        self.scheduler.process_batch_result(batch)


class _Kv:
    """The engine's record of a request's row."""

    def __init__(self, fields: SimpleNamespace) -> None:
        self.__dict__.update(vars(fields))

    @property
    def holds_kv(self) -> bool:
        return bool(self.__dict__["req_pool_idx"] is not None)


def main() -> None:
    forwards, pause_s = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    server, done = FakeServer(), 0
    while done < forwards:
        req = server.start()
        for _ in range(6):
            server.decode([req])
            time.sleep(pause_s)
        done += 7
        server.finish(req, cache=False)
        sys.stdout.write(f"forward {done}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
