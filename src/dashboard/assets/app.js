// Starts the page: session, live feed, history; hands what arrives to the views.

import { call, collectionActions, reloadConfiguration, tell, tenantActions, upstreamActions, useToken } from "./actions.js";
import { Charts, HistoryStore } from "./charts.js";
import { CLASS_NAMES, el, line, say, uptime } from "./format.js";
import { judge, showClasses, showObjectives, showTiles, showVerdict } from "./summary.js";
import { LiveTable } from "./table.js";
import { MODELS, modelRows } from "./models.js";
import { COLLECTIONS, TENANTS, UPSTREAMS, collectionRows, showTimeline, tenantRows, upstreamRows } from "./views.js";

const byId = (id) => document.getElementById(id);
const HISTORY_EVERY_MS = 10000;
const STALE_AFTER_MS = 5000;

const state = { snapshot: null, tenants: [], models: [], class: "interactive-search", range: 3600, least: "info", heard: 0 };
const history = new HistoryStore();
let page = null;
let feed = null;

function live(word, text) {
  byId("live").dataset.state = word;
  say(byId("live-text"), text);
}

function buildPage() {
  if (page) return;
  const context = () => ({ currency: state.snapshot?.currency ?? "", at: state.snapshot?.at_ms ?? Date.now() });
  page = {
    context,
    charts: new Charts(byId("latency-chart"), byId("traffic-chart"), byId("chart-reading")),
    models: new LiveTable(byId("models"), MODELS),
    upstreams: new LiveTable(byId("upstreams"), { ...UPSTREAMS, actions: (row) => upstreamActions(row, () => state.snapshot.upstreams) }),
    tenants: new LiveTable(byId("tenants"), { ...TENANTS, actions: () => tenantActions(context) }),
    collections: new LiveTable(byId("collections"), { ...COLLECTIONS, actions: () => collectionActions() }),
  };
  const select = byId("class-select");
  for (const [name, text] of Object.entries(CLASS_NAMES)) select.append(el("option", { value: name }, text));
  select.addEventListener("change", () => {
    state.class = select.value;
    drawCharts();
  });
  byId("range-select").addEventListener("change", (event) => {
    state.range = Number(event.target.value);
    drawCharts();
  });
  byId("severity-select").addEventListener("change", (event) => {
    state.least = event.target.value;
    if (state.snapshot) showTimeline(state.snapshot.events, state.least, context());
  });
  byId("reload-config").addEventListener("click", reloadConfiguration);
}

function drawCharts() {
  if (!state.snapshot) return;
  const { slo, at_ms } = state.snapshot;
  const lines = slo.objectives
    .filter((objective) => objective.class === state.class)
    .map((objective) => ({ at: objective.line_ms, series: objective.name.split("_").pop() }));
  const keys = lines.map(({ at, series }) => `${series} line ${line(at)}`);
  const caption = byId("line-keys");
  if (caption.textContent !== keys.join("")) {
    caption.replaceChildren(...lines.map(({ series }, at) => el("span", { class: "key", "data-series": series }, keys[at])));
  }
  page.charts.show(history.of(state.class), lines, state.range, at_ms / 1000);
}

function show(snapshot) {
  state.snapshot = snapshot;
  state.heard = Date.now();
  live("live", "Live");
  say(byId("about"), `${snapshot.version} · configuration ${snapshot.config_version} · up ${uptime(snapshot.uptime_s)}`);
  const context = page.context();
  const verdict = judge(snapshot, state, history.of("interactive-search"));
  showVerdict(verdict);
  document.title = verdict.state === "good" ? "Vectorgate" : `${verdict.title} · Vectorgate`;
  showTiles(snapshot);
  showClasses(snapshot);
  showObjectives(snapshot);
  page.upstreams.update(upstreamRows(snapshot), context);
  page.collections.update(collectionRows(snapshot), context);
  byId("collections").hidden = snapshot.collections.length === 0;
  showTimeline(snapshot.events, state.least, context);
  drawCharts();
}

async function loadHistory() {
  try {
    history.add(await call("GET", `dashboard/history?since=${history.last}`));
    drawCharts();
  } catch (error) {
    if (error.status === 401) enter();
  }
}

function listen() {
  feed?.close();
  feed = new EventSource("dashboard/events");
  feed.addEventListener("snapshot", (event) => show(JSON.parse(event.data)));
  feed.addEventListener("models", (event) => {
    state.models = modelRows(JSON.parse(event.data), state.snapshot.slo.objectives);
    page.models.update(state.models, page.context());
    byId("models").hidden = state.models.length === 0;
  });
  feed.addEventListener("tenants", (event) => {
    state.tenants = JSON.parse(event.data);
    page.tenants.update(tenantRows(state.tenants), page.context());
  });
  feed.addEventListener("error", () => {
    live("lost", "Connection lost, trying again");
    // An answer that is no event stream ends the source for good; the session may be over.
    if (feed.readyState === EventSource.CLOSED) setTimeout(enter, 3000);
  });
}

/** Shows the page if the session holds, else the log-in. */
async function enter() {
  feed?.close();
  let session;
  try {
    session = await call("GET", "dashboard/session");
  } catch {
    live("lost", "The gateway does not answer, trying again");
    setTimeout(enter, 3000);
    return;
  }
  byId("login").hidden = session.authenticated;
  byId("main").hidden = !session.authenticated;
  byId("log-out").hidden = !session.can_log_out;
  byId("reload-config").hidden = !session.authenticated;
  if (!session.authenticated) {
    live("off", "Not logged in");
    byId("token").focus();
    return;
  }
  useToken(session.csrf);
  buildPage();
  await loadHistory();
  listen();
}

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = byId("token");
  say(byId("login-problem"), "");
  try {
    await call("POST", "dashboard/login", { token: field.value });
    field.value = "";
    await enter();
    byId("main").focus({ preventScroll: true });
  } catch (error) {
    say(byId("login-problem"), error.message);
    field.select();
  }
});

byId("log-out").addEventListener("click", async () => {
  try {
    await call("POST", "dashboard/logout");
  } catch (error) {
    tell(`Not logged out: ${error.message}`);
  }
  await enter();
});

setInterval(() => {
  if (page && !byId("main").hidden) loadHistory();
}, HISTORY_EVERY_MS);

setInterval(() => {
  if (state.heard && Date.now() - state.heard > STALE_AFTER_MS && !byId("main").hidden) live("lost", "No news from the gateway");
}, 1000);

enter();
