// What the tables and the timeline say about upstreams, tenants, collections and events.

import { ago, clock, count, day, el, money, ms, percent, rate, say, short, tinyMoney } from "./format.js";
import { upstreamTrouble } from "./summary.js";

const BREAKER = { closed: ["Closed", "good"], "half-open": ["Half-open", "warn"], open: ["Open", "bad"] };

function badge(text, state) {
  return el("span", { class: "badge", "data-state": state }, text);
}

/** A bar with its number beside it; the bar is decoration, the number is the content. */
function meter(cell, share, text, state) {
  const bar = el("progress", { class: "meter", max: "1", "data-state": state, "aria-hidden": "true" });
  bar.value = Math.min(1, Math.max(0, share));
  cell.replaceChildren(el("span", {}, text), bar);
}

function bucket(view) {
  return view ? `${short(view.available)} of ${short(view.limit)}` : "no limit";
}

function paintBucket(key) {
  return (cell, row) => {
    const view = row[key];
    if (!view) cell.textContent = "no limit";
    else meter(cell, view.limit ? view.available / view.limit : 0, bucket(view), view.available < view.limit * 0.1 ? "warn" : "");
  };
}

function states(row) {
  const list = [BREAKER[row.breaker] ?? [row.breaker, ""]];
  if (row.drained) list.push(["Drained", "warn"]);
  if (row.quarantined) list.push(["Quarantined", "bad"]);
  if (row.key_parked) list.push(["Key refused", "bad"]);
  return list;
}

export const UPSTREAMS = {
  caption: "Upstreams",
  noun: "upstreams",
  sort: { key: "state", down: true },
  filters: [
    { label: "all", test: () => true },
    { label: "in trouble", test: (row) => row.level !== "" || row.drained },
    { label: "with traffic", test: (row) => row.rate > 0 || row.in_flight > 0 },
  ],
  columns: [
    {
      key: "id", label: "Upstream", value: (row) => row.id,
      text: (row) => `${row.id} ${row.provider} ${row.region} ${row.models}`,
      paint: (cell, row) => cell.replaceChildren(
        el("span", { class: "name" }, row.id),
        el("span", { class: "sub" }, [row.provider, row.region, `tier ${row.tier}`].filter(Boolean).join(" · ")),
      ),
    },
    {
      key: "state", label: "Breaker", value: (row) => row.weight, text: (row) => states(row).map(([word]) => word).join(", "),
      paint: (cell, row) => cell.replaceChildren(...states(row).map(([word, state]) => badge(word, state))),
    },
    { key: "failed", label: "Failing", numeric: true, value: (row) => row.failure_ratio, text: (row) => percent(row.failure_ratio) },
    { key: "p95", label: "p95", numeric: true, value: (row) => row.p95_ms, text: (row) => ms(row.p95_ms) },
    { key: "rate", label: "Calls/s", numeric: true, value: (row) => row.rate, text: (row) => rate(row.rate) },
    { key: "flight", label: "In flight", numeric: true, value: (row) => row.in_flight / row.max_concurrency, text: (row) => `${row.in_flight} of ${row.max_concurrency}` },
    { key: "tokens", label: "Tokens", numeric: true, value: (row) => (row.tokens ? row.tokens.available / row.tokens.limit : 2), text: (row) => bucket(row.tokens), paint: paintBucket("tokens") },
    { key: "requests", label: "Requests", numeric: true, value: (row) => (row.requests ? row.requests.available / row.requests.limit : 2), text: (row) => bucket(row.requests), paint: paintBucket("requests") },
    { key: "queued", label: "Queued", numeric: true, value: (row) => row.queued, text: (row) => count(row.queued) },
    { key: "dwell", label: "Dwell p95", numeric: true, value: (row) => row.dwell_p95_ms, text: (row) => ms(row.dwell_p95_ms) },
    {
      key: "error", label: "Last error", value: (row) => row.last_error?.at_ms ?? null,
      text: (row, context) => (row.last_error ? `${row.last_error.status} ${ago(row.last_error.at_ms, context.at)} ${row.last_error.message}` : "none"),
      paint: (cell, row, context) => {
        const error = row.last_error;
        if (!error) cell.replaceChildren(el("span", { class: "muted" }, "none"));
        else cell.replaceChildren(el("span", {}, `${error.status}, ${ago(error.at_ms, context.at)}`), el("span", { class: "sub clip", title: error.message }, error.message));
      },
    },
  ],
};

