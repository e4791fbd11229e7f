"""What a log shows of the load that a server really met."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import Place


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest value seen of something, and where."""

    value: int
    place: Place
    what: str

    @property
    def source(self) -> str:
        return f"{self.place} ({self.what})"


@dataclass(frozen=True, slots=True)
class LoggedError:
    """A canary message that the log holds: its code, numbers and first place."""

    code: str
    actual: int
    capacity: int
    place: Place


@dataclass(slots=True)
class Observations:
    """Peaks and canary messages of one log.

    Attributes:
        decode_requests: Most requests in a decode batch.
        prefill_tokens: Most new (and replayed) tokens in a prefill batch.
        prefill_requests: Most new requests in a prefill batch.
        batch_lines: Batch lines read.
        errors: Capacity messages, each kind's worst.
        violations: Canary violation lines.
        first_violation, last_violation: Where they stand.
    """

    decode_requests: Peak | None = None
    prefill_tokens: Peak | None = None
    prefill_requests: Peak | None = None
    batch_lines: int = 0
    errors: dict[str, LoggedError] = field(default_factory=dict)
    violations: int = 0
    first_violation: Place | None = None
    last_violation: Place | None = None

    def see(self, name: str, value: int, place: Place, what: str) -> None:
        """Keep ``value`` as the peak of field ``name`` if it is the largest."""
        peak: Peak | None = getattr(self, name)
        if peak is None or value > peak.value:
            setattr(self, name, Peak(value, place, what))

    def see_error(self, error: LoggedError) -> None:
        seen = self.errors.get(error.code)
        if seen is None or error.actual > seen.actual:
            self.errors[error.code] = error
