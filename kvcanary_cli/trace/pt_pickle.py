"""Read the pickle inside a ``torch.save`` file without running it.

A pickle is a program. Only the few instructions that ``torch.save`` emits for a dictionary of
tensors, strings and numbers are interpreted here, on plain values; a reference to any other
function or class is refused by name, and nothing is ever imported or called.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any

from kvcanary_cli.trace.errors import DamagedTraceError, TraceError
from kvcanary_cli.trace.fields import printable

#: Storage classes that hold a trace's columns, as numpy names their items (little endian).
STORAGES = {
    "torch.ByteStorage": "u1",
    "torch.CharStorage": "i1",
    "torch.ShortStorage": "<i2",
    "torch.IntStorage": "<i4",
    "torch.LongStorage": "<i8",
    "torch.BoolStorage": "?",
}
_REBUILD = "torch._utils._rebuild_tensor_v2"
_ORDERED_DICT = "collections.OrderedDict"
_SAFE = {*STORAGES, _REBUILD, _ORDERED_DICT}
_HINT = "nothing was executed; do not load this file by other means unless you trust its origin"
_PUSH_ARGUMENT = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"),
}
_PUSH_CONSTANT: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLE_SIZES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor of the file: where its items are.

    Attributes:
        storage: Name of the storage record, ``"0"`` for example.
        dtype: Numpy name of the items' type.
        items: Items in the whole storage.
        offset: First item.
        size: Shape.
        stride: Stride in items for each dimension.
    """

    storage: str
    dtype: str
    items: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """A function or class that the pickle refers to; never looked up."""

    name: str


class _Mark:
    """Start of a run of stack items."""


class _Malformed(Exception):
    """The pickle's instructions do not fit each other."""


def read_pickle(data: bytes, where: str) -> Any:
    """Interpret a pickle of plain values and tensors.

    Args:
        data: The pickle.
        where: File, for messages.

    Returns:
        The value; tensors are ``TensorRef``.

    Raises:
        TraceError: It needs anything else, or it is damaged.
    """
    _refuse_unsafe(data, where)
    try:
        return _Machine(where).run(data)
    except (_Malformed, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedTraceError(
            where,
            f"the pickle is damaged ({type(error).__name__}: {error})",
            hint="copy the file again from where it was recorded",
        ) from None


def _unsafe(name: str, where: str) -> TraceError:
    # Old protocols write the name that the module had in Python 2.
    name = name.replace("__builtin__.", "builtins.", 1)
    return TraceError(
        where,
        f"the pickle needs {printable(name)}, expected plain tensors, strings and numbers only",
        hint=_HINT,
    )


def _refuse_unsafe(data: bytes, where: str) -> None:
    """Name the first function or class that is not plain, before anything is interpreted."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in ("GLOBAL", "INST"):
                name = str(argument).replace(" ", ".", 1)
                if opcode.name == "INST" or name not in _SAFE:
                    raise _unsafe(name, where)
    except TraceError:
        raise
    except Exception as error:  # genops raises whatever its argument readers raise
        raise DamagedTraceError(
            where,
            f"the pickle is damaged ({error})",
            hint="copy the file again from where it was recorded",
        ) from None


class _Machine:
    """A pickle machine for plain values."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise _Malformed("no STOP")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _PUSH_ARGUMENT:
            stack.append(argument)
        elif name in _PUSH_CONSTANT:
            stack.append(_PUSH_CONSTANT[name])
        elif name in _TUPLE_SIZES:
            count = _TUPLE_SIZES[name]
            items = [stack.pop() for _ in range(count)]
            stack.append(tuple(reversed(items)))
        elif name == "TUPLE":
            stack.append(tuple(self._pop_mark()))
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            stack.append(_Mark())
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[argument])
        elif name == "GLOBAL":
            stack.append(_Name(argument.replace(" ", ".", 1)))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            if f"{module}.{attribute}" not in _SAFE:
                raise _unsafe(f"{module}.{attribute}", self._where)
            stack.append(_Name(f"{module}.{attribute}"))
        elif name == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._call(function, arguments))
        elif name in ("SETITEM", "SETITEMS"):
            self._set_items(
                [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else self._pop_mark()
            )
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._pop_mark()
            self._top(list).extend(items)
        elif name not in ("PROTO", "FRAME"):
            raise TraceError(
                self._where,
                f"the pickle needs the instruction {name}, expected plain tensors, strings and "
                "numbers only",
                hint=_HINT,
            )

    def _pop_mark(self) -> list[Any]:
        items = []
        while not isinstance(item := self._stack.pop(), _Mark):
            items.append(item)
        return items[::-1]

    def _top(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise _Malformed(f"expected a {kind.__name__}")
        return self._stack[-1]

    def _set_items(self, items: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise _Malformed("a key is no string")
            if key in target:
                raise _Malformed(f"the key {key[:40]!r} is given twice")
            target[key] = value

    def _storage(self, pid: Any) -> TensorRef:
        kind, storage_class, key, location, items = pid
        if kind != "storage" or not isinstance(key, str) or not isinstance(location, str):
            raise _Malformed("a storage reference of another form")
        if not isinstance(storage_class, _Name) or storage_class.name not in STORAGES:
            raise _Malformed("a storage of another type")
        if type(items) is not int or items < 0:
            raise _Malformed("a storage without a size")
        return TensorRef(key, STORAGES[storage_class.name], items, 0, (items,), (1,))

    def _call(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, _Name):
            raise _Malformed("a call of something that is no function")
        if function.name == _ORDERED_DICT and arguments == ():
            return {}
        if function.name != _REBUILD:
            raise _Malformed(f"a call of {function.name}")
        storage, offset, size, stride = arguments[:4]
        whole = (*size, *stride, offset)
        if not isinstance(storage, TensorRef) or not isinstance(size, tuple):
            raise _Malformed("a tensor of another form")
        if len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in whole):
            raise _Malformed("a tensor with a bad shape")
        return TensorRef(storage.storage, storage.dtype, storage.items, offset, size, stride)
