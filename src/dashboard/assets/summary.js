// The verdict at the top: is search slow or failing, since when, because of whom, for whom. And the key figures.

import { CLASS_NAMES, ago, burn, clock, count, el, line, ms, percent, rate, say, tinyMoney } from "./format.js";

const FAILING = 0.05;
const RETIRES_SOON_DAYS = 365;
const RETIRES_NOW_DAYS = 30;

/** Start of the unbroken run of points, up to the newest, for which `bad` holds; Unix ms, or null. */
function since(series, column, bad) {
  let start = null;
  for (let at = series.at.length - 1; at >= 0; at -= 1) {
    const value = series[column][at];
    if (value === null || !bad(value)) break;
    start = series.at[at] * 1000;
  }
  return start;
}

export function upstreamTrouble(upstream) {
  if (upstream.quarantined) return "quarantined: its vectors differ from the reference";
  if (upstream.key_parked) return "the provider refuses its key";
  if (upstream.breaker === "open") return "breaker open";
  if (upstream.breaker === "half-open") return "breaker half-open, probing";
  if (upstream.failure_ratio >= FAILING) return `${percent(upstream.failure_ratio)} of calls fail`;
  return null;
}

function retirement(one) {
  const where = one.upstream === null ? "" : ` at ${one.upstream}`;
  const when = one.days_left < 0 ? "is over" : `${count(one.days_left)} ${one.days_left === 1 ? "day" : "days"} left`;
  return `${one.model}${where} on ${one.on}, ${when}`;
}

function listed(items, most, write) {
  const shown = items.slice(0, most).map(write).join("; ");
  return items.length > most ? `${shown}; and ${count(items.length - most)} more` : shown;
}

/** { state, title, facts: [[label, text]] }; the title holds no number, because it is read out when it changes. */
export function judge(snapshot, { tenants, models }, series) {
  const search = snapshot.classes.find((view) => view.class === "interactive-search") ?? { count: 0, errors: 0 };
  const { p95_line_ms: line95, p99_line_ms: line99, objectives } = snapshot.slo;
  const failed = search.count ? search.errors / search.count : 0;
  // Queries of a model with a line of its own may well be slower than the line of the others.
  const asked = models.filter((model) => model.class === "interactive-search" && model.count > 0);
  const within = asked.some((model) => model.own) && asked.every((model) => !model.over);
  const slow = !within && ((search.p95_ms ?? 0) > line95 || (search.p99_ms ?? 0) > line99);
  const troubledModels = models.filter((model) => model.over || model.urgency !== "calm").sort((a, b) => b.weight - a.weight);
  const troubled = snapshot.upstreams.filter((upstream) => upstreamTrouble(upstream));
  const retiring = snapshot.retirements.filter((one) => one.days_left <= RETIRES_SOON_DAYS);
  const burning = objectives.filter((objective) => objective.urgency !== "calm");
  const facts = [];

  let state = "good";
  let title = "Search is healthy";
  let start = null;
  if (snapshot.status === "draining") {
    [state, title] = ["warn", "This gateway is draining and takes no new work"];
  } else if (failed >= FAILING) {
    [state, title] = ["bad", "Search is failing"];
    start = since(series, "error_ratio", (value) => value >= FAILING);
  } else if (slow) {
    [state, title] = ["bad", "Search is slow"];
    start = since(series, "p95", (value) => value > line95) ?? since(series, "p99", (value) => value > line99);
  } else if (snapshot.retirements.some((one) => one.days_left <= RETIRES_NOW_DAYS)) {
    [state, title] = ["warn", "A model in use is about to be retired"];
  } else if (search.count === 0) {
    [state, title] = ["idle", "No search traffic right now"];
  } else if (troubled.length > 0 || burning.length > 0 || troubledModels.some((model) => model.urgency !== "calm")) {
    const but = troubled.length > 0 ? "upstreams are in trouble" : burning.length > 0 ? "the error budget burns" : "a model's error budget burns";
    [state, title] = ["warn", `Search is healthy, but ${but}`];
  }

  if (search.count > 0) {
    facts.push(["Queries", `${rate(search.rate)} per second, ${percent(failed)} failed; p95 ${ms(search.p95_ms)} (line ${line(line95)}), p99 ${ms(search.p99_ms)} (line ${line(line99)})`]);
  }
  if (start !== null) facts.push(["Since", `${clock(start)}, ${ago(start, snapshot.at_ms)}`]);
  const parts = [["upstreams", search.upstream_p95_ms], ["queues", search.queue_p95_ms], ["the gateway itself", search.overhead_p95_ms]]
    .filter(([, value]) => value !== null && value !== undefined);
  if (state === "bad" && parts.length > 0) {
    facts.push(["Time goes to", `${parts.map(([where, value]) => `${where} ${ms(value)}`).join(", ")} (p95 each)`]);
  }
  if (state !== "good" && troubledModels.length > 0 && models.length > 1) {
    facts.push(["Models", listed(troubledModels, 3, (model) => `${model.model} (${model.words.toLowerCase()})`)]);
  }
  if (troubled.length > 0) {
    facts.push(["Upstreams", listed(troubled, 3, (upstream) => `${upstream.id}: ${upstreamTrouble(upstream)}`)]);
  }
  const hit = tenants.filter((tenant) => tenant.error_ratio >= 0.01 && tenant.rate > 0).sort((a, b) => b.error_ratio - a.error_ratio);
  if (hit.length > 0) facts.push(["Tenants hit", listed(hit, 3, (tenant) => `${tenant.id} (${percent(tenant.error_ratio)} failed)`)]);
  const broke = tenants.filter((tenant) => tenant.remaining_share !== null && tenant.remaining_share <= 0);
  if (broke.length > 0) facts.push(["Out of budget", listed(broke, 3, (tenant) => tenant.id)]);
  if (burning.length > 0) {
    facts.push(["Error budget", listed(burning, 3, (objective) => `${objective.name.replace("_", " ")} burns ${objective.urgency === "fast" ? "fast" : "slowly"}, ${percent(objective.budget_remaining)} left`)]);
  }
  if (retiring.length > 0) facts.push(["Retires", listed(retiring, 3, retirement)]);
  return { state, title, facts };
}

