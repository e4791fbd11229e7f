"""Draft trees, accepted nodes and KV moves of TARGET_VERIFY forwards, derived from a capture.

The capture shows neither the tree's edges, nor which nodes were accepted, nor the copies. It
shows each node's position and token, the request's true tokens, and the length at its next
forward or its end; from these:

- depth = position - length before the forward; the parent of a node is the nearest earlier node
  one level up, -1 at depth 0;
- the accepted nodes are, for each depth below the number of committed tokens, the first nodes in
  tree order whose tokens are the true ones; where the edges above say otherwise, each accepted
  node's parent is set to the accepted node above it;
- the row keeps the block's first slots for the committed tokens, so the KV of accepted node k at
  depth d was moved to the row's slot for that position. The engine ran without its canary; the
  copy carries the canary row (``canary: true``), as a healthy engine's would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError
from tests.tools.capture_rows import ints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.tools.capture_rows import Event


def nearest_parents(depths: Sequence[int]) -> list[int]:
    """Parent of each node by depth alone: the nearest earlier node one level up, or -1."""
    return [
        max((k for k in range(node) if depths[k] == depth - 1), default=-1) if depth > 0 else -1
        for node, depth in enumerate(depths)
    ]


def accepted_nodes(
    depths: Sequence[int], tokens: Sequence[int], committed: Sequence[int]
) -> list[int] | None:
    """The first nodes in tree order that spell ``committed`` from depth 0 on, or None.

    Args:
        depths, tokens: Per node, in tree order.
        committed: The true tokens at depths 0, 1, ...
    """
    path: list[int] = []

    def extend() -> bool:
        depth = len(path)
        if depth == len(committed):
            return True
        for node in range(path[-1] + 1 if path else 0, len(depths)):
            if depths[node] == depth and tokens[node] == committed[depth]:
                path.append(node)
                if extend():
                    return True
                path.pop()
        return False

    return path if extend() else None


class Speculation:
    """What a capture's TARGET_VERIFY forwards drafted and what came of it."""

    def __init__(self, steps: list[dict[str, Any]], tokens: dict[str, list[int]]) -> None:
        """Derive trees and acceptance.

        Args:
            steps: The capture's steps.
            tokens: True tokens by request, prompt first.

        Raises:
            InputError: No path of a tree spells the tokens that were committed.
        """
        self._parents: dict[int, list[int]] = {}
        self._outcome: dict[int, list[Event]] = {}
        for n, step in enumerate(steps):
            if step["forward_mode_name"] == "TARGET_VERIFY":
                self._derive(n, step, steps, tokens)

    @property
    def used(self) -> bool:
        return bool(self._parents)

    def parents(self, n: int) -> list[int] | None:
        """Flat parents of step ``n``'s nodes, indices within the row; None without drafts."""
        return self._parents.get(n)

    def outcome(self, n: int) -> list[Event]:
        """The ``copy`` and ``accept`` events behind the forward of step ``n``."""
        return self._outcome.get(n, [])

    def _derive(
        self,
        n: int,
        step: dict[str, Any],
        steps: list[dict[str, Any]],
        tokens: dict[str, list[int]],
    ) -> None:
        width = step["draft_token_num"]
        ids, positions = ints(step["input_ids"]), ints(step["positions"])
        slots = ints(step["out_cache_loc"])
        parents: list[int] = []
        outcome: list[Event] = []
        for k, (req, length) in enumerate(zip(step["rids"], ints(step["seq_lens"]), strict=True)):
            block = slice(k * width, (k + 1) * width)
            row = ints(step["req_to_token_rows"][k])
            depths = [position - length for position in positions[block]]
            # The last output token never gets KV.
            after = _next_length(steps, n, req, len(tokens[req]) - 1)
            path = accepted_nodes(depths, ids[block], tokens[req][length:after])
            if path is None:
                raise InputError(
                    f"step {step['step']}, request {req}: no path of its draft tree spells the "
                    f"committed tokens {tokens[req][length:after]}; tokens {ids[block]}, depths "
                    f"{depths}"
                )
            edges = nearest_parents(depths)
            for above, node in zip([-1, *path], path, strict=False):
                edges[node] = above
            parents += edges
            moves = [
                (slots[block][node], row[length + depth])
                for depth, node in enumerate(path)
                if slots[block][node] != row[length + depth]
            ]
            if moves:
                outcome.append(
                    {
                        "kind": "copy",
                        "src": [src for src, _ in moves],
                        "dst": [dst for _, dst in moves],
                        "via": "d2d",
                        "canary": True,
                    }
                )
            outcome.append(
                {
                    "kind": "accept",
                    "req": req,
                    "nodes": path,
                    "tokens": [ids[block][node] for node in path],
                    "committed_len": after,
                }
            )
        self._parents[n] = parents
        self._outcome[n] = outcome


def _next_length(steps: list[dict[str, Any]], n: int, req: str, at_end: int) -> int:
    """Length of ``req`` before its next forward after step ``n``, or ``at_end``."""
    for step in steps[n + 1 :]:
        if req in step["rids"]:
            return ints(step["seq_lens"])[step["rids"].index(req)]
    return at_end
