"""The metrics of GPUs and processes: what agents see now, made every 15 seconds by the process that leads.

A series goes when what it is of is no longer seen: an agent that is quiet for 90 seconds has none.
"""

from __future__ import annotations

from typing import Final

from ledger.metric import ENGINES, Kind, Metric

GPUS: Final = 2_048
"""GPUs and instances with series of their own."""

MEMORY = Metric(
    name="kvledger_gpu_memory_bytes", kind=Kind.GAUGE, labels=("gpu", "state"), bound=GPUS * 4, scope="ledger",
    about="Memory of a GPU or instance by state: `used`, `free`, `reserved` (kept by the driver; absent before driver "
    "510, whose `used` has it) and `total`: the mean of the newest period that an agent kept.",
)  # fmt: skip
PROCESS_MEMORY = Metric(
    name="kvledger_gpu_process_memory_bytes", kind=Kind.GAUGE, labels=("gpu", "engine", "shard", "process"),
    bound=GPUS * 8, scope="ledger",
    about="Memory that processes have on a GPU, by the name of the process, those with one name added up; `engine` "
    "and `shard` where a hook says that it is that process. Absent where the driver gives no figure.",
)  # fmt: skip
PART_MEMORY = Metric(
    name="kvledger_gpu_memory_part_bytes", kind=Kind.GAUGE, labels=("gpu", "part"), bound=GPUS * 8, scope="ledger",
    about="What a GPU's memory is used for: `weights`, `kv_pool`, `activations` (of engines whose hook says so), "
    "`engine` (of those whose hook does not), `other_processes`, `instances`, `unexplained`, `undivided` (nobody says "
    "by whom), `reserved`, `free`. The parts of a GPU sum to its `total` (docs/agent.md).",
)  # fmt: skip
UNEXPLAINED = Metric(
    name="kvledger_gpu_memory_unexplained_bytes", kind=Kind.GAUGE, labels=("gpu",), bound=GPUS, scope="ledger",
    about="Used by no process, or by an engine's since it was warm (its level in the ten minutes after it opened): it "
    "grows when something leaks. KV that an engine takes as it fills is explained.",
)  # fmt: skip
BUSY = Metric(
    name="kvledger_gpu_busy_ratio", kind=Kind.GAUGE, labels=("gpu", "of"), bound=GPUS * 3, scope="ledger",
    about="Of the time, as the driver counts it: `kernels` (one was running), `memory` (it was read or written); and "
    "`occupancy` of the multiprocessors, where the device counts it.",
)  # fmt: skip
POWER = Metric(
    name="kvledger_gpu_power_watts", kind=Kind.GAUGE, labels=("gpu",), bound=GPUS, scope="ledger",
    about="Mean power in the newest period that was kept.",
)  # fmt: skip
ECC = Metric(
    name="kvledger_gpu_ecc_errors", kind=Kind.GAUGE, labels=("gpu", "kind"), bound=GPUS * 2, scope="ledger",
    about="Memory errors since the driver was loaded: `corrected`, `uncorrected`.",
)  # fmt: skip
THROTTLED = Metric(
    name="kvledger_gpu_throttled_ratio", kind=Kind.GAUGE, labels=("gpu", "reason"), bound=GPUS * 4, scope="ledger",
    about="Part of the readings in which the driver held the clocks down for a reason; `idle` is one.",
)  # fmt: skip
INFO = Metric(
    name="kvledger_gpu_info", kind=Kind.GAUGE, labels=("gpu", "model", "host", "index", "parent"), bound=GPUS,
    scope="ledger", about="1 for each GPU and instance that an agent lists; `parent` is the device of an instance.",
)  # fmt: skip
AGENT_HEARD = Metric(
    name="kvledger_agent_last_period_timestamp_seconds", kind=Kind.GAUGE, labels=("agent",), bound=ENGINES,
    scope="ledger", about="End of the newest period of each agent that was heard in the last day.",
)  # fmt: skip
AGENT_TROUBLES = Metric(
    name="kvledger_agent_troubles_total", kind=Kind.COUNTER, labels=("agent", "reason"), bound=ENGINES * 4,
    about="What GPUs or their driver did not do, each look counted, by reason (docs/agent.md): NVML's own names for "
    "its errors, `hanging`, `out_of_bounds`.",
)  # fmt: skip
AGENT_GAPS = Metric(
    name="kvledger_agent_batch_gaps_total", kind=Kind.COUNTER, labels=("agent",), bound=ENGINES,
    about="Sequence numbers missing before a batch of an agent when it arrived; they may still come.",
)  # fmt: skip
PROCESS_THREADS = Metric(
    name="kvledger_process_threads", kind=Kind.GAUGE, labels=("host", "pid", "process", "engine"), bound=GPUS * 2,
    scope="ledger", about="Threads of a watched process: those on GPUs, engines' fronts, the agent, those named.",
)  # fmt: skip
PROCESS_CPU = Metric(
    name="kvledger_process_cpu_ratio", kind=Kind.GAUGE, labels=("host", "pid", "process", "engine"), bound=GPUS * 2,
    scope="ledger", about="Processor time over time, in cores: 1 is one core in full.",
)  # fmt: skip
PROCESS_RSS = Metric(
    name="kvledger_process_resident_bytes", kind=Kind.GAUGE, labels=("host", "pid", "process", "engine"),
    bound=GPUS * 2, scope="ledger", about="Resident memory of a watched process.",
)  # fmt: skip
PROCESS_THREAD_BUSY = Metric(
    name="kvledger_process_busiest_thread_ratio", kind=Kind.GAUGE, labels=("host", "pid", "process", "engine"),
    bound=GPUS * 2, scope="ledger",
    about="Processor time of the busiest thread over time. Absent where the process used less than 0.8 of a core: no "
    "thread of it can be at its limit.",
)  # fmt: skip
PROCESS_LOCKED = Metric(
    name="kvledger_process_lock_suspected", kind=Kind.GAUGE, labels=("host", "pid", "process", "engine"),
    bound=GPUS * 2, scope="ledger",
    about="1 where one thread used at least 0.95 of the time while others woke often and got little done: what the "
    "interpreter's lock looks like from outside; 0 where threads were looked at and it does not.",
)  # fmt: skip
PROCESS_POOL = Metric(
    name="kvledger_process_pool_threads", kind=Kind.GAUGE, labels=("host", "pid", "process", "of"), bound=GPUS * 2,
    scope="ledger",
    about="Of a process that says so (the service itself, beside its agent): `workers` it may have, most of them "
    "`busy`, most requests `queued` for one.",
)  # fmt: skip

DECLARED: Final = (
    MEMORY, PROCESS_MEMORY, PART_MEMORY, UNEXPLAINED, BUSY, POWER, ECC, THROTTLED, INFO, AGENT_HEARD, AGENT_TROUBLES,
    AGENT_GAPS, PROCESS_THREADS, PROCESS_CPU, PROCESS_RSS, PROCESS_THREAD_BUSY, PROCESS_LOCKED, PROCESS_POOL,
)  # fmt: skip
