"""Draft trees, and which of their nodes a verification has accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.shadows import to_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.record.sglang.scene import Scene

    Ints = NDArray[np.int64]


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
        width = int(verify_input.draft_token_num)
        drafts = to_host(verify_input.draft_token)
        starts = to_host(batch.seq_lens)
        index = to_host(accept_index).reshape(len(starts), -1)
        for b, req in enumerate(batch.reqs):
            # [depth] indices into the whole batch, -1 behind the last one.
            path = index[b][index[b] >= 0]
            self._scene.session.emit(
                {
                    "kind": "accept",
                    "req": str(req.rid),
                    "nodes": path - b * width,
                    "tokens": tokens.encode(drafts[path]),
                    "committed_len": int(starts[b]) + len(path),
                }
            )


def tree_parents(spec_info: Any, rows: int, width: int) -> Ints | None:
    """Parent of each draft node within its row, -1 = the prefix; None if each follows the last.

    Args:
        spec_info: SGLang's verify input, whose nodes name their first child and next sibling.
        rows: Rows of the batch.
        width: Nodes of each row.

    Returns:
        [rows * width].
    """
    children = getattr(spec_info, "retrieve_next_token", None)
    siblings = getattr(spec_info, "retrieve_next_sibling", None)
    if children is None or siblings is None or not rows:
        return None
    child = to_host(children).reshape(-1)
    sibling = to_host(siblings).reshape(-1)
    if min(len(child), len(sibling)) < rows * width:
        return None
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
