"""Asynchronous scheduling on the CPU: vLLM leaves it off there, where it saves nothing, and it is what runs on GPUs."""

from __future__ import annotations

from typing import Any


def switch_on() -> None:
    """In this process, before an engine is configured."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - a server's processes load it in their own time

    check = type(current_platform).check_and_update_config.__func__

    def checked(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    type(current_platform).check_and_update_config = classmethod(checked)
