// The overview: asks the JSON interface every few seconds and draws what it answers.
import { ago, count, el, exact, get, money, percent, Refused, svg, table, time } from "./common.js";

const EVERY_MS = 5000, SLOW_EVERY_MS = 30000, HOUR_US = 3.6e9;

// The parts of a bill, in the order of the bar: name for people, and what it means.
const PARTS = {
  active: ["active", "blocks that a request held"],
  cached: ["cached", "blocks kept for reuse, charged to who held them last"],
  compute: ["compute", "time of the engines' steps"],
  idle: ["idle", "engine up, blocks that nobody took"],
  starting: ["starting", "booting, no pool open yet"],
  unobserved: ["unobserved", "pool open, facts missing"],
  vacant: ["vacant", "paid for, no engine on it"],
  unpriced: ["unpriced", "GPU time that has no price"],
  over_allocation: ["over-allocation", "beyond the bill: a finding"],
};
const $ = (id) => document.getElementById(id);
const part = (line) => (line.account === "tenant" ? line.kind : line.account);

function sums(lines, amount = (line) => line.amount_nanos) {
  const found = new Map(Object.keys(PARTS).map((name) => [name, 0]));
  for (const line of lines) found.set(part(line), (found.get(part(line)) ?? 0) + amount(line));
  return [...found].filter(([, nanos]) => nanos !== 0);
}

function bar(pieces, whole, describe) {
  return pieces.filter(([, size]) => size > 0).map(([name, size]) =>
    el("span", { class: `piece ${name}`, style: { flexGrow: String(size / whole) }, title: describe(name, size) }));
}

function drawBill(bill) {
  const parts = sums(bill.lines), whole = bill.bill_nanos;
  $("bill-title").textContent = `Bill of ${bill.month}${bill.tenant ? `, ${bill.tenant}` : ""}`;
  $("bill").textContent = money(whole);
  $("currency").textContent = bill.currency;
  const since = bill.provisional_from ? `, provisional from ${bill.provisional_from.replace("T", " ").replace("Z", " UTC")}` : "";
  const state = bill.digest ? `closed, digest ${bill.digest.slice(0, 12)}` : `open${since}`;
  $("terms").textContent = `${state} · basis ${bill.basis} · zone ${bill.timezone} · KV share ${bill.kv_share}`;
  $("bill-bar").replaceChildren(...bar(parts, whole, (name, nanos) => `${PARTS[name]?.[0] ?? name}: ${money(nanos)} (${percent(nanos, whole)})`));
  $("bill-legend").replaceChildren(...parts.map(([name, nanos]) =>
    el("li", { title: PARTS[name]?.[1] }, el("i", { class: `dot ${name}` }), el("b", {}, PARTS[name]?.[0] ?? name),
      el("span", { class: "num" }, money(nanos)), el("span", { class: "dim" }, percent(nanos, whole)))));
  const terms = parts.map(([name, nanos]) => `${exact(nanos)} ${PARTS[name]?.[0] ?? name}`).join(" + ");
  const left = whole - parts.reduce((all, [, nanos]) => all + nanos, 0);
  $("equation").textContent = parts.length
    ? `${exact(whole)} = ${terms}${left ? `, and ${exact(left)} that no account has` : ""}`
    : "Nothing is booked yet: no GPU was seen, or none has a price (kvledger prices add).";
  drawTenants(bill, whole);
}

function drawTenants(bill, whole) {
  const tenants = new Map();
  for (const line of bill.lines.filter((line) => line.account === "tenant")) {
    const found = tenants.get(line.tenant) ?? { tenant: line.tenant, active: 0, cached: 0, compute: 0, total: 0 };
    found[line.kind] += line.amount_nanos;
    found.total += line.amount_nanos;
    tenants.set(line.tenant, found);
  }
  const rows = [...tenants.values()].sort((a, b) => b.total - a.total).slice(0, 50);
  const most = Math.max(1, ...rows.map((row) => row.total));
  const compute = rows.some((row) => row.compute);
  table($("tenants"), [
    ["tenant", (row) => el("span", { class: "id", title: row.tenant }, row.tenant)],
    ["", (row) => el("div", { class: "bar mini", style: { width: `${Math.max(1, (100 * row.total) / most)}%` } },
      bar([["active", row.active], ["cached", row.cached], ["compute", row.compute]], row.total || 1, (name, nanos) => `${name}: ${money(nanos)}`)), "grow"],
    ["active", (row) => money(row.active, 4), "num"],
    ["cached", (row) => money(row.cached, 4), "num"],
    ...(compute ? [["compute", (row) => money(row.compute, 4), "num"]] : []),
    ["total", (row) => el("b", {}, money(row.total, 4)), "num"],
    ["of the bill", (row) => percent(row.total, whole), "num dim"],
  ], rows, "no tenant has a cost yet");
}

