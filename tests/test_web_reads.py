"""The JSON interface and the pages: who sees what, that figures close, and how errors look."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path

import pytest
from serving import HOUR, START, Clock, Served, serve
from sqlalchemy import text

import ledger.web
from ledger import limits
from ledger import metrics as m
from ledger.web.answers import csv_response, instant

LISTS = (
    "/v1/usage", "/v1/usage?by=session", "/v1/usage?by=model", "/v1/usage?by=pool", "/v1/sessions", "/v1/costs",
    "/v1/statements", "/v1/engines", "/v1/sources", "/v1/batches", "/v1/quarantine", "/v1/findings", "/v1/live",
)  # fmt: skip
WHOLE = ("/v1/engines", "/v1/sources", "/v1/batches", "/v1/quarantine", "/v1/findings", "/v1/troubles")


@pytest.mark.parametrize("path", [*LISTS, "/v1/troubles", "/v1/statements/current", "/v1/whoami"])
def test_nothing_is_shown_without_a_token(served: Served, path: str) -> None:
    got = served.client.get(path)
    assert got.status_code == 401
    assert got.headers["www-authenticate"].startswith("Bearer")
    assert got.json()["type"] == "urn:kvledger:unauthorized"


@pytest.mark.parametrize("path", [*LISTS, "/v1/troubles", "/v1/statements/current"])
def test_an_empty_ledger_answers_with_nothing_and_not_with_an_error(empty: Served, path: str) -> None:
    assert empty.get(path).status_code == 200


@pytest.mark.parametrize("path", LISTS)
def test_every_list_is_there_as_json_and_as_csv(served: Served, path: str) -> None:
    assert set(served.get(path).json()) >= {"rows", "next"}
    joiner = "&" if "?" in path else "?"
    got = served.get(f"{path}{joiner}format=csv")
    assert got.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(got.text)))
    assert len(rows) >= len(served.get(path).json()["rows"]) or path == "/v1/batches"


def test_a_statement_closes_and_its_drill_downs_sum_to_it(served: Served) -> None:
    bill = served.get("/v1/statements/current").json()
    assert bill["bill_nanos"] > 0
    assert sum(line["amount_nanos"] for line in bill["lines"]) == bill["bill_nanos"]
    tenants = {}
    for line in bill["lines"]:
        if line["account"] == "tenant":
            tenants[line["tenant"]] = tenants.get(line["tenant"], 0) + line["amount_nanos"]
    sessions: dict[str, int] = {}
    for row in served.get("/v1/sessions?limit=1000").json()["rows"]:
        sessions[row["tenant"]] = sessions.get(row["tenant"], 0) + row["cost_nanos"]
    assert {name: nanos for name, nanos in sessions.items() if nanos} == tenants
    for by in ("hour", "day", "all"):
        rows = served.get(f"/v1/costs?by={by}&limit=1000").json()["rows"]
        assert sum(row["amount_nanos"] for row in rows) == bill["bill_nanos"]


def test_a_range_has_its_own_figures(served: Served) -> None:
    first = served.get("/v1/usage?from=2026-11-03T00:00:00Z&to=2026-11-03T01:00:00Z").json()
    whole = served.get("/v1/usage").json()
    assert (first["from_us"], first["to_us"]) == (START, START + HOUR)
    assert sum(row["active_block_us"] for row in first["rows"]) < sum(row["active_block_us"] for row in whole["rows"])


@pytest.mark.parametrize("report", ["usage", "sessions", "costs"])
@pytest.mark.parametrize("years", [("2020", "2026"), ("2090", "2091")])
def test_a_range_without_any_of_the_ledger_s_time_is_empty_and_within_what_was_asked(
    served: Served, report: str, years: tuple[str, str]
) -> None:
    since, until = (f"{year}-01-01T00:00:00Z" for year in years)
    found = served.get(f"/v1/{report}?from={since}&to={until}").json()
    assert instant(since, "from") <= found["from_us"] == found["to_us"] <= instant(until, "to")
    assert found["rows"] == []


def test_pages_follow_each_other_and_lose_nothing(served: Served) -> None:
    whole = served.get("/v1/sessions?limit=1000").json()["rows"]
    assert len(whole) > 7
    found, path = [], "/v1/sessions?limit=7"
    while path:
        got = served.get(path)
        found += got.json()["rows"]
        path = got.json()["next"]
        assert ('rel="next"' in got.headers.get("link", "")) == (path is not None)
    assert found == whole


def test_sessions_are_sorted_as_asked(served: Served) -> None:
    waste = [row["waste_nanos"] for row in served.get("/v1/sessions?sort=waste").json()["rows"]]
    assert waste == sorted(waste, reverse=True)
    assert waste[0] > 0


def test_a_session_is_found_by_its_id(served: Served) -> None:
    dear = served.get("/v1/sessions?limit=1").json()["rows"][0]
    found = served.get("/v1/sessions", params={"session": dear["session"], "tenant": dear["tenant"]}).json()["rows"]
    assert found == [dear]


def tenant_token(served: Served) -> str:
    """The token for one tenant, moved to the dearest tenant of the books."""
    tenant = served.get("/v1/sessions?limit=1").json()["rows"][0]["tenant"]
    served.service.database.write(
        lambda c: c.execute(text("UPDATE tokens SET tenant = :t WHERE name = 'acme'"), {"t": tenant})
    )
    served.clock.us += 10_000_000
    return tenant


def test_a_token_of_one_tenant_sees_that_tenants_figures_alone(served: Served) -> None:
    tenant = tenant_token(served)
    for path in ("/v1/usage", "/v1/usage?by=session", "/v1/sessions", "/v1/costs", "/v1/live"):
        rows = served.get(path, "acme").json()["rows"]
        assert {row["tenant"] for row in rows} <= {tenant}
    bill = served.get("/v1/statements/current", "acme").json()
    assert bill["tenant"] == tenant
    assert sum(line["amount_nanos"] for line in bill["lines"]) == bill["bill_nanos"] > 0
    for path in WHOLE:
        assert served.get(path, "acme").status_code == 403
    for path in ("/v1/usage?tenant=other", "/v1/sessions?tenant=other", "/v1/statements/current?tenant=other"):
        assert served.get(path, "acme").status_code == 403
    assert served.get("/v1/usage?by=pool", "acme").status_code == 422


def test_a_token_for_sending_reads_nothing(served: Served) -> None:
    assert {served.get(path, "ingest").status_code for path in LISTS} == {403}


def test_refused_batches_are_shown_whole_to_an_admin_only(served: Served) -> None:
    assert served.get("/v1/quarantine/1").status_code == 403
    assert served.get("/v1/quarantine/1", "admin").status_code == 404


@pytest.mark.parametrize("query", [
    "from=yesterday", "from=2026-11-03T00:00:00", "from=2026-11-03T01:00:00Z&to=2026-11-03T00:00:00Z", "by=moon",
    "limit=0", "limit=100001", "limit=1001", "offset=-1", "format=xml", "basis=half", "tenant=" + "x" * 600,
])  # fmt: skip
def test_a_parameter_that_does_not_fit_is_a_problem_that_names_it(served: Served, query: str) -> None:
    got = served.get(f"/v1/usage?{query}")
    assert (got.status_code, got.headers["content-type"]) == (422, "application/problem+json")
    assert set(got.json()) == {"type", "title", "status", "detail"}


@pytest.mark.parametrize(("path", "says"), [
    ("/v1/usage?tennant=acme", "tennant: there is no such parameter; did you mean tenant? those that /v1/usage has"),
    ("/v1/usage?until=now", "those that /v1/usage has are basis, by, format, from, limit, offset, tenant, to"),
    ("/v1/usage?since=2026-11-03T00:00:00Z", "since: there is no such parameter; those that"),
    ("/v1/statements/current?month=2026-11", "those that /v1/statements/{of_month} has are basis, format, tenant"),
    ("/v1/troubles?limit=3", "limit: there is no such parameter; there are none here"),
    ("/v1/whoami?" + "x" * 200 + "=1", "x" * 40 + ": there is no such parameter"),
    ("/v1/usage?tenant=acme&tenant=other", "tenant: it is there 2 times; give it once"),
    ("/v1/quarantine?=1", "there is no such parameter"),
])  # fmt: skip
def test_a_parameter_that_is_not_known_or_is_there_twice_is_a_problem_that_names_it(
    served: Served, path: str, says: str
) -> None:
    got = served.get(path)
    assert (got.status_code, got.headers["content-type"]) == (422, "application/problem+json")
    assert says in got.json()["detail"]
    assert served.client.get(path).status_code == 401


def test_every_parameter_that_is_described_is_known(served: Served) -> None:
    document = served.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            if parameter["in"] == "query":
                detail = served.get(f"{path}?{parameter['name']}=").json().get("detail", "")
                assert "there is no such parameter" not in detail


@pytest.mark.parametrize(
    "path", ["/v2/usage", "/static/../app.py", "/static/%2e%2e%2fapp.py", "/v1/statements/2026-13"]
)
def test_what_is_not_there_is_a_problem_too(served: Served, path: str) -> None:
    assert served.get(path).status_code in (404, 422)
    assert served.get(path).headers["content-type"] == "application/problem+json"


def test_a_caller_that_asks_too_often_is_told_when_to_come_back(served: Served) -> None:
    codes = [served.get("/v1/whoami").status_code for _ in range(limits.READS_BURST + 1)]
    assert codes.count(429) == 1
    assert int(served.get("/v1/whoami").headers["retry-after"]) >= 1
    assert served.get("/v1/whoami", "admin").status_code == 200


def test_guessing_at_tokens_is_slowed_down(served: Served) -> None:
    codes = [
        served.client.get("/v1/whoami", headers={"Authorization": f"Bearer kvl_1_{n:064x}"}).status_code
        for n in range(limits.REFUSALS_BURST + 5)
    ]
    assert codes == [401] * limits.REFUSALS_BURST + [429] * 5


@pytest.mark.parametrize("path", ["/", "/login", "/docs", "/static/overview.js", "/v1/usage", "/metrics", "/nowhere"])
def test_every_answer_carries_the_security_headers(served: Served, path: str) -> None:
    headers = served.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"


def test_pages_have_no_inline_script_style_or_foreign_address() -> None:
    folder = Path(ledger.web.__file__).parent
    for page in (folder / "pages").glob("*.html"):
        text = page.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=\"/static/)[^>]*>|\son\w+=|\sstyle=|<style", text), page
    for file in [*(folder / "pages").iterdir(), *(folder / "static").iterdir()]:
        text = file.read_text().replace("http://www.w3.org/", "")
        assert "https://" not in text, file
        assert "http://" not in text, file
        assert "innerHTML" not in text, file


def test_a_login_is_a_cookie_that_scripts_and_other_sites_do_not_get(served: Served) -> None:
    got = served.client.post("/login", json={"token": served.tokens["read"]})
    assert got.status_code == 204
    cookie = got.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    assert served.client.get("/v1/whoami").json() == {"name": "read", "scope": "read", "tenant": None}
    served.client.post("/logout")
    assert served.client.get("/v1/whoami").status_code == 401


@pytest.mark.parametrize(("sent", "status"), [
    ({"json": {"token": "kvl_1_" + "0" * 64}}, 401), ({"json": {"secret": "x"}}, 422), ({"json": []}, 422),
    ({"data": {"token": "x"}}, 415), ({"json": {"token": "x" * 20_000}}, 413),
])  # fmt: skip
def test_a_login_that_is_none_is_refused(served: Served, sent: dict, status: int) -> None:
    assert served.client.post("/login", **sent).status_code == status


def test_a_token_for_sending_cannot_log_in(served: Served) -> None:
    assert served.client.post("/login", json={"token": served.tokens["ingest"]}).status_code == 403


def test_a_cell_that_a_spreadsheet_would_run_is_disarmed(served: Served) -> None:
    got = csv_response([{"session": "=HYPERLINK(1)", "n": -5}])
    assert bytes(got.body).decode() == "session,n\n'=HYPERLINK(1),-5\n"


def test_metrics_are_open_unless_they_are_closed(filled_books, tmp_path: Path) -> None:
    path = tmp_path / "books.db"
    shutil.copyfile(filled_books[0], path)
    for closed in serve(path, tmp_path, Clock(filled_books[1]), metrics_open="no"):
        assert closed.client.get("/metrics").status_code == 401
        assert "kvledger_batches_total" in closed.get("/metrics").text


def test_requests_are_counted_by_route_and_never_by_path(served: Served) -> None:
    served.get("/v1/statements/2026-11")
    served.get("/nowhere/<script>")
    assert served.service.metrics.value(m.HTTP_REQUESTS, ("/v1/statements/{of_month}", "200")) == 1
    assert "script" not in served.get("/metrics").text


def test_health_says_whether_the_tables_are_this_versions(served: Served) -> None:
    assert served.client.get("/healthz").json() == {"status": "ok"}
    served.service.database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '0001'")))
    served.service.kept.forget()
    assert served.client.get("/healthz").status_code == 503
