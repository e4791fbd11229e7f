"""A simulated server with a prefix cache, whose events come out as columns.

The events of a step are those that the recorder writes for SGLang, in its order: the allocation of
each request, new tokens of each history, new cells of each row, the forward, and behind a prefill
the move into the prefix cache; at a request's end that move, its last token, ``finish`` and
``row_release``. Slots that nobody reads any more are evicted, oldest first, when the pool runs out.
A replay finds nothing in them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.scale_segments import CODE, Lists, SegmentAssembler

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_VOCABULARY = 150_000
#: A segment is handed on at this many events.
_SEGMENT_EVENTS = 40_000


class Server:
    """A server whose requests take and leave slots as a real one's do.

    Attributes:
        out: Takes each segment.
        recorded: Tokens of all forwards so far.
    """

    def __init__(
        self, out: Callable[[Segment], None], *, slots: int, batch: int, row_len: int, seed: int = 1
    ) -> None:
        """Start with an empty pool.

        Args:
            out: Takes each segment.
            slots: Usable slots of the pool.
            batch: Most requests at a time.
            row_len: Longest request.
            seed: Of tokens and lengths.
        """
        self.recorded = 0
        self.random = np.random.default_rng(seed)
        self.out = out
        self._events = SegmentAssembler()
        self._table = np.zeros((batch + 1, row_len), dtype=np.int32)
        self._prompt = np.zeros((batch + 1, row_len), dtype=np.int32)
        self._len = np.zeros(batch + 1, dtype=np.int64)
        self._prompt_len = np.zeros(batch + 1, dtype=np.int64)
        self._cached = np.zeros(batch + 1, dtype=np.int64)
        self._req = np.full(batch + 1, -1, dtype=np.int64)
        self._entries: list[list[int]] = [[] for _ in range(batch + 1)]
        self.free_rows = list(range(1, batch + 1))
        # A queue in a ring: slots that were given back wait until all others were used.
        self._ring = np.arange(1, slots + 1)
        self._head, self._free = 0, slots
        self._evictable: deque[tuple[list[int], Ints]] = deque()
        self._shared: tuple[Ints, Ints, str] | None = None
        self._requests = self._next_entry = self._step = 0

    # Slots.

    def _take(self, count: int) -> Ints:
        while self._free < count:
            self._evict()
        at = (self._head + np.arange(count)) % len(self._ring)
        self._head = (self._head + count) % len(self._ring)
        self._free -= count
        return self._ring[at]

    def _evict(self) -> None:
        """The oldest request's slots leave the cache."""
        if not self._evictable:
            raise ValueError("the pool is too small for what runs at a time; give more slots")
        entries, slots = self._evictable.popleft()
        at = (self._head + self._free + np.arange(len(slots))) % len(self._ring)
        self._ring[at] = slots
        self._free += len(slots)
        code = self._events.code
        names = self._events.codes([f"entry-{n}" for n in entries])
        self._events.add(
            [CODE["free"], *[CODE["unpublish"]] * len(entries)],
            free=(
                1,
                {
                    "owner": np.array([code("tree")]),
                    "slots": Lists.of(slots, 1),
                    "reason": np.array([code("evict")]),
                },
            ),
            unpublish=(len(entries), {"entry": names}),
        )

    def _names(self, rows: Ints) -> NDArray[np.int32]:
        return self._events.codes([f"req-{n:07d}" for n in self._req[rows].tolist()])

    def _own(self, rows: Ints) -> None:
        """What the requests have computed passes to the prefix cache."""
        start, stop = self._cached[rows], self._len[rows]
        parts = [self._table[r, a:b] for r, a, b in zip(rows, start, stop, strict=True)]
        entries = []
        for row in rows.tolist():
            self._entries[row].append(self._next_entry)
            entries.append(f"entry-{self._next_entry}")
            self._next_entry += 1
        self._cached[rows] = stop
        fields = {
            "from": self._names(rows),
            "owner": np.full(len(rows), self._events.code("tree")),
            "slots": Lists(np.concatenate(parts), stop - start),
            "entry": self._events.codes(entries),
        }
        self._events.add([CODE["own"]] * len(rows), own=(len(rows), fields))

    # What a server does.

    def begin(self, prompt_len: int) -> int:
        """A request arrives and gets a row, with the shared prefix if there is one; its row."""
        row = self.free_rows.pop()
        self._req[row] = self._requests
        self._requests += 1
        self._prompt_len[row] = prompt_len
        self._prompt[row, :prompt_len] = self.random.integers(0, _VOCABULARY, prompt_len)
        self._len[row] = self._cached[row] = 0
        self._entries[row] = []
        if self._shared is not None:
            tokens, slots, _ = self._shared
            self._prompt[row, : len(tokens)] = tokens
            self._table[row, : len(slots)] = slots
            self._len[row] = self._cached[row] = len(slots)
        return row

    def share(self, prompt_len: int) -> None:
        """Every later request begins with this prompt, which stays in the cache."""
        row = self.begin(prompt_len)
        self.extend(np.array([row]), np.array([prompt_len]))
        name = f"entry-{self._entries[row][-1]}"
        self._shared = (
            self._prompt[row, :prompt_len].copy(),
            self._table[row, :prompt_len].astype(np.int64),
            name,
        )
        self.finish(np.array([row]))
        self._evictable.clear()

    def extend(self, rows: Ints, counts: Ints) -> None:
        """One EXTEND forward: each row computes its next ``counts`` prompt tokens."""
        begin, total = self._len[rows], int(counts.sum())
        slots = self._take(total)
        batch = len(rows)
        ends = np.cumsum(counts)
        row_of = np.repeat(rows, counts)
        positions = np.arange(total) + np.repeat(begin - (ends - counts), counts)
        self._table[row_of, positions] = slots
        names = self._names(rows)
        shared = 0 if self._shared is None else len(self._shared[0])
        is_fresh = begin == shared
        fresh = rows[is_fresh]
        # The rows of requests that begin are told from their first cell on.
        told = np.where(is_fresh, 0, begin)
        cells = [self._table[r, a:b] for r, a, b in zip(rows, told, begin + counts, strict=True)]
        kinds = [CODE["alloc"]] * batch
        tables: dict[str, tuple[int, dict[str, Any]]] = {
            "alloc": (batch, {"owner": names, "slots": Lists(slots, counts)}),
            "map": (
                batch,
                {
                    "row": rows,
                    "start": told,
                    "slots": Lists(np.concatenate(cells), begin + counts - told),
                },
            ),
        }
        if len(fresh):
            if self._shared is not None:
                kinds += [CODE["match"]] * len(fresh)
                tables["match"] = (
                    len(fresh),
                    {
                        "req": names[is_fresh],
                        "entry": np.full(len(fresh), self._events.code(self._shared[2])),
                        "slots": Lists.of(np.tile(self._shared[1], len(fresh)), len(fresh)),
                    },
                )
            lengths = self._prompt_len[fresh]
            prompts = [self._prompt[r, :n] for r, n in zip(fresh, lengths, strict=True)]
            kinds += [CODE["history"]] * len(fresh)
            tables["history"] = (
                len(fresh),
                {
                    "req": names[is_fresh],
                    "start": np.zeros(len(fresh)),
                    "ids": Lists(np.concatenate(prompts), lengths),
                },
            )
        kinds += [CODE["map"]] * batch + [CODE["forward"]]
        tables["forward"] = (
            1,
            {
                **self._forward("EXTEND", 1, names, rows, begin + counts),
                "input_ids": Lists.of(self._prompt[row_of, positions], 1),
                "positions": Lists.of(positions, 1),
                "out_cache_loc": Lists.of(slots, 1),
                "extend_prefix_lens": Lists.of(begin, 1),
                "extend_seq_lens": Lists.of(counts, 1),
            },
        )
        self._events.add(kinds, **tables)
        self._len[rows] += counts
        self.recorded += total
        self._own(rows)
        self._flush_if_full()

    def _forward(
        self, mode: str, steps: int, names: NDArray[np.int32], rows: Ints, seq_lens: Ints
    ) -> dict[str, Any]:
        first, self._step = self._step, self._step + steps
        return {
            "step": np.arange(first, first + steps),
            "forward_mode": np.full(steps, self._events.code(mode)),
            "reqs": Lists.of(np.tile(names, steps), steps),
            "req_pool_indices": Lists.of(np.tile(rows, steps), steps),
            "seq_lens": Lists.of(seq_lens, steps),
        }

    def prefill(self, rows: Ints, chunk: int) -> None:
        """EXTEND forwards of at most ``chunk`` tokens until all prompts are computed."""
        waiting = deque(rows.tolist())
        while waiting:
            room, taken, counts = chunk, [], []
            while waiting and room:
                row = waiting[0]
                left = int(self._prompt_len[row] - self._len[row])
                count = min(left, room)
                room -= count
                taken.append(row)
                counts.append(count)
                if count < left:
                    break
                waiting.popleft()
            self.extend(np.array(taken), np.array(counts))

    def decode(self, rows: Ints, steps: int) -> None:
        """``steps`` DECODE forwards of the same requests."""
        batch = len(rows)
        at_once = max(1, _SEGMENT_EVENTS // (3 * batch))
        while steps > 0:
            self._decode(rows, min(steps, at_once))
            steps -= at_once

    def _decode(self, rows: Ints, steps: int) -> None:
        batch, total = len(rows), len(rows) * steps
        slots = self._take(total)
        tokens = self.random.integers(0, _VOCABULARY, total)
        positions = (self._len[rows] + np.arange(steps)[:, None]).reshape(-1)
        every_row = np.tile(rows, steps)
        self._table[every_row, positions] = slots
        names = self._names(rows)
        every_name = np.tile(names, steps)
        step = [CODE["alloc"]] * batch + [CODE["history"]] * batch + [CODE["map"]] * batch
        self._events.add(
            np.tile(np.array([*step, CODE["forward"]], dtype=np.int16), steps),
            alloc=(total, {"owner": every_name, "slots": Lists.of(slots, total)}),
            history=(
                total,
                {"req": every_name, "start": positions, "ids": Lists.of(tokens, total)},
            ),
            map=(total, {"row": every_row, "start": positions, "slots": Lists.of(slots, total)}),
            forward=(
                steps,
                {
                    **self._forward("DECODE", steps, names, rows, positions + 1),
                    "input_ids": Lists.of(tokens, steps),
                    "positions": Lists.of(positions, steps),
                    "out_cache_loc": Lists.of(slots, steps),
                },
            ),
        )
        self._len[rows] += steps
        self.recorded += total
        self._flush_if_full()

    def finish(self, rows: Ints) -> None:
        """The requests end; their last token was sampled but never computed."""
        for row in rows.tolist():
            one = np.array([row])
            if self._cached[row] < self._len[row]:
                self._own(one)
            name = self._names(one)
            last = Lists.of(self.random.integers(0, _VOCABULARY, 1), 1)
            self._events.add(
                [CODE["history"], CODE["finish"], CODE["row_release"]],
                history=(1, {"req": name, "start": self._len[one], "ids": last}),
                finish=(1, {"req": name}),
                row_release=(1, {"row": one, "req": name}),
            )
            shared = 0 if self._shared is None else len(self._shared[0])
            slots = self._table[row, shared : self._len[row]].astype(np.int64)
            self._evictable.append((self._entries[row], slots))
            self.free_rows.append(row)
        self._flush_if_full()

    def _flush_if_full(self) -> None:
        if self._events.events >= _SEGMENT_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Hand on what is held back."""
        if self._events.events:
            self.out(self._events.finish())
