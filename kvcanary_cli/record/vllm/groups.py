"""Groups of layers of a model: which of their tables are told, and under what names.

vLLM gives layers of one kind, say those with a sliding window, tables and blocks of their own out
of the one pool. The trace tells the first such group under the names of the requests, and each
further one as requests of its own, ``REQUEST/group-N``, with rows and forwards of their own: all
slots are of one pool, so that every check holds for each group and between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Kinds of groups whose blocks hold a token at every position, by their specification's class.
_FULL = "FullAttentionSpec"
#: Those of which blocks are given back once no later token reads them: the first ones of a table.
_SLIDING = ("SlidingWindowSpec", "ChunkedLocalAttentionSpec")
#: Those that give back blocks in the middle.
_WITH_HOLES = ("RSWASpec", "CircularBufferSpec")
_UNIFORM = "UniformTypeKVCacheSpecs"
_MARK = "/group-"


@dataclass(frozen=True, slots=True)
class Group:
    """A group whose tables are told.

    Attributes:
        number: Its number in the engine.
        suffix: What its requests' names end in; "" in the first group that is told.
        rows_before: Rows of the trace's table that belong to groups before it.
        slides: Whether the first blocks of its tables are given back while requests run.
        spec: The engine's own specification.
    """

    number: int
    suffix: str
    rows_before: int
    slides: bool
    spec: Any = field(compare=False)

    def name(self, req: str) -> str:
        """Name of ``req`` in the trace, as far as this group is concerned."""
        return req + self.suffix

    def unread(self, computed: int) -> int:
        """Positions at the beginning that nothing behind ``computed`` tokens reads."""
        if not self.slides:
            return 0
        spec = _one_of(self.spec)
        chunk = int(getattr(spec, "attention_chunk_size", 0) or 0)
        if chunk:
            return computed // chunk * chunk
        return max(0, computed - int(spec.sliding_window) + 1)


def told_groups(specs: Sequence[Any], sizes: Sequence[Any], rows: int, most: int) -> list[Group]:
    """The groups whose tables are told.

    Args:
        specs: Specification of each group.
        sizes: What must be equal for groups to be told in one trace: sizes of their blocks.
        rows: Rows of the engine's request table.
        most: Groups at most.
    """
    slides = [_slides(spec) for spec in specs]
    first = next((k for k, slide in enumerate(slides) if slide is False), None)
    if first is None:
        first = next((k for k, slide in enumerate(slides) if slide), None)
    if first is None:
        return []
    others = [
        k
        for k, slide in enumerate(slides)
        if k != first and slide is not None and sizes[k] == sizes[first]
    ]
    told = [first, *others][:most]
    return [
        Group(k, f"{_MARK}{k}" if at else "", at * rows, bool(slides[k]), specs[k])
        for at, k in enumerate(told)
    ]


def belongs_to(name: Any, req: str) -> bool:
    """Whether ``name`` is one of ``req``'s in the trace."""
    return name == req or (isinstance(name, str) and name.startswith(req + _MARK))


def _slides(spec: Any) -> bool | None:
    """Whether a group's first blocks are given back; None if not every position has a slot."""
    kinds = {base.__name__ for base in type(_one_of(spec)).__mro__}
    if kinds.intersection(_WITH_HOLES):
        return None
    if _FULL in kinds:
        return False
    return True if kinds.intersection(_SLIDING) else None


def _one_of(spec: Any) -> Any:
    """A group's specification; of layers that differ in size only, the first one's."""
    if type(spec).__name__ == _UNIFORM:
        return next(iter(spec.kv_cache_specs.values()))
    return spec


class Windows:
    """How many of the first blocks of each table have been given back."""

    def __init__(self) -> None:
        self._gone: dict[str, int] = {}

    def gone(self, name: str, blocks: Sequence[Any]) -> int:
        """Null blocks that ``blocks``, the table of ``name``, begin with; they only become more."""
        count = self._gone.get(name, 0)
        while count < len(blocks) and blocks[count].is_null:
            count += 1
        self._gone[name] = count
        return count

    def forget(self, name: str) -> None:
        """``name`` has given up its table."""
        self._gone.pop(name, None)
