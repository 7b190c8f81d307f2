"""The dashboard of a fleet: who pays for what, what engines and requests do, and whether facts and books are well.

    python -m dashboards.fleet > dashboards/fleet.json

Invariants: queries are made of declared metrics; ids of panels are their places, so that the file changes only where
the dashboard does; what the SDK (grafana-foundation-sdk 0.0.21) leaves out by default (legends, what a stat reduces to,
ids of panels) is said here once for all.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import prometheus as queries

with warnings.catch_warnings():
    # The SDK would rather have the resource format (v2); files in the classic one are imported and provisioned as ever.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
    from grafana_foundation_sdk.models import dashboard as parts

from alerts.promql import LEADS, series
from ledger import metrics as m
from ledger import metrics_scraped as ms

if TYPE_CHECKING:
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.cog.variants import Dataquery

    from ledger.metric import Metric

RATE: Final = "$__rate_interval"
"""At least four scrapes; Grafana works it out from the data source's scrape interval."""

TOP: Final = 10
"""Tenants in a graph; more lines than that nobody tells apart."""

LONG_LE: Final = r"~8192(\\.0)?"
"""The bucket up to 8K; Prometheus 3 writes bounds as floats."""

WIDE, HIGH = 12, 8
SMALL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """``asks``: legend and expression of each query. ``says`` is the panel's description."""

    title: str
    says: str
    asks: tuple[tuple[str, str], ...]
    unit: str = "short"
    stacked: bool = False
    share: bool = False
    none: str = ""
    """What is shown where a query finds nothing and that is well."""
    exemplars: bool = False
    red_from: float | None = None
    """Makes it a single figure, which is red from here on."""


def _engines(metric: Metric, part: str = "", **labels: str) -> str:
    return _part(metric, part, engine="~$engine", **labels)


def _part(metric: Metric, part: str = "", **labels: str) -> str:
    """A selector; of ``_bucket`` or another part of a histogram."""
    plain = {label: value for label, value in labels.items() if label != "le"}
    text = series(metric, **plain).replace(metric.name, metric.name + part, 1)
    if "le" in labels:
        inner = f'le=~"{labels["le"][1:]}"'
        text = text[:-1] + f", {inner}}}" if text.endswith("}") else f"{text}{{{inner}}}"
    return text


def _quantiles(metric: Metric, by: str, legend: str, *, engines: bool = False) -> tuple[tuple[str, str], ...]:
    selector = _engines(metric, "_bucket") if engines else _part(metric, "_bucket")
    keys = f"le, {by}" if by else "le"
    return tuple(
        (f"{legend} p{q * 100:g}".strip(), f"histogram_quantile({q}, sum by ({keys}) (rate({selector}[{RATE}])))")
        for q in (0.5, 0.95, 0.99)
    )


def _rate(selector: str, by: str) -> str:
    return f"sum by ({by}) (rate({selector}[{RATE}]))"


_COST: Final = series(m.MONTH_COST)
_TENANTS: Final = series(m.MONTH_COST, account="tenant")
_UNUSED: Final = series(m.MONTH_COST, account="~idle|vacant|starting|unobserved")
_TENANTS_RAW: Final = f'{m.MONTH_COST.name}{{account="tenant"}}'

MONEY: Final = (
    Panel(
        title="The month's bill by account",
        says="All accounts sum to the bill; what is not settled is included.",
        asks=(("{{account}} {{currency}}", f"sum by (account, currency) ({_COST})"),),
        stacked=True,
    ),
    Panel(
        title=f"The month's cost of the {TOP} dearest tenants",
        says="Active, cached and compute together. `other` is everybody who has no series of their own.",
        asks=(("{{tenant}} {{currency}}", f"topk({TOP}, sum by (tenant, currency) ({_TENANTS}))"),),
        stacked=True,
    ),
    Panel(
        title=f"Money an hour, the {TOP} dearest tenants",
        says="How fast the month's cost of a tenant rises, as the last hour went; the books are brought up to date "
        "every minute.",
        asks=(
            (
                "{{tenant}} {{currency}}",
                f"topk({TOP}, sum by (tenant, currency) (clamp_min(deriv({_TENANTS_RAW}[1h]), 0) * 3600 {LEADS} == 1))",
            ),
        ),
        stacked=True,
    ),
    Panel(
        title="Paid for and not used, share of the bill",
        says="Idle, vacant, starting, unobserved and the rest that is no tenant's, over the whole.",
        asks=(
            (
                "{{account}}",
                f"sum by (account, currency) ({_UNUSED}) / on (currency) group_left sum by (currency) ({_COST})",
            ),
        ),
        unit="percentunit",
        stacked=True,
    ),
)

