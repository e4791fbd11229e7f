"""Reads a server log: arguments, ready line, memory, KV cache, graphs, batches, canary lines.

Formats of all versions are in SPEC_SERVING_ARGS 4. A log may hold several starts: the last one
counts. Ranks print the same line several times: per-rank values are kept by rank, and the smallest
counts, because it is the one that overflows first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving import log_patterns as pattern
from kvcanary_cli.serving.log_batches import read_batch_line, read_canary_message
from kvcanary_cli.serving.log_lines import PREFIX, log_lines
from kvcanary_cli.serving.observed import Observations
from kvcanary_cli.serving.read_raw import RawReading
from kvcanary_cli.serving.read_repr import ReprError, parse_fields
from kvcanary_cli.serving.values import Given, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcanary_cli.serving.values import Kind

_MAX_DIGITS = 18
_CAPACITY_OF_MESSAGE = (
    ("KVC-B03", "canary_write_req_capacity"),
    ("KVC-B04", "canary_write_entry_capacity"),
    ("KVC-B08", "canary_verify_capacity"),
)
#: Facts of which the smallest over the ranks counts, and those that every rank states alike.
_PER_RANK_SMALLEST = frozenset(
    {
        "kv_tokens",
        "swa_kv_tokens",
        "effective_max_running_requests",
        "req_to_token_pool_size",
        "avail_before_load_gib",
        "avail_after_load_gib",
        "avail_after_pool_gib",
        "mamba_slots",
        "k_gib",
        "v_gib",
        "kv_gib",
        "canary_verify_capacity",
        "canary_write_req_capacity",
        "canary_write_entry_capacity",
    }
)


@dataclass(slots=True)
class _Start:
    """What one start of the server stated."""

    line: int
    args: dict[str, Any] | None = None
    args_place: Place | None = None
    args_whole: bool = True
    # Fact or option, then rank, then the statement.
    said: dict[str, dict[str, Given]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    observed: Observations = field(default_factory=Observations)

    @property
    def began(self) -> bool:
        return bool(self.said) or bool(self.observed.batch_lines)


class _LogReader:
    def __init__(self, name: str) -> None:
        self.reading = RawReading(name, "log")
        self.start = _Start(1)
        self.starts: list[_Start] = [self.start]
        self.handlers: tuple[tuple[str, Callable[[str, str, Place], None]], ...] = (
            ("server_args=", self._args),
            ("max_total_num_tokens=", self._ready),
            ("Load weight begin", self._weights_begin),
            ("Load weight end", self._weights_end),
            ("#tokens: ", self._pool),
            ("Memory pool end", self._pool_end),
            ("layer_tokens=", self._swa),
            ("Mamba Cache", self._mamba),
            ("max_running_requests ", self._reduced),
            ("max_num_reqs=", self._num_reqs),
            ("Capture ", self._capture),
            ("attach_canary_buffers", self._attach),
            ("no attacher registered", self._no_attacher),
            ("per_forward_verify_capacity=", self._install),
            ("maximum allowed length", self._input_limit),
            ("sglang", self._version),
        )

    def new_start(self, line: int) -> None:
        """Begin anew; the arguments hold until others are printed."""
        before = self.start
        self.start = _Start(line, before.args, before.args_place, before.args_whole)
        self.starts.append(self.start)

    def say(
        self, name: str, value: Any, rank: str, place: Place, what: str, kind: Kind = "fact"
    ) -> None:
        """Note a statement; a rank's first one stands (a draft model repeats some lines)."""
        ranks = self.start.said.setdefault(name, {})
        ranks.setdefault(rank, Given(name, value, f"{place} ({what})", place, kind))

    def line(self, text: str, number: int) -> None:
        if not pattern.TELLTALE.search(text):
            return
        place = Place(self.reading.name, number)
        if "batch" in text and (kind := read_batch_line(text, place, self.start.observed)):
            if kind.newest is not None:
                self._at_most(kind.newest, "the form of its batch lines", place)
            return
        prefix = PREFIX.search(text)
        rank = prefix.group(1).strip() if prefix else ""
        if "anary" in text:
            read_canary_message(text, place, self.start.observed)
            if "kv-canary" in text or "install_canary" in text:
                self.reading.oldest_version = ("0.5.13", f"{place}: the first with a canary")
        for sign, handler in self.handlers:
            if sign in text:
                handler(text, rank, place)

    def _at_most(self, version: str, why: str, place: Place) -> None:
        known = self.reading.newest_version
        if known is None or _numbers(version) < _numbers(known[0]):
            self.reading.newest_version = (version, f"{why} at {place}")

    def _args(self, text: str, rank: str, place: Place) -> None:
        found = pattern.ARGS.search(text)
        if found is None:
            return
        try:
            fields, whole = parse_fields(text, found.end())
        except ReprError:
            self.reading.notice("the server_args line cannot be read and is left out", place)
            return
        if self.start.began or (self.start.args is not None and fields != self.start.args):
            self.new_start(place.line or 1)
        self.start.args, self.start.args_place, self.start.args_whole = fields, place, whole
        if text[found.end()] != "{":
            self._at_most("0.5.18", "server_args=ServerArgs(...)", place)
        else:
            self.reading.oldest_version = ("0.5.20", f"server_args={{...}} at {place}")

    def _ready(self, text: str, rank: str, place: Place) -> None:
        found = pattern.READY.search(text)
        if found is None:
            return
        if rank in self.start.ready:
            # The same rank is ready a second time: it was started again.
            self.new_start(place.line or 1)
        self.start.ready.add(rank)
        tokens, chunk, prefill, running, context, memory = found.groups()
        what = "ready line"
        self._replace("kv_tokens", int(tokens), rank, place, what)
        self._replace("effective_max_running_requests", int(running), rank, place, what)
        self._replace("context_len", int(context), rank, place, what)
        self._replace("max_prefill_tokens", int(prefill), rank, place, what, "resolved")
        if chunk is not None:
            value = None if chunk == "None" else int(chunk)
            self._replace("chunked_prefill_size", value, rank, place, what, "resolved")
        if memory is None:
            self._at_most("0.4.6.post5", "the ready line has no available memory", place)

    def _replace(
        self, name: str, value: Any, rank: str, place: Place, what: str, kind: Kind = "fact"
    ) -> None:
        """The ready line is the last word on what it states."""
        self.start.said.get(name, {}).pop(rank, None)
        self.say(name, value, rank, place, what, kind)

    def _weights_begin(self, text: str, rank: str, place: Place) -> None:
        if found := pattern.WEIGHTS_BEGIN.search(text):
            if rank in self.start.ready:
                self.new_start(place.line or 1)
            self.say("avail_before_load_gib", float(found.group(1)), rank, place, "weights line")

    def _weights_end(self, text: str, rank: str, place: Place) -> None:
        found = pattern.WEIGHTS_END.search(text)
        if found is None:
            return
        self.say("avail_after_load_gib", float(found.group(1)), rank, place, "weights line")
        if found.group(2):
            self.say("weights_gib", float(found.group(2)), rank, place, "weights line")

    def _pool(self, text: str, rank: str, place: Place) -> None:
        found = pattern.POOL.search(text)
        if found is None or "upper bound" in text:
            return
        _, tokens, k_gib, v_gib, kv_gib = found.groups()
        what = "KV cache line"
        if rank in self.start.said.get("kv_tokens", {}):
            return
        self.say("kv_tokens", int(tokens), rank, place, what)
        if k_gib is not None:
            self.say("k_gib", float(k_gib), rank, place, what)
            self.say("v_gib", float(v_gib), rank, place, what)
        else:
            self.say("kv_gib", float(kv_gib), rank, place, what)

    def _pool_end(self, text: str, rank: str, place: Place) -> None:
        if found := pattern.POOL_END.search(text):
            self.say("avail_after_pool_gib", float(found.group(1)), rank, place, "memory line")

    def _swa(self, text: str, rank: str, place: Place) -> None:
        found = pattern.SWA.search(text)
        if found is None:
            return
        what = "sliding-window line"
        self.say("kv_tokens", int(found.group(1)), rank, place, what)
        self.say("swa_kv_tokens", int(found.group(2)), rank, place, what)

    def _mamba(self, text: str, rank: str, place: Place) -> None:
        if found := pattern.MAMBA.search(text):
            self.say("mamba_slots", int(found.group(1)), rank, place, "state cache line")

    def _reduced(self, text: str, rank: str, place: Place) -> None:
        if found := pattern.REDUCED.search(text):
            what = "max_running_requests was reduced"
            self.say("effective_max_running_requests", int(found.group(2)), rank, place, what)
        elif found := pattern.MAMBA_CAP.search(text):
            what = "max_running_requests is capped"
            self.say("effective_max_running_requests", int(found.group(1)), rank, place, what)
            self.say("mamba_slots", int(found.group(2)), rank, place, what)

    def _num_reqs(self, text: str, rank: str, place: Place) -> None:
        if found := pattern.NUM_REQS.search(text):
            self.say(
                "req_to_token_pool_size", int(found.group(1)), rank, place, "request pool line"
            )

    def _capture(self, text: str, rank: str, place: Place) -> None:
        found = pattern.CAPTURE_OLD.search(text) or pattern.CAPTURE_NEW.search(text)
        if found:
            self.say("capture_bs", _integers(found.group(1)), rank, place, "graph capture line")
        elif found := pattern.CAPTURE_TOKENS.search(text):
            tokens = _integers(found.group(1) or found.group(2))
            self.say("capture_num_tokens", tokens, rank, place, "graph capture line")

    def _attach(self, text: str, rank: str, place: Place) -> None:
        if found := pattern.ATTACH.search(text):
            self.say("pool_class", found.group(1), rank, place, "canary buffers line")
            self.say(
                "canary_buffer_groups", int(found.group(2)), rank, place, "canary buffers line"
            )

    def _no_attacher(self, text: str, rank: str, place: Place) -> None:
        if found := pattern.NO_ATTACHER.search(text):
            self.say("pool_class", found.group(1), rank, place, "the canary's refusal")

    def _install(self, text: str, rank: str, place: Place) -> None:
        found = pattern.INSTALL.search(text)
        if found is None:
            return
        what = "canary install line"
        names = ("verify", "write_req", "write_entry")
        for name, value in zip(names, found.groups(), strict=True):
            self.say(f"canary_{name}_capacity", int(value), rank, place, what)
        if mode := pattern.INSTALL_MODE.search(text):
            self.say("kv_canary", mode.group(1) or mode.group(2), rank, place, what, "resolved")
        for name, value in pattern.INSTALL_FIELD.findall(text):
            match name:
                case "sweep_interval":
                    sweep = "kv_canary_sweep_interval"
                    self.say(sweep, int(value), rank, place, what, "resolved")
                case "ring_capacity":
                    ring = "SGLANG_KV_CANARY_RING_CAPACITY"
                    self.say(ring, int(value), rank, place, what, "resolved")
                case _:
                    self.say("canary_buffer_groups", int(value), rank, place, what)

    def _input_limit(self, text: str, rank: str, place: Place) -> None:
        if found := pattern.INPUT_LIMIT.search(text):
            self.say("max_req_input_len", int(found.group(1)), rank, place, "refused input")

    def _version(self, text: str, rank: str, place: Place) -> None:
        if self.reading.version is None and (found := pattern.VERSION.search(text)):
            self.reading.version = (found.group(1), place)

    def finish(self) -> RawReading:
        used = [start for start in self.starts if start.began or start.args is not None]
        last = used[-1] if used else self.start
        name = self.reading.name
        if len(used) > 1:
            lines = ", ".join(str(start.line) for start in used)
            self.reading.notice(
                f"{name}: {len(used)} starts (from lines {lines}); the last one counts"
            )
        if last.args is not None and last.args_place is not None:
            if not last.args_whole:
                self.reading.notice(
                    f"the server_args line is cut after {len(last.args)} fields", last.args_place
                )
            self.reading.given += dump_values(last.args, last.args_place, "server_args line")
        for fact, ranks in last.said.items():
            self.reading.given.append(self._over_ranks(fact, ranks))
        self.reading.observed = last.observed
        self._installed(last)
        if not self.reading.given and not last.observed.batch_lines and not last.observed.errors:
            self.reading.notice(
                f"{name}: no line of a server log that says anything about its setup"
            )
        return self.reading

    def _installed(self, last: _Start) -> None:
        """Capacities that a message names, where no install line states them."""
        for code, fact in _CAPACITY_OF_MESSAGE:
            error = last.observed.errors.get(code)
            if error is not None and fact not in last.said:
                source = f"{error.place} ({code} of the server)"
                self.reading.given.append(Given(fact, error.capacity, source, error.place, "fact"))

    def _over_ranks(self, fact: str, ranks: Mapping[str, Given]) -> Given:
        given = list(ranks.values())
        values = [one.value for one in given]
        if fact in _PER_RANK_SMALLEST and len(set(values)) > 1:
            smallest = min(given, key=lambda one: one.value)
            if fact in ("kv_tokens", "effective_max_running_requests"):
                self.reading.notice(
                    f"{fact} differs between the ranks ({min(values)} to {max(values)}); "
                    "the smallest counts",
                    smallest.place,
                )
            return smallest
        return given[0]


def _integers(text: str) -> list[int]:
    parts = [part.strip() for part in text.strip("[]").split(",")]
    return [int(part) for part in parts if part.isdigit() and len(part) <= _MAX_DIGITS]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def dump_values(fields: Mapping[str, Any], place: Place, what: str) -> list[Given]:
    """Resolved options of a dump under the names that the dump has."""
    return [
        Given(name, value, f"{place} ({what})", place, "resolved")
        for name, value in fields.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name)
    ]


def read_log(text: str, name: str) -> RawReading:
    """Read a server log.

    Args:
        text: Its content.
        name: How messages call it.
    """
    reader = _LogReader(name)
    for number, line in log_lines(text):
        reader.line(line, number)
    return reader.finish()
