"""A fleet of engines that only have a `/metrics`, on one loopback port, in a process of its own.

    python -m bench.scrape_fleet SECONDS

Engine N is `/N/metrics`. Some answer at once, some after seconds, some never, some with something else. It prints its
port, and when it is told to stop (end of standard input) one line of JSON: when each engine was asked, of
`time.monotonic`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

WELL, SLOW, HANGING, GARBAGE = 170, 10, 12, 8
ENGINES = WELL + SLOW + HANGING + GARBAGE
SLOW_S = 3.0

LATENCIES = (
    "time_to_first_token",
    "inter_token_latency",
    "e2e_request_latency",
    "request_queue_time",
    "request_decode_time",
)
BOUNDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)


def kind_of(number: int) -> str:
    for kind, upto in (("well", WELL), ("slow", WELL + SLOW), ("hanging", WELL + SLOW + HANGING)):
        if number < upto:
            return kind
    return "garbage"


def text(number: int, seconds: float) -> bytes:
    """As much as a vLLM says: about 400 series, 50 kB; counters move by 1 000 tokens and a request a second."""
    labels = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct-and-a-long-name"'
    tokens, ended = int(1000 * seconds), int(seconds)
    lines = [
        f"process_start_time_seconds {1_700_000_000 + number}",
        f"vllm:num_requests_running{{{labels}}} {number % 7 + 1}",
        f"vllm:num_requests_waiting{{{labels}}} {number % 3}",
        f"vllm:kv_cache_usage_perc{{{labels}}} {number % 100 / 100}",
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="100001",{labels}}} 1',
        f"vllm:prompt_tokens_total{{{labels}}} {tokens}",
        f"vllm:generation_tokens_total{{{labels}}} {tokens}",
        f"vllm:num_preemptions_total{{{labels}}} 0",
        f'vllm:request_success_total{{finished_reason="stop",{labels}}} {ended}',
    ]
    for name in LATENCIES:
        lines.append(f"# HELP vllm:{name}_seconds Histogram of something in seconds.")
        lines.append(f"# TYPE vllm:{name}_seconds histogram")
        lines += [f'vllm:{name}_seconds_bucket{{le="{bound}",{labels}}} {ended}' for bound in BOUNDS]
        lines += [f'vllm:{name}_seconds_bucket{{le="+Inf",{labels}}} {ended}']
        lines += [f"vllm:{name}_seconds_count{{{labels}}} {ended}", f"vllm:{name}_seconds_sum{{{labels}}} {ended}"]
    lines += [f'vllm:something_else_bucket{{le="{bound}",{labels}}} 0' for bound in range(280)]
    return ("\n".join(lines) + "\n").encode()


GARBAGE_BODIES = (
    (b"HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n", b"<html>no metrics here</html"),
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b""),
    (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", b""),
    (b"\x00\xff\xfe not http at all\r\n\r\n", b""),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"vllm:num_requests_running 3\n"),
    (b"HTTP/1.1 200 OK\r\n\r\n", b"\xff\xfe\xfd" * 100 + b"\n" + b"{" * 1000 + b"\n"),
)


async def serve(seconds: float) -> None:
    asked: dict[int, list[float]] = {number: [] for number in range(ENGINES)}
    began = time.monotonic()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            number = int(head.split(b"/", 2)[1])
            asked[number].append(time.monotonic())
            kind = kind_of(number)
            if kind == "hanging":
                await asyncio.sleep(seconds)
            if kind == "slow":
                await asyncio.sleep(SLOW_S)
            if kind == "garbage":
                for part in GARBAGE_BODIES[number % len(GARBAGE_BODIES)]:
                    writer.write(part)
            else:
                body = text(number, time.monotonic() - began)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it went away, or all is over
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    print(json.dumps(asked), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
