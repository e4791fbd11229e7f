"""A canary buffer and a batch on the device, as a server's step has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.abi.faults import new_fault_cell
from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.abi.sources import RealKvSource

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

Launch = dict[str, Any]


class Pool:
    """A canary buffer and a batch on the device: every row a request whose prefix is cached."""

    def __init__(
        self,
        backend: Backend,
        *,
        rows: int,
        prefix: int,
        extend: int,
        num_slots: int,
        source_bytes: int = 0,
        mode: RealKvHashMode = RealKvHashMode.NONE,
    ) -> None:
        self.backend = backend
        device = backend.device
        width = prefix + extend
        slots = torch.randperm(num_slots - 1, device=device)[: rows * width] + 1
        table = slots.view(rows, width).to(torch.int32)
        self.plan_inputs: Launch = {
            "req_pool_indices": torch.arange(1, rows + 1, device=device),
            "prefix_lens": torch.full((rows,), prefix, dtype=torch.int64, device=device),
            "extend_seq_lens": torch.full((rows,), extend, dtype=torch.int64, device=device),
            "req_to_token": torch.cat([torch.zeros_like(table[:1]), table]).contiguous(),
            "swa_window_size": 0,
            "full_to_swa_index_mapping": None,
            "verify_capacity": max(1, rows * prefix),
            "verify_plan_out": VerifyPlan.allocate(
                verify_capacity=max(1, rows * prefix), device=device
            ),
            "write_plan_out": WritePlan.allocate(write_req_capacity=rows, device=device),
        }
        self.fault = new_fault_cell(device)
        sources: tuple[RealKvSource, ...] = ()
        if source_bytes:
            data = torch.randint(
                0, 256, (num_slots, source_bytes), dtype=torch.uint8, device=device
            )
            sources = (
                RealKvSource(
                    tensor=data,
                    page_size=1,
                    num_bytes_per_token=source_bytes,
                    read_bytes=source_bytes,
                ),
            )
        self.context: Launch = {
            "canary_buf": torch.zeros((num_slots, 32), dtype=torch.uint8, device=device),
            "violation_ring": torch.zeros((1024, 8), dtype=torch.int64, device=device),
            "violation_write_index": torch.zeros(1, dtype=torch.int32, device=device),
            "slot_run_counter": torch.zeros(1, dtype=torch.int64, device=device),
            "kernel_run_counter": torch.zeros(1, dtype=torch.int64, device=device),
            "kernel_kind": 0,
            "real_kv_sources": sources,
            "real_kv_hash_mode": mode,
            "fault": self.fault,
        }
        self.batch = self._batch(prefix, extend)
        self._fill_prefixes(prefix)

    def _batch(self, start: int, count: int) -> Launch:
        table = self.plan_inputs["req_to_token"][1:, start : start + count]
        rows = table.shape[0]
        positions = torch.arange(start, start + count, device=self.backend.device)
        return {
            "input_ids": torch.randint(0, 1 << 17, (rows * count,), device=self.backend.device),
            "positions": positions.repeat(rows),
            "out_cache_loc": table.reshape(-1).to(torch.int64),
            "enable_chain_position_assert": torch.ones(
                1, dtype=torch.int32, device=self.backend.device
            ),
        }

    def _fill_prefixes(self, prefix: int) -> None:
        """Write every row's prefix, so that the verify step has nothing to report."""
        if prefix:
            lens = self.plan_inputs["prefix_lens"]
            inputs = {
                **self.plan_inputs,
                "prefix_lens": torch.zeros_like(lens),
                "extend_seq_lens": lens,
            }
            self.backend.plan(**inputs, fault=self.fault)
            self._write(self._batch(0, prefix))
        self.plan()

    def _write(self, batch: Launch) -> None:
        self.backend.write(**self.context, plan=self.plan_inputs["write_plan_out"], **batch)

    def plan(self) -> None:
        self.backend.plan(**self.plan_inputs, fault=self.fault)

    def verify(self) -> None:
        self.backend.verify(**self.context, plan=self.plan_inputs["verify_plan_out"])

    def write(self) -> None:
        self._write(self.batch)

    def step(self) -> None:
        self.plan()
        self.verify()
        self.write()

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of everything that a step leaves behind."""
        verify_plan, write_plan = (
            self.plan_inputs[name] for name in ("verify_plan_out", "write_plan_out")
        )
        kept = {
            name: self.context[name]
            for name in (
                "canary_buf",
                "violation_write_index",
                "slot_run_counter",
                "kernel_run_counter",
                "fault",
            )
        }
        kept |= {
            "slots": verify_plan.verify_slot_indices,
            "prevs": verify_plan.verify_prev_slot_indices,
            "num_valid": verify_plan.verify_num_valid,
            "offsets": write_plan.write_offsets,
            "seeds": write_plan.write_seed_slot_indices,
        }
        return {name: tensor.clone() for name, tensor in kept.items()}

    def clear(self) -> None:
        """Forget counts, keep the buffer."""
        for name in ("violation_write_index", "slot_run_counter", "kernel_run_counter"):
            self.context[name].zero_()
