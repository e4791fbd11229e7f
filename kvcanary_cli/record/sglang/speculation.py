"""Draft trees, and which of their nodes a verification has accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.record.sglang.scene import Scene

    Ints = NDArray[np.int64]
    Event = dict[str, Any]


class Speculation:
    """Turns accepted drafts into ``accept`` events."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def on_sample(
        self,
        _token: Any,
        result: Any,
        raised: bool,
        verify_input: Any,
        batch: Any,
        *_a: Any,
        **_k: Any,
    ) -> None:
        """The target has judged the drafts of ``batch``, right after its TARGET_VERIFY forward."""
        tokens = self._scene.session.tokens
        if raised or tokens.mode == "absent" or not len(batch.reqs):
            return
        _predicted, _lengths, accept_index = result
        names = [str(req.rid) for req in batch.reqs]
        width = int(verify_input.draft_token_num)

        def accepted(drafts: Ints, starts: Ints, index: Ints) -> list[Event]:
            paths = index.reshape(len(names), -1)
            events: list[Event] = []
            for b, req in enumerate(names):
                # [depth] indices into the whole batch, -1 behind the last one.
                path = paths[b][paths[b] >= 0]
                event = {"kind": "accept", "req": req, "nodes": path - b * width}
                event["tokens"] = tokens.encode(drafts[path])
                events.append({**event, "committed_len": int(starts[b]) + len(path)})
            return events

        drafts = verify_input.draft_token
        self._scene.session.defer(accepted, drafts, batch.seq_lens, accept_index)


def tree_links(spec_info: Any, nodes: int) -> tuple[Any, ...]:
    """First child and next sibling of each node of SGLang's verify input; () if it has no tree."""
    children = getattr(spec_info, "retrieve_next_token", None)
    siblings = getattr(spec_info, "retrieve_next_sibling", None)
    if children is None or siblings is None or not nodes:
        return ()
    children, siblings = children.reshape(-1), siblings.reshape(-1)
    return () if min(len(children), len(siblings)) < nodes else (children, siblings)


def tree_parents(child: Ints, sibling: Ints, rows: int, width: int) -> Ints | None:
    """Parent of each draft node within its row, -1 = the prefix; None if each follows the last.

    Args:
        child, sibling: [>= rows * width] first child and next sibling of each node, -1 = none.
        rows: Rows of the batch.
        width: Nodes of each row.

    Returns:
        [rows * width].
    """
    parents = np.full((rows, width), -1, dtype=np.int64)
    row, node = np.nonzero(child[: rows * width].reshape(rows, width) >= 0)
    at = child[: rows * width].reshape(rows, width)[row, node]
    next_sibling = sibling[: rows * width].reshape(rows, width)
    # All first children at once, then all second ones, and so on.
    while len(at):
        parents[row, at] = node
        at = next_sibling[row, at]
        row, node, at = row[at >= 0], node[at >= 0], at[at >= 0]
    linear = np.arange(width) - 1
    return None if (parents == linear).all() else parents.reshape(-1)
