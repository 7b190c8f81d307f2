// The description of the interface, drawn from /openapi.json. Text is set as text only.
import { el, get, table } from "./common.js";

const named = (document, schema) => {
  const name = schema?.$ref?.split("/").pop();
  return name ? [name, document.components.schemas[name]] : [null, schema ?? {}];
};

function type(document, schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((one) => type(document, one)).join(" or ");
  if (schema.type === "array") return `list of ${type(document, schema.items)}`;
  const [, own] = named(document, schema);
  if (own.enum) return own.enum.join(" | ");
  return own.type ?? "";
}

function bounds(document, parameter) {
  const schema = parameter.schema?.anyOf?.[0] ?? parameter.schema ?? {};
  const [, own] = named(document, schema);
  const words = [own.enum ? own.enum.join(" | ") : own.type];
  if (schema.minimum !== undefined) words.push(`${schema.minimum} … ${schema.maximum ?? ""}`);
  if (parameter.schema?.default !== undefined && parameter.schema.default !== null) words.push(`default ${parameter.schema.default}`);
  return words.filter(Boolean).join(", ");
}

function words(text) {
  // `code` between backticks, everything else plain.
  return (text ?? "").split("`").map((piece, index) => (index % 2 ? el("code", {}, piece) : piece));
}

function fields(document, schema, seen = new Set()) {
  const [name, own] = named(document, schema);
  if (!own.properties || seen.has(name)) return [];
  seen.add(name);
  const tables = [[name ?? own.title, own]];
  for (const property of Object.values(own.properties)) {
    for (const inner of [property, property.items, ...(property.anyOf ?? [])]) {
      if (inner?.$ref) tables.push(...fields(document, inner, seen));
    }
  }
  return tables;
}

function curl(method, path, parameters) {
  const query = parameters.filter((one) => one.in === "query" && one.schema?.examples?.length).map((one) => `${one.name}=${encodeURIComponent(one.schema.examples[0])}`).join("&");
  const address = `${location.origin}${path.replace("{of_month}", "current").replace("{number}", "1")}${query ? `?${query}` : ""}`;
  const secret = path === "/healthz" ? "" : ' -H "Authorization: Bearer $KVLEDGER_TOKEN"';
  return method === "get" ? `curl -s${secret} '${address}'` : `curl -s${secret} -H 'Content-Encoding: gzip' --data-binary @batch.json.gz '${address}'`;
}

function operation(document, path, method, own) {
  const id = `${method}-${path}`;
  const parameters = own.parameters ?? [];
  const card = el("article", { class: "card operation", id },
    el("h2", {}, el("span", { class: `method ${method}` }, method.toUpperCase()), el("code", {}, path), el("span", {}, own.summary ?? "")),
    ...(own.description ?? "").split("\n\n").map((paragraph) => el("p", {}, words(paragraph))),
    el("pre", {}, curl(method, path, parameters)));
  const list = (columns, rows) => {
    const made = el("table");
    table(made, columns, rows, "");
    card.append(el("div", { class: "scroll" }, made));
  };
  if (parameters.length) {
    list([["parameter", (one) => el("code", {}, one.name)], ["", (one) => bounds(document, one)], ["", (one) => el("span", {}, words(one.description ?? one.schema?.description))]], parameters);
  }
  list([["answer", ([status]) => el("code", {}, status)], ["", ([, answer]) => answer.description]], Object.entries(own.responses));
  const schema = own.responses["200"]?.content?.["application/json"]?.schema;
  for (const [name, shape] of schema ? fields(document, schema.items ?? schema) : []) {
    list([[name, ([field]) => el("code", {}, field)], ["", ([, one]) => type(document, one)], ["", ([, one]) => el("span", {}, words(one.description))]], Object.entries(shape.properties));
  }
  const example = own.responses["200"]?.content?.["application/json"]?.example;
  if (example) card.append(el("pre", {}, JSON.stringify(example, null, 2)));
  return card;
}

async function draw() {
  const description = await get("/openapi.json");
  const operations = document.getElementById("operations"), contents = document.getElementById("contents");
  operations.append(el("article", { class: "card operation" }, el("h1", {}, `${description.info.title} ${description.info.version}`),
    ...description.info.description.trim().split("\n\n").map((paragraph) => el("p", {}, words(paragraph)))));
  for (const tag of description.tags) {
    contents.append(el("h3", {}, tag.name));
    for (const [path, methods] of Object.entries(description.paths)) {
      for (const [method, own] of Object.entries(methods)) {
        if (own.tags?.[0] !== tag.name) continue;
        contents.append(el("a", { href: `#${method}-${path}` }, `${method === "get" ? "" : `${method.toUpperCase()} `}${path}`));
        operations.append(operation(description, path, method, own));
      }
    }
  }
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}
draw();
