// What pages share. Text is only ever set as text: an id full of markup is shown as it is.

/** An element with attributes and children; strings become text nodes, never markup. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

/** JSON of a path; Refused with the problem's own sentence where it is an error. */
export async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" }, credentials: "same-origin" });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body.detail || answer.statusText);
  return body;
}

/** Nano-units as an amount: two decimals from 1 on, four below, more only where nothing would be left. */
export function money(nanos, digits) {
  const units = nanos / 1e9, size = Math.abs(units);
  const places = digits ?? (size >= 1 || size === 0 ? 2 : size >= 0.01 ? 4 : 6);
  return units.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

export const exact = (nanos) => {
  const text = String(Math.abs(nanos)).padStart(10, "0");
  return `${nanos < 0 ? "−" : ""}${text.slice(0, -9)}.${text.slice(-9)}`;
};

export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");

export const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));

export function time(us) {
  return new Date(us / 1000).toISOString().slice(0, 19).replace("T", " ");
}

export function ago(us, now) {
  const s = Math.max(0, Math.round((now - us) / 1e6));
  if (s < 120) return `${s} s ago`;
  if (s < 7200) return `${Math.round(s / 60)} min ago`;
  if (s < 172800) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} d ago`;
}

/** Fill a table: columns are [title, cell of a row, class]; a cell is text or an element. */
export function table(where, columns, rows, empty) {
  const cell = (tag, content, kind) => el(tag, { class: kind, ...(tag === "th" ? { scope: "col" } : {}) }, content);
  const head = el("thead", {}, el("tr", {}, columns.map(([title, , kind]) => cell("th", title, kind))));
  const body = el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(([, show, kind]) => cell("td", show(row), kind)))));
  if (!rows.length) body.append(el("tr", {}, el("td", { colspan: columns.length, class: "empty" }, empty)));
  where.replaceChildren(head, body);
}
