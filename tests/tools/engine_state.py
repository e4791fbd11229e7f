"""What the engine's own canary held at the end of a recorded run, for parity tests.

One ``NAME.engine.npz`` stands beside the trace of each capture whose engine ran the canary.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.errors import InputError
from tests.tools.capture_rows import ints

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPTURES = Path(__file__).resolve().parents[1] / "data" / "captures"
TAGS = 12
RING_FIELDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """The canary of the engine after the last forward.

    Attributes:
        config: The recorded canary configuration.
        k_head, k_tail, v_head, v_tail: [slots + 1, 32] uint8, buffers of the FULL group. The V
            half is zero where ``config["enable_mha_v"]`` is "0".
        violation_ring: [violations, 8] int64, the used rows, in the engine's order.
        violation_write_index: [steps] int64, right after each forward (sweep included).
        slot_run_counters, kernel_run_counters: [steps, 12] int64 by launch tag, right after each
            forward; the last row is the final state.
        swa_k_head, swa_k_tail: [swa slots + 1, 32] uint8 of the SWA group, or None.
        lut_final: [slots + 2] int64, full-to-SWA table at the end (0 = evicted, last entry -1),
            or None.
    """

    config: dict[str, Any]
    k_head: NDArray[np.uint8]
    k_tail: NDArray[np.uint8]
    v_head: NDArray[np.uint8]
    v_tail: NDArray[np.uint8]
    violation_ring: NDArray[np.int64]
    violation_write_index: NDArray[np.int64]
    slot_run_counters: NDArray[np.int64]
    kernel_run_counters: NDArray[np.int64]
    swa_k_head: NDArray[np.uint8] | None = None
    swa_k_tail: NDArray[np.uint8] | None = None
    lut_final: NDArray[np.int64] | None = None


def engine_state(capture: dict[str, Any]) -> EngineState:
    """The canary's final state in a capture.

    Raises:
        InputError: The engine ran without its canary.
    """
    if "canary" not in capture:
        raise InputError(f"capture {capture['name']} was recorded without the engine's canary")
    canary, swa = capture["canary"], capture.get("canary_swa")
    per_step = [step["canary"] for step in capture["steps"]]
    violations = ints(canary["violation_write_index"])[0]
    ring = np.asarray(canary["violation_ring"], dtype=np.int64)[:violations]
    return EngineState(
        config=json.loads(canary["config"]),
        **{
            name: np.asarray(canary[name], dtype=np.uint8)
            for name in ("k_head", "k_tail", "v_head", "v_tail")
        },
        violation_ring=ring.reshape(-1, RING_FIELDS),
        violation_write_index=np.array(
            [step["violation_write_index"] for step in per_step], dtype=np.int64
        ),
        slot_run_counters=_counters(per_step, "slot_run_counters"),
        kernel_run_counters=_counters(per_step, "kernel_run_counters"),
        swa_k_head=np.asarray(swa["k_head"], dtype=np.uint8) if swa else None,
        swa_k_tail=np.asarray(swa["k_tail"], dtype=np.uint8) if swa else None,
        lut_final=np.asarray(swa["lut_final"], dtype=np.int64) if swa else None,
    )


def _counters(per_step: list[dict[str, Any]], name: str) -> NDArray[np.int64]:
    return np.array([ints(step[name]) for step in per_step], dtype=np.int64).reshape(-1, TAGS)


def save_engine_state(state: EngineState, path: Path) -> None:
    arrays = {name: getattr(state, name) for name in EngineState.__slots__ if name != "config"}
    np.savez_compressed(
        path,
        config=np.array(json.dumps(state.config)),
        **{name: array for name, array in arrays.items() if array is not None},
    )


def load_engine_state(capture: str, folder: Path = CAPTURES) -> EngineState:
    """Load the state that belongs to ``capture`` (its name, without an extension).

    Raises:
        InputError: There is none.
    """
    path = folder / f"{capture}.engine.npz"
    if not path.exists():
        raise InputError(f"{path}: no such file: the capture was recorded without a canary")
    with np.load(path) as arrays:
        fields = {name: arrays[name] for name in arrays.files}
    fields["config"] = json.loads(str(fields["config"]))
    return EngineState(**fields)
