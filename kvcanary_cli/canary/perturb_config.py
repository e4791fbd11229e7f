"""PerturbConfig: how often to damage what, for testing the canary itself (specification 5.10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.canary.config import read_env_float, read_env_int

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "SGLANG_KV_CANARY_PERTURB_"
_TARGET = _PREFIX + "TARGET_GROUP"
REAL_KV_PERTURBATIONS = ("real_kv_used", "real_kv_unused_cache", "real_kv_post_forward")


def parse_target_group(text: str) -> PoolKind:
    """``full`` or ``swa``.

    Raises:
        ValueError: KVC-P02.
    """
    value = text.strip().lower()
    if value not in ("full", "swa"):
        raise ValueError(f"{_TARGET} must be one of 'full' / 'swa', got {text!r}")
    return PoolKind.FULL if value == "full" else PoolKind.SWA


def target_group_name(kind: object) -> str:
    """``FULL`` or ``SWA``, as log lines print a group.

    Raises:
        ValueError: KVC-P03 for anything but a pool kind.
    """
    if not isinstance(kind, PoolKind):
        raise ValueError(f"Unsupported target_group_kind: {kind}")
    return kind.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbConfig:
    """Probabilities per outer step, 0 = off.

    Attributes:
        warmup_steps: Outer steps without any perturbation.
        req_to_token_prob: Replace a page-table cell.
        real_kv_used_prob: Invert a byte that a running request reads.
        real_kv_unused_cache_prob: Invert a byte that only the prefix cache holds.
        real_kv_post_forward_prob: Invert a byte that was just written.
        next_token_swap_prob: Exchange two sampled tokens.
        target_group: Group of the three real-KV perturbations.
    """

    warmup_steps: int = 50
    req_to_token_prob: float = 0.0
    real_kv_used_prob: float = 0.0
    real_kv_unused_cache_prob: float = 0.0
    real_kv_post_forward_prob: float = 0.0
    next_token_swap_prob: float = 0.0
    target_group: PoolKind | None = None

    def __post_init__(self) -> None:
        for name in REAL_KV_PERTURBATIONS:
            if getattr(self, f"{name}_prob") > 0 and self.target_group is None:
                raise ValueError(
                    f"{_TARGET} must be explicitly set to 'full' or 'swa' when {name} "
                    "perturbation is enabled"
                )

    def required_target_group(self) -> PoolKind:
        """The target group.

        Raises:
            ValueError: KVC-P01 without one.
        """
        if self.target_group is None:
            raise ValueError(f"{_TARGET} must be explicitly set to 'full' or 'swa'")
        return self.target_group

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> PerturbConfig:
        """Read the variables.

        Raises:
            ValueError: KVC-P01, KVC-P02.

        Warns:
            UserWarning: KVC-A13.
        """

        def probability(name: str) -> float:
            return read_env_float(environ, f"{_PREFIX}{name}_PROB", 0.0)

        target = environ.get(_TARGET)
        return cls(
            warmup_steps=read_env_int(environ, _PREFIX + "WARMUP_STEPS", 50),
            req_to_token_prob=probability("REQ_TO_TOKEN"),
            real_kv_used_prob=probability("REAL_KV_USED"),
            real_kv_unused_cache_prob=probability("REAL_KV_UNUSED_CACHE"),
            real_kv_post_forward_prob=probability("REAL_KV_POST_FORWARD"),
            next_token_swap_prob=probability("NEXT_TOKEN_SWAP"),
            target_group=parse_target_group(target) if target else None,
        )
