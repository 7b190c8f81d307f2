"""A plugin of vLLM's for the tests, loaded where its folder is on PYTHONPATH: it writes down what the core gets.

``SPY_ARRIVALS`` names a file that gets a line of JSON for each request that the scheduler of any engine core admits.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path


def register() -> None:
    if path := os.environ.get("SPY_ARRIVALS"):
        _spy_on_arrivals(Path(path))


def _spy_on_arrivals(path: Path) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - vLLM is loaded by now

    from ledger.hook.vllm.callers import caller_of  # noqa: PLC0415

    admit = Scheduler.add_request
    key = os.environ.get("KVLEDGER_HANDOVER_KEY", "").encode()

    @functools.wraps(admit)
    def add_request(self, request, *args, **kwargs):
        arrived = {
            "request": request.request_id,
            "session_id": request.session_id,
            "priority": request.priority,
            "rank": self.vllm_config.parallel_config.data_parallel_index,
            "caller": dataclasses.asdict(caller_of(request, key)),
        }
        with path.open("a") as file:
            file.write(json.dumps(arrived) + "\n")
        return admit(self, request, *args, **kwargs)

    Scheduler.add_request = add_request