ENGINES: Final = (
    Panel(
        title="KV blocks by state",
        says="At the end of each engine's last period. Shards of a pool share block ids and count once.",
        asks=(
            (
                "{{engine}} {{state}}",
                f"sum by (engine, state) (max by (engine, pool, state) ({_engines(m.KV_BLOCKS)}))",
            ),
        ),
        stacked=True,
    ),
    Panel(
        title="KV cache utilisation",
        says="Active block time over block time in the last period.",
        asks=(("{{engine}} {{pool}}", f"max by (engine, pool) ({_engines(m.KV_UTILIZATION)})"),),
        unit="percentunit",
        share=True,
    ),
    Panel(
        title="Step latency by phase",
        says="Of the chosen engines together.",
        asks=_quantiles(m.STEP_LATENCY, "phase", "{{phase}}", engines=True),
        unit="s",
    ),
    Panel(
        title="Compute, share of execution by rank",
        says="The rest is communication: collectives, and waiting for the other ranks. Of what was timed, as `method` "
        "says.",
        asks=(
            (
                "{{engine}} {{shard}} {{method}}",
                " / ".join(
                    _rate(_engines(m.STEP_LATENCY, "_sum", phase=phase), "engine, shard, method")
                    for phase in ("compute", "execute")
                ),
            ),
        ),
        unit="percentunit",
        share=True,
    ),
    Panel(
        title="Compute busy",
        says="Time in steps over time. Steps never overlap, so 1 is full.",
        asks=(("{{engine}}", _rate(_engines(m.ENGINE_STEP_TIME), "engine")),),
        unit="percentunit",
        share=True,
    ),
    Panel(
        title="Tokens by source",
        says="Prompt positions by where they came from, output, and beside these what was computed in vain.",
        asks=(("{{source}}", _rate(_engines(m.ENGINE_TOKENS), "source")),),
        stacked=True,
    ),
    Panel(
        title="Requests in a step",
        says="How batches are composed.",
        asks=_quantiles(m.STEP_REQUESTS_SCHEDULED, "", "", engines=True),
    ),
)

SCRAPED: Final = (
    Panel(
        title="Requests running and waiting",
        says="By the engine's own gauges at the last scrape; a gauge that is known to be dead is left out.",
        asks=(("{{engine}} {{state}}", f"max by (engine, state) ({_engines(ms.REQUESTS_NOW)})"),),
        stacked=True,
    ),
    Panel(
        title="Scraped and hook: difference",
        says="Of engines that have both, over five minutes: scraped less hook, over the larger of both. 0: they agree.",
        asks=(("{{engine}} {{figure}}", f"max by (engine, figure) ({_engines(ms.DIFFERENCE)})"),),
        unit="percentunit",
        none="no engine has a hook and is scraped",
    ),
    Panel(
        title="Scrapes by outcome",
        says="Each second; a target is asked every 15 s. docs/metrics.md tells each outcome.",
        asks=(("{{outcome}}", _rate(_engines(ms.SCRAPES), "outcome")),),
        stacked=True,
    ),
    Panel(
        title="Since a target last answered",
        says="15 s or less where all is well. `kvledger collect list` says why one does not.",
        asks=(("{{engine}}", f"time() - max by (engine) ({_engines(ms.SCRAPED)})"),),
        unit="s",
    ),
    Panel(
        title="What was odd about answers",
        says="In an hour, by sign: restarts, resets, gaps, renamed and vanished metrics, dead gauges, values that "
        "cannot be, lines that cannot be read. docs/collectors.md tells each.",
        asks=(("{{engine}} {{sign}}", f"sum by (engine, sign) (increase({_engines(ms.SIGNS)}[1h]))"),),
        none="nothing",
    ),
    Panel(
        title="Scrapes: how late they began, how long they took",
        says="Late: from the instant at which one was due. All targets together.",
        asks=(
            *_quantiles(ms.SCRAPE_LATE, "", "late"),
            *_quantiles(ms.SCRAPE_TIME, "outcome", "{{outcome}}"),
        ),
        unit="s",
    ),
)

