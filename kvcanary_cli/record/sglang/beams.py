"""Members of a beam search: rows without a request, which share slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.shadows import to_host

if TYPE_CHECKING:
    from kvcanary_cli.record.sglang.scene import Scene


class Beams:
    """Names the rows of beams, and turns what they share into ``fork`` events."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def on_alias(
        self,
        _token: Any,
        _res: Any,
        raised: bool,
        _table: Any,
        dst_rows: Any,
        leader_row: int,
        prompt_len: int,
        **_kwargs: Any,
    ) -> None:
        """Members begin with the prompt of their leader."""
        names = self._scene.requests.of_row
        leader = names.get(int(leader_row))
        if raised or leader is None:
            return
        shared = self._scene.table.row(int(leader_row), int(prompt_len))
        for k, row in enumerate(to_host(dst_rows).tolist(), 1):
            names[row] = f"{leader}/beam-{k}"
            self._fork(leader, names[row], shared)

    def on_remap(
        self,
        _token: Any,
        result: Any,
        raised: bool,
        _table: Any,
        rows: Any,
        parent_idx: Any,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Survivors go on from other beams' slots."""
        if raised:
            return
        names, on_host = self._scene.requests.of_row, to_host(rows).tolist()
        width = len(on_host)
        mapping = to_host(result[1]).reshape(width, -1)
        for k, parent in enumerate(to_host(parent_idx).tolist()):
            child, source = names.get(on_host[k]), names.get(on_host[parent])
            if k != parent and child is not None and source is not None:
                self._fork(source, child, mapping[k])

    def enter_free_members(self, group: Any, *_args: Any, **_kwargs: Any) -> None:
        """Members end with their group; the rows are given back next."""
        rows = group.member_rows_cpu
        if group.member_rows is None or rows is None:
            return
        for row in to_host(rows).tolist():
            name = self._scene.requests.of_row.get(row)
            if name is not None:
                self._scene.session.emit({"kind": "finish", "req": name})
                self._scene.session.emit({"kind": "row_release", "row": row, "req": name})
                self._scene.requests.leave(name, row)

    def _fork(self, parent: str, child: str, shared: Any) -> None:
        if len(shared):
            event = {"kind": "fork", "parent": parent, "child": child}
            self._scene.session.emit({**event, "shared": np.unique(shared)})
