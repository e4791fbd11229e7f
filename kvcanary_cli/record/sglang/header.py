"""The header of a SGLang recording: version, rank, pool, arguments, families."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import sys
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.secrets import scrub, scrub_text
from kvcanary_cli.record.sglang.families import families, not_recorded

if TYPE_CHECKING:
    from kvcanary_cli.record.patching import Patcher
    from kvcanary_cli.record.sglang.pools import Pools

log = logging.getLogger("kvcanary.record")


def engine_version() -> str:
    """SGLang's version, or ``unknown``."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get("sglang"), "__version__", "unknown"))


def header_of(
    server_args: Any,
    pools: Pools,
    patcher: Patcher,
    *,
    has_fingerprints: bool,
    has_tokens: bool,
    is_overlapped: bool,
    has_graphs: bool,
) -> dict[str, Any]:
    """The header's fields; says what cannot be recorded, and why. Arguments as ``families``."""
    version = engine_version()
    arguments = {k: v for k, v in _arguments(server_args).items() if v is not None}
    _add_graph_size(arguments)
    return {
        "engine": {"name": "sglang", "version": version},
        "rank": _rank(server_args),
        "pool": pools.describe(),
        "records": families(
            version,
            arguments,
            pools,
            patcher,
            has_fingerprints=has_fingerprints,
            has_tokens=has_tokens,
            is_overlapped=is_overlapped,
            has_graphs=has_graphs,
        ),
        "not_recorded": [
            scrub_text(what) for what in not_recorded(arguments, has_graphs=has_graphs)
        ],
        "serving_args": scrub(arguments),
    }


def _arguments(server_args: Any) -> dict[str, Any]:
    resolved = getattr(server_args, "resolved_dict", None)
    if callable(resolved):
        try:
            return dict(resolved())
        except Exception as error:
            log.warning("kvcanary: serving arguments are recorded unresolved: %s", error)
    if dataclasses.is_dataclass(server_args):
        return {f.name: getattr(server_args, f.name, None) for f in dataclasses.fields(server_args)}
    names = getattr(server_args, "__struct_fields__", None) or vars(server_args)
    return {name: getattr(server_args, name, None) for name in names}


def _add_graph_size(arguments: dict[str, Any]) -> None:
    """The batch limit of the decode graphs under the name that launches know it by."""
    graphs = arguments.get("cuda_graph_config")
    decode = graphs.get("decode") if isinstance(graphs, dict) else None
    size = decode.get("max_bs") if isinstance(decode, dict) else getattr(decode, "max_bs", None)
    if type(size) is int:
        arguments.setdefault("cuda_graph_max_bs", size)


def _rank(server_args: Any) -> dict[str, int]:
    context = sys.modules.get("sglang.srt.runtime_context")
    parallel = context.get_parallel() if context is not None else None
    rank: dict[str, int] = {}
    for axis in ("tp", "pp", "dp"):
        size = getattr(server_args, f"{axis}_size", None) or 1
        rank[axis] = int(getattr(parallel, f"{axis}_rank", None) or 0)
        rank[f"{axis}_size"] = max(int(size), rank[axis] + 1)
    return rank