_SHORT: Final = _part(m.REQUEST_LENGTH, "_bucket", direction="in", le=LONG_LE)
_ALL: Final = _part(m.REQUEST_LENGTH, "_count", direction="in")

REQUESTS: Final = (
    Panel(
        title="Request latency by scenario",
        says="From arrival to the end of requests that finished. Exemplars name a session.",
        asks=_quantiles(m.END_TO_END_TIME, "scenario", "{{scenario}}"),
        unit="s",
        exemplars=True,
    ),
    Panel(
        title="Time to the first token by scenario",
        says="From arrival.",
        asks=_quantiles(m.FIRST_TOKEN_TIME, "scenario", "{{scenario}}"),
        unit="s",
    ),
    Panel(
        title="Prompts longer than 8K, share of requests",
        says="8 192 tokens are not longer than 8K.",
        asks=(
            (
                "{{scenario}}",
                f"1 - {_rate(_SHORT, 'scenario')} / {_rate(_ALL, 'scenario')}",
            ),
        ),
        unit="percentunit",
        share=True,
    ),
    Panel(
        title="Requests that ended, by outcome",
        says="Each second, all scenarios.",
        asks=(("{{outcome}}", _rate(_part(m.REQUESTS), "outcome")),),
        unit="reqps",
        stacked=True,
    ),
)

FACTS: Final = (
    Panel(
        title="Batches by outcome",
        says="Each second; an engine delivers one every 15 s. The reasons are in docs/wire.md.",
        asks=(("{{status}} {{reason}}", _rate(_part(m.BATCHES), "status, reason")),),
        stacked=True,
    ),
    Panel(
        title="Batches missing",
        says="Numbers missing before a batch when it arrived, since the service started.",
        asks=(("{{engine}}", f"sum by (engine) ({_engines(m.BATCH_GAPS)})"),),
        none="none",
    ),
    Panel(
        title="Trouble of hooks",
        says="Batches that hooks dropped and calls that made no sense to them, since their engines started.",
        asks=(
            ("{{engine}} dropped", f"sum by (engine) (max by (engine, reason) ({_engines(m.HOOK_DROPPED)}))"),
            ("{{engine}} faults", f"sum by (engine) (max by (engine, reason) ({_engines(m.HOOK_FAULTS)}))"),
        ),
        none="none",
    ),
    Panel(
        title="Age of batches when they come",
        says="Receipt less the end of the period. A spool that drains shows here.",
        asks=_quantiles(m.BATCH_LAG, "", ""),
        unit="s",
    ),
    Panel(
        title="Engines by state",
        says="As the books have it.",
        asks=(("{{state}}", f"sum by (state) ({series(m.ENGINES_KNOWN)})"),),
        stacked=True,
    ),
)

LEDGER: Final = (
    Panel(
        title="Laws broken",
        says="By the last audit, which runs every night; the only good figure is 0.",
        asks=(("breaches", f"max({series(m.LAWS_BROKEN, kept='26h')})"),),
        none="no audit yet",
        red_from=1,
    ),
    Panel(
        title="Critical findings",
        says="Of 24 hours.",
        asks=(("findings", f"max({series(m.FINDINGS, severity='critical')})"),),
        red_from=1,
    ),
    Panel(
        title="Refused batches kept",
        says="`kvledger quarantine list`.",
        asks=(("batches", f"max({series(m.QUARANTINED)})"),),
        red_from=1,
    ),
    Panel(
        title="Behind the clock",
        says="How long ago the last booked hour ended, and the last boundary that every open pool has delivered.",
        asks=(
            ("settled", f"time() - max({series(m.SETTLED_UNTIL)})"),
            ("delivered", f"time() - max({series(m.PROVISIONAL_UNTIL)})"),
        ),
        unit="s",
    ),
    Panel(
        title="Jobs: since a run ended well",
        says="Each has its own time; KvledgerJobLate knows them.",
        asks=(("{{job_name}}", f"time() - max by (job_name) ({m.JOB_SUCCEEDED.name})"),),
        unit="s",
    ),
    Panel(
        title="Jobs: runs by outcome",
        says="In an hour.",
        asks=(("{{job_name}} {{outcome}}", f"sum by (job_name, outcome) (increase({m.JOB_RUNS.name}[1h]))"),),
    ),
    Panel(
        title="Free bytes where the ledger lies",
        says="Of the embedded database.",
        asks=(("{{instance}}", m.DISK_FREE.name),),
        unit="bytes",
    ),
)

