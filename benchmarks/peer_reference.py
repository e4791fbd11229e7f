"""Time the public package's torch reference; runs in an interpreter that has that package.

Reads one request a line from standard input, ``{"op": "verify", "entries": 10000}``, and answers
each with ``{"seconds": ..}`` for one run of that operation. The first line it prints says what it
runs on.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from sglang.kernels.ops.kv_canary.consts import RealKvHashMode
from sglang.kernels.ops.kv_canary.plan_ref import launch_canary_plan_kernels_torch_reference
from sglang.kernels.ops.kv_canary.verify import CanaryLaunchTag, VerifyOrWriteContext, VerifyPlan
from sglang.kernels.ops.kv_canary.verify_ref import launch_canary_verify_kernel_torch_reference
from sglang.kernels.ops.kv_canary.write import WritePlan
from sglang.kernels.ops.kv_canary.write_ref import launch_canary_write_kernel_torch_reference
from workload import Workload, make_workload


class Peer:
    """The three operations over one workload."""

    def __init__(self, load: Workload) -> None:
        self.load = load
        cpu = torch.device("cpu")
        self.verify_plan = VerifyPlan.allocate(verify_capacity=load.entries, device=cpu)
        self.write_plan = WritePlan.allocate(write_req_capacity=load.requests, device=cpu)
        self.context = VerifyOrWriteContext(
            canary_buf=load.canary_buf,
            kernel_kind=CanaryLaunchTag.HEAD_K_FULL,
            violation_ring=load.violation_ring,
            violation_write_index=load.violation_write_index,
            slot_run_counter=load.slot_run_counter,
            kernel_run_counter=load.kernel_run_counter,
            real_kv_sources=(),
            real_kv_hash_mode=RealKvHashMode.NONE,
            enable_chain_position_assert=load.chain_flag,
        )

    def _plan(self, prefix: torch.Tensor, extend: torch.Tensor) -> None:
        load = self.load
        launch_canary_plan_kernels_torch_reference(
            verify_plan_out=self.verify_plan,
            write_plan_out=self.write_plan,
            req_pool_indices=load.req_pool_indices,
            prefix_lens=prefix,
            extend_seq_lens=extend,
            req_to_token=load.req_to_token,
            swa_window_size=0,
            full_to_swa_index_mapping=None,
            verify_capacity=load.entries,
            req_to_verify_expected_tokens=None,
            req_to_verify_expected_tokens_valid_lens=None,
            kv_token_id_vs_position_offset=0,
        )

    def run(self, op: str) -> float:
        """Seconds of one run; what it needs beforehand is prepared outside the timing."""
        load = self.load
        plan_args = (load.zeros, load.lens) if op == "write" else (load.lens, load.zeros)
        if op != "plan":
            self._plan(*plan_args)
        start = time.perf_counter()
        if op == "plan":
            self._plan(*plan_args)
        elif op == "verify":
            launch_canary_verify_kernel_torch_reference(
                context=self.context, plan=self.verify_plan, check_verify_expected_token=True
            )
        else:
            launch_canary_write_kernel_torch_reference(
                context=self.context,
                plan=self.write_plan,
                input_ids=load.tokens,
                positions=load.positions,
                out_cache_loc=load.slots,
                enable_write_input_assert=False,
                expected_input_tokens=None,
                expected_input_positions=None,
            )
        return time.perf_counter() - start


@cache
def _peer(entries: int) -> Peer:
    return Peer(make_workload(entries))


def _answer(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    _answer({"sglang": version("sglang"), "torch": version("torch")})
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "verify":
            # Rows must be there to be verified; whoever asks has had them written before.
            assert int(_peer(request["entries"]).load.slot_run_counter) > 0
        _answer({"seconds": _peer(request["entries"]).run(request["op"])})
        _peer(request["entries"]).load.violation_write_index.zero_()


if __name__ == "__main__":
    main()
