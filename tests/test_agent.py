"""The agent: its loop on a clock of its own, the command, and a process that delivers from a stubbed driver."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from batches import T0
from fake_service import FakeService
from nvml.stub import GIB, GPU_IS_LOST, Stub
from sampled import AgentLife

from ledger import wire
from ledger.collectors.agent import AgentLoop
from ledger.collectors.gpu_readings import GpuReading, Look, ProcessReading
from ledger.collectors.procfs import Processes
from ledger.commands import agent as command
from ledger.commands import agent_inside as agent_inside_module
from ledger.commands.agent_inside import BookingPost, agent_inside, wanted
from ledger.commands.agent_settings import DECLARED, load_agent
from ledger.core.records import PERIOD_US, Origin
from ledger.core.samples import Agent, Gpu, SampleBatch
from ledger.errors import StoreError, UsageError
from ledger.ingest import accept
from ledger.metrics import BATCHES
from ledger.outbox.post import Unreachable
from ledger.sample_laws import sample_breach

if TYPE_CHECKING:
    from commandline import CommandLine
    from serving import Served

ROOT = Path(__file__).parents[1]
SECOND = 1_000_000


class Still:
    """A driver that sees the same for ever, until it is told otherwise."""

    def __init__(self) -> None:
        gpu = Gpu(uuid="GPU-1", memory_bytes=80 * GIB)
        held = ProcessReading(pid=2**22 - 1, used_bytes=GIB)
        self.said = Look(
            readings=(GpuReading(gpu=gpu, used_bytes=2 * GIB, processes=(held,)),), gpus=(gpu,), driver="550"
        )
        self.looks = 0
        self.closed = False

    def look(self, deadline_s: float) -> Look:
        assert deadline_s <= 1.0
        self.looks += 1
        return self.said

    def close(self) -> None:
        self.closed = True


class Run:
    """A loop whose clocks the test moves."""

    def __init__(self, tmp_path: Path) -> None:
        self.mono_us, self.set_us = 5 * SECOND, T0 - 5 * SECOND
        self.sent: list[SampleBatch] = []
        self.driver = Still()
        self.loop = AgentLoop(
            Agent(source_id="agent:h", origin=Origin.LIVE),
            self.driver,
            Processes(root=tmp_path),
            self.sent.append,
            wall_us=lambda: self.set_us + self.mono_us,
            mono_us=lambda: self.mono_us,
        )

    def seconds(self, number: int) -> None:
        for _ in range(number):
            self.loop.step()
            self.mono_us += SECOND


@pytest.fixture
def running(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_periods_lie_on_the_grid_and_each_look_is_in_one_of_them(running: Run) -> None:
    running.set_us += 4 * SECOND  # it starts within a period
    running.loop = AgentLoop(
        Agent(source_id="agent:h", origin=Origin.LIVE), running.driver, Processes(root=Path("/nowhere")),
        running.sent.append, wall_us=lambda: running.set_us + running.mono_us, mono_us=lambda: running.mono_us,
    )  # fmt: skip
    running.seconds(40)
    running.loop.finish()
    assert [(b.start_us - T0, b.end_us - T0) for b in running.sent] == [
        (4 * SECOND, 15 * SECOND), (15 * SECOND, 30 * SECOND), (30 * SECOND, 44 * SECOND),
    ]  # fmt: skip
    assert [b.seq for b in running.sent] == [1, 2, 3]
    assert sum(row.readings for row in running.sent[0].samples) == 11
    assert all(sample_breach(batch) is None for batch in running.sent)
    assert running.driver.closed


def test_a_host_that_slept_has_no_samples_of_the_time_in_between(running: Run) -> None:
    running.seconds(7)
    running.mono_us += 100 * SECOND
    running.seconds(20)
    assert [(b.start_us - T0) // SECOND for b in running.sent] == [0, 105]
    assert [b.seq for b in running.sent] == [1, 2], "nothing was lost, so no number is missing"
    assert all(b.gpus is not None for b in running.sent), "the ledger is told what is there after a silence"


def test_a_clock_that_is_set_makes_a_new_boot(running: Run) -> None:
    running.seconds(20)
    running.set_us -= 3600 * SECOND
    running.seconds(40)
    boots = [batch.boot.boot_id for batch in running.sent]
    assert len(set(boots)) == 2
    assert running.sent[1].skew_us == 3600 * SECOND, "the batch before says by how much"
    assert running.sent[2].start_us == running.sent[2].boot.started_us < T0
    assert running.sent[2].seq == 1
    assert running.sent[2].gpus is not None


def test_after_something_was_dropped_everything_is_told_again(running: Run) -> None:
    running.seconds(PERIOD_US // SECOND * 2 + 1)
    assert [(b.gpus is not None, len(b.samples)) for b in running.sent] == [(True, 1), (False, 0)]
    running.loop.resend_standing()
    running.seconds(PERIOD_US // SECOND)
    assert (running.sent[-1].gpus is not None, len(running.sent[-1].samples)) == (True, 1)


def test_what_goes_wrong_is_told_once_with_the_way_out(running: Run, caplog: pytest.LogCaptureFixture) -> None:
    running.driver.said = Look(troubles={("library_not_found", ""): 1, ("hanging", "GPU-1"): 1})
    running.seconds(30)
    assert [record.message.split(":")[0] for record in caplog.records] == ["the GPU driver", "GPU-1"]
    assert "libnvidia-ml.so.1 is missing" in caplog.text
    assert {(t.reason, t.count) for t in running.sent[0].troubles} == {("library_not_found", 15), ("hanging", 15)}


# --- the command ----------------------------------------------------------------------------------------


@pytest.fixture
def once(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Stub:
    monkeypatch.setattr(command, "ONCE_S", 1e-3)
    return stub


def test_once_prints_what_is_seen(once: Stub, kvledger: CommandLine) -> None:
    once[0].put({os.getpid(): 3 * GIB}, rest=GIB)
    once[0].memory_busy, once[0].busy, once[0].throttles = 1, 50, 4
    once.cut(1, 3).put({1: None})
    answer = kvledger("agent", "--once")
    assert answer.code == 0, answer
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert lines[0] == "driver 550.54.15, 3 GPUs and instances"
    assert lines[1] == "GPU 0 NVIDIA A100-SXM4-80GB GPU-0"
    assert "used 4.00 GiB of 80.00 GiB, free 75.50 GiB, kept by the driver 0.50 GiB" in lines
    assert "busy 50%, power 250 W, clocks held down: sw_power_cap" in lines
    assert any(re.fullmatch(rf"pid {os.getpid()} \S+ 3.00 GiB", line) for line in lines)
    assert "of no process 1.00 GiB" in lines
    assert "instance 3 of GPU 1 NVIDIA A100-SXM4-80GB MIG 1g.10gb MIG-1-3" in lines
    assert any(re.fullmatch(r"pid 1 .* \?", line) for line in lines), "a process without a figure has none"
    assert any(f"pid {os.getpid()}" in line and "threads" in line for line in lines)


def test_once_says_what_is_wrong_and_ends_with_1(once: Stub, kvledger: CommandLine) -> None:
    once[1].error = GPU_IS_LOST
    answer = kvledger("agent", "--once", "--format", "json")
    assert answer.code == 1
    found = json.loads(answer.out)
    assert found["troubles"] == [{"gpu": "", "reason": "gpu_is_lost"}]
    assert [gpu["gpu"]["uuid"] for gpu in found["gpus"]] == ["GPU-0"]


def test_without_a_place_to_report_to_it_says_so(kvledger: CommandLine) -> None:
    assert "KVLEDGER_URL" in kvledger.fails("agent")


def test_settings_are_read_and_refused_by_name() -> None:
    found = load_agent({"KVLEDGER_HOST": "gpu-7", "KVLEDGER_CLUSTER": "eu", "KVLEDGER_WATCH": "llama-server, vllm"})
    assert (found.source.source_id, found.source.host, found.source.cluster) == ("agent:gpu-7", "gpu-7", "eu")
    assert found.watch == ("llama-server", "vllm")
    assert load_agent({"KVLEDGER_AGENT": "rack-3"}).source.source_id == "rack-3"
    with pytest.raises(UsageError, match="KVLEDGER_WATCH = 'a-name-of-20-letters'"):
        load_agent({"KVLEDGER_WATCH": "a-name-of-20-letters"})


def test_the_page_lists_every_variable_as_it_is_declared() -> None:
    page = (ROOT / "docs/agent.md").read_text()
    for variable in DECLARED:
        row = f"| `{variable.name}` | {variable.default or 'empty'} | {variable.limit} | {variable.about} |"
        assert row in page


def test_a_process_delivers_what_the_driver_says_and_its_last_period_when_it_is_stopped(
    nvml_library: Path, tmp_path: Path
) -> None:
    stub = Stub(tmp_path / "nvml.stub")
    stub[0].put({os.getpid(): 3 * GIB}, rest=GIB)
    with FakeService() as service:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("KVLEDGER_")}
        environ |= {
            "KVLEDGER_URL": service.url, "KVLEDGER_TOKEN": "kvl_1", "KVLEDGER_SPOOL": str(tmp_path / "spool"),
            "KVLEDGER_HOST": "gpu-7", "LD_LIBRARY_PATH": str(nvml_library.parent), "NVML_STUB": str(stub.path),
            "PYTHONPATH": str(ROOT), "KVLEDGER_WACH": "vllm", "KVLEDGER_AGENT": "agent:gpu-7",
        }  # fmt: skip
        agent = subprocess.Popen(
            [sys.executable, "-m", "ledger", "agent"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert agent.stdout is not None
        assert "agent:gpu-7 reports to" in agent.stdout.readline()
        calls = stub.control.calls
        end_s = time.monotonic() + 60
        while stub.control.calls < calls + 40 and time.monotonic() < end_s:  # a few looks
            with pytest.raises(subprocess.TimeoutExpired):
                agent.wait(0.05)
        agent.send_signal(signal.SIGTERM)
        told = agent.communicate(timeout=30)[1]
        assert agent.returncode == 0, told
        assert "KVLEDGER_WACH is no setting of the agent; did you mean KVLEDGER_WATCH?" in told
        assert told.count("no setting") == 1
        batches = [service.batches[key] for key in sorted(service.batches, key=lambda key: key[2])]
    assert {batch.source.source_id for batch in batches} == {"agent:gpu-7"}
    assert batches[0].source.driver == "550.54.15"
    assert [gpu.uuid for gpu in batches[0].gpus] == ["GPU-0", "GPU-1"]
    row = next(row for batch in batches for row in batch.samples if row.gpu == "GPU-0")
    assert row.used_bytes is not None
    assert row.used_bytes.most == 4 * GIB
    rows = [row for batch in batches for row in batch.health]
    assert {row.watch for row in rows if row.pid == os.getpid()} <= {"gpu"}
    assert any(row.watch == "own" for row in rows)
    assert not any((tmp_path / "spool").rglob("*.seg")), "nothing waits"


def test_the_checks_for_a_real_gpu_hold_against_the_stub_and_say_so_where_there_is_none(
    nvml_library: Path, tmp_path: Path
) -> None:
    stub = Stub(tmp_path / "nvml.stub")
    stub[0].put({os.getpid(): 3 * GIB}, rest=GIB)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(nvml_library.parent), "NVML_STUB": str(stub.path)}
    environ |= {"PYTHONPATH": str(ROOT), "PATH": "/nowhere", "LOOK_PAUSE_S": "0"}

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ROOT / "tests/real_gpu.py"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    done = check()
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["driver 550.54.15", "GPU 0 NVIDIA A100-SXM4-80GB GPU-0"]
    assert "ok       GPU 0 used + free + reserved = total: 81920 of 81920 MiB" in lines
    assert any(line.startswith("not run  memory that comes and goes") for line in lines)
    assert any(line.startswith("ok       the memory of GPU 0 closes") for line in lines)
    environ["LD_LIBRARY_PATH"] = str(tmp_path)
    none = check()
    assert (none.returncode, none.stdout) == (3, "no NVIDIA GPU here (library_not_found); nothing was checked\n")


# --- inside the service ---------------------------------------------------------------------------------


def test_an_agent_inside_the_service_books_without_a_token_and_its_last_period_when_it_ends(
    empty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLEDGER_HOST", "gpu-7")
    monkeypatch.setenv("KVLEDGER_URL", "http://elsewhere")  # of an engine beside us: not ours to report to
    empty.clock.us = time.time_ns() // 1000
    empty.get("/v1/whoami")  # a request, so that the pool of threads is known
    driver = Still()
    with agent_inside(empty.service, driver=lambda: driver) as name:
        end_s = time.monotonic() + 30
        while driver.looks < 2 and time.monotonic() < end_s:
            threading.Event().wait(0.05)
    assert (name, driver.closed) == ("agent:gpu-7", True)
    empty.clock.us = time.time_ns() // 1000
    (row,) = empty.get("/v1/gpus").json()["rows"]
    assert (row["gpu"], row["used_bytes"], row["agent"]) == ("GPU-1", 2 * GIB, "agent:gpu-7")
    (process,) = [row for row in empty.get("/v1/processes").json()["rows"] if row["watch"] == "own"]
    assert process["pid"] == os.getpid()
    assert process["workers"] > 0
    assert process["workers_busy"] is not None
    assert process["queued"] == 0


def test_refused_samples_of_the_agent_inside_are_given_up_and_a_broken_database_is_waited_for(
    empty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = BookingPost(empty.service)
    assert post(zlib.compress(b"{}", wbits=31), "").status == 422
    good = zlib.compress(wire.encode(AgentLife(start_us=empty.clock.us - 60 * SECOND).period()), wbits=31)

    def broken(*_args: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(empty.service.database, "write", broken)
        with pytest.raises(Unreachable, match="the disk is full"):
            post(good, "")
    assert post(good, "").status == 200
    assert empty.service.metrics.value(BATCHES, ("accepted", "")) == 1


def test_an_agent_runs_inside_by_itself_where_there_is_a_driver_and_the_ledger_is_live(
    empty: Served, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_inside_module, "LIBRARY", "libno-such-driver.so.1")
    assert not wanted(empty.service, "auto", demo=False)
    assert wanted(empty.service, "on", demo=False), "asked for, it waits for a driver to come"
    monkeypatch.setattr(agent_inside_module, "LIBRARY", str(nvml_library))
    assert wanted(empty.service, "auto", demo=False)
    assert not wanted(empty.service, "off", demo=False)
    assert not wanted(empty.service, "auto", demo=True)
    simulated = AgentLife(start_us=empty.clock.us - 60 * SECOND).period()
    assert accept(empty.service.database, wire.encode(simulated), empty.clock.us).refusal is None
    assert not wanted(empty.service, "auto", demo=False), "a simulated ledger takes nothing from a real GPU"
    with pytest.raises(UsageError, match="simulated"):
        wanted(empty.service, "on", demo=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert not wanted(empty.service, "auto", demo=False)
    with pytest.raises(UsageError, match="pip install nvidia-ml-py"):
        wanted(empty.service, "on", demo=False)
