"""What to record and where: from options, carried to the engine's processes in the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from kvcanary_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_PATH = "KVCANARY_RECORD"
ENV_OPTIONS = "KVCANARY_RECORD_OPTIONS"

TOKENS = ("raw", "salted", "absent")
KV_HASH = ("none", "partial", "all")
TRIGGERS = ("signal", "canary")
_QUEUE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Options of a recording.

    Attributes:
        path: Folder that the ranks' traces go into.
        tokens: ``raw``, ``salted`` (keyed hashes) or ``absent``.
        kv_hash: How much of a slot's KV bytes is fingerprinted: ``none``, ``partial``, ``all``.
        kv_hash_every: Fingerprint what is read in every n-th forward; what is written, in all.
        max_bytes: Stop at this size of a rank's trace, 0 = never. A ring goes on within it.
        ring_bytes: Keep about the last so many bytes of a rank's trace, 0 = any number.
        ring_seconds: Keep about the last so many seconds, 0 = any number. A ring is what has
            either.
        triggers: What makes a ring be kept: ``signal`` (SIGUSR2), ``canary`` (the engine's own
            canary reports something).
        start_after: Forwards to let pass first.
        queue_bytes: Events that may wait for the disk; what comes on top is dropped.

    Raises:
        UsageError: A value is out of its range.
    """

    path: str
    tokens: str = "salted"
    kv_hash: str = "none"
    kv_hash_every: int = 1
    max_bytes: int = 0
    ring_bytes: int = 0
    ring_seconds: int = 0
    triggers: tuple[str, ...] = ()
    start_after: int = 0
    queue_bytes: int = _QUEUE_BYTES

    def __post_init__(self) -> None:
        for name, value, known in (
            ("tokens", self.tokens, TOKENS),
            ("kv-hash", self.kv_hash, KV_HASH),
        ):
            if value not in known:
                raise UsageError(f"--{name} must be one of {', '.join(known)}, found '{value}'")
        for name, number, least in (
            ("kv-hash-every", self.kv_hash_every, 1),
            ("max-bytes", self.max_bytes, 0),
            ("ring", self.ring_bytes, 0),
            ("ring", self.ring_seconds, 0),
            ("start-after", self.start_after, 0),
            ("queue bytes", self.queue_bytes, 1),
        ):
            if type(number) is not int or number < least:
                raise UsageError(f"--{name} must be a whole number from {least} on, found {number}")
        if self.kv_hash_every > 1 and self.kv_hash == "none":
            raise UsageError(
                "--kv-hash-every says which reads are fingerprinted, and nothing is fingerprinted",
                hint="give --kv-hash partial or --kv-hash all as well, or leave it out",
            )
        unknown = [name for name in self.triggers if name not in TRIGGERS]
        if unknown:
            raise UsageError(
                f"--trigger must be one of {', '.join(TRIGGERS)}, found '{unknown[0]}'"
            )
        if self.triggers and not self.is_ring:
            raise UsageError(
                "--trigger says when a ring is kept, and there is no ring",
                hint="give --ring 2GiB or --ring 10min as well, or leave --trigger out",
            )
        if not self.path.endswith(".kvtrace"):
            raise UsageError(
                f"{self.path}: the name of a recording ends in .kvtrace",
                hint="for example -o run.kvtrace",
            )

    @property
    def is_ring(self) -> bool:
        """Whether only the end of the recording is kept."""
        return bool(self.ring_bytes or self.ring_seconds)


def to_env(options: RecordOptions) -> dict[str, str]:
    """The variables that carry ``options``; the path is made absolute."""
    values = asdict(options)
    path = os.path.abspath(values.pop("path"))
    return {ENV_PATH: path, ENV_OPTIONS: json.dumps(values)}


def from_env(env: Mapping[str, str]) -> RecordOptions | None:
    """The options in ``env``, or None if nothing is to be recorded.

    Raises:
        UsageError: They do not fit.
    """
    path = env.get(ENV_PATH)
    if not path:
        return None
    try:
        values = json.loads(env.get(ENV_OPTIONS) or "{}")
    except ValueError:
        values = None
    known = {f.name for f in fields(RecordOptions)} - {"path"}
    if not isinstance(values, dict) or not values.keys() <= known:
        raise UsageError(
            f"{ENV_OPTIONS} must be a JSON object with keys from {', '.join(sorted(known))}"
        )
    triggers = values.pop("triggers", ())
    if not isinstance(triggers, list | tuple):
        raise UsageError(f"{ENV_OPTIONS}: 'triggers' must be a list, found {triggers!r}")
    return RecordOptions(path=path, triggers=tuple(triggers), **values)