function drawSessions(where, rows, figure, other) {
  const most = Math.max(1, ...rows.map((row) => row[figure]));
  table($(where), [
    ["session", (row) => el("span", { class: "two" }, el("span", { class: "id", title: row.session }, row.session), el("small", { class: "id", title: row.tenant }, row.tenant))],
    ["", (row) => el("div", { class: "bar mini", style: { width: `${Math.max(1, (100 * row[figure]) / most)}%` } },
      el("span", { class: `piece ${figure === "cost_nanos" ? "active" : "cached"}` })), "grow"],
    [figure === "cost_nanos" ? "cost" : "waste", (row) => el("b", {}, money(row[figure], 4)), "num"],
    [other[0], other[1], "num dim"],
  ], rows, "none yet");
}

function drawEngines(engines, now) {
  $("engines").replaceChildren(...engines.map((engine) =>
    el("article", { class: "engine" },
      el("header", {},
        el("b", { class: "id", title: engine.engine }, engine.engine),
        el("span", { class: `state ${engine.state}` }, engine.state),
        el("span", { class: "dim" }, engine.origin === "simulated" ? "simulated" : engine.method === "scraped" ? "scraped" : engine.cluster)),
      ...engine.pools.map((pool) => drawPool(pool)),
      ...(engine.scraped ? [drawScraped(engine.scraped, engine.method === "hook")] : []),
      el("footer", { class: "dim" }, heard(engine, now),
        engine.hook_off ? el("span", { class: "bad" }, `\u00a0· ${engine.hook_off}`) : "",
        engine.missing ? el("span", { class: "bad" }, `\u00a0· ${engine.missing} batches missing`) : "",
        known(engine) ? el("span", { class: "id", title: engine.software }, `\u00a0· ${known(engine)}`) : ""))));
  if (!engines.length) $("engines").replaceChildren(el("p", { class: "empty" }, "no engine has reported yet: set KVLEDGER_URL and KVLEDGER_TOKEN at one"));
}

const known = (engine) => engine.software || engine.host || engine.boot_id;

function heard(engine, now) {
  if (engine.received_us !== null) return `heard ${ago(engine.received_us, now)}`;
  if (engine.last_end_us !== null) return `watched until ${ago(engine.last_end_us, now)}`;
  const since = engine.scraped.since_us;
  if (now - since > HOUR_US) return "has not answered in the last hour";
  return `added ${ago(since, now)}${engine.scraped.awaited ? "" : ", has not answered since"}`;
}

// What an engine says when it is looked at from outside: the whole of it where there is no hook, a line beside one.
function drawScraped(said, hooked) {
  const known = said.kv_active_ratio !== null, cached = said.kv_cached_ratio;
  const pieces = !known ? [] : [["active", said.kv_active_ratio], ...(cached === null ? [] : [["cached", cached]])];
  const rest = 1 - pieces.reduce((all, [, part]) => all + part, 0);
  const requests = [[said.running, "running"], [said.waiting, "waiting"]].filter(([number]) => number !== null)
    .map(([number, state]) => `${count(Math.round(number))} ${state}`).join(", ");
  const odd = [...said.signs, ...(said.answers || said.awaited ? [] : [said.why ?? "not answering"])].map((sign) => sign.replaceAll("_", " "));
  return el("div", { class: "pool" },
    el("p", {}, el("span", { class: "id", title: said.url }, "scraped"), el("span", { class: "dim id" }, [said.kind, said.model, requests].filter(Boolean).join(" · "))),
    ...(hooked || !known ? [] : [
      el("div", { class: "bar" }, bar([...pieces, ["free", rest]], 1, (name, part) => `${name === "free" && cached === null ? "free or cached" : name}: ${percent(part, 1)}`)),
      el("p", { class: "small" }, pieces.map(([name, part]) => el("span", {}, el("i", { class: `dot ${name}` }), `${name} ${percent(part, 1)}`)))]),
    ...(said.awaited ? [el("p", { class: "small" }, "waiting for its first answers")] : []),
    ...(odd.length ? [el("p", { class: "small bad" }, odd.join(" · "))] : []));
}

