// What on-call may do, each behind a dialog that says what will happen. Calls the admin routes; decides nothing.

import { el, money, percent, say } from "./format.js";
import { STAGES } from "./views.js";

const dialog = document.getElementById("dialog");
const form = document.getElementById("dialog-form");
const problem = document.getElementById("dialog-problem");
const confirm = document.getElementById("dialog-confirm");
const toast = document.getElementById("toast");

let csrf = "";
let current = null;
let hiding = 0;

export function useToken(token) {
  csrf = token;
}

export async function call(method, path, body) {
  const headers = { "x-csrf-token": csrf };
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", cache: "no-store" });
  const text = await answer.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    data = null;
  }
  if (!answer.ok) throw Object.assign(new Error(data?.error?.message ?? data?.message ?? `the gateway answered ${answer.status}`), { status: answer.status });
  return data;
}

export function tell(text) {
  toast.hidden = false;
  say(toast, text);
  clearTimeout(hiding);
  hiding = setTimeout(() => (toast.hidden = true), 8000);
}

/** { title, body: [nodes], confirm, danger, done, run() } */
function ask(question) {
  current = question;
  say(document.getElementById("dialog-title"), question.title);
  document.getElementById("dialog-body").replaceChildren(...question.body);
  say(confirm, question.confirm);
  confirm.dataset.state = question.danger ? "bad" : "";
  confirm.disabled = false;
  say(problem, "");
  dialog.showModal();
  (form.querySelector("input, select") ?? document.getElementById("dialog-cancel")).focus();
}

document.getElementById("dialog-cancel").addEventListener("click", () => dialog.close());

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  confirm.disabled = true;
  say(problem, "");
  try {
    await current.run();
    dialog.close();
    tell(current.done);
  } catch (error) {
    say(problem, `Not done: ${error.message}`);
    confirm.disabled = false;
  }
});

const p = (text, state) => el("p", { "data-state": state }, text);

/** Models that only this upstream could serve right now. */
function alone(upstream, all) {
  const others = all.filter((other) => other.id !== upstream.id && other.breaker !== "open" && !other.drained && !other.quarantined && !other.key_parked);
  return upstream.models.filter((model) => !others.some((other) => other.models.includes(model)));
}

function warning(upstream, all) {
  const left = alone(upstream, all);
  if (left.length === 0) return p("Other healthy upstreams serve the same models and take over.");
  return p(`No other healthy upstream serves ${left.join(", ")}: requests for it will be refused, searches are told to fall back to lexical search.`, "bad");
}

export function upstreamActions(row, all) {
  const act = (verb, label, body, done, danger) => ({
    label,
    run: (now) => ask({
      title: `${label}: ${now.id}?`, body: body(now), confirm: label, danger, done: done(now),
      run: () => call("POST", `admin/upstreams/${encodeURIComponent(now.id)}/${verb}`),
    }),
  });
  const drain = row.drained
    ? act("resume", "Resume", (now) => [p(`New calls go to ${now.id} again.`)], (now) => `${now.id} takes calls again`)
    : act("drain", "Drain", (now) => [p(`New calls stay away from ${now.id}; the ${now.in_flight} under way finish.`), warning(now, all())], (now) => `${now.id} is being drained`, true);
  const breaker = row.breaker === "closed"
    ? act("open", "Open breaker", (now) => [p(`Nothing is sent to ${now.id} until somebody closes its breaker; it will not probe by itself.`), warning(now, all())], (now) => `Breaker of ${now.id} opened`, true)
    : act("close", "Close breaker", (now) => [p(`Traffic flows to ${now.id} at once, without waiting for probes. If it still fails, the breaker opens again.`)], (now) => `Breaker of ${now.id} closed`);
  return [drain, breaker];
}

function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function tenantActions(context) {
  const credit = {
    label: "Credit",
    run: (row) => {
      const amount = el("input", { id: "amount", inputmode: "decimal", pattern: "[0-9]+(\\.[0-9]+)?", required: true, autocomplete: "off", placeholder: "50.00" });
      // Made once a dialog: sending it twice credits once.
      const key = randomKey();
      const { currency } = context();
      ask({
        title: `Credit ${row.id}`,
        body: [
          p(row.remaining === null ? `${row.id} has no limit; it spent ${money(row.spent, currency)}.` : `${money(row.remaining, currency)} of ${money(row.budget, currency)} are left.`),
          el("label", { for: "amount" }, `Amount in ${currency}`), amount,
        ],
        confirm: "Credit",
        done: `${row.id} was credited`,
        run: () => call("POST", `admin/tenants/${encodeURIComponent(row.id)}/credit`, { amount: amount.value.trim(), idempotency_key: key }),
      });
    },
  };
  return [credit];
}

const STAGE_MEANING = {
  old: "documents and queries go to the old model",
  backfill: "documents go to the new model, queries to the old one",
  canary: "documents and a fixed share of queries go to the new model",
  new: "documents and queries go to the new model",
};

export function collectionActions() {
  const change = {
    label: "Change stage",
    run: (row) => {
      const share = el("input", { id: "canary", type: "number", min: "0", max: "100", step: "0.1", value: String(Math.round(row.canary * 1000) / 10 || 5) });
      const shareLine = el("p", { hidden: row.stage !== "canary" }, el("label", { for: "canary" }, "Share of queries, percent"), share);
      const choices = Object.keys(STAGES).map((stage) => {
        const radio = el("input", { type: "radio", name: "stage", value: stage, required: true });
        radio.checked = stage === row.stage;
        radio.addEventListener("change", () => (shareLine.hidden = form.elements.stage.value !== "canary"));
        return el("label", { class: "choice" }, radio, el("span", {}, el("b", {}, STAGES[stage]), `: ${STAGE_MEANING[stage]}`));
      });
      ask({
        title: `Stage of ${row.id}`,
        body: [
          p(`From ${row.from} to ${row.to}; now ${row.stage === "canary" ? `canary with ${percent(row.canary)}` : row.stage}. Takes effect at once and is kept over restarts.`),
          el("fieldset", {}, el("legend", { class: "hidden" }, "Stage"), ...choices), shareLine,
        ],
        confirm: "Change stage",
        done: `Stage of ${row.id} changed`,
        run: () => {
          const stage = form.elements.stage.value;
          const body = stage === "canary" ? { stage, canary: Number(share.value) / 100 } : { stage };
          return call("PUT", `admin/collections/${encodeURIComponent(row.id)}`, body);
        },
      });
    },
  };
  return [change];
}

export function reloadConfiguration() {
  ask({
    title: "Reload the configuration?",
    body: [p("The file is read again and checked as a whole. If anything is wrong with it, nothing changes. Requests under way finish under the old configuration.")],
    confirm: "Reload",
    done: "The configuration was reloaded",
    run: () => call("POST", "admin/reload"),
  });
}