ROWS: Final = (
    ("Money", MONEY), ("Engines", ENGINES), ("Requests", REQUESTS), ("Facts", FACTS),
    ("Seen from outside", SCRAPED), ("Ledger", LEDGER),
)  # fmt: skip

_ENGINES_HEARD: Final = f'{{__name__=~"{m.ENGINE_HEARD.name}|{ms.SCRAPED.name}"}}'
"""Every engine, by its hook or by being scraped."""

SOURCE: Final = parts.DataSourceRef(type_val="prometheus", uid="${datasource}")


def _queries(panel: Panel) -> list[Builder[Dataquery]]:
    made: list[Builder[Dataquery]] = []
    for place, (legend, expr) in enumerate(panel.asks):
        query = prometheus.Dataquery().ref_id(chr(ord("A") + place)).expr(expr).legend_format(legend).datasource(SOURCE)
        query = query.editor_mode(queries.QueryEditorMode.CODE).exemplar(panel.exemplars)
        made.append(query.instant() if panel.red_from is not None else query.range())
    return made


def _figure(panel: Panel) -> stat.Panel:
    steps = [parts.Threshold(color="green"), parts.Threshold(color="red", value=panel.red_from)]
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    return (
        stat.Panel()
        .reduce_options(reduced)
        .graph_mode(kinds.BigValueGraphMode.NONE)
        .thresholds(dashboard.ThresholdsConfig().mode(parts.ThresholdsMode.ABSOLUTE).steps(steps))
    )


def _graph(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().show_legend(True).display_mode(kinds.LegendDisplayMode.TABLE)
    graph = (
        timeseries.Panel()
        .legend(legend.placement(kinds.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"]))
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
        .line_width(1)
        .fill_opacity(20 if panel.stacked else 0)
        .show_points(kinds.VisibilityMode.NEVER)
    )
    # Accounts can be negative (over-allocation), so only shares begin at a fixed 0; a rate is a little off at times, so
    # that a full engine may be beyond 1.
    if panel.share:
        graph = graph.min(0).axis_soft_max(1)
    return graph.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL)) if panel.stacked else graph


def make() -> parts.Dashboard:
    """The dashboard."""
    board = (
        dashboard.Dashboard("kvledger: fleet")
        .uid("kvledger-fleet")
        .description("Made by `python -m dashboards.fleet`; a test compares, and asks a real Prometheus every query.")
        .tags(["kvledger"])
        .editable()
        .tooltip(parts.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("utc")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("engine")
            .label("Engine")
            .datasource(SOURCE)
            .query(f"label_values({_ENGINES_HEARD}, engine)")
            .refresh(parts.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(parts.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    number = 0
    for title, panels in ROWS:
        number += 1
        board = board.with_row(dashboard.Row(title).id(number))
        for panel in panels:
            number += 1
            made = _graph(panel) if panel.red_from is None else _figure(panel)
            made = made.id(number).title(panel.title).description(panel.says).datasource(SOURCE).unit(panel.unit)
            made = made.targets(_queries(panel))
            if panel.none:
                made = made.no_value(panel.none)
            high, wide = (HIGH, WIDE) if panel.red_from is None else (SMALL, WIDE * 2 // 3)
            board = board.with_panel(made.height(high).span(wide))
    return board.build()


def document() -> str:
    """dashboards/fleet.json."""
    return json.dumps(make(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(document(), end="")
