"""Ownership findings and findings: what the JSON contract calls ``ownership`` and ``findings``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.attribution.facts import FindingFacts

CERTAIN, PROBABLE, POSSIBLE = "certain", "probable", "possible"
#: From the surest on.
CONFIDENCES = (CERTAIN, PROBABLE, POSSIBLE)

DOUBLE_ALLOC = "double_alloc"
DOUBLE_FREE = "double_free"
FREE_BY_NON_OWNER = "free_by_non_owner"
OWN_BY_NON_OWNER = "own_by_non_owner"
WRITE_BY_NON_OWNER = "write_by_non_owner"
READ_OF_FOREIGN = "read_of_foreign"
READ_OF_FREE = "read_of_free"
READ_BEFORE_WRITE = "read_before_write_since_alloc"
PUBLISH_OF_FREE = "publish_of_free"
MATCH_OF_FREE = "match_of_free"
MATCH_OF_FOREIGN = "match_of_foreign"
LEAK = "leak"

READS = frozenset({READ_OF_FOREIGN, READ_OF_FREE})
MATCHES = frozenset({MATCH_OF_FOREIGN, MATCH_OF_FREE})

CLASSES = (
    "use_after_free",
    "double_alloc",
    "late_write",
    "transfer_race",
    "transfer_mismatch",
    "stale_mapping",
    "bad_translation",
    "pad_or_dummy_write",
    "position_misalign",
    "wrong_token_fed",
    "spec_commit",
    "prefix_index",
    "key_aliasing",
    "rank_divergence",
    "unwritten_read",
    "payload_mutation",
    "not_corruption",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipFinding:
    """A broken ownership rule, found when it happened and without any hash.

    Attributes:
        event: ``i`` of the event that broke it.
        step: Step of the forward, None outside a forward.
        what: Which rule.
        owner: Who owned the slots; None = the free list.
        actor: Who acted; None = a padding row, or a copy that names nobody where ``step`` is None.
        slots: The slots, ascending.
    """

    event: int
    step: int | None
    what: str
    owner: str | None
    actor: str | None
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Who wrote, mapped or published what the victim then read.

    Attributes:
        req: Request, None if no request did it.
        step: Step of its forward, None outside one.
        event: ``i`` of what it did.
        details: Further names: ``transfer``, ``batch_row``, ``req_table_row``, ``last_writer``,
            ``rank``.
    """

    req: str | None
    step: int | None
    event: int | None
    details: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuledOut:
    """The runner-up class and the fact that excluded it."""

    cls: str
    because: str


@dataclass(slots=True, kw_only=True)
class Finding:
    """One cause: victim, culprit, what happened and how it is known.

    Attributes:
        id: ``F1``, ``F2``, ... in order of first detection.
        cls: One of ``CLASSES``.
        subtype: Finer kind within the class.
        first_bad_step: Earliest violation, corrupt read or divergence.
        cause_event: ``i`` of the event that caused it, None if only bracketed.
        cause_window: (from, to) ``i`` between which the cause lies, if ``cause_event`` is None.
        corrupting_event: ``i`` of the event that put the wrong content (or name) in place.
        victim: Request that read or lost data, None in a sweep.
        positions: Its damaged positions, None where positions do not apply.
        culprit: See ``Culprit``.
        slots: Damaged slots, ascending.
        seam_slots: Intact slots whose predecessor was replaced.
        pool_kind: ``FULL`` or ``SWA``; worker ``target`` or ``draft``.
        ruled_out: Runner-up classes.
        confidence: ``certain``, ``probable`` or ``possible``.
        evidence: The facts, one sentence each.
        remedy: What to do.
        blast_radius: Requests that read the damage while they ran.
        violations: How many violations belong to it.
        rank: Rank number of the trace it was found in, in a call with several traces.
        cause_rank: Rank that did otherwise, for ``rank_divergence``.
        facts: The scene when it was first seen; None for what only several ranks show.
        last_event: ``i`` of the last forward or sweep that met its damage.
        follows: ``i`` of events that, if they are another finding's cause, are this one's too.
        sources: Slots that the damage was in before copies moved it.
        lost_within: Events lost in recording between what it rests on and the damage.
        unseen: Families that were not recorded and whose silence it rests on.
    """

    id: str
    cls: str
    subtype: str
    first_bad_step: int | None
    cause_event: int | None
    corrupting_event: int | None
    victim: str | None
    culprit: Culprit
    cause_window: tuple[int, int] | None = None
    positions: set[int] | None = field(default_factory=set)
    slots: set[int] = field(default_factory=set)
    seam_slots: set[int] = field(default_factory=set)
    worker: str = "target"
    pool_kind: str = "FULL"
    ruled_out: list[RuledOut] = field(default_factory=list)
    confidence: str = CERTAIN
    evidence: list[str] = field(default_factory=list)
    remedy: str = ""
    blast_radius: dict[str, None] = field(default_factory=dict)
    violations: int = 0
    rank: int | None = None
    cause_rank: int | None = None
    facts: FindingFacts | None = None
    last_event: int | None = None
    follows: set[int] = field(default_factory=set)
    sources: set[int] = field(default_factory=set)
    lost_within: int = 0
    unseen: tuple[str, ...] = ()
