"""The canary system as a library: groups, managers, sweeps, reports (docs/canary.md).

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcanary_cli.canary.buffer_group import (
        READ_WHOLE_ROW,
        CanaryBufferGroup,
        read_bytes_of_mode,
        real_kv_source_from_rows,
    )
    from kvcanary_cli.canary.config import (
        CanaryConfig,
        CanaryMode,
    )
    from kvcanary_cli.canary.endpoint import (
        Endpoint,
        ForwardLaunch,
        LaunchObserver,
        make_endpoints,
    )
    from kvcanary_cli.canary.expected_tokens import (
        ExpectedTokens,
        InputOracle,
        SnapshotTokens,
    )
    from kvcanary_cli.canary.forward_batch import (
        ForwardBatch,
    )
    from kvcanary_cli.canary.phase import (
        Phase,
        PhaseChecker,
        PhaseMismatchError,
    )
    from kvcanary_cli.canary.plan_input import (
        PlanInput,
    )
    from kvcanary_cli.canary.single_forward_manager import (
        ForwardOutput,
        SingleForwardManager,
    )
    from kvcanary_cli.canary.state import (
        CanaryDeviceState,
        ViolationLog,
    )

_HOMES = {
    "buffer_group": (
        "CanaryBufferGroup",
        "READ_WHOLE_ROW",
        "read_bytes_of_mode",
        "real_kv_source_from_rows",
    ),
    "config": (
        "CanaryConfig",
        "CanaryMode",
    ),
    "endpoint": (
        "Endpoint",
        "ForwardLaunch",
        "LaunchObserver",
        "make_endpoints",
    ),
    "expected_tokens": (
        "ExpectedTokens",
        "InputOracle",
        "SnapshotTokens",
    ),
    "forward_batch": ("ForwardBatch",),
    "phase": (
        "Phase",
        "PhaseChecker",
        "PhaseMismatchError",
    ),
    "plan_input": ("PlanInput",),
    "single_forward_manager": (
        "ForwardOutput",
        "SingleForwardManager",
    ),
    "state": (
        "CanaryDeviceState",
        "ViolationLog",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "READ_WHOLE_ROW",
    "CanaryBufferGroup",
    "CanaryConfig",
    "CanaryDeviceState",
    "CanaryMode",
    "Endpoint",
    "ExpectedTokens",
    "ForwardBatch",
    "ForwardLaunch",
    "ForwardOutput",
    "InputOracle",
    "LaunchObserver",
    "Phase",
    "PhaseChecker",
    "PhaseMismatchError",
    "PlanInput",
    "SingleForwardManager",
    "SnapshotTokens",
    "ViolationLog",
    "make_endpoints",
    "read_bytes_of_mode",
    "real_kv_source_from_rows",
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
