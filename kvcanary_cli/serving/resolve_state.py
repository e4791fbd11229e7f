"""What the steps of a resolution share: strongest statements in, values and gaps out."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.options import is_option_name
from kvcanary_cli.serving.values import FACTS, RESULTS, Refusal, Remark, Resolved, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcanary_cli.serving.model_config import ModelFacts
    from kvcanary_cli.serving.values import Given, Place
    from kvcanary_cli.serving.versions import Release, VersionChoice

_STRENGTH = {"argument": 0, "fact": 1, "resolved": 2, "override": 3}
# Beyond every size there is; keeps a slip of the keyboard from becoming a list of that length.
_LARGEST = 1 << 50


def strongest(given: Iterable[Given]) -> dict[str, Given]:
    """The statement that counts for each name: the strongest, among equals the last.

    Raises:
        InputError: A statement of an unknown kind.
    """
    chosen: dict[str, Given] = {}
    for item in given:
        if item.kind not in _STRENGTH:
            raise InputError(f"{item.source}: unknown kind of statement {item.kind!r:.40}")
        if item.value is None and item.kind in ("argument", "fact"):
            continue
        if item.kind == "argument" and item.name in FACTS:
            # No rule touches a fact, however it was passed.
            item = dataclasses.replace(item, kind="fact")
        previous = chosen.get(item.name)
        if previous is None or _STRENGTH[item.kind] >= _STRENGTH[previous.kind]:
            chosen[item.name] = item
    return chosen


class State:
    """Statements, and the values, gaps, refusals and remarks found so far.

    Args:
        given: Strongest statement by name.
        choice: Whose rules apply.
    """

    def __init__(self, given: dict[str, Given], choice: VersionChoice) -> None:
        self.given = given
        self.choice = choice
        self.release: Release = choice.release
        self.values: dict[str, Resolved] = {}
        self.unknown: dict[str, Unknown] = {}
        self.refusals: list[Refusal] = []
        self.remarks: list[Remark] = []
        self.model: ModelFacts | None = None
        self.draft_model: ModelFacts | None = None
        # C and G before the DP division: what the memory default is computed with.
        self.raw_chunk: int | None = None
        self.prefill_max_tokens: int | None = None
        # What page_size can be if it is unknown.
        self.page_sizes: tuple[int, ...] = ()

    def stated(self, name: str) -> Given | None:
        """The strongest statement of ``name``, or None."""
        return self.given.get(name)

    def final(self, name: str) -> Given | None:
        """A statement of ``name`` with a value that no rule touches: anything but an argument."""
        item = self.given.get(name)
        if item is None or item.value is None or item.kind == "argument":
            return None
        return item

    def integer(self, name: str, *, least: int | None = None) -> int | None:
        """Stated whole number, or None if nothing (or nothing but None) was stated.

        Raises:
            InputError: It is no whole number, or below ``least``, or beyond every size.
        """
        item = self.given.get(name)
        if item is None or item.value is None:
            return None
        value = item.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(item, "a whole number is expected")
        if abs(value) > _LARGEST:
            raise self.bad(item, "it is beyond every size there is")
        if least is not None and value < least:
            raise self.bad(item, f"at least {least} is expected")
        return value

    def number(self, name: str) -> float | None:
        """Stated finite number, or None.

        Raises:
            InputError: It is no finite number.
        """
        item = self.given.get(name)
        if item is None or item.value is None:
            return None
        if isinstance(item.value, bool) or not isinstance(item.value, int | float):
            raise self.bad(item, "a number is expected")
        if not math.isfinite(item.value) or abs(item.value) > _LARGEST:
            raise self.bad(item, "a finite number is expected")
        return float(item.value)

    def flag(self, name: str) -> bool:
        """Stated truth; False if nothing was stated.

        Raises:
            InputError: It is no truth value.
        """
        item = self.given.get(name)
        if item is None or item.value is None:
            return False
        if not isinstance(item.value, bool):
            raise self.bad(item, "true or false is expected")
        return item.value

    def text(self, name: str, default: str = "") -> str:
        """Stated text, or ``default``.

        Raises:
            InputError: It is no text.
        """
        item = self.given.get(name)
        if item is None or item.value is None:
            return default
        if not isinstance(item.value, str):
            raise self.bad(item, "text is expected")
        return item.value

    def integers(self, name: str) -> list[int] | None:
        """Stated list of whole numbers above 0, sorted, or None.

        Raises:
            InputError: It is no such list.
        """
        item = self.given.get(name)
        if item is None or item.value is None:
            return None
        value = item.value
        if not isinstance(value, list | tuple) or not all(_is_size(each) for each in value):
            raise self.bad(item, "a list of whole numbers above 0 is expected")
        return sorted(value)

    def bad(self, item: Given, expected: str) -> InputError:
        """The error for a statement whose value does not fit."""
        return InputError(f"{item.source}: {item.name} is {item.value!r:.60}; {expected}")

    def put(
        self,
        name: str,
        value: Any,
        source: str,
        inputs: Sequence[str] = (),
        place: Place | None = None,
    ) -> None:
        """Set a result, unless the user overrides it; it is no longer unknown."""
        if self._put_override(name):
            return
        self.values[name] = Resolved(value, source, tuple(inputs), place)
        self.unknown.pop(name, None)

    def _put_override(self, name: str) -> bool:
        """Set a result to what an option of our command states for it; False if none does."""
        item = self.given.get(name)
        if item is None or item.kind != "override" or item.value is None:
            return False
        if name in FACTS or is_option_name(name):
            # Such a statement has its own rule: a size class, an alias, a share per worker.
            return False
        self.values[name] = Resolved(self._typed(name), item.source, (), item.place)
        self.unknown.pop(name, None)
        return True

    def _typed(self, name: str) -> Any:
        kind = re.match(r"[a-z]+", RESULTS[name])
        readers: dict[str, Callable[[str], Any]] = {
            "int": self.integer,
            "float": self.number,
            "bool": self.flag,
            "str": self.text,
            "list": self.integers,
        }
        return readers[kind[0] if kind else "int"](name)

    def put_stated(self, name: str, item: Given, value: Any) -> None:
        """Set a result to what was stated, with its place."""
        self.put(name, value, item.source, (), item.place)

    def put_default(self, name: str, option: str, value: Any, default: Any) -> None:
        """Set a result to an option's value, or to its raw default."""
        item = self.given.get(option)
        if item is None or value is None:
            self.put(name, default, "default")
        else:
            self.put_stated(name, item, value)

    def miss(self, name: str, why: str, give: str) -> None:
        """Say that a result is unknown, unless it has been found."""
        if name not in self.values and not self._put_override(name):
            self.unknown.setdefault(name, Unknown(name, why, give))

    def get(self, name: str) -> Any:
        """A result's value, or None."""
        found = self.values.get(name)
        return None if found is None else found.value

    def pages(self) -> tuple[int, ...]:
        """The page size, or all that it can be."""
        known = self.get("page_size")
        return self.page_sizes if known is None else (known,)

    def remark(self, text: str, item: Given | None = None) -> None:
        """Say something once."""
        remark = Remark(text, None if item is None else item.place)
        if remark not in self.remarks:
            self.remarks.append(remark)

    def refuse(self, refusal: Refusal) -> None:
        """Add a refused start."""
        self.refusals.append(refusal)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < (1 << 31)