function drawPool(pool) {
  const known = pool.active_blocks !== null;
  const pieces = known ? [["active", pool.active_blocks], ["cached", pool.cached_blocks], ["free", pool.free_blocks]] : [];
  return el("div", { class: "pool" },
    el("p", {}, el("span", { class: "id" }, pool.pool), el("span", { class: "dim" }, `${pool.model} · ${count(pool.blocks)} blocks${pool.is_open ? "" : " · closed"}`)),
    el("div", { class: "bar" }, bar(pieces, pool.blocks, (name, blocks) => `${name}: ${count(blocks)} blocks`)),
    el("p", { class: "small" }, known
      ? pieces.map(([name, blocks]) => el("span", {}, el("i", { class: `dot ${name}` }), `${name} ${percent(blocks, pool.blocks)}`))
      : "no period yet"));
}

// The parts of a GPU's memory, in the order of the bar: name for people, and what it means.
const MEMORY = {
  weights: ["weights", "of the model"],
  kv_pool: ["KV pool", "blocks of the KV cache"],
  activations: ["activations", "of an engine beside weights and KV, as it was when it was warm; graphs as well"],
  engine: ["engine", "an engine's, whose hook does not say for what"],
  other_processes: ["other processes", "that are no engine's"],
  instances: ["instances", "used on the instances of this device"],
  unexplained: ["unexplained", "used by no process, or grown since its engine was warm: it grows when something leaks"],
  undivided: ["undivided", "used, and nobody says by whom"],
  reserved: ["reserved", "kept by the driver"],
  free: ["free", "free"],
};

function drawGpus(rows, now) {
  $("gpus-card").hidden = !rows.length;
  $("gpus").replaceChildren(...rows.map((gpu) => {
    const sums = Object.keys(MEMORY).map((name) => [name, gpu.parts.filter((piece) => piece.part === name).reduce((all, piece) => all + piece.bytes, 0)])
      .filter(([name]) => gpu.parts.some((piece) => piece.part === name));
    const engines = [...new Set(gpu.processes.map((process) => process.engine).filter(Boolean))];
    return el("article", { class: "engine" },
      el("header", {},
        el("b", { class: "id", title: gpu.gpu }, gpu.parent ? `${gpu.index}/${gpu.instance}` : `${gpu.index}`),
        el("span", { class: "id", title: gpu.model }, gpu.model),
        el("span", { class: "dim id", title: gpu.host }, gpu.host)),
      gpu.parts.length
        ? el("div", { class: "bar" }, sums.filter(([, size]) => size > 0).map(([name, size]) =>
          el("span", { class: `piece m-${name}`, style: { flexGrow: String(size / (gpu.total_bytes ?? size)) }, title: `${MEMORY[name][0]}: ${gib(size)} (${MEMORY[name][1]})` })))
        : el("p", { class: "empty" }, "it says nothing of its memory"),
      el("p", { class: "small parts" }, sums.map(([name, size]) => el("span", {}, el("i", { class: `dot m-${name}` }), `${MEMORY[name][0]} ${gib(size)}`))),
      el("footer", { class: "dim" },
        gpu.end_us === null ? el("span", { class: "bad" }, "listed, and does not answer") : `seen ${ago(gpu.end_us, now)}`,
        gpu.busy_ratio === null ? "" : `\u00a0· busy ${Math.round(100 * gpu.busy_ratio)} %`,
        gpu.power_watts === null ? "" : `\u00a0· ${Math.round(gpu.power_watts)} W`,
        el("span", { class: "id", title: engines.join(", ") }, engines.length ? `\u00a0· ${engines.join(", ")}` : "")));
  }));
}

