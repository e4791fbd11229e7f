"""Index facts: the data is healthy, what leads to it is not."""

from __future__ import annotations

from kvcanary_cli.attribution.damage import Cause, Damage, event_or_none
from kvcanary_cli.attribution.ledger import (
    BY_VERIFY,
    NEVER,
)
from kvcanary_cli.attribution.result import PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts


class IndexFacts(Facts):
    """Translation, speculation and cells of the request table."""

    def bad_translation(self, damage: Damage) -> Cause | None:
        if damage.pool_kind != "SWA":
            return None
        writes, slot = damage.writes, damage.slot
        wrote = damage.writer_event()
        mislanded = writes.foreign[slot]
        full = int(writes.batch_row[slot])
        changed = self.context.lut_event.get(full, NEVER)
        return Cause(
            cls="bad_translation",
            subtype="stale_translation_cache" if mislanded else "stale_lut",
            cause_event=event_or_none(changed) if mislanded else event_or_none(wrote),
            corrupting_event=event_or_none(wrote),
            culprit=self.writer(damage),
            ruled_out=[
                RuledOut("use_after_free", "the full-pool lane is clean at the same positions")
            ],
            confidence="certain" if mislanded else PROBABLE,
            evidence=[
                f"event {wrote} wrote full slot {full} to SWA slot {slot}, which the table does "
                "not say"
                if mislanded
                else "only the SWA lane fails",
            ],
        )

    def spec_commit(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        if writes.kind[slot] != BY_VERIFY or int(writes.req[slot]) != damage.victim:
            return None
        accept = self.context.accepts.get(damage.victim)
        if accept is None or accept.event < damage.writer_event():
            return None
        step = int(writes.step[slot])
        kept = damage.stored_token not in accept.tokens
        return Cause(
            cls="spec_commit",
            subtype="accepted_path_not_compacted",
            cause_event=accept.event,
            corrupting_event=accept.event,
            culprit=Culprit(req=self.names.name(damage.victim), step=step, event=accept.event),
            ruled_out=[
                RuledOut("position_misalign", "the draft's positions followed its tree"),
            ],
            evidence=[
                f"accept at event {accept.event} committed nodes {list(accept.nodes)}",
                f"slot {slot} still holds a rejected draft token"
                if kept
                else f"slot {slot} holds the token of another position",
            ],
        )

    def moved_cells(self, damage: Damage) -> Cause | None:
        """Healthy content, reached through a cell that does not lead to it."""
        if damage.row < 0 or damage.kv_only:
            return None
        held, wrote = self.held_since(damage), damage.writer_event()
        if held == NEVER or held < wrote:
            return None
        victim = self.names.name(damage.victim)
        return Cause(
            cls="stale_mapping",
            subtype="cells_rewritten",
            group=(damage.victim, damage.row, self.context.row(damage.row).maps_between(held)),
            cause_event=held,
            corrupting_event=held,
            culprit=Culprit(
                req=victim, step=None, event=held, details={"req_table_row": damage.row}
            ),
            ruled_out=[
                RuledOut("use_after_free", f"slot {damage.slot} was not written since its mapping")
            ],
            evidence=[
                f"cell {damage.position} of row {damage.row} was set at event {held}",
                f"slot {damage.slot} holds position {damage.stored_position}, written before that",
            ],
        )
