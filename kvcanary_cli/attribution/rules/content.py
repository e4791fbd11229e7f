"""Content facts: copies that brought the wrong bytes, and bytes that changed."""

from __future__ import annotations

from kvcanary_cli.attribution.damage import Cause, Damage, event_or_none
from kvcanary_cli.attribution.ledger import (
    BY_COPY,
    BY_NOTHING,
    BY_STATE,
    FREE,
    NEVER,
    NOBODY,
    TREE,
    UNKNOWN,
)
from kvcanary_cli.attribution.result import POSSIBLE, PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts


class ContentFacts(Facts):
    """Transfers, payload, and what nothing explains."""

    def transfer_mismatch(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        if writes.kind[slot] != BY_COPY:
            return None
        wrote = damage.writer_event()
        copy = self.context.copies.get(wrote)
        offset = damage.stored_position - damage.position
        details: dict[str, int | str] = {}
        if copy is not None and copy.transfer is not None:
            details["transfer"] = copy.transfer
        others = self._is_of_another(damage, wrote)
        subtype = "misaligned_blocks" if offset and not others else "wrong_content"
        if damage.kv_only:
            return self._bytes_differ(damage, wrote, details)
        if copy is not None and not copy.canary:
            return self._left_behind(damage, wrote, details)
        return Cause(
            cls="transfer_mismatch",
            subtype=subtype,
            cause_event=wrote,
            corrupting_event=wrote,
            culprit=self.writer(damage, **details),
            ruled_out=[
                RuledOut("transfer_race", "the destination did not change hands while it landed")
            ],
            evidence=[
                f"the copy at event {wrote} brought position {damage.stored_position} of {others}, "
                f"not of {self.names.name(damage.victim)}"
                if others
                else f"copy at event {wrote} put position {damage.stored_position} where "
                f"{damage.position} is read (offset {offset:+d})"
                if offset
                else f"what the copy at event {wrote} left is not what is read at that position",
            ],
        )

    def _bytes_differ(
        self, damage: Damage, wrote: int, details: dict[str, int | str]
    ) -> Cause | None:
        """The bytes are not those that the source had when they were written."""
        looked = self.bytes_agreed(damage)
        if looked > wrote:
            # They were right behind the copy: it is not to blame.
            return None
        return Cause(
            cls="transfer_mismatch",
            subtype="bytes_differ",
            cause_event=wrote,
            corrupting_event=wrote,
            culprit=self.writer(damage, **details),
            # Nothing compared them between the copy and this read, nor right before the copy.
            confidence=PROBABLE,
            ruled_out=[
                RuledOut("transfer_race", "the destination did not change hands while it landed")
            ],
            evidence=[
                f"the bytes that the copy at event {wrote} left are not the source's",
                "they were never compared before"
                if looked == NEVER
                else f"they were compared at event {looked} for the last time",
            ],
        )

    def _is_of_another(self, damage: Damage, wrote: int) -> str | None:
        """Whose content the copy brought, if it is none that the reader has at any position."""
        cargo = self.context.cargos.at(wrote)
        entry = None if cargo is None else cargo.entry(damage.slot)
        if cargo is None or entry is None or damage.worker != "target" or damage.kv_only:
            return None
        writer = int(cargo.writers[entry])
        its = self.now.token(damage.victim, damage.stored_position)
        if writer in (NOBODY, TREE, damage.victim) or its in (None, damage.stored_token):
            return None
        return self.names.name(writer)

    def _left_behind(self, damage: Damage, wrote: int, details: dict[str, int | str]) -> Cause:
        return Cause(
            cls="transfer_mismatch",
            subtype="canary_left_behind",
            cause_event=wrote,
            corrupting_event=wrote,
            culprit=self.writer(damage, **details),
            confidence=POSSIBLE,
            ruled_out=[RuledOut("transfer_race", "the copy and the reader are of one owner")],
            evidence=[
                f"the copy at event {wrote} moved bytes without their canary rows: the destination "
                "keeps the rows that it had",
                "whether the bytes are right, the trace does not show",
            ],
        )

    def payload_mutation(self, damage: Damage) -> Cause | None:
        if not damage.kv_only:
            return None
        if damage.writer_event() == damage.event:
            # The forward that met it wrote the slot, too, for a request that is known.
            overwritten = self.foreign_content(damage)
            if overwritten is not None:
                return overwritten
        return Cause(
            cls="payload_mutation",
            subtype="kv_bytes",
            # What nobody is known to have done is one fault for each who met it.
            group=(damage.victim, damage.pool_kind, self.window(damage)),
            cause_event=None,
            cause_window=self.window(damage),
            corrupting_event=None,
            culprit=Culprit(req=None, step=None, event=None),
            ruled_out=[
                RuledOut("pad_or_dummy_write", "no padding row targeted the slot in that window"),
            ],
            evidence=[
                "token and position agree, the chain differs by a predecessor that was replaced; "
                "the KV bytes changed with no known writer"
                if damage.seam
                else "token, position and chain agree; the KV bytes changed with no known writer"
            ],
            rests_on={"transfer": PROBABLE},
        )

    def foreign_content(self, damage: Damage) -> Cause | None:
        """The slot holds another writer's content and nothing says how it changed hands."""
        wrote = damage.came_event()
        if damage.writes.kind[damage.slot] in (BY_NOTHING, BY_STATE):
            return None
        owner, writer = int(self.state.owner[damage.slot]), int(damage.writes.req[damage.slot])
        if writer == damage.victim or writer < TREE:
            # Nobody else is known to have had the slot: no free of it is missing.
            return None
        return Cause(
            cls="use_after_free",
            subtype="free_not_recorded",
            cause_event=None,
            cause_window=self._free_window(damage, wrote),
            corrupting_event=event_or_none(wrote),
            culprit=self.writer(damage),
            confidence=POSSIBLE if owner in (UNKNOWN, FREE) else PROBABLE,
            evidence=["the slot was rewritten by its new owner; its free was not recorded"],
        )

    def _free_window(self, damage: Damage, wrote: int) -> tuple[int, int] | None:
        """Events between which the free that nobody recorded lies; None without a first one.

        The slot went from the reader to the writer before the writer was given it, at the latest
        before it wrote; or the reader was given what the writer had left.
        """
        held, given = self.held_since(damage), int(self.state.alloc_event[damage.slot])
        if held == NEVER:
            return None
        if held > wrote:
            return wrote, held
        return held, given if held < given <= wrote else wrote

    def unexplained(self, damage: Damage) -> Cause:
        """What no rule explains."""
        damaged_before = damage.writes.kind[damage.slot] == BY_STATE and (
            not self.read_sound_since_it_came(damage)
        )
        return Cause(
            cls="payload_mutation",
            subtype="unexplained_row",
            cause_event=None,
            corrupting_event=None,
            # A row that the trace begins with was wrong by then: no event of the trace bounds it.
            cause_window=None if damaged_before else self.window(damage),
            culprit=Culprit(req=None, step=None, event=None),
            confidence=POSSIBLE,
            evidence=[
                "the slot held this when the recording began: what did it is not in the trace"
                if damaged_before
                else "no recorded event explains the content of the slot"
            ],
        )
