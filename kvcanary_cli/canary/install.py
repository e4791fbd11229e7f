"""What a runner refuses before it installs the canary, and the line that says it did (5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.canary.buffer_group import CanaryBufferGroup
    from kvcanary_cli.canary.config import CanaryConfig
    from kvcanary_cli.canary.perturb_config import PerturbConfig
    from kvcanary_cli.capacities.launch import CanaryLaunchCapacities

PIECEWISE_PREFILL_BACKEND = "tc_piecewise"


def check_installable(
    *, device_type: str, prefill_graph_backend: str, can_capture_decode: bool
) -> None:
    """Refuse graph settings under which the canary would not run.

    Args:
        device_type: torch device type; ``cuda`` includes ROCm.
        prefill_graph_backend: ``--cuda-graph-backend-prefill``.
        can_capture_decode: Whether the platform captures graphs and decode capture is not off.

    Raises:
        AssertionError: KVC-A03 for piecewise prefill graphs.
        ValueError: KVC-A04: a captured decode would hold no canary work and look clean for ever.
    """
    if prefill_graph_backend == PIECEWISE_PREFILL_BACKEND:
        raise AssertionError(
            "kv-canary: piecewise cuda graph is not supported by the current SingleForwardManager "
            "design; set --cuda-graph-backend-prefill=disabled (or =breakable) when canary is "
            "enabled"
        )
    if device_type != "cuda" and can_capture_decode:
        raise ValueError(
            f"kv-canary: {device_type} has no canary CUDA kernels and its torch reference cannot "
            "be graph-captured; pass --disable-cuda-graph (or "
            "--cuda-graph-backend-decode=disabled) when canary is enabled"
        )


def install_line(
    *,
    config: CanaryConfig,
    perturb_config: PerturbConfig,
    capacities: CanaryLaunchCapacities,
    groups: Sequence[CanaryBufferGroup],
    swa_window_size: int,
    speculative_num_steps: int,
    disaggregation_mode: str = "null",
) -> str:
    """The line of KVC-L01; its absence in a log means that no canary is installed."""
    return (
        f"install_canary: disaggregation_mode={disaggregation_mode} config={config} "
        f"perturb_config={perturb_config} launch_capacities={capacities} "
        f"n_buffer_groups={len(groups)} "
        f"buffer_group_kinds={[group.kind.name for group in groups]} "
        f"swa_window_size={swa_window_size} speculative_num_steps={speculative_num_steps}"
    )
