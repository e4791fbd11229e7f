"""CanaryConfig: what was asked for, read once from the flags and the environment (section 8)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from kvcanary_cli.abi.constants import RealKvHashMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_T = TypeVar("_T")

_PREFIX = "SGLANG_KV_CANARY_"
_TRUE = frozenset({"true", "1", "yes", "y"})
_FALSE = frozenset({"false", "0", "no", "n"})


class CanaryMode(StrEnum):
    """What a violation does: nothing is installed, a warning, or the end of the server."""

    NONE = "none"
    LOG = "log"
    RAISE = "raise"


def _parse_bool(text: str) -> bool:
    value = text.strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ValueError(f'"{text}" is not a valid boolean value')


def read_env(environ: Mapping[str, str], name: str, default: _T, parse: Callable[[str], _T]) -> _T:
    """Read one variable; a value of the wrong type warns (KVC-A13) and gives the default."""
    text = environ.get(name)
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as error:
        warnings.warn(
            f'Invalid value for {name}: {error}, using default "{default}"',
            UserWarning,
            stacklevel=3,
        )
        return default


def read_env_int(environ: Mapping[str, str], name: str, default: int) -> int:
    return read_env(environ, name, default, int)


def read_env_float(environ: Mapping[str, str], name: str, default: float) -> float:
    return read_env(environ, name, default, float)


def read_env_bool(environ: Mapping[str, str], name: str, default: bool) -> bool:
    return read_env(environ, name, default, _parse_bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryConfig:
    """Settings of one canary manager.

    Attributes:
        mode: none, log or raise.
        ring_capacity: Rows of the violation ring; checked where the ring is allocated.
        sweep_interval: Outer steps between sweeps, 0 = never. More than 100 ends in KVC-R01.
        real_kv_hash_mode: How much of a slot's KV bytes is fingerprinted.
        enable_write_input_assert: Compare a forward's inputs with an oracle.
        enable_verify_token_assert: Compare stored tokens with prompt and output.
        stats_print_every_n_steps: Outer steps between statistics lines, 0 = never.
        enable_mha_v: Launch the V-half endpoints too.
        swa_divergence_stats_interval: Outer steps between sliding-window reports, 0 = never.
    """

    mode: CanaryMode = CanaryMode.LOG
    ring_capacity: int = 1024
    sweep_interval: int = 0
    real_kv_hash_mode: RealKvHashMode = RealKvHashMode.NONE
    enable_write_input_assert: bool = False
    enable_verify_token_assert: bool = False
    stats_print_every_n_steps: int = 100
    enable_mha_v: bool = False
    swa_divergence_stats_interval: int = 0

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str],
        *,
        kv_canary: str,
        kv_canary_real_data: str = "none",
        kv_canary_sweep_interval: int = 0,
    ) -> CanaryConfig:
        """Join the server's flags and the environment.

        Args:
            environ: Usually ``os.environ``; nothing below this call reads it.
            kv_canary: ``--kv-canary``.
            kv_canary_real_data: ``--kv-canary-real-data``.
            kv_canary_sweep_interval: ``--kv-canary-sweep-interval``.

        Raises:
            ValueError: KVC-A01 for the mode, KVC-A02 for a sweep without a canary.
            KeyError: KVC-A05 for the real-data mode.

        Warns:
            UserWarning: KVC-A13, once for each variable of the wrong type.
        """
        mode_text = kv_canary.strip().lower()
        if mode_text not in set(CanaryMode):
            raise ValueError(
                f"kv-canary: kv_canary must be one of none/log/raise, got {mode_text!r}"
            )
        mode = CanaryMode(mode_text)
        if kv_canary_sweep_interval > 0 and mode is CanaryMode.NONE:
            raise ValueError("--kv-canary-sweep-interval requires --kv-canary in {log, raise}")
        return cls(
            mode=mode,
            ring_capacity=read_env_int(environ, _PREFIX + "RING_CAPACITY", 1024),
            sweep_interval=kv_canary_sweep_interval,
            real_kv_hash_mode=RealKvHashMode[kv_canary_real_data.upper()],
            enable_write_input_assert=read_env_bool(
                environ, _PREFIX + "ENABLE_WRITE_INPUT_ASSERT", False
            ),
            enable_verify_token_assert=read_env_bool(
                environ, _PREFIX + "ENABLE_VERIFY_TOKEN_ASSERT", False
            ),
            stats_print_every_n_steps=read_env_int(
                environ, _PREFIX + "STATS_PRINT_EVERY_N_STEPS", 100
            ),
            enable_mha_v=read_env_bool(environ, _PREFIX + "ENABLE_MHA_V", False),
            swa_divergence_stats_interval=read_env_int(
                environ, _PREFIX + "SWA_DIVERGENCE_STATS_INTERVAL", 0
            ),
        )