const gib = (bytes) => (Math.abs(bytes) < 2 ** 30 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`);

function drawBatches(rows, now) {
  table($("batches"), [
    ["engine", (row) => el("span", { class: "id", title: row.engine }, row.engine)],
    ["period (UTC)", (row) => `${time(row.start_us)} – ${time(row.end_us).slice(11)}`],
    ["seq", (row) => count(row.seq), "num"],
    ["sessions", (row) => count(row.rows), "num"],
    ["ended", (row) => count(row.requests), "num"],
    ["lag", (row) => `${Math.max(0, (row.received_us - row.end_us) / 1e6).toFixed(1)} s`, "num"],
    ["received", (row) => ago(row.received_us, now), "num dim"],
    ["", (row) => (row.lost ? el("span", { class: "bad" }, "overlapped") : row.missing_before ? el("span", { class: "bad" }, `${row.missing_before} missing before`) : "")],
  ], rows, "no batch has arrived yet");
}

function drawTroubles(rows, engines) {
  const awaited = engines.filter((engine) => engine.scraped?.awaited).length;
  const heard = awaited ? `${count(awaited)} just added and not known yet, every other engine is heard` : "every engine is heard";
  $("troubles").replaceChildren(...rows.map((row) =>
    el("li", { class: row.severity }, el("b", {}, row.severity), el("span", {}, row.what, el("small", {}, row.todo)))));
  if (!rows.length) $("troubles").replaceChildren(el("li", { class: "good" }, el("b", {}, "nothing"), el("span", {}, `${heard}, no batch is missing or refused, every law holds`)));
}

function drawHours(rows) {
  const hours = new Map();
  for (const row of rows) hours.set(row.start_us, [...(hours.get(row.start_us) ?? []), row]);
  const room = innerWidth < 760 ? 12 : 24;
  const columns = [...hours].sort(([a], [b]) => a - b).slice(-room);
  if (!columns.length) { $("hours").replaceChildren(el("p", { class: "empty" }, "no hour has a bill yet")); return; }
  const totals = columns.map(([, lines]) => lines.reduce((all, line) => all + line.amount_nanos, 0));
  const most = Math.max(...totals, 1), height = 120, step = 30, width = step * room, first = room - columns.length;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height + 18}`, preserveAspectRatio: "xMinYMax meet", role: "img", "aria-label": "the bill of each hour by account" });
  columns.forEach(([start, lines], place) => {
    const index = first + place; // the newest at the right edge
    let top = height;
    for (const [name, nanos] of sums(lines).filter(([, nanos]) => nanos > 0)) {
      const size = (nanos / most) * height;
      top -= size;
      chart.append(svg("rect", { class: `fill ${name}`, x: index * step + 3, y: top, width: step - 6, height: Math.max(size, 0.3) },
        svg("title", {}, `${time(start).slice(0, 16)} ${PARTS[name]?.[0] ?? name}: ${money(nanos)}`)));
    }
    const label = svg("text", { class: "tick", x: index * step + step / 2, y: height + 13, "text-anchor": "middle" });
    label.textContent = time(start).slice(11, 13);
    chart.append(label);
  });
  $("hours").replaceChildren(chart);
}

let slowAt = -Infinity, who = null;

async function refresh() {
  const now = Date.now() * 1000;
  try {
    who ??= await get("/v1/whoami");
    const all = who.tenant === null;
    for (const id of ["troubles-card", "engines-card", "batches-card"]) $(id).hidden = !all;
    drawBill(await get("/v1/statements/current"));
    if (all) {
      const [engines, batches, troubles, gpus] = await Promise.all([
        get("/v1/engines?limit=200"), get("/v1/batches?limit=12"), get("/v1/troubles"), get("/v1/gpus?limit=200")]);
      drawEngines(engines.rows, now);
      drawBatches(batches.rows, now);
      drawTroubles(troubles, engines.rows);
      drawGpus(gpus.rows, now);
    } else $("gpus-card").hidden = true;
    if (performance.now() - slowAt > SLOW_EVERY_MS) {
      const day = new Date(Date.now() - 86400000).toISOString().slice(0, 19) + "Z";
      const [dear, waste, hours] = await Promise.all([
        get("/v1/sessions?sort=cost&limit=10"), get("/v1/sessions?sort=waste&limit=10"), get(`/v1/costs?by=hour&from=${day}&limit=1000`)]);
      drawSessions("dear", dear.rows, "cost_nanos", ["cached", (row) => money(row.waste_nanos, 4)]);
      drawSessions("waste", waste.rows.filter((row) => row.waste_nanos), "waste_nanos", ["of its cost", (row) => percent(row.waste_nanos, row.cost_nanos)]);
      drawHours(hours.rows);
      slowAt = performance.now();
    }
    $("fresh").textContent = `as of ${new Date().toTimeString().slice(0, 8)}`;
    $("fresh").classList.remove("bad");
  } catch (error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) { location.assign("/login"); return; }
    $("fresh").textContent = `not refreshed: ${error.message || "the service does not answer"}`;
    $("fresh").classList.add("bad");
  }
  setTimeout(refresh, EVERY_MS);
}

$("logout").addEventListener("click", async () => {
  await fetch("/logout", { method: "POST", credentials: "same-origin" });
  location.assign("/login");
});
refresh();