export function upstreamRows(snapshot) {
  return snapshot.upstreams.map((upstream) => {
    const trouble = upstreamTrouble(upstream);
    const weight = { closed: 0, "half-open": 3, open: 9 }[upstream.breaker] + (upstream.quarantined || upstream.key_parked ? 5 : 0) + (upstream.drained ? 2 : 0) + upstream.failure_ratio;
    return {
      ...upstream,
      weight,
      level: trouble ? (upstream.breaker === "half-open" ? "warn" : "bad") : "",
      search: [upstream.id, upstream.provider, upstream.region, ...upstream.models, trouble ?? "", upstream.drained ? "drained" : ""].join(" "),
    };
  });
}

export const TENANTS = {
  caption: "Tenants",
  noun: "tenants",
  sort: { key: "left", down: false },
  filters: [
    { label: "all", test: () => true },
    { label: "with failures", test: (row) => row.error_ratio >= 0.01 },
    { label: "under a tenth of budget", test: (row) => row.remaining_share !== null && row.remaining_share < 0.1 },
    { label: "with traffic", test: (row) => row.rate > 0 },
  ],
  columns: [
    { key: "id", label: "Tenant", value: (row) => row.id, text: (row) => row.id },
    {
      key: "left", label: "Left", numeric: true, value: (row) => row.remaining_share ?? 2,
      text: (row, context) => (row.remaining === null ? "no limit" : money(row.remaining, context.currency)),
      paint: (cell, row, context) => {
        if (row.remaining === null) {
          cell.textContent = "no limit";
          return;
        }
        cell.title = `${row.remaining} ${context.currency}`;
        meter(cell, row.remaining_share, money(row.remaining, context.currency), row.remaining_share <= 0 ? "bad" : row.remaining_share < 0.1 ? "warn" : "");
      },
    },
    { key: "budget", label: "Budget", numeric: true, value: (row) => (row.budget === null ? Infinity : Number(row.budget)), text: (row, context) => (row.budget === null ? "–" : money(row.budget, context.currency)) },
    { key: "spent", label: "Spent", numeric: true, value: (row) => Number(row.spent), text: (row, context) => money(row.spent, context.currency) },
    { key: "held", label: "Held", numeric: true, value: (row) => Number(row.held), text: (row, context) => money(row.held, context.currency) },
    { key: "query", label: "Cost per query", numeric: true, value: (row) => row.cost_per_query, text: (row, context) => tinyMoney(row.cost_per_query, context.currency) },
    { key: "hits", label: "Cache hits", numeric: true, value: (row) => row.cache_hit_ratio, text: (row) => percent(row.cache_hit_ratio) },
    { key: "rate", label: "Requests/s", numeric: true, value: (row) => row.rate, text: (row) => rate(row.rate) },
    { key: "failed", label: "Failed", numeric: true, value: (row) => row.error_ratio, text: (row) => percent(row.error_ratio) },
  ],
};

export function tenantRows(tenants) {
  return tenants.map((tenant) => {
    const broke = tenant.remaining_share !== null && tenant.remaining_share <= 0;
    const level = broke || tenant.error_ratio >= 0.05 ? "bad" : tenant.error_ratio >= 0.01 ? "warn" : "";
    return { ...tenant, level, search: tenant.id };
  });
}

export const STAGES = { old: "Old model only", backfill: "Backfill", canary: "Canary", new: "New model only" };

function newShare(row) {
  const all = row.old.items + row.new.items;
  return all ? row.new.items / all : 0;
}

export const COLLECTIONS = {
  caption: "Collections and their migrations",
  noun: "collections",
  sort: { key: "id", down: false },
  columns: [
    { key: "id", label: "Collection", value: (row) => row.id, text: (row) => row.id },
    {
      key: "stage", label: "Stage", value: (row) => Object.keys(STAGES).indexOf(row.stage),
      text: (row) => (row.stage === "canary" ? `Canary, ${percent(row.canary)} of queries` : STAGES[row.stage] ?? row.stage),
    },
    { key: "from", label: "From", value: (row) => row.from, text: (row) => row.from },
    { key: "to", label: "To", value: (row) => row.to, text: (row) => row.to },
    {
      key: "share", label: "Items by the new model", numeric: true, value: newShare,
      text: (row) => `${percent(newShare(row))} of ${short(row.old.items + row.new.items)}`,
      paint: (cell, row) => meter(cell, newShare(row), `${percent(newShare(row))} of ${short(row.old.items + row.new.items)}`, ""),
    },
    { key: "tokens", label: "Tokens old / new", numeric: true, value: (row) => row.new.tokens, text: (row) => `${short(row.old.tokens)} / ${short(row.new.tokens)}` },
    { key: "cost", label: "Cost old / new", numeric: true, value: (row) => Number(row.new.cost), text: (row, context) => `${money(row.old.cost, "").trim()} / ${money(row.new.cost, context.currency)}` },
    {
      key: "left", label: "Documents left, cost", numeric: true, value: (row) => (row.cost_left === null ? -1 : Number(row.cost_left)),
      text: (row, context) => (row.cost_left === null ? "no price" : money(row.cost_left, context.currency)),
    },
    { key: "since", label: "Since", numeric: true, value: (row) => row.since_ms, text: (row, context) => ago(row.since_ms, context.at) },
  ],
};

