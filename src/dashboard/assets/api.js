// Renders /openapi.json: every route by what it is for, with what it takes and answers.

import { el } from "./format.js";

const byId = (id) => document.getElementById(id);
let described = null;

function resolve(thing) {
  if (!thing?.$ref) return thing ?? {};
  return thing.$ref.slice(2).split("/").reduce((at, key) => at?.[key], described) ?? {};
}

/** What a schema holds, in a few words. */
function words(schema) {
  const is = resolve(schema);
  if (is.enum) return is.enum.map((value) => JSON.stringify(value)).join(" or ");
  if ("const" in is) return JSON.stringify(is.const);
  if (is.anyOf) return is.anyOf.map(words).join(", or ");
  if (is.type === "array") return is.items ? `list of ${words(is.items)}` : "list";
  return is.type ?? "anything";
}

function members(schema) {
  const is = resolve(schema);
  if (is.anyOf && !is.properties) return el("div", {}, ...is.anyOf.map((one, at) => el("div", {}, el("p", { class: "muted" }, at === 0 ? "One of" : "or"), members(one))));
  const names = Object.entries(is.properties ?? {});
  if (names.length === 0) return el("p", {}, words(schema));
  const required = new Set(is.required ?? []);
  return el("ul", { class: "members" }, ...names.map(([name, member]) => {
    const inside = resolve(member);
    const nested = inside.properties ? members(member) : null;
    return el("li", {}, el("code", {}, name), required.has(name) ? el("b", {}, " required") : null, ` ${words(member)}`, inside.description ? ` · ${inside.description}` : null, nested);
  }));
}

function parameters(operation) {
  const list = operation.parameters ?? [];
  if (list.length === 0) return null;
  return el("div", {}, el("h3", {}, "Parameters"), el("ul", { class: "members" }, ...list.map((parameter) =>
    el("li", {}, el("code", {}, parameter.name), el("span", { class: "muted" }, ` in ${parameter.in}`), parameter.required ? el("b", {}, " required") : null, parameter.description ? ` · ${parameter.description}` : null))));
}

function body(operation) {
  const content = Object.entries(operation.requestBody?.content ?? {});
  if (content.length === 0) return null;
  const [type, { schema }] = content[0];
  const about = operation.requestBody.description;
  return el("div", {}, el("h3", {}, `Body, ${type}`), about ? el("p", { class: "muted" }, about) : null, members(schema));
}

function responses(operation) {
  return el("div", {}, el("h3", {}, "Answers"), ...Object.entries(operation.responses).map(([status, answer]) => {
    const schema = Object.values(answer.content ?? {})[0]?.schema;
    const headers = Object.keys(answer.headers ?? {});
    const good = status.startsWith("2");
    return el("div", { class: "answer" },
      el("p", {}, el("span", { class: "badge", "data-state": good ? "good" : status.startsWith("5") ? "bad" : "warn" }, status), ` ${answer.description.replaceAll("`", "")}`),
      good && schema ? members(schema) : null,
      headers.length > 0 ? el("p", { class: "muted" }, `Headers: ${headers.join(", ")}`) : null);
  }));
}

function operationOf(path, method, operation) {
  const details = el("details", { class: "card route", id: operation.operationId },
    el("summary", {}, el("span", { class: "badge" }, method.toUpperCase()), " ", el("code", {}, path), " ", el("span", { class: "muted" }, operation.summary.replaceAll("`", ""))));
  // Filled when it is opened: there are dozens.
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    for (const part of [parameters(operation), body(operation), responses(operation)]) if (part) details.append(part);
  });
  details.dataset.search = `${method} ${path} ${operation.summary}`.toLowerCase();
  return details;
}

function show() {
  byId("title").textContent = `${described.info.title} ${described.info.version}`;
  byId("about").textContent = described.info.description.replaceAll("`", "");
  const host = byId("routes");
  for (const tag of described.tags) {
    const of = [];
    for (const [path, item] of Object.entries(described.paths)) {
      for (const [method, operation] of Object.entries(item)) if (operation.tags.includes(tag.name)) of.push(operationOf(path, method, operation));
    }
    if (of.length > 0) host.append(el("section", { "aria-labelledby": `tag-${tag.name}` }, el("h2", { id: `tag-${tag.name}` }, tag.name), el("p", { class: "muted" }, tag.description.replaceAll("`", "")), ...of));
  }
}

byId("search").addEventListener("input", (event) => {
  const sought = event.target.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  for (const section of byId("routes").children) {
    let any = false;
    for (const route of section.querySelectorAll(".route")) {
      route.hidden = !sought.every((word) => route.dataset.search.includes(word));
      any ||= !route.hidden;
    }
    section.hidden = !any;
  }
});

try {
  const answer = await fetch("../openapi.json", { credentials: "same-origin" });
  if (!answer.ok) throw new Error(`the gateway answered ${answer.status}`);
  described = await answer.json();
  show();
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named?.matches("details")) named.open = true;
} catch (error) {
  byId("problem").textContent = `The routes could not be read: ${error.message}`;
}
