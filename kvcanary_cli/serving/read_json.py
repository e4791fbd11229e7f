"""Reads a server-info JSON (``/server_info``, ``/get_server_info``; SPEC_SERVING_ARGS 4.7)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving.read_raw import RawReading
from kvcanary_cli.serving.values import Given, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.serving.values import Kind

#: A JSON object with one of these is a server-info.
SIGNS = frozenset(
    {
        "internal_states",
        "scheduler_info",
        "server_args",
        "tp_size",
        "model_path",
        "max_total_num_tokens",
        "max_running_requests",
        "chunked_prefill_size",
        "launch_command",
    }
)
_PARTS = frozenset({"internal_states", "scheduler_info", "kv_events", "frontend", "server_args"})
_WHAT = "server-info"
#: Entries of ``internal_states`` that the arguments do not have, by fact.
_STATE_FACTS = (
    ("effective_max_running_requests_per_dp", "effective_max_running_requests"),
    ("max_total_num_tokens", "kv_tokens"),
)

_SCHEDULER_FACTS = (
    ("max_total_num_tokens", "kv_tokens"),
    ("max_req_input_len", "max_req_input_len"),
)


class _JsonReader:
    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.reading = RawReading(name, "server-info")

    def place(self, key: str) -> Place:
        """Line on which a key first stands."""
        found = re.search(rf'"{re.escape(key)}"\s*:', self.text)
        at = found.start() if found else 0
        return Place(
            self.reading.name, self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        )

    def add(self, name: str, value: Any, key: str, kind: Kind = "fact") -> None:
        place = self.place(key)
        source = f"{place} ({_WHAT})"
        self.reading.given.append(Given(name, value, source, place, kind))

    def number(self, name: str, value: Any, key: str, convert: Callable[[Any], Any]) -> None:
        """Add a fact if it is a finite number of the right kind; otherwise say so."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.reading.notice(f"'{key}' is no number and is left out", self.place(key))
            return
        try:
            self.add(name, convert(value), key)
        except (OverflowError, ValueError):
            self.reading.notice(f"'{key}' is no finite number and is left out", self.place(key))

    def run(self) -> RawReading:
        root = self._parse()
        if root is None:
            return self.reading
        inner = root.get("server_args")
        arguments = {**(inner if isinstance(inner, dict) else {}), **root}
        for key, value in arguments.items():
            if key not in _PARTS and re.fullmatch(r"[A-Za-z_]\w*", key):
                self._argument(key, value)
        scheduler = root.get("scheduler_info")
        if isinstance(scheduler, dict):
            for key, fact in _SCHEDULER_FACTS:
                if key in scheduler:
                    self.number(fact, scheduler[key], key, int)
        states = root.get("internal_states")
        if isinstance(states, list | dict):
            self._states(states if isinstance(states, list) else [states])
        return self.reading

    def _parse(self) -> dict[str, Any] | None:
        try:
            root = json.loads(self.text)
        except json.JSONDecodeError as error:
            self.reading.problem(
                Place(self.reading.name, error.lineno, error.colno), f"not JSON: {error.msg}"
            )
            return None
        except (RecursionError, ValueError):
            self.reading.problem(
                Place(self.reading.name, 1, 1), "not JSON that a server writes: nested too deep"
            )
            return None
        if not isinstance(root, dict) or not SIGNS & root.keys():
            self.reading.problem(
                Place(self.reading.name, 1, 1),
                "not a server-info: none of the arguments that a server reports",
                "save the answer of http://HOST:PORT/server_info (older: /get_server_info)",
            )
            return None
        return root

    def _argument(self, key: str, value: Any) -> None:
        if key == "version" and isinstance(value, str):
            self.reading.version = (value, self.place(key))
        elif key == "max_total_num_tokens":
            self.number("kv_tokens", value, key, int)
        elif key == "max_req_input_len":
            self.number(key, value, key, int)
        else:
            self.add(key, value, key, "resolved")

    def _states(self, states: list[Any]) -> None:
        """What the workers report; the smallest over the workers counts."""
        known = [state for state in states if isinstance(state, dict)]
        for key, fact in _STATE_FACTS:
            self._smallest(fact, [s[key] for s in known if key in s], key, int)
        memory = [s["memory_usage"] for s in known if isinstance(s.get("memory_usage"), dict)]
        sizes = (("token_capacity", "kv_tokens"), ("weight", "weights_gib"), ("kvcache", "kv_gib"))
        for key, fact in sizes:
            convert = int if fact == "kv_tokens" else float
            self._smallest(fact, [m[key] for m in memory if key in m], key, convert)
        for state in known:
            captured = state.get("decode_cuda_graph_bs")
            if isinstance(captured, list) and captured and all(type(s) is int for s in captured):
                self.add("capture_bs", captured, "decode_cuda_graph_bs")
                break

    def _smallest(
        self, fact: str, values: list[Any], key: str, convert: Callable[[Any], Any]
    ) -> None:
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if numbers:
            self.number(fact, min(numbers), key, convert)


def read_server_info(text: str, name: str) -> RawReading:
    """Read the JSON that a running server answers.

    Args:
        text: Its content.
        name: How messages call it.
    """
    return _JsonReader(text, name).run()
