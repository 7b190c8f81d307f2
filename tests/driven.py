"""A service that scrapes engines which answer at once, in a time that the test moves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scraped import S
from serving import START, Served

from ledger.collectors.fetch import Place, Unfetched
from ledger.core.records import PERIOD_US
from ledger.jobs.scraping import Scraping
from ledger.store import scrapes

if TYPE_CHECKING:
    from ledger.core.scraped import ScrapedPeriod
    from ledger.metrics import Metrics

VLLM = """\
vllm:num_requests_running{engine="0",model_name="m"} 2
vllm:num_requests_waiting{engine="0",model_name="m"} 1
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1001"} 1
vllm:generation_tokens_total{engine="0",model_name="m"} %(ten)d
vllm:prompt_tokens_total{engine="0",model_name="m"} %(ten)d
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} %(one)d
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} %(one)d
vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0",model_name="m"} %(one)d
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} %(one)d
vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} %(one)d
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} %(one)d
"""
DCGM = 'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1"} 5\nDCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1"} 7\n'


class Driven:
    """A service that scrapes in a time that the test moves; engines answer at once."""

    def __init__(self, served: Served, **answers: str | Unfetched) -> None:
        self.served = served
        self.answers = answers
        self.leads = True
        self.began_us = served.clock.us
        self.scraping = Scraping(served.service, leads=lambda: self.leads, mono_s=served.clock.mono, get=self.get)
        self.scraping._scraper._next_us = served.clock.us // PERIOD_US * PERIOD_US
        for name in answers:
            self.add(name)

    @property
    def metrics(self) -> Metrics:
        return self.served.service.metrics

    def add(self, name: str, kind: str = "auto") -> None:
        self.served.service.database.write(
            lambda c: scrapes.add_target(c, engine=name, url=f"http://{name}/", kind=kind, now_us=self.served.clock.us)
        )

    def get(self, place: Place) -> bytes:
        answer = self.answers[place.host]
        if isinstance(answer, Unfetched):
            raise answer
        seconds = (self.served.clock.us - self.began_us) // S
        return (answer % {"ten": 10 * seconds, "one": seconds}).encode()

    def live(self, seconds: float) -> None:
        until_us = self.served.clock.us + int(seconds * S)
        while self.served.clock.us < until_us:
            self.served.clock.us += S // 2
            self.scraping._try(self.scraping._step)
            self.scraping._scraper.tick()
            ends_s = time.monotonic() + 5
            while any(state.busy for state in self.scraping._scraper._states.values()):
                assert time.monotonic() < ends_s
                time.sleep(0.0005)

    def records(self, engine: str) -> tuple[ScrapedPeriod, ...]:
        with self.served.service.database.read() as connection:
            return scrapes.scraped_between(connection, START - 3600 * S, START + 24 * 3600 * S).get(engine, ())
