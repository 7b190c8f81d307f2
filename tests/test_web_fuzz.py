"""Whatever is sent to the interface as it is described, the answer is described, too, and never a 5xx."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

if TYPE_CHECKING:
    from serving import Served

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 12
"""For each operation; half a minute in all. `make evidence` has time for more."""


def test_the_interface_keeps_to_its_description(served: Served) -> None:
    description = schemathesis.openapi.from_asgi("/openapi.json", served.client.app)
    tried = set()
    for found in description.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        def keeps_to_it(case: schemathesis.Case) -> None:
            served.clock.us += 10_000_000  # so that no rate is ever reached
            answer = case.call(headers=served.headers("admin"))
            case.validate_response(answer, checks=CHECKS)

        keeps_to_it()
        tried.add(operation.path)
    assert len(tried) == len(served.client.get("/openapi.json").json()["paths"])


@pytest.mark.parametrize("header", ["Authorization", "Accept", "Cookie", "Content-Encoding", "Host", "X-Tenant-ID"])
@pytest.mark.parametrize(
    "value", ["", " ", "\xff\xfe", "x" * 5000, "Bearer", "Bearer kvl_", "kvledger_session=1.2.3", "%00"]
)
def test_a_hostile_header_is_at_most_a_4xx(served: Served, header: str, value: str) -> None:
    headers = served.headers("admin") | {header: value}
    for method, path in (("GET", "/v1/usage"), ("POST", "/v1/batches"), ("GET", "/metrics"), ("POST", "/login")):
        served.clock.us += 60_000_000
        got = served.client.request(
            method, path, headers=[(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        )
        assert got.status_code < 500
