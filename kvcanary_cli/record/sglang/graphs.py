"""Rows and tokens that a captured graph adds to a batch, as its input buffers hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.shadows import to_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.record.tokens import TokenCoder

    Ints = NDArray[np.int64]
    Event = dict[str, Any]


class Padding:
    """Adds what a graph runner padded to the ``forward`` event that is under way.

    A graph replays with a fixed number of rows; the ones behind the batch read and write what
    stands in the runner's buffers, which should be the padding slot.
    """

    def __init__(self, tokens: TokenCoder) -> None:
        self._tokens = tokens
        self._event: Event | None = None

    def opens(self, event: Event) -> None:
        """``event`` was emitted and may still be changed."""
        self._event = event

    def closes(self) -> None:
        """The forward has run."""
        self._event = None

    def on_decode_load(
        self, _token: Any, _result: Any, raised: bool, runner: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """A decode or verification graph's buffers are filled."""
        if raised or self._event is None:
            return
        raw, rows = int(runner.raw_bs), int(runner.bs)
        width = int(getattr(runner, "captured_req_width", 1))
        if rows > raw:
            source = runner.buffers
            self._add(source, rows=slice(raw, rows), tokens=slice(raw * width, rows * width))

    def on_cpu_load(
        self, _token: Any, result: Any, raised: bool, _runner: Any, batch: Any, *_a: Any, **_k: Any
    ) -> None:
        """The same of the CPU's graph runner, which fills a batch that it has captured."""
        if raised or self._event is None or result is batch:
            return
        raw, rows = int(batch.batch_size), len(result.req_pool_indices)
        width = len(result.out_cache_loc) // max(rows, 1)
        self._add(result, rows=slice(raw, rows), tokens=slice(raw * width, rows * width))

    def on_prefill_load(
        self, _token: Any, result: Any, raised: bool, runner: Any, batch: Any, *_a: Any, **_k: Any
    ) -> None:
        """A prefill graph pads tokens: they stand as one more row."""
        if raised or self._event is None or self._event.get("extend_seq_lens") is None:
            return
        static = result[0] if isinstance(result, tuple) else result
        raw = int(runner.raw_num_tokens)
        total = len(static.input_ids)
        if total <= raw:
            return
        event = self._event
        self._mark_raw(event)
        event["reqs"] = [*event["reqs"], None]
        for name, value in (
            ("req_pool_indices", 0),
            ("seq_lens", total - raw),
            ("extend_prefix_lens", 0),
            ("extend_seq_lens", total - raw),
        ):
            event[name] = np.append(event[name], value)
        self._add_tokens(event, static, slice(raw, total))

    def _add(self, source: Any, *, rows: slice, tokens: slice) -> None:
        event = self._event
        assert event is not None
        self._mark_raw(event)
        count = rows.stop - rows.start
        event["reqs"] = [*event["reqs"], *[None] * count]
        # Row 0 is what makes a row padding; another row there would be somebody's.
        event["req_pool_indices"] = np.append(
            event["req_pool_indices"], np.zeros(count, dtype=np.int64)
        )
        event["seq_lens"] = np.append(event["seq_lens"], to_host(source.seq_lens[rows]))
        self._add_tokens(event, source, tokens)

    def _add_tokens(self, event: Event, source: Any, tokens: slice) -> None:
        count = tokens.stop - tokens.start
        for name in ("positions", "out_cache_loc"):
            event[name] = np.append(event[name], to_host(getattr(source, name)[tokens]))
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
