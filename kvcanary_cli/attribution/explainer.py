"""From violations to findings: primary entries first, then the seams behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.book import ONE_STEP
from kvcanary_cli.attribution.chunk_ends import is_chunk_end
from kvcanary_cli.attribution.damages import Damages, lane_of, row_offset
from kvcanary_cli.attribution.ledger import NOBODY, TREE
from kvcanary_cli.attribution.rules import lifetime_first
from kvcanary_cli.attribution.rules.index import CELL_NOT_MAPPED
from kvcanary_cli.replay.violations import CHAIN_POSITION, INPUT_ASSERT, VERIFY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.damage import Cause, Damage
    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.attribution.rules import Classifier
    from kvcanary_cli.attribution.under_way import UnderWay
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk


class Explainer:
    """Explains violations when they happen, with the ledger as it then is.

    Args:
        now: The forward that is being judged.
        book: Takes the findings.
        classifier: Says why.
    """

    def __init__(self, now: UnderWay, book: FindingBook, classifier: Classifier) -> None:
        self._now, self._follower = now, now.follower
        self._book, self._classifier = book, classifier
        self._damages = Damages(now)
        # By lane and slot of changed bytes: when the content came, their fingerprint, the finding.
        self._bytes: dict[tuple[str, str, int], tuple[int, int, Finding]] = {}

    def explain(self, chunk: ViolationChunk, forward: Forward | None) -> None:
        """Enter the violations of one lane in a forward, or in a sweep (None)."""
        if chunk.event != self._book.event:
            self._book.event = chunk.event
            self._book.in_full.clear()
        seam = chunk.columns["seam"]
        for k in np.flatnonzero(~seam).tolist():
            self._primary(chunk, k, forward)
        for k in np.flatnonzero(seam).tolist():
            self._seam(chunk, k, forward)

    def _primary(self, chunk: ViolationChunk, k: int, forward: Forward | None) -> None:
        slot = int(chunk.columns["slot"][k])
        position = int(chunk.columns["expected_position"][k])
        victim, reader = self._victim(chunk, k)
        place = (victim, position, chunk.event)
        both = self._book.in_full.get(place) if chunk.pool_kind == "SWA" else None
        if both is not None:
            # The full lane failed here too: the SWA lane only follows it.
            both.violations += 1
            self._book.by_slot[(*lane_of(chunk), slot)] = both
            return
        if chunk.check == INPUT_ASSERT:
            self._wrong_input(chunk, k, victim, forward)
            return
        if chunk.check == CHAIN_POSITION and forward is not None:
            known = self._known_before(chunk, k, forward)
            if known is not None:
                known.violations += 1
                return
            position = self._now.true_position_of(forward, slot, chunk)
        self._note_padding(chunk, slot, forward)
        damage = self._damages.of(chunk, k, forward, slot, position, victim)
        padded = int(damage.writes.pad_event[slot])
        key = (*lane_of(chunk), slot, max(damage.came_event(), padded))
        finding = self._book.known.get(key)
        if finding is None and damage.kv_only:
            finding = self._of_same_bytes(damage, chunk, k)
        if finding is None:
            others = self._of_others(damage, chunk, forward)
            first = lifetime_first(damage, others, lambda d: self._cause(d, chunk))
            finding = self._book.known[key] = self._book.of_damage(*first)
        if damage.kv_only:
            found = damage.came_event(), self._found_bytes(chunk, k)
            self._bytes[(*lane_of(chunk), slot)] = (*found, finding)
        if finding.pool_kind != chunk.pool_kind:
            finding.violations += 1
            self._book.by_slot[(*lane_of(chunk), slot)] = finding
            return
        if self._book.has_swa:
            self._book.in_full[place] = finding
        self._book.enter(finding, slot, position, victim, reader, chunk.step)

    def _note_padding(self, chunk: ViolationChunk, slot: int, forward: Forward | None) -> None:
        """Enter the padding write of this very forward, where TAIL saw what it had left.

        What was wrong before is no fault of the padding row.
        """
        if chunk.check != VERIFY or forward is None or chunk.pool_kind != "FULL":
            return
        if not (self._follower.forwards.padding_slots(forward) == slot).any():
            return
        assert self._now.replay is not None
        if self._now.replay.worker(chunk.worker).prints.changed_under_padding(slot):
            self._follower.forwards.note_padding(forward, only=slot)

    def _of_same_bytes(self, damage: Damage, chunk: ViolationChunk, k: int) -> Finding | None:
        """The finding of the bytes that are in the slot still, whatever padding rows did to it."""
        met = self._bytes.get((*lane_of(chunk), damage.slot))
        now = damage.came_event(), int(chunk.columns["expected_kv_hash"][k])
        return met[2] if met is not None and met[:2] == now else None

    def _found_bytes(self, chunk: ViolationChunk, k: int) -> int:
        """Fingerprint of the wrong bytes, before a padding row of this very forward hit them."""
        slot, before = int(chunk.columns["slot"][k]), None
        if self._now.replay is not None and chunk.pool_kind == "FULL":
            before = self._now.replay.worker(chunk.worker).prints.under_padding.fingerprint(slot)
        return int(chunk.columns["expected_kv_hash"][k]) if before is None else before

    def _known_before(self, chunk: ViolationChunk, k: int, forward: Forward) -> Finding | None:
        """The finding that a wrong chain value of what a forward writes goes back to.

        Its token may be wrong, too, or what it follows was damaged; the write itself is neither.
        """
        columns = chunk.columns
        fed = self._book.known.get((*lane_of(chunk), int(columns["slot"][k]), chunk.event))
        if fed is not None or row_offset(forward, int(columns["row"][k])):
            return fed
        return self._book.by_slot.get((*lane_of(chunk), int(columns["prev_slot"][k])))

    def _victim(self, chunk: ViolationChunk, k: int) -> tuple[int, str | None]:
        assert self._now.replay is not None
        code = int(chunk.columns["req"][k])
        if code < 0:
            return TREE, None
        name = self._now.replay.violations.requests[code]
        return self._follower.names.code(name), name

    def _cause(self, damage: Damage, chunk: ViolationChunk) -> Cause:
        """The rules' conclusion; a slot that this very forward overwrote is judged as rewritten."""
        if chunk.check == VERIFY and damage.forward is not None and damage.kv_only:
            index = 1 if damage.pool_kind == "SWA" else 0
            hit = np.flatnonzero(self._now.lanes[index] == damage.slot)
            if len(hit):
                self._now.enter_writes(damage.forward)
                return self._classifier.cause(damage)
        return self._classifier.cause(damage)

    def _of_others(
        self, damage: Damage, chunk: ViolationChunk, forward: Forward | None
    ) -> Iterator[Damage]:
        """The same slot as other readers of the forward, or of the sweep, met it."""
        columns = chunk.columns
        for k in np.flatnonzero((columns["slot"] == damage.slot) & ~columns["seam"]).tolist():
            victim, _ = self._victim(chunk, k)
            if victim not in (damage.victim, TREE):
                position = int(columns["expected_position"][k])
                yield self._damages.of(chunk, k, forward, damage.slot, position, victim)

    def _wrong_input(
        self, chunk: ViolationChunk, k: int, victim: int, forward: Forward | None
    ) -> None:
        columns = chunk.columns
        slot, token = int(columns["slot"][k]), int(columns["stored_token"][k])
        assert self._now.replay is not None
        cause = self._classifier.inputs.wrong_token_fed(
            victim,
            token,
            chunk.event,
            chunk.step,
            ends_chunk=is_chunk_end(chunk, k, forward, self._now.replay.pool.histories),
        )
        name = self._follower.names.name(victim)
        finding = self._book.by_cause.get(
            self._book.cause_key(cause, chunk.worker, chunk.pool_kind)
        )
        if finding is None:
            finding = self._book.new(cause, chunk.worker, chunk.pool_kind, name, chunk.step)
        if not self._now.is_foreign(slot):
            # Who loses a slot to a stranger suffers from that, whatever the stranger was fed.
            self._book.known[(*lane_of(chunk), slot, chunk.event)] = finding
        self._book.by_slot[(*lane_of(chunk), slot)] = finding
        if finding.pool_kind != chunk.pool_kind:
            finding.violations += 1
            return
        position = int(columns["position"][k])
        self._book.enter(finding, slot, position, victim, name, chunk.step)

    def _seam(self, chunk: ViolationChunk, k: int, forward: Forward | None) -> None:
        """A seam belongs to the damage before it; without one, the slot before is the damage."""
        columns = chunk.columns
        slot, prev = int(columns["slot"][k]), int(columns["prev_slot"][k])
        victim, reader = self._victim(chunk, k)
        position = int(columns["expected_position"][k]) - 1
        if chunk.check == CHAIN_POSITION and forward is not None:
            position = self._now.true_position_of(forward, slot, chunk) - 1
            # Where a position was left out, the chain skips it; the row still names its slot.
            cell = self._now.cell(forward, int(columns["row"][k]), position)
            known = (*lane_of(chunk), prev) in self._book.by_slot
            if cell > 0 and chunk.pool_kind == "FULL" and not known:
                prev = cell
        finding = self._book.by_slot.get((*lane_of(chunk), prev))
        if finding is None and chunk.pool_kind == "SWA":
            finding = self._book.in_full.get(
                (victim, position, chunk.event)
            ) or self._book.in_full.get((victim, position + 1, chunk.event))
        if finding is None:
            finding = self._fed_wrongly(chunk, (slot, prev))
        if finding is None:
            place = prev if prev > 0 else slot
            unmapped = prev <= 0 and self._is_unmapped(chunk, k, forward, position)
            if unmapped:
                place = self._stranded(chunk, victim, position) or slot
            damage = self._damages.of(chunk, k, forward, place, position, victim)
            damage.expected_token, damage.unmapped = None, unmapped
            if forward is not None and (self._now.lanes[chunk.pool_kind == "SWA"] == place).any():
                self._now.enter_writes(forward)
            finding = self._book.of_damage(self._classifier.cause(damage), damage)
            if finding.pool_kind == chunk.pool_kind:
                self._book.enter(finding, place, position, victim, reader, chunk.step)
                finding.violations -= 1
                if place == prev and not columns["token_checked"][k]:
                    self._enter_before(finding, damage, chunk, k, reader)
        finding.violations += 1
        if self._book.has_swa and chunk.pool_kind == "FULL":
            self._book.in_full[victim, position + 1, chunk.event] = finding
        if finding.pool_kind != chunk.pool_kind or finding.subtype == CELL_NOT_MAPPED:
            # Behind a cell without a slot nothing was replaced.
            return
        if finding.cls in ONE_STEP and chunk.step != finding.first_bad_step:
            return
        if slot not in finding.slots:
            finding.seam_slots.add(slot)

    def _enter_before(
        self,
        finding: Finding,
        last: Damage,
        chunk: ViolationChunk,
        k: int,
        reader: str | None,
    ) -> None:
        """Enter what stands before the damage ``last`` in the reader's row, as far as it is alike.

        Where no token is compared, a whole run of another's content fits together: only the entry
        behind it shows that something was replaced.
        """
        writes, code = last.writes, int(last.writes.req[last.slot])
        if last.forward is None or last.pool_kind != "FULL" or code in (NOBODY, last.victim):
            return
        key = self._book.cause_key(self._classifier.cause(last), last.worker, last.pool_kind)
        for position in range(last.position - 1, -1, -1):
            slot = self._now.cell(last.forward, last.row, position)
            if slot <= 0 or int(writes.req[slot]) != code:
                return
            damage = self._damages.of(chunk, k, last.forward, slot, position, last.victim)
            damage.expected_token, damage.stored_position = None, int(writes.position[slot])
            if not writes.foreign[slot] and self._classifier.may_be_read(damage):
                # What the reader shares with its writer is sound.
                return
            cause = self._classifier.cause(damage)
            if self._book.cause_key(cause, last.worker, last.pool_kind) != key:
                return
            self._book.enter(finding, slot, position, last.victim, reader, chunk.step)
            finding.violations -= 1

    def _is_unmapped(
        self, chunk: ViolationChunk, k: int, forward: Forward | None, position: int
    ) -> bool:
        """Whether the row of a forward names no slot at a position of its prefix."""
        row = int(chunk.columns["row"][k])
        if forward is None or chunk.pool_kind != "FULL" or row <= 0 or position < 0:
            return False
        return self._now.cell(forward, row, position) == 0

    def _stranded(self, chunk: ViolationChunk, victim: int, position: int) -> int:
        """Slot that ``victim`` wrote for a position and still owns; 0 = there is none."""
        writes, state = self._follower.lane(*lane_of(chunk)), self._follower.rules.state
        mine = (writes.req == victim) & (writes.true_position == position)
        at = np.flatnonzero(mine[: len(state.owner)] & (state.owner == victim))
        return int(at[np.argmax(writes.event[at])]) if len(at) else 0

    def _fed_wrongly(self, chunk: ViolationChunk, slots: tuple[int, int]) -> Finding | None:
        """The finding of a wrong input that the chain of one of ``slots`` goes back to.

        Rows that were written behind a wrong token carry its chain; beside the cache's rows for
        the same tokens, to which cells were set later, they look replaced.
        """
        writes = self._follower.lane(*lane_of(chunk))
        found = [
            finding
            for slot in slots
            if slot > 0
            for finding in self._book.wrong_inputs.get((chunk.worker, int(writes.event[slot])), ())
            if int(writes.req[slot]) == self._follower.names.code(finding.culprit.req or "")
        ]
        return min(found, key=lambda finding: int(finding.id[1:]), default=None)
