"""From a damaged entry to its cause: the rules of the taxonomy, in its order of precedence.

Ownership facts come before lifetime facts, those before index facts, those before input facts,
content facts come last: earlier groups usually cause the later symptoms. Each rule looks only at
what the trace recorded, and returns None where its facts are not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.damage import Cause, Damage, event_or_none
from kvcanary_cli.attribution.ledger import (
    BY_COPY,
    BY_FORWARD,
    BY_NOTHING,
    BY_STATE,
    BY_VERIFY,
    FREE,
    NEVER,
    NOBODY,
    TREE,
    UNKNOWN,
)
from kvcanary_cli.attribution.ownership import BAD_WHATS
from kvcanary_cli.attribution.result import POSSIBLE, PROBABLE, Culprit, RuledOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.context import Context
    from kvcanary_cli.attribution.ledger import Names, Ownership


class Classifier:
    """Applies the rules.

    Args:
        state: Owners as they are now.
        context: Rows, copies, launches and the rest.
        names: Interned names.
        records: Families that the trace recorded.
        cached_chain: Whether the prefix cache holds the chain that a freed slot held.
    """

    def __init__(
        self,
        state: Ownership,
        context: Context,
        names: Names,
        records: frozenset[str],
        cached_chain: Callable[[int], bool],
    ) -> None:
        self._state, self._context, self._names = state, context, names
        self._records = records
        self._cached_chain = cached_chain
        self._rules: tuple[Callable[[Damage], Cause | None], ...] = (
            self._double_alloc,
            self._late_write,
            self._transfer_race,
            self._pad_or_dummy_write,
            self._past_the_end,
            self._bad_translation,
            self._never_written,
            self._recycled_row,
            self._use_after_free,
            self._phantom_hit,
            self._spec_commit,
            self._position_misalign,
            self._wrong_token,
            self._transfer_mismatch,
            self._moved_cells,
            self._payload_mutation,
            self._foreign_content,
        )

    def cause(self, damage: Damage) -> Cause:
        """The first rule that applies."""
        for rule in self._rules:
            found = rule(damage)
            if found is not None:
                self._weigh(found)
                return found
        return Cause(
            cls="payload_mutation",
            subtype="unexplained_row",
            cause_event=None,
            corrupting_event=None,
            cause_window=self._window(damage),
            culprit=Culprit(req=None, step=None, event=None),
            confidence=POSSIBLE,
            evidence=["no recorded event explains the content of the slot"],
        )

    def _weigh(self, cause: Cause) -> None:
        if "alloc" not in self._records and cause.confidence == "certain":
            cause.confidence = PROBABLE
            cause.evidence.append("alloc events were not recorded: owners are not known")

    # Shared facts.

    def _writer(self, damage: Damage, **details: int | str) -> Culprit:
        writes, slot = damage.writes, damage.slot
        step = int(writes.step[slot])
        return Culprit(
            req=self._names.name(int(writes.req[slot])),
            step=None if step == NOBODY else step,
            event=event_or_none(writes.event[slot]),
            details=dict(details),
        )

    def _held_since(self, damage: Damage) -> int:
        """Event since which the victim names the slot."""
        slot = damage.slot
        if damage.row < 0:
            return int(self._state.published_event[slot])
        if damage.forward is not None and damage.row in damage.forward.row_as_read:
            return NEVER
        return self._context.row(damage.row).mapped_at(damage.position)

    def _window(self, damage: Damage) -> tuple[int, int]:
        """Events between which the bytes changed: last good look, first bad one."""
        slot, writes = damage.slot, damage.writes
        last_good = max(int(writes.event[slot]), int(writes.read_event[slot]))
        return (damage.event if last_good == NEVER else last_good, damage.event)

    # Ownership facts.

    def _double_alloc(self, damage: Damage) -> Cause | None:
        state, slot = self._state, damage.slot
        bad = int(state.bad_event[slot])
        wrote = damage.writer_event()
        if bad == NEVER or wrote < bad or damage.pool_kind != "FULL":
            return None
        name = BAD_WHATS[int(state.bad_what[slot])]
        writer = self._names.name(int(damage.writes.req[slot]))
        return Cause(
            cls="double_alloc",
            subtype=name,
            cause_event=bad,
            corrupting_event=wrote,
            culprit=self._writer(damage),
            ruled_out=[
                RuledOut(
                    "use_after_free",
                    f"the slot was given out twice by event {bad} ({name}); it was not freed by "
                    "its owner",
                )
            ],
            evidence=[f"{name} of slot {slot} at event {bad}", f"{writer} wrote it at {wrote}"],
        )

    def _late_write(self, damage: Damage) -> Cause | None:
        writes, slot, state = damage.writes, damage.slot, self._state
        by_forward = writes.kind[slot] in (BY_FORWARD, BY_VERIFY)
        if not (by_forward and writes.foreign[slot]) or damage.pool_kind != "FULL":
            return None
        writer, wrote = int(writes.req[slot]), damage.writer_event()
        launched = self._context.launches.get((writer, int(writes.step[slot])), NEVER)
        freed = int(state.free_event[slot])
        freed_by_writer = freed != NEVER and int(state.free_by[slot]) == writer and freed < wrote
        known = launched != NEVER and launched < freed
        name = self._names.name(writer)
        return Cause(
            cls="late_write",
            subtype="overlap_forward_after_free" if freed_by_writer else "write_by_non_owner",
            cause_event=freed if freed_by_writer else wrote,
            corrupting_event=wrote,
            culprit=self._writer(damage),
            ruled_out=[
                RuledOut(
                    "use_after_free",
                    f"{name} did not own slot {slot} when its write landed; the reader's mapping "
                    "is valid",
                )
            ],
            confidence="certain" if known else PROBABLE,
            evidence=[
                f"launched at event {launched}" if known else "the launch was not recorded",
                f"slot {slot} freed at event {freed}" if freed_by_writer else "not freed before",
                f"{name} wrote it at event {wrote} without owning it",
            ],
        )

    def _transfer_race(self, damage: Damage) -> Cause | None:
        writes, slot, state = damage.writes, damage.slot, self._state
        if writes.kind[slot] != BY_COPY or not writes.foreign[slot]:
            return None
        wrote = damage.writer_event()
        copy = self._context.copies.get(wrote)
        freed = int(state.free_event[slot])
        via = copy.via if copy is not None and copy.via else "copy"
        inside = copy is not None and copy.begun_event != NEVER and copy.begun_event < freed
        details: dict[str, int | str] = {}
        if copy is not None and copy.transfer is not None:
            details["transfer"] = copy.transfer
        return Cause(
            cls="transfer_race",
            subtype=f"{via}_write_after_free" if freed != NEVER else f"{via}_write_by_non_owner",
            cause_event=freed if freed != NEVER else wrote,
            corrupting_event=wrote,
            culprit=self._writer(damage, **details),
            ruled_out=[
                RuledOut("transfer_mismatch", "the destination had changed hands before it landed")
            ],
            confidence="certain" if inside else PROBABLE,
            evidence=[
                f"copy window [{copy.begun_event}, {wrote}] contains the free at event {freed}"
                if inside and copy is not None
                else "the begin of the copy was not recorded",
            ],
        )

    def _pad_or_dummy_write(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        pad = int(writes.pad_event[slot])
        if not damage.kv_only or pad == NEVER or pad < damage.writer_event():
            return None
        row = int(writes.pad_row[slot])
        former = self._context.batch_row_slot.get(row)
        stale = former is not None and former[0] == slot
        return Cause(
            cls="pad_or_dummy_write",
            subtype="stale_padded_tail" if stale else "dummy_write",
            cause_event=pad,
            corrupting_event=pad,
            culprit=Culprit(
                req=None, step=int(writes.pad_step[slot]), event=pad, details={"batch_row": row}
            ),
            ruled_out=[
                RuledOut("payload_mutation", f"padding row {row} wrote the slot at event {pad}")
            ],
            evidence=[
                f"batch row {row} is padding and targets slot {slot}",
                f"the same row wrote slot {slot} at step {former[1]}"
                if stale and former is not None
                else "the slot is no padding slot",
                "the canary row is intact, the bytes changed",
            ],
        )

    # Lifetime facts.

    def _past_the_end(self, damage: Damage) -> Cause | None:
        """The forward read its own, still unwritten slot: its position was too high."""
        if damage.true_position is None or damage.position < damage.true_position:
            return None
        return self._misaligned(damage, damage.event, damage.step, damage.row_offset)

    def _misaligned(self, damage: Damage, event: int, step: int, offset: int) -> Cause:
        victim = self._names.name(damage.victim)
        return Cause(
            cls="position_misalign",
            subtype="constant_offset",
            group=(offset,),
            cause_event=event,
            corrupting_event=event,
            culprit=Culprit(req=victim, step=step, event=event),
            ruled_out=[
                RuledOut("stale_mapping", "the row names the right slot; the position is wrong")
            ],
            evidence=[
                f"positions of the forward at event {event} are {offset:+d} off its prefix",
            ],
        )

    def _never_written(self, damage: Damage) -> Cause | None:
        state, slot, writes = self._state, damage.slot, damage.writes
        wrote, allocated = damage.writer_event(), int(state.alloc_event[slot])
        if damage.kv_only or writes.kind[slot] == BY_STATE:
            return None
        if wrote != NEVER and (allocated == NEVER or wrote >= allocated):
            return None
        if wrote == NEVER and allocated == NEVER and int(state.owner[slot]) == UNKNOWN:
            return None
        published = int(state.published_event[slot])
        owner = int(state.owner[slot])
        if published != NEVER and published > allocated and owner != damage.victim:
            publisher = self._names.name(int(state.published_by[slot]))
            return Cause(
                cls="prefix_index",
                subtype="premature_publish",
                cause_event=published,
                corrupting_event=published,
                culprit=Culprit(req=publisher, step=None, event=published),
                ruled_out=[
                    RuledOut("unwritten_read", f"the slot was published at event {published}")
                ],
                evidence=[f"published at event {published}, before anyone wrote the slot"],
            )
        former = self._names.name(int(writes.req[slot]))
        forked = self._context.cow_event.get(slot, NEVER)
        culprit = Culprit(
            req=None,
            step=None,
            event=None,
            details={"last_writer": former} if former is not None else {},
        )
        skipped = forked != NEVER
        return Cause(
            cls="unwritten_read",
            subtype="copy_on_write_skipped" if skipped else "never_written_since_alloc",
            cause_event=forked if skipped else event_or_none(allocated),
            corrupting_event=None,
            culprit=culprit,
            ruled_out=[
                RuledOut("use_after_free", "the reader owns the slot; nobody wrote it since alloc")
            ],
            evidence=[
                f"slot {slot} allocated at event {allocated}, no write and no copy since",
                f"last written by {former}" if former is not None else "never written",
            ],
        )

    def _recycled_row(self, damage: Damage) -> Cause | None:
        """The row was given to another request while the victim's work still used it."""
        if damage.row < 0 or damage.victim == TREE:
            return None
        facts = self._context.row(damage.row)
        released = facts.released_event
        if released == NEVER or facts.released_by != damage.victim:
            return None
        remapped = facts.first_map_after(released)
        writer = int(damage.writes.req[damage.slot])
        if remapped == NEVER or writer == damage.victim:
            return None
        return Cause(
            cls="stale_mapping",
            subtype="row_recycled_in_flight",
            cause_event=released,
            corrupting_event=remapped,
            culprit=Culprit(
                req=self._names.name(writer),
                step=None,
                event=remapped,
                details={"req_table_row": damage.row},
            ),
            ruled_out=[
                RuledOut(
                    "use_after_free",
                    f"slot {damage.slot} never belonged to the reader: its row moved, not its data",
                )
            ],
            evidence=[
                f"row {damage.row} released at event {released}, remapped at {remapped}",
                "the slots it names now are intact",
            ],
        )

    def _use_after_free(self, damage: Damage) -> Cause | None:
        state, slot = self._state, damage.slot
        freed, wrote = int(state.free_event[slot]), damage.writer_event()
        held = self._held_since(damage)
        writer = int(damage.writes.req[slot])
        if freed == NEVER or held == NEVER or held > freed or writer == damage.victim:
            return None
        if damage.pool_kind != "FULL":
            return None
        reused = wrote > freed
        name = self._names.name(int(state.free_by[slot]))
        return Cause(
            cls="use_after_free",
            subtype=self._free_subtype(damage, freed),
            cause_event=freed,
            corrupting_event=wrote if reused else None,
            culprit=self._writer(damage) if reused else Culprit(req=name, step=None, event=freed),
            ruled_out=[
                RuledOut("double_alloc", "exactly one owner at every event"),
                RuledOut(
                    "late_write",
                    f"{self._names.name(writer)} owned slot {slot} when it wrote",
                ),
            ],
            evidence=[
                f"named by the reader since event {held}",
                f"freed by {name} at event {freed} while still named",
                f"written by {self._names.name(writer)} at event {wrote}",
            ],
        )

    def _free_subtype(self, damage: Damage, freed: int) -> str:
        state, slot = self._state, damage.slot
        reason = state.reasons[int(state.free_reason[slot])].lower()
        if "dedup" in reason or "duplicate" in reason:
            return "freed_by_dedup"
        if "window" in reason or "swa" in reason:
            return "window_evicted_slot_recached"
        if "retract" in reason:
            return "freed_by_retract_while_in_tree"
        if self._cached_chain(slot):
            return "freed_by_dedup"
        if int(state.free_by[slot]) != damage.victim:
            return "shared_slot_refcount"
        return "freed_while_mapped"

    def _phantom_hit(self, damage: Damage) -> Cause | None:
        match = self._context.matched(damage.victim, damage.slot)
        freed = int(self._state.free_event[damage.slot])
        if match is None or freed == NEVER or freed > match.event:
            return None
        return Cause(
            cls="prefix_index",
            subtype="phantom_hit",
            cause_event=freed,
            corrupting_event=match.event,
            culprit=self._writer(damage),
            ruled_out=[
                RuledOut("use_after_free", "the reader matched the slot after it was freed")
            ],
            evidence=[
                f"entry {match.entry} matched at event {match.event}",
                f"its slot {damage.slot} had been freed at event {freed}",
            ],
        )

    # Index facts.

    def _bad_translation(self, damage: Damage) -> Cause | None:
        if damage.pool_kind != "SWA":
            return None
        writes, slot = damage.writes, damage.slot
        wrote = damage.writer_event()
        mislanded = writes.foreign[slot]
        full = int(writes.batch_row[slot])
        changed = self._context.lut_event.get(full, NEVER)
        return Cause(
            cls="bad_translation",
            subtype="stale_translation_cache" if mislanded else "stale_lut",
            cause_event=event_or_none(changed) if mislanded else event_or_none(wrote),
            corrupting_event=event_or_none(wrote),
            culprit=self._writer(damage),
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

    def _spec_commit(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        if writes.kind[slot] != BY_VERIFY or int(writes.req[slot]) != damage.victim:
            return None
        accept = self._context.accepts.get(damage.victim)
        if accept is None or accept.event < damage.writer_event():
            return None
        step = int(writes.step[slot])
        kept = damage.stored_token not in accept.tokens
        return Cause(
            cls="spec_commit",
            subtype="accepted_path_not_compacted",
            cause_event=accept.event,
            corrupting_event=accept.event,
            culprit=Culprit(req=self._names.name(damage.victim), step=step, event=accept.event),
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

    def _moved_cells(self, damage: Damage) -> Cause | None:
        """Healthy content, reached through a cell that does not lead to it."""
        if damage.row < 0 or damage.kv_only:
            return None
        held, wrote = self._held_since(damage), damage.writer_event()
        if held == NEVER or held < wrote:
            return None
        victim = self._names.name(damage.victim)
        return Cause(
            cls="stale_mapping",
            subtype="cells_rewritten",
            group=(damage.victim, damage.row, self._context.row(damage.row).maps_between(held)),
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

    # Input facts.

    def _position_misalign(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        if int(writes.req[slot]) != damage.victim or damage.kv_only:
            return None
        written, belonged = int(writes.position[slot]), int(writes.true_position[slot])
        if NOBODY in (written, belonged) or written == belonged or belonged != damage.position:
            return None
        step = int(writes.step[slot])
        return self._misaligned(damage, damage.writer_event(), step, written - belonged)

    def _wrong_token(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        if damage.kv_only or damage.expected_token is None:
            return None
        if int(writes.req[slot]) != damage.victim or writes.kind[slot] != BY_FORWARD:
            return None
        if (
            damage.stored_position != damage.position
            or damage.stored_token == damage.expected_token
        ):
            return None
        return self.wrong_token_fed(
            damage.victim, damage.stored_token, damage.writer_event(), int(writes.step[slot])
        )

    def wrong_token_fed(self, req: int, token: int, event: int, step: int) -> Cause:
        """The forward at ``event`` fed ``token``, which ``req`` never had there."""
        got = self._context.gets.get(req)
        if got is not None and got[2] == token:
            puts = [p for p in self._context.puts.get(got[1], ()) if p.token == token]
            foreign = [p for p in puts if p.req != req]
            if foreign:
                put = foreign[-1]
                return Cause(
                    cls="wrong_token_fed",
                    subtype="future_ring_wrap",
                    cause_event=put.event,
                    corrupting_event=event,
                    culprit=Culprit(
                        req=self._names.name(put.req),
                        step=None if put.step == NOBODY else put.step,
                        event=put.event,
                    ),
                    ruled_out=[RuledOut("spec_commit", "the token came through the future ring")],
                    evidence=[
                        f"ring entry {got[1]} was last put by {self._names.name(put.req)} at "
                        f"event {put.event}",
                        f"token {token} was fed at event {event}",
                    ],
                )
        return Cause(
            cls="wrong_token_fed",
            subtype="placeholder_leak" if token < 0 else "wrong_input_id",
            cause_event=event,
            corrupting_event=event,
            culprit=Culprit(req=self._names.name(req), step=step, event=event),
            ruled_out=[
                RuledOut("use_after_free", "the request itself wrote the slot, at its position")
            ],
            evidence=[f"token {token} fed at event {event} is not in the request's history"],
        )

    # Content facts.

    def _transfer_mismatch(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        if writes.kind[slot] != BY_COPY:
            return None
        wrote = damage.writer_event()
        copy = self._context.copies.get(wrote)
        offset = damage.stored_position - damage.position
        details: dict[str, int | str] = {}
        if copy is not None and copy.transfer is not None:
            details["transfer"] = copy.transfer
        subtype = "misaligned_blocks" if offset else "wrong_content"
        if damage.kv_only:
            subtype = "bytes_differ"
        return Cause(
            cls="transfer_mismatch",
            subtype=subtype,
            cause_event=wrote,
            corrupting_event=wrote,
            culprit=self._writer(damage, **details),
            ruled_out=[
                RuledOut("transfer_race", "the destination did not change hands while it landed")
            ],
            evidence=[
                f"copy at event {wrote} put position {damage.stored_position} where "
                f"{damage.position} is read (offset {offset:+d})"
                if offset
                else f"the bytes that the copy at event {wrote} left are not the source's",
            ],
        )

    def _payload_mutation(self, damage: Damage) -> Cause | None:
        if not damage.kv_only:
            return None
        return Cause(
            cls="payload_mutation",
            subtype="kv_bytes",
            cause_event=None,
            cause_window=self._window(damage),
            corrupting_event=None,
            culprit=Culprit(req=None, step=None, event=None),
            ruled_out=[
                RuledOut("pad_or_dummy_write", "no padding row targeted the slot in that window"),
            ],
            evidence=["token, position and chain agree; the KV bytes changed with no known writer"],
        )

    def _foreign_content(self, damage: Damage) -> Cause | None:
        """The slot holds another writer's content and nothing says how it changed hands."""
        wrote = damage.writer_event()
        if damage.writes.kind[damage.slot] in (BY_NOTHING, BY_STATE):
            return None
        owner = int(self._state.owner[damage.slot])
        return Cause(
            cls="use_after_free",
            subtype="free_not_recorded",
            cause_event=None,
            cause_window=(wrote, damage.event),
            corrupting_event=event_or_none(wrote),
            culprit=self._writer(damage),
            confidence=POSSIBLE if owner in (UNKNOWN, FREE) else PROBABLE,
            evidence=["the slot was rewritten by its new owner; its free was not recorded"],
        )
