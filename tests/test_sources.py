"""How names of engines become our figures: renames, ranks that tell the same, and values that cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.collectors.exposition import parse
from ledger.collectors.known import AUTO, SOURCES, read_text, source_of
from ledger.collectors.readings import Figure, Pool, Reading
from ledger.collectors.sources import read


def said(kind: str, text: str) -> Reading:
    return read(source_of(kind), parse(text.encode()))


def test_a_renamed_metric_is_found_under_either_name_and_the_reading_says_which() -> None:
    old = said("vllm", "vllm:gpu_cache_usage_perc 0.25\n")
    new = said("vllm", "vllm:kv_cache_usage_perc 0.25\n")
    assert old.pools == new.pools == (Pool(active_ppm=250_000),)
    assert old.origins[Figure.KV_ACTIVE] == "vllm:gpu_cache_usage_perc"
    assert new.origins[Figure.KV_ACTIVE] == "vllm:kv_cache_usage_perc"


def test_where_both_names_are_there_the_new_one_counts() -> None:
    both = said("vllm", "vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n")
    assert both.kv_active_ppm == 250_000


V0 = """\
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="m"} 5.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.125
vllm:num_preemptions_total{model_name="m"} 4.0
vllm:prompt_tokens_total{model_name="m"} 1000.0
vllm:generation_tokens_total{model_name="m"} 200.0
vllm:request_success_total{finished_reason="stop",model_name="m"} 6.0
vllm:request_success_total{finished_reason="length",model_name="m"} 1.0
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 10
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 12
vllm:time_per_output_token_seconds_count{model_name="m"} 12
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0
"""


def test_vllm_v0_has_no_null_block_and_its_swapped_requests_wait() -> None:
    reading = said("vllm", V0)
    assert (reading.running, reading.waiting) == (3, 7)
    assert reading.pools == (Pool(active_ppm=125_000, capacity=1600, block_size=16),)
    assert reading.counters == {Figure.PROMPT: 1000, Figure.OUTPUT: 200, Figure.PREEMPTIONS: 4}
    assert reading.finished == {"stop": 6, "length": 1}
    assert reading.latencies[Figure.INTER_TOKEN].buckets == ((10_000, 10),)
    assert (reading.latencies[Figure.INTER_TOKEN].count, reading.latencies[Figure.INTER_TOKEN].total_us) == (
        12,
        500_000,
    )


def test_data_parallel_ranks_have_requests_of_their_own_and_pools_of_their_own() -> None:
    reading = said(
        "vllm",
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 5\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="101"} 1\n'
        'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="301"} 1\n',
    )
    assert reading.running == 8
    assert reading.pools == (
        Pool(rank="0", active_ppm=200_000, capacity=1600, block_size=16),
        Pool(rank="1", active_ppm=600_000, capacity=4800, block_size=16),
    )
    assert reading.kv_active_ppm == 500_000  # the larger pool counts for more
    assert reading.capacity == 6400


def sglang_ranks(label: str, ranks: int, *, dp: str = "") -> str:
    return "".join(
        f'sglang:num_running_reqs{{dp_rank="{dp}",model_name="m",{label}="{rank}"}} 7\n'
        f'sglang:prompt_tokens_total{{dp_rank="{dp}",model_name="m",{label}="{rank}"}} 100\n'
        f'sglang:kv_used_tokens{{dp_rank="{dp}",model_name="m",{label}="{rank}"}} 30\n'
        f'sglang:kv_evictable_tokens{{dp_rank="{dp}",model_name="m",{label}="{rank}"}} 20\n'
        f'sglang:max_total_num_tokens{{dp_rank="{dp}",model_name="m",{label}="{rank}"}} 100\n'
        for rank in range(ranks)
    )


@pytest.mark.parametrize("label", ["tp_rank", "pp_rank", "cp_rank", "moe_ep_rank"])
def test_ranks_that_run_the_same_requests_count_once(label: str) -> None:
    one, eight = said("sglang", sglang_ranks(label, 1)), said("sglang", sglang_ranks(label, 8))
    assert (eight.running, eight.counters[Figure.PROMPT]) == (one.running, one.counters[Figure.PROMPT]) == (7, 100)
    assert eight.pools == one.pools == (Pool(active_ppm=300_000, cached_ppm=200_000, capacity=100, block_size=1),)
    assert eight.copies == 5 * 7


def test_data_parallel_attention_adds_up_over_dp_ranks_and_once_for_each() -> None:
    reading = said("sglang", sglang_ranks("tp_rank", 4, dp="0") + sglang_ranks("tp_rank", 4, dp="1"))
    assert reading.running == 14
    assert [pool.rank for pool in reading.pools] == ["0", "1"]
    assert reading.kv_active_ppm == 300_000


def test_of_ranks_that_tell_the_same_the_lowest_is_asked_even_if_it_comes_last() -> None:
    text = "".join(
        f'sglang:num_running_reqs{{tp_rank="{rank}"}} {value}\n' for rank, value in ((10, 1), (9, 2), (0, 3))
    )
    assert said("sglang", text).running == 3


def test_processes_of_one_scheduler_rank_count_once_even_with_a_pid_for_each() -> None:
    text = "".join(f'sglang:num_queue_reqs{{pid="{100 + rank}",tp_rank="{rank}"}} 4\n' for rank in range(4))
    assert said("sglang", text).waiting == 4


def test_the_sum_over_priorities_is_not_added_to_its_parts() -> None:
    text = 'sglang:num_running_reqs{priority=""} 3\nsglang:num_running_reqs{priority="10"} 2\n'
    assert said("sglang", text + 'sglang:num_running_reqs{priority="20"} 1\n').running == 3
    assert (
        said("sglang", 'sglang:num_running_reqs{priority="1"} 2\nsglang:num_running_reqs{priority="2"} 1\n').running
        == 3
    )


def test_sglang_says_what_is_held_without_what_could_be_evicted() -> None:
    # 2 % by token_usage while 72 % are taken: 70 % of that is cache.
    reading = said(
        "sglang",
        "sglang:token_usage 0.02\nsglang:kv_used_tokens 2000\nsglang:kv_evictable_tokens 70000\n"
        "sglang:kv_available_tokens 28000\nsglang:max_total_num_tokens 100000\n",
    )
    assert (reading.kv_active_ppm, reading.kv_cached_ppm) == (20_000, 700_000)


def test_llamacpp_tells_computed_tokens_only() -> None:
    reading = said(
        "llamacpp",
        "llamacpp:prompt_tokens_total 1000\nllamacpp:tokens_predicted_total 5000\nllamacpp:requests_processing 2\n"
        "llamacpp:requests_deferred 1\nllamacpp:kv_cache_usage_ratio 0.63\n",
    )
    assert reading == Reading(
        kind="llamacpp",
        running=2,
        waiting=1,
        pools=(Pool(active_ppm=630_000),),
        counters={Figure.COMPUTED: 1000, Figure.OUTPUT: 5000},
        origins=reading.origins,
    )


def test_a_dynamo_front_end_runs_what_is_in_flight_and_no_longer_queued() -> None:
    reading = said(
        "dynamo",
        'dynamo_frontend_inflight_requests{model="m"} 10\ndynamo_frontend_queued_requests{model="m"} 4\n'
        'dynamo_frontend_requests_total{model="m",status="success",endpoint="chat"} 5\n'
        'dynamo_frontend_requests_total{model="m",status="success",endpoint="completions"} 2\n'
        'dynamo_frontend_requests_total{model="m",status="error",endpoint="chat"} 1\n'
        'dynamo_frontend_input_sequence_tokens_sum{model="m"} 900\ndynamo_frontend_output_tokens_total{model="m"} 70\n',
    )
    assert (reading.running, reading.waiting) == (6, 4)
    assert reading.finished == {"success": 7, "error": 1}
    assert reading.counters == {Figure.PROMPT: 900, Figure.OUTPUT: 70}
    assert reading.models == ("m",)


def test_a_dynamo_worker_is_read_as_the_engine_that_it_is() -> None:
    text = V0 + 'dynamo_component_requests_total{dynamo_endpoint="generate"} 7\n' * 3
    _, reading = read_text(text.encode(), AUTO)
    assert reading is not None
    assert reading.kind == "vllm"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("vllm:num_requests_running -1", "vllm:num_requests_running is -1 in line 1"),
        ("vllm:num_requests_running NaN", "vllm:num_requests_running is nan in line 1"),
        ("vllm:num_requests_running +Inf", "vllm:num_requests_running is inf in line 1"),
        ("vllm:num_requests_running 9223372036854775794", "vllm:num_requests_running is 9.22337e+18 in line 1"),
        ("vllm:kv_cache_usage_perc 28", "vllm:kv_cache_usage_perc is 28 times the whole"),
    ],
)
def test_a_value_that_cannot_be_is_absent_and_named(line: str, sentence: str) -> None:
    reading = said("vllm", line + "\n")
    assert (reading.running, reading.pools) == (None, ())
    assert reading.nonsense == (sentence,)
    assert reading.origins == {}


def test_what_is_not_there_is_absent_and_never_zero() -> None:
    for source in SOURCES:
        nothing = read(source, parse(b""))
        assert nothing == Reading(kind=source.kind)


@pytest.mark.parametrize("blank", [9223372036854775794, 9223372036854775792, 2147483632, 140737488355330])
def test_a_blank_of_dcgm_is_absent(blank: int) -> None:
    text = f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1"}} {blank}\nDCGM_FI_DEV_FB_FREE{{gpu="0",UUID="GPU-1"}} 5\n'
    (gpu,) = said("dcgm", text).gpus
    assert (gpu.used_bytes, gpu.free_bytes) == (None, 5 * 1024 * 1024)


def test_pods_that_share_a_device_are_named_beside_it_and_none_has_its_figure() -> None:
    text = "".join(
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",namespace="n",pod="{pod}",container="c"}} 71\n' for pod in "abc"
    )
    (gpu,) = said("dcgm", text).gpus
    assert gpu.utilization_ppm == 710_000
    assert gpu.owners == ("n/a", "n/b", "n/c")


def test_the_exporters_own_pod_is_nobody_where_the_workloads_is_told() -> None:
    text = 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-1",pod="dcgm-exporter-x",exported_pod="vllm-0",exported_namespace="n"} 1\n'
    (gpu,) = said("dcgm", text).gpus
    assert gpu.owners == ("n/vllm-0",)


def test_instances_of_a_gpu_are_told_apart() -> None:
    text = "".join(f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",GPU_I_ID="{i}"}} {i}\n' for i in (1, 2))
    assert [(gpu.mig, gpu.used_bytes) for gpu in said("dcgm", text).gpus] == [("1", 1 << 20), ("2", 2 << 20)]


def test_a_text_of_nobody_is_not_recognised() -> None:
    text, reading = read_text(b"node_load1 0.3\n<html>\n", AUTO)
    assert reading is None
    assert text.bad_lines == 1


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 500))
def test_a_count_is_the_sum_over_data_ranks_whatever_the_number_of_copies(data: int, copies: int, each: int) -> None:
    text = "".join(
        f'sglang:num_running_reqs{{dp_rank="{d}",tp_rank="{t}"}} {each + d}\n'
        for d in range(data)
        for t in range(copies)
    )
    assert said("sglang", text).running == sum(each + d for d in range(data))