export function collectionRows(snapshot) {
  return snapshot.collections.map((collection) => ({
    ...collection, id: collection.name, level: "",
    search: [collection.name, collection.from, collection.to, collection.stage].join(" "),
  }));
}

const WORDS = {
  breaker_opened: (e) => `Breaker of ${e.upstream} opened: ${e.reason}`,
  breaker_half_opened: (e) => `Breaker of ${e.upstream} half-open, probing`,
  breaker_closed: (e) => `Breaker of ${e.upstream} closed, traffic flows`,
  key_parked: (e) => `Key of ${e.upstream} parked: the provider answered ${e.status}`,
  quarantined: (e) => `${e.upstream} quarantined: cosine ${(e.cosine_milli / 1000).toFixed(3)} to the reference`,
  quarantine_lifted: (e) => `${e.upstream} out of quarantine, its vectors agree again`,
  actor_restarted: (e) => `Actor ${e.actor} restarted: ${e.cause}`,
  reload_applied: (e) => `Configuration ${e.version} applied`,
  reload_refused: (e) => `Configuration refused, ${e.problems} ${e.problems === 1 ? "problem" : "problems"}; the old one stays`,
  holds_recovered: (e, c) => `${e.count} holds of ${e.tenant} released after a restart, ${money(e.amount, c)}`,
  shortfall: (e, c) => `A call of ${e.tenant} cost ${money(e.amount, c)} more than was held`,
  usage_odd: (e) => `${e.upstream} stated ${count(e.stated)} tokens where at most ${count(e.bound)} are possible`,
  store_failed: (e) => `Store ${e.store} failed: ${e.cause}`,
  store_recovered: (e) => `Store ${e.store} answers again`,
  stage_changed: (e) => `Collection ${e.collection} moved from ${e.from} to ${e.to}`,
  admin_action: (e) => `${e.actor}: ${e.action} ${e.subject}`,
  lifecycle: (e) => e.what,
};

const RANKS = { info: 0, warning: 1, critical: 2 };
const MARKS = { info: "Info", warning: "Warning", critical: "Critical" };

export function showTimeline(events, least, context) {
  const list = document.getElementById("timeline");
  const shown = events.filter((entry) => RANKS[entry.severity] >= RANKS[least]).slice(-100).reverse();
  const kept = new Map([...list.children].map((node) => [node.dataset.key, node]));
  shown.forEach((entry, at) => {
    const key = `${entry.seq}/${entry.last_ms}`;
    const node = kept.get(key) ?? newEntry(entry, key, context);
    kept.delete(key);
    if (list.children[at] !== node) list.insertBefore(node, list.children[at] ?? null);
    say(node.querySelector(".ago"), ago(entry.last_ms, context.at));
  });
  for (const node of kept.values()) node.remove();
  document.getElementById("timeline-empty").hidden = shown.length > 0;
}

function newEntry(entry, key, context) {
  const text = WORDS[entry.kind]?.(entry, context.currency) ?? entry.kind;
  const times = entry.count > 1 ? el("span", { class: "muted" }, ` ${count(entry.count)} times since ${clock(entry.at_ms)}`) : null;
  return el("li", { "data-key": key },
    el("time", { datetime: new Date(entry.last_ms).toISOString(), title: day(entry.last_ms) }, clock(entry.last_ms)),
    el("span", { class: "badge", "data-state": ["", "warn", "bad"][RANKS[entry.severity]] }, MARKS[entry.severity]),
    el("span", { class: "what" }, text, times),
    el("span", { class: "ago muted" }));
}
