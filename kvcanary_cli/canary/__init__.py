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
    from kvcanary_cli.canary.delayed_copy import (
        DelayedHostCopy,
        FutureTensors,
    )
    from kvcanary_cli.canary.enable_warner import (
        EnableWarner,
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
    from kvcanary_cli.canary.forward_output import (
        ForwardOutput,
    )
    from kvcanary_cli.canary.health import (
        HealthChecker,
    )
    from kvcanary_cli.canary.install import (
        check_installable,
        install_line,
    )
    from kvcanary_cli.canary.manager import (
        CanaryManager,
    )
    from kvcanary_cli.canary.model_patch import (
        patch_model_forward,
    )
    from kvcanary_cli.canary.oracle import (
        TokenOracle,
        TokenOracleManager,
        request_id_hash,
    )
    from kvcanary_cli.canary.perturb import (
        PerturbManager,
    )
    from kvcanary_cli.canary.perturb_config import (
        PerturbConfig,
    )
    from kvcanary_cli.canary.phase import (
        Phase,
        PhaseChecker,
        PhaseMismatchError,
    )
    from kvcanary_cli.canary.plan_input import (
        PlanInput,
    )
    from kvcanary_cli.canary.pool_patch import (
        PoolDescription,
        attach_canary_buffers,
        splice_buffer_infos,
    )
    from kvcanary_cli.canary.prefix_walk import (
        PrefixIndex,
        PrefixNode,
        SweepEntries,
        walk_prefix_cache,
    )
    from kvcanary_cli.canary.single_forward_manager import (
        SingleForwardManager,
    )
    from kvcanary_cli.canary.state import (
        CanaryDeviceState,
        ViolationLog,
    )
    from kvcanary_cli.canary.stats import (
        StatsLogger,
    )
    from kvcanary_cli.canary.swa_report import (
        SwaDivergenceReport,
    )
    from kvcanary_cli.canary.sweep import (
        SweepOrchestrator,
        build_sweep_plan,
    )
    from kvcanary_cli.canary.violation_text import (
        ViolationRow,
        parse_violation_line,
        violation_block,
        violation_line,
    )
    from kvcanary_cli.canary.violations import (
        ViolationManager,
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
    "delayed_copy": (
        "DelayedHostCopy",
        "FutureTensors",
    ),
    "enable_warner": ("EnableWarner",),
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
    "forward_output": ("ForwardOutput",),
    "health": ("HealthChecker",),
    "install": (
        "check_installable",
        "install_line",
    ),
    "manager": ("CanaryManager",),
    "model_patch": ("patch_model_forward",),
    "oracle": (
        "TokenOracle",
        "TokenOracleManager",
        "request_id_hash",
    ),
    "perturb": ("PerturbManager",),
    "perturb_config": ("PerturbConfig",),
    "phase": (
        "Phase",
        "PhaseChecker",
        "PhaseMismatchError",
    ),
    "plan_input": ("PlanInput",),
    "pool_patch": (
        "PoolDescription",
        "attach_canary_buffers",
        "splice_buffer_infos",
    ),
    "prefix_walk": (
        "PrefixIndex",
        "PrefixNode",
        "SweepEntries",
        "walk_prefix_cache",
    ),
    "single_forward_manager": ("SingleForwardManager",),
    "state": (
        "CanaryDeviceState",
        "ViolationLog",
    ),
    "stats": ("StatsLogger",),
    "swa_report": ("SwaDivergenceReport",),
    "sweep": (
        "SweepOrchestrator",
        "build_sweep_plan",
    ),
    "violation_text": (
        "ViolationRow",
        "parse_violation_line",
        "violation_block",
        "violation_line",
    ),
    "violations": ("ViolationManager",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "READ_WHOLE_ROW",
    "CanaryBufferGroup",
    "CanaryConfig",
    "CanaryDeviceState",
    "CanaryManager",
    "CanaryMode",
    "DelayedHostCopy",
    "EnableWarner",
    "Endpoint",
    "ExpectedTokens",
    "ForwardBatch",
    "ForwardLaunch",
    "ForwardOutput",
    "FutureTensors",
    "HealthChecker",
    "InputOracle",
    "LaunchObserver",
    "PerturbConfig",
    "PerturbManager",
    "Phase",
    "PhaseChecker",
    "PhaseMismatchError",
    "PlanInput",
    "PoolDescription",
    "PrefixIndex",
    "PrefixNode",
    "SingleForwardManager",
    "SnapshotTokens",
    "StatsLogger",
    "SwaDivergenceReport",
    "SweepEntries",
    "SweepOrchestrator",
    "TokenOracle",
    "TokenOracleManager",
    "ViolationLog",
    "ViolationManager",
    "ViolationRow",
    "attach_canary_buffers",
    "build_sweep_plan",
    "check_installable",
    "install_line",
    "make_endpoints",
    "parse_violation_line",
    "patch_model_forward",
    "read_bytes_of_mode",
    "real_kv_source_from_rows",
    "request_id_hash",
    "splice_buffer_infos",
    "violation_block",
    "violation_line",
    "walk_prefix_cache",
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
