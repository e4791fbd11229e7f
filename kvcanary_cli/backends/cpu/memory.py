"""Loads, stores and prefetches at plain addresses, for use in kernels.

No access assumes an alignment: real-KV sources and canary buffers may start anywhere.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _pointer(builder: Any, args: Any, item: Any) -> Any:
    """Where item number ``args[1]`` after address ``args[0]`` lies."""
    base, index = args[:2]
    offset = builder.mul(index, ir.Constant(_I64, item.width // 8))
    return builder.inttoptr(builder.add(base, offset), item.as_pointer())


@intrinsic
def load_i64(typingctx: Any, base: Any, index: Any) -> Any:
    """The int64 number ``index`` after address ``base``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args, _I64), align=1)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_i32(typingctx: Any, base: Any, index: Any) -> Any:
    """The int32 number ``index`` after address ``base``, as int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(builder.load(_pointer(builder, args, _I32), align=1), _I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_i64(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
    """Set the int64 number ``index`` after address ``base``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(builder, args, _I64), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def store_i32(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
    """Set the int32 number ``index`` after address ``base`` to the low 32 bits of ``value``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        low = builder.trunc(args[2], _I32)
        builder.store(low, _pointer(builder, args, _I32), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def load_u8(typingctx: Any, base: Any, index: Any) -> Any:
    """Byte number ``index`` after address ``base``, as int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(_pointer(builder, args, _I8), align=1), _I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_u8(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
    """Set byte number ``index`` after address ``base`` to the low 8 bits of ``value``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        low = builder.trunc(args[2], _I8)
        builder.store(low, _pointer(builder, args, _I8), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at ``address``; any address will do, a bad one has no effect."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I8.as_pointer())
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32]),
            "llvm.prefetch.p0",
        )
        read, keep_in_all_caches, data = (ir.Constant(_I32, n) for n in (0, 3, 1))
        builder.call(function, [pointer, read, keep_in_all_caches, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
