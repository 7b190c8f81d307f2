"""The rows of the JSON interface about GPUs, memory and processes, described for /docs.

null is what nobody gave: a device, a driver, the kernel or a hook.
"""

from __future__ import annotations

from pydantic import BaseModel, Field


class MemoryPiece(BaseModel):
    """A part of a GPU's memory."""

    part: str = Field(
        description="weights, kv_pool, activations, engine, other_processes, instances, unexplained, undivided, "
        "reserved or free"
    )
    bytes: int
    engine: str = Field(description="of an engine's part")
    shard: str


class GpuProcess(BaseModel):
    """A process on a GPU."""

    pid: int = Field(description="as the host sees it")
    name: str
    engine: str = Field(description="empty where no hook says that it is its process")
    shard: str
    used_bytes: int | None


class Gpu(BaseModel):
    """A GPU or instance that an agent sees, with the means of the newest period that was kept."""

    gpu: str = Field(description="its UUID")
    model: str
    index: int
    parent: str = Field(description="the device of an instance (MIG)")
    instance: int | None
    host: str
    cluster: str
    agent: str
    driver: str
    end_us: int | None = Field(description="end of that period; null: listed, and says nothing")
    used_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None
    reserved_bytes: int | None
    processes_bytes: int | None = Field(description="of its processes together; null where one of them has no figure")
    unexplained_bytes: int | None
    busy_ratio: float | None
    memory_busy_ratio: float | None
    occupancy_ratio: float | None
    power_watts: float | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    throttled: dict[str, float] | None = Field(description="part of the readings by reason")
    parts: list[MemoryPiece] = Field(description="they sum to total_bytes, where it is known")
    processes: list[GpuProcess]


class MemoryPart(BaseModel):
    """A part of a GPU's memory, flat. The parts of a GPU sum to its total."""

    host: str
    gpu: str
    index: int
    model: str
    part: str
    engine: str
    shard: str
    bytes: int


class MemoryRow(BaseModel):
    """Memory in a period that was kept; it holds until the next row of its kind, at most a minute later."""

    start_us: int
    end_us: int
    gpu: str
    of: str = Field(description="device, process, rest (of no process) or kv (active and cached blocks of an engine)")
    pid: int | None
    engine: str
    least_bytes: int | None
    mean_bytes: int | None
    most_bytes: int | None
    marks_bytes: list[int] = Field(description="read 5, 10 and 15 s after start_us, where all three are known")
    free_bytes: int | None
    total_bytes: int | None
    reserved_bytes: int | None


class Process(BaseModel):
    """A watched process in the newest period that was kept."""

    host: str
    agent: str
    pid: int
    inner_pid: int | None = Field(description="in its own namespace, where that is another")
    name: str
    watch: str = Field(description="gpu, parent (of one on a GPU), own (the agent, the service) or named")
    engine: str
    started_us: int | None
    threads: int | None
    rss_bytes: int | None
    cpu_ratio: float | None = Field(description="in cores")
    busiest: str = Field(description="the name of the thread that used most")
    busiest_ratio: float | None = Field(description="null where the process used less than 0.8 of a core")
    waiting_threads: int | None
    lock_suspected: bool | None
    workers: int | None
    workers_busy: int | None
    queued: int | None


class Agent(BaseModel):
    """An agent that was heard in the last day."""

    agent: str
    state: str = Field(description="heard or quiet (nothing for 90 s)")
    host: str
    cluster: str
    namespace: str
    pod: str
    software: str
    driver: str
    boot_id: str
    started_us: int
    last_seq: int
    last_end_us: int
    received_us: int
    gpus: int
