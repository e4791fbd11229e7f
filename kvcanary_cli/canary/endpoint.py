"""Endpoint: one launch tag bound to its buffer, sources and counters (specification 1.5, 1.12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvcanary_cli.abi.constants import LaunchTag, PoolKind, RealKvHashMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.abi.sources import RealKvSource
    from kvcanary_cli.backends.interface import Backend
    from kvcanary_cli.canary.buffer_group import CanaryBufferGroup
    from kvcanary_cli.canary.state import CanaryDeviceState


class LaunchObserver(Protocol):
    """Sees every launch of a forward; called in launch order, with the live tensors.

    Plans and tensors may be reused by the next forward: an observer that keeps them copies them.
    """

    def after_plan(self, group_index: int, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        """Called once per group and forward; may edit both plans in place."""

    def before_verify(self, endpoint: Endpoint, plan: VerifyPlan) -> None: ...

    def after_verify(self, endpoint: Endpoint, plan: VerifyPlan) -> None: ...

    def before_write(
        self,
        endpoint: Endpoint,
        plan: WritePlan,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
        expected_tokens: torch.Tensor | None,
        expected_positions: torch.Tensor | None,
    ) -> None:
        """``out_cache_loc`` is already translated for SWA groups."""

    def after_write(
        self,
        endpoint: Endpoint,
        plan: WritePlan,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
        expected_tokens: torch.Tensor | None,
        expected_positions: torch.Tensor | None,
    ) -> None: ...


@dataclass(slots=True)
class ForwardLaunch:
    """What HEAD and TAIL of one group share in one forward.

    Attributes:
        verify_plan, write_plan: From the one plan step of the group.
        input_ids, positions, out_cache_loc: [num_tokens] int64; the last one translated.
        expected_tokens, expected_positions: [num_tokens] int64, or both None (no input assert).
    """

    verify_plan: VerifyPlan
    write_plan: WritePlan
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
    expected_tokens: torch.Tensor | None
    expected_positions: torch.Tensor | None


class Endpoint:
    """One tag of one group. Tag families differ in buffer, sources and operations:

    HEAD verifies and writes the head buffer without sources (fingerprint always 0), TAIL the tail
    buffer with the group's sources, SWEEP only verifies the tail buffer, tokens not compared.
    """

    __slots__ = ("_common", "_flag", "_launch", "canary_buf", "group_index", "sources", "tag")

    def __init__(
        self,
        *,
        tag: LaunchTag,
        group_index: int,
        canary_buf: torch.Tensor,
        sources: Sequence[RealKvSource],
        backend: Backend,
        state: CanaryDeviceState,
        real_kv_hash_mode: RealKvHashMode,
    ) -> None:
        self.tag = tag
        self.group_index = group_index
        self.canary_buf = canary_buf
        self.sources = tuple(sources)
        self._launch = backend
        self._flag = state.enable_chain_position_assert
        # One dictionary for the endpoint's life: a launch then costs no slicing.
        self._common: dict[str, Any] = {
            "canary_buf": canary_buf,
            "kernel_kind": int(tag),
            "violation_ring": state.violation_log.ring,
            "violation_write_index": state.violation_log.write_index,
            "slot_run_counter": state.slot_run_counters[tag : tag + 1],
            "kernel_run_counter": state.kernel_run_counters[tag : tag + 1],
            "real_kv_sources": self.sources,
            "real_kv_hash_mode": real_kv_hash_mode,
            "fault": state.fault,
        }

    def launch_per_forward(self, launch: ForwardLaunch, observer: LaunchObserver | None) -> None:
        """Verify the prefixes, then write this forward's rows.

        Raises:
            NotImplementedError: KVC-R12 on a SWEEP endpoint.
            ValueError: From the backend's argument checks.
        """
        if self.tag.is_sweep:
            raise NotImplementedError(
                f"kv-canary: launch_per_forward not supported on SWEEP endpoint {self.tag.name}"
            )
        if observer is None:
            self._verify(launch.verify_plan)
            self._write(launch)
            return
        observer.before_verify(self, launch.verify_plan)
        self._verify(launch.verify_plan)
        observer.after_verify(self, launch.verify_plan)
        written = (
            self,
            launch.write_plan,
            launch.input_ids,
            launch.positions,
            launch.out_cache_loc,
            launch.expected_tokens,
            launch.expected_positions,
        )
        observer.before_write(*written)
        self._write(launch)
        observer.after_write(*written)

    def launch_sweep(self, plan: VerifyPlan, observer: LaunchObserver | None = None) -> None:
        """Verify what the prefix cache holds; expected tokens are not read.

        Raises:
            NotImplementedError: KVC-R12 on a HEAD or TAIL endpoint.
        """
        if not self.tag.is_sweep:
            raise NotImplementedError(
                f"kv-canary: launch_sweep not supported on per-forward endpoint {self.tag.name}"
            )
        if observer is not None:
            observer.before_verify(self, plan)
        self._launch.verify(plan=plan, check_verify_expected_token=False, **self._common)
        if observer is not None:
            observer.after_verify(self, plan)

    def _verify(self, plan: VerifyPlan) -> None:
        self._launch.verify(plan=plan, **self._common)

    def _write(self, launch: ForwardLaunch) -> None:
        self._launch.write(
            plan=launch.write_plan,
            input_ids=launch.input_ids,
            positions=launch.positions,
            out_cache_loc=launch.out_cache_loc,
            enable_chain_position_assert=self._flag,
            expected_input_tokens=launch.expected_tokens,
            expected_input_positions=launch.expected_positions,
            enable_write_input_assert=launch.expected_tokens is not None,
            **self._common,
        )


def make_endpoints(
    groups: Sequence[CanaryBufferGroup],
    *,
    backend: Backend,
    state: CanaryDeviceState,
    real_kv_hash_mode: RealKvHashMode,
) -> tuple[Endpoint, ...]:
    """Endpoints of all groups: HEAD_K, HEAD_V, TAIL_K, TAIL_V, SWEEP_K, SWEEP_V of each.

    V endpoints exist only where the group has a V half; whether they are launched is the caller's
    gate.

    Raises:
        ValueError: Two groups of one kind, which would share tags and counters.
    """
    kinds = [group.kind for group in groups]
    if len(set(kinds)) != len(kinds):
        raise ValueError(
            "kv-canary: at most one buffer group of each kind, got "
            f"{[kind.name for kind in kinds]}; give a draft pool its own manager"
        )
    endpoints: list[Endpoint] = []
    for index, group in enumerate(groups):
        base = 6 if group.kind is PoolKind.SWA else 0
        k_sources, v_sources = group.real_kv_sources_k, group.real_kv_sources_v
        rows: list[tuple[int, torch.Tensor | None, tuple[RealKvSource, ...]]] = [
            (0, group.k_head, ()),
            (1, group.v_head, ()),
            (2, group.k_tail, k_sources),
            (3, group.v_tail, v_sources),
            (4, group.k_tail, k_sources),
            (5, group.v_tail, v_sources),
        ]
        endpoints.extend(
            Endpoint(
                tag=LaunchTag(base + offset),
                group_index=index,
                canary_buf=buffer,
                sources=sources,
                backend=backend,
                state=state,
                real_kv_hash_mode=real_kv_hash_mode,
            )
            for offset, buffer, sources in rows
            if buffer is not None
        )
    return tuple(endpoints)
