"""TensorRT-LLM behind Triton: what its backend reports of the batch manager, and Triton's own counters."""

from __future__ import annotations

from typing import Final

from ledger.collectors.readings import Figure
from ledger.collectors.sources import At, Rule, Source

_KV: Final = "nv_trt_llm_kv_cache_block_metrics"
_REQUESTS: Final = "nv_trt_llm_request_metrics"


def _blocks(kind: str) -> At:
    return At((_KV,), where=(("kv_cache_block_type", kind),))


TRITON: Final = Source(
    kind="triton_trtllm",
    title="TensorRT-LLM (Triton)",
    seen="the text of tensorrtllm_backend's documentation",
    prefixes=("nv_trt_llm_", "nv_inference_", "nv_llm_"),
    models=("model",),
    rules=(
        Rule(
            figure=Figure.RUNNING, at=At((_REQUESTS,), where=(("request_type", "scheduled"),)),
            note="`active` counts those that wait as well",
        ),
        Rule(figure=Figure.WAITING, at=At((_REQUESTS,), where=(("request_type", "waiting"),))),
        Rule(
            figure=Figure.KV_ACTIVE, at=_blocks("used"), over=_blocks("max"),
            note="`fraction` need not be their quotient; blocks kept for reuse count as free",
        ),
        Rule(figure=Figure.KV_CAPACITY, at=_blocks("max"), times=_blocks("tokens_per")),
        Rule(figure=Figure.FINISHED, at=At(("nv_inference_request_success",)), reason="success"),
        Rule(figure=Figure.FINISHED, at=At(("nv_inference_request_failure",)), reason="error"),
    ),
    unused=(
        ("nv_trt_llm_v1_metrics", "tokens of the last iteration, not since the start"),
        ("nv_trt_llm_inflight_batcher_metrics", "tokens and requests of the last iteration"),
        ("nv_trt_llm_general_metrics", "a time stamp and a count of iterations"),
        ("nv_trt_llm_runtime_memory_metrics", "memory of the runtime alone; the GPU's is what an agent sees"),
        ("nv_trt_llm_disaggregated_serving_metrics", "milliseconds of transfers, no tokens"),
        ("nv_inference_count", "inferences of Triton, which are requests again"),
        ("nv_inference_exec_count", "executions of Triton"),
        ("nv_inference_request_duration_us", "a sum without a histogram"),
        ("nv_inference_queue_duration_us", "a sum without a histogram"),
        ("nv_inference_compute_input_duration_us", "a sum without a histogram"),
        ("nv_inference_compute_infer_duration_us", "a sum without a histogram"),
        ("nv_inference_compute_output_duration_us", "a sum without a histogram"),
        ("nv_inference_pending_request_count", "Triton's own queue, before the batch manager's"),
    ),
)  # fmt: skip
