"""Members of a beam search: rows without a request, which share slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.shadows import to_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.record.sglang.scene import Scene

    Ints = NDArray[np.int64]
    Event = dict[str, Any]


class Beams:
    """Names the rows of beams, and turns what they share into ``fork`` events."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._group: list[str | None] = []

    def on_spawn(
        self, _token: Any, _res: Any, raised: bool, _coordinator: Any, group: Any, leader: Any
    ) -> None:
        """Members begin with the prompt of their leader."""
        row = leader.kv.req_pool_idx
        names = self._scene.requests.of_row
        name = None if row is None else names.get(int(row))
        if raised or name is None or group.member_rows_cpu is None:
            return
        members = []
        for k, member in enumerate(to_host(group.member_rows_cpu).tolist(), 1):
            names[member] = f"{name}/beam-{k}"
            members.append(names[member])

        def forked(shared: Ints) -> list[Event]:
            return [event for member in members for event in _fork(name, member, shared)]

        prompt = self._scene.table.cells(int(row), 0, int(group.prompt_len))
        self._scene.session.defer(forked, prompt)

    def enter_survivors(self, _coordinator: Any, group: Any, *_a: Any, **_kw: Any) -> None:
        """Survivors of a group are about to be chosen; whose rows they are."""
        row, rest = group.leader.kv.req_pool_idx, group.member_rows_cpu
        rows = [] if row is None or rest is None else [int(row), *to_host(rest).tolist()]
        self._group = [self._scene.requests.of_row.get(row) for row in rows]

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
        names, self._group = self._group, []
        if raised or len(names) != len(rows):
            return

        def forked(mapping: Ints, parents: Ints) -> list[Event]:
            mapping = mapping.reshape(len(names), -1)
            events: list[Event] = []
            for k, parent in enumerate(parents.tolist()):
                child, source = names[k], names[parent]
                if k != parent and child is not None and source is not None:
                    events += _fork(source, child, mapping[k])
            return events

        self._scene.session.defer(forked, result[1], parent_idx)

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


def _fork(parent: str, child: str, shared: Ints) -> list[Event]:
    if not len(shared):
        return []
    return [{"kind": "fork", "parent": parent, "child": child, "shared": np.unique(shared)}]
