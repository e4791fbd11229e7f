"""The engine's KV pool: which blocks, block tables and layers the trace is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcanary_cli.record.vllm.groups import Group, told_groups

RUNNER_V1 = "vllm.v1.worker.gpu_model_runner"
RUNNER_V2 = "vllm.v1.worker.gpu.model_runner"
#: Modules of the model runners whose inputs are understood.
RUNNER_MODULES = (RUNNER_V1, RUNNER_V2)


@dataclass(frozen=True, slots=True)
class Pools:
    """Live objects of the engine and the sizes that the header states.

    Attributes:
        scheduler: The scheduler.
        blocks: Its block pool.
        runner: The model runner, if it is in this process and of the known kind, else None.
        why_derived: Why there is no ``runner``, "" if there is one.
        told: Groups of layers whose tables and slots are recorded.
        block_size: Slots of a block of the pool.
        table_block_size: Slots of a block of the runner's table, which may be smaller.
        num_blocks: Blocks, the null block included.
        rows, blocks_per_row: Size of the runner's request table, in blocks of that table.
    """

    scheduler: Any
    blocks: Any
    runner: Any
    why_derived: str
    told: tuple[Group, ...]
    block_size: int
    table_block_size: int
    num_blocks: int
    rows: int
    blocks_per_row: int

    @classmethod
    def of(cls, scheduler: Any, executor: Any) -> Pools:
        """Find them.

        Args:
            scheduler: The engine core's scheduler.
            executor: What runs the model, or the model runner itself; None = not known.
        """
        manager = scheduler.kv_cache_manager
        config = manager.kv_cache_config
        runner, why = _runner(executor)
        managers = manager.coordinator.single_type_managers
        rows = int(scheduler.max_num_running_reqs)
        sizes = [
            (int(one.block_size), None if runner is None else _table_sizes(runner, number)[0])
            for number, one in enumerate(managers)
        ]
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        # What a connector brings is known of the first group only.
        most = len(specs) if getattr(scheduler, "connector", None) is None else 1
        told = tuple(told_groups(specs, sizes, rows, most))
        block_size = int(managers[told[0].number if told else 0].block_size)
        table_block_size = block_size
        longest = int(scheduler.max_model_len)
        blocks_per_row = -(-longest // block_size)
        if runner is not None and told:
            table_block_size, blocks_per_row = _table_sizes(runner, told[0].number)
        return cls(
            scheduler=scheduler,
            blocks=manager.block_pool,
            runner=runner,
            why_derived=why,
            told=told,
            block_size=block_size,
            table_block_size=table_block_size,
            num_blocks=int(manager.block_pool.num_gpu_blocks),
            rows=rows,
            blocks_per_row=blocks_per_row,
        )

    @classmethod
    def of_worker(cls, runner: Any, sent: Any) -> Pools:
        """Those of a runner whose engine core is in another process.

        Args:
            runner: The model runner, of a known kind.
            sent: Stands for the scheduler.
        """
        config = runner.kv_cache_config
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        sizes = [
            (int(spec.block_size), _table_sizes(runner, number)[0])
            for number, spec in enumerate(specs)
        ]
        rows = int(runner.max_num_reqs)
        told = tuple(told_groups(specs, sizes, rows, len(specs)))
        group = told[0].number if told else 0
        table_block_size, blocks_per_row = _table_sizes(runner, group)
        return cls(
            scheduler=sent,
            blocks=None,
            runner=runner,
            why_derived="",
            told=told,
            block_size=int(config.kv_cache_groups[group].kv_cache_spec.block_size),
            table_block_size=table_block_size,
            num_blocks=int(config.num_blocks),
            rows=rows,
            blocks_per_row=blocks_per_row,
        )

    @property
    def group(self) -> int | None:
        """Number of the group that is told under the requests' own names; None if none is."""
        return self.told[0].number if self.told else None

    @property
    def runner_module(self) -> str | None:
        """Which of ``RUNNER_MODULES`` the runner is of; None without one."""
        return None if self.runner is None else _module(self.runner)

    @property
    def is_on_device(self) -> bool:
        """Whether the KV is elsewhere than on the host, as far as that can be seen."""
        device = getattr(self.runner, "device", None)
        return getattr(device, "type", "cpu") != "cpu"

    @property
    def groups(self) -> Any:
        """KV cache groups of the model."""
        manager = getattr(self.scheduler, "kv_cache_manager", self.runner)
        return manager.kv_cache_config.kv_cache_groups

    def describe(self) -> dict[str, Any]:
        """The header's ``pool``: block 0 is the null block, which no request may own."""
        return {
            "slots": (self.num_blocks - 1) * self.block_size,
            "max_slot": self.num_blocks * self.block_size - 1,
            "reserved": list(range(self.block_size)),
            "page_size": self.block_size,
            # And the padding row.
            "rows": self.rows * max(1, len(self.told)) + 1,
            "row_len": self.blocks_per_row * self.table_block_size,
            "swa_slots": 0,
            "swa_window": 0,
        }


def _runner(executor: Any) -> tuple[Any, str]:
    runner = executor
    if _module(executor) is None:
        worker = getattr(executor, "driver_worker", None)
        worker = getattr(worker, "worker", worker)
        runner = getattr(worker, "model_runner", None)
    if runner is None:
        by = "the executor" if executor is None else type(executor).__name__
        return None, f"{by} runs the model in other processes"
    if _module(runner) is None:
        kind = f"{type(runner).__module__}.{type(runner).__name__}"
        return None, f"{kind} is not a model runner that was tried"
    return runner, ""


def _module(runner: Any) -> str | None:
    """Which of ``RUNNER_MODULES`` ``runner``'s class comes from."""
    names = {base.__module__ for base in type(runner).__mro__}
    return next((module for module in RUNNER_MODULES if module in names), None)


def _table_sizes(runner: Any, group: int) -> tuple[int, int]:
    """Slots of a block, and blocks of a row, of the runner's block table."""
    if _module(runner) == RUNNER_V2:
        tables = runner.block_tables
        return int(tables.block_sizes[group]), int(tables.block_tables[group].gpu.shape[1])
    table = runner.input_batch.block_table[group]
    return int(table.block_size), int(table.max_num_blocks_per_req)
