"""Rows and tokens that a captured graph adds to a batch, as its input buffers hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.record.session import Session

    Ints = NDArray[np.int64]
    Event = dict[str, Any]


class Told(Protocol):
    """A forward that is under way.

    Attributes:
        event: Its event, once it has been made; may still be changed.
    """

    event: Event


class Padding:
    """Adds what a graph runner padded to the ``forward`` event that is under way.

    A graph replays with a fixed number of rows; the ones behind the batch read and write what
    stands in the runner's buffers, which should be the padding slot.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._tokens = session, session.tokens
        self._told: Told | None = None
        self._slots: list[Any] = []

    def opens(self, told: Told) -> None:
        """The event of ``told`` was deferred; what is deferred behind it may still change it."""
        self._told, self._slots = told, []

    def closes(self) -> list[Any]:
        """The forward has run; tensors of the slots that its padding may have written."""
        self._told = None
        return self._slots

    def on_decode_load(
        self, _token: Any, _result: Any, raised: bool, runner: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """A decode or verification graph's buffers are filled."""
        if raised or self._told is None:
            return
        raw, rows = int(runner.raw_bs), int(runner.bs)
        width = int(getattr(runner, "captured_req_width", 1))
        if rows > raw:
            tokens = slice(raw * width, rows * width)
            self._add_rows(runner.buffers, slice(raw, rows), tokens)

    def on_cpu_load(
        self, _token: Any, result: Any, raised: bool, _runner: Any, batch: Any, *_a: Any, **_k: Any
    ) -> None:
        """The same of the CPU's graph runner, which fills a batch that it has captured."""
        if raised or self._told is None or result is batch:
            return
        raw, rows = int(batch.batch_size), len(result.req_pool_indices)
        width = len(result.out_cache_loc) // max(rows, 1)
        self._add_rows(result, slice(raw, rows), slice(raw * width, rows * width))

    def on_prefill_load(
        self, _token: Any, result: Any, raised: bool, runner: Any, batch: Any, *_a: Any, **_k: Any
    ) -> None:
        """A prefill graph pads tokens: they stand as one more row."""
        if raised or self._told is None:
            return
        static = result[0] if isinstance(result, tuple) else result
        raw = int(runner.raw_num_tokens)
        total = len(static.input_ids)
        if total > raw:
            self._add(static, slice(raw, total), self._with_tokens)

    def _add_rows(self, source: Any, rows: slice, tokens: slice) -> None:
        self._add(source, tokens, self._with_rows, source.seq_lens[rows])

    def _add(self, source: Any, tokens: slice, change: Callable[..., None], *more: Any) -> None:
        """Have ``change`` add the ``tokens`` of ``source`` to the event, and ``more`` values."""
        told, slots = self._told, source.out_cache_loc[tokens]
        assert told is not None
        self._slots.append(slots)

        def changed(positions: Ints, slots: Ints, *values: Ints) -> list[Event]:
            change(told.event, positions, slots, *values)
            return []

        self._session.defer(changed, source.positions[tokens], slots, *more)

    def _with_rows(self, event: Event, positions: Ints, slots: Ints, seq_lens: Ints) -> None:
        self._mark_raw(event)
        count = len(seq_lens)
        event["reqs"] = [*event["reqs"], *[None] * count]
        # Row 0 is what makes a row padding; another row there would be somebody's.
        event["req_pool_indices"] = np.append(
            event["req_pool_indices"], np.zeros(count, dtype=np.int64)
        )
        event["seq_lens"] = np.append(event["seq_lens"], seq_lens)
        self._append(event, positions, slots)

    def _with_tokens(self, event: Event, positions: Ints, slots: Ints) -> None:
        if event.get("extend_seq_lens") is None:
            return
        self._mark_raw(event)
        event["reqs"] = [*event["reqs"], None]
        for name, value in (
            ("req_pool_indices", 0),
            ("seq_lens", len(slots)),
            ("extend_prefix_lens", 0),
            ("extend_seq_lens", len(slots)),
        ):
            event[name] = np.append(event[name], value)
        self._append(event, positions, slots)

    def _append(self, event: Event, positions: Ints, slots: Ints) -> None:
        event["positions"] = np.append(event["positions"], positions)
        event["out_cache_loc"] = np.append(event["out_cache_loc"], slots)
        count = len(slots)
        if "input_ids" in event:
            # What a padding row is fed is nobody's token.
            nothing = self._tokens.encode(np.zeros(count, dtype=np.int64))
            event["input_ids"] = np.append(event["input_ids"], nothing)
        tree = event.get("tree")
        if tree is not None:
            width = int(event["draft_token_num"])
            linear = np.tile(np.arange(width, dtype=np.int64) - 1, count // width)
            event["tree"] = {"parent": [*tree["parent"], *linear.tolist()]}
        if event.get("namespaces") is not None:
            rows = len(event["reqs"]) - len(event["namespaces"])
            event["namespaces"] = [*event["namespaces"], *[None] * rows]

    @staticmethod
    def _mark_raw(event: Event) -> None:
        event.setdefault("raw_bs", len(event["reqs"]))