export function showVerdict(verdict) {
  document.getElementById("verdict").dataset.state = verdict.state;
  say(document.getElementById("verdict-title"), verdict.title);
  const list = document.getElementById("verdict-facts");
  verdict.facts.forEach(([label, text], at) => {
    const item = list.children[at] ?? list.appendChild(el("li", {}, el("b"), el("span")));
    say(item.children[0], label);
    say(item.children[1], text);
  });
  while (list.children.length > verdict.facts.length) list.lastChild.remove();
}

export function showTiles(snapshot) {
  const search = snapshot.classes.find((view) => view.class === "interactive-search") ?? { count: 0, errors: 0, rate: 0 };
  const { p95_line_ms: line95, p99_line_ms: line99, objectives, window_s } = snapshot.slo;
  const failed = search.count ? search.errors / search.count : 0;
  const left = Math.min(1, ...objectives.map((objective) => objective.budget_remaining));
  const hour = Math.max(0, ...objectives.map((objective) => objective.burn.find((b) => b.window === "1h")?.rate ?? 0));
  const over = (value, line) => (value > line ? "bad" : "");
  const totals = snapshot.totals;
  const tiles = [
    ["Query p50", ms(search.p50_ms), `over ${window_s < 60 ? `${window_s} s` : `${Math.round(window_s / 60)} min`}`, ""],
    ["Query p95", ms(search.p95_ms), `line ${line(line95)}`, over(search.p95_ms ?? 0, line95)],
    ["Query p99", ms(search.p99_ms), `line ${line(line99)}`, over(search.p99_ms ?? 0, line99)],
    ["Queries", `${rate(search.rate)}/s`, `${percent(failed)} failed`, failed >= FAILING ? "bad" : failed >= 0.01 ? "warn" : ""],
    ["Error budget", percent(left), `burning at ${burn(hour)} (1 h)`, left <= 0 ? "bad" : left < 0.25 ? "warn" : ""],
    ["1,000 queries cost", tinyMoney(totals.cost_per_query * 1000, snapshot.currency), "rerank included", ""],
    ["Cache hits", percent(totals.cache_hit_ratio), "of items, since the start", ""],
  ];
  const host = document.getElementById("tiles");
  tiles.forEach(([label, value, note, state], at) => {
    const tile = host.children[at] ?? host.appendChild(el("div", { class: "tile" }, el("dt"), el("dd", { class: "value" }), el("dd", { class: "note" })));
    tile.dataset.state = state;
    say(tile.children[0], label);
    say(tile.children[1], value);
    say(tile.children[2], state === "bad" && label.startsWith("Query") ? `over the ${note}` : note);
  });
}

/** Rows of a small table, their cells kept. */
function fill(table, rows) {
  const [body, headings] = [table.tBodies[0], table.tHead.rows[0].cells];
  rows.forEach((cells, at) => {
    const line = body.rows[at] ?? body.insertRow();
    cells.forEach((cell, column) => {
      const { text, state, numeric } = typeof cell === "object" ? cell : { text: cell, numeric: column > 0 };
      let node = line.cells[column];
      if (!node) {
        node = el(column === 0 ? "th" : "td", { scope: column === 0 ? "row" : undefined, class: numeric ? "n" : undefined, "data-label": headings[column].textContent });
        line.append(node);
      }
      say(node, text);
      node.dataset.state = state ?? "";
    });
  });
  while (body.rows.length > rows.length) body.deleteRow(-1);
}

export function showClasses(snapshot) {
  fill(document.getElementById("classes-table"), snapshot.classes.map((view) => {
    const failed = view.count ? view.errors / view.count : 0;
    return [
      CLASS_NAMES[view.class] ?? view.class,
      rate(view.rate),
      { text: view.count ? percent(failed) : "–", state: failed >= FAILING ? "bad" : failed >= 0.01 ? "warn" : "", numeric: true },
      ms(view.p50_ms), ms(view.p95_ms), ms(view.p99_ms),
      ms(view.upstream_p95_ms), ms(view.queue_p95_ms), ms(view.overhead_p95_ms),
    ];
  }));
}

export const LIMITS = { "5m": 14.4, "30m": 6, "1h": 14.4, "6h": 6 };
/** What an objective counts. */
const ASKED = { rerank: "reranks", chat: "chats" };
export const URGENCY = { calm: ["Within budget", "good"], slow: ["Burning: look today", "warn"], fast: ["Burning fast: look now", "bad"] };

export function showObjectives(snapshot) {
  fill(document.getElementById("slo-table"), snapshot.slo.objectives.map((objective) => {
    const spent = objective.urgency === "calm" && objective.budget_remaining <= 0;
    const [word, state] = spent ? ["Overspent", "warn"] : URGENCY[objective.urgency];
    const share = 1 - objective.allowed_bad;
    return [
      `${(share * 100).toFixed(share > 0.99 ? 1 : 0)} % of ${ASKED[objective.class] ?? "queries"} within ${line(objective.line_ms)}`,
      { text: word, state, numeric: false },
      { text: percent(objective.budget_remaining), state: objective.budget_remaining <= 0 ? "bad" : "", numeric: true },
      ...objective.burn.map((b) => ({ text: burn(b.rate), state: b.rate > LIMITS[b.window] ? "bad" : "", numeric: true })),
    ];
  }));
}
