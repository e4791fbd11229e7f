"""ForwardOutput: what one forward leaves for read-back (specification 3.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.canary.state import CanaryDeviceState


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutput:
    """Fixed buffer that each forward's results are copied to, for read-back one step later.

    Attributes:
        enable: [1] int32, minimum over groups; 0 = at least one group was not verified.
        kernel_run_counters, slot_run_counters: [num_tags] int64.
        write_index: [1] int32.
    """

    enable: torch.Tensor
    kernel_run_counters: torch.Tensor
    slot_run_counters: torch.Tensor
    write_index: torch.Tensor

    @classmethod
    def allocate(cls, state: CanaryDeviceState) -> ForwardOutput:
        import torch

        index = state.violation_log.write_index
        return cls(
            enable=torch.ones_like(index),
            kernel_run_counters=torch.zeros_like(state.kernel_run_counters),
            slot_run_counters=torch.zeros_like(state.slot_run_counters),
            write_index=torch.zeros_like(index),
        )

    def copy_from(self, state: CanaryDeviceState, enables: Sequence[torch.Tensor]) -> None:
        """Copy the shared counters and the minimum of the groups' ``enable`` cells."""
        import torch

        if enables:
            combined = enables[0]
            for enable in enables[1:]:
                combined = torch.minimum(combined, enable)
            self.enable.copy_(combined)
        self.kernel_run_counters.copy_(state.kernel_run_counters)
        self.slot_run_counters.copy_(state.slot_run_counters)
        self.write_index.copy_(state.violation_log.write_index)
