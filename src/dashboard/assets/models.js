// The table of models: percentiles against their lines, budgets and burn rates, by model and class.

import { CLASS_NAMES, burn, el, line, ms, percent, rate } from "./format.js";
import { LIMITS, URGENCY } from "./summary.js";

const RANKS = { calm: 0, slow: 1, fast: 2 };
const WINDOWS = [["5m", "Burn 5 min"], ["30m", "Burn 30 min"], ["1h", "Burn 1 h"], ["6h", "Burn 6 h"]];

const series = (objective) => objective.name.split("_").pop();
const rateOf = (objective, window) => objective.burn.find((one) => one.window === window)?.rate ?? 0;

/** The objective of that percentile, if the model has one. */
const promised = (row, percentile) => row.objectives.find((objective) => series(objective) === percentile);

function percentile(key) {
  const objective = (row) => promised(row, key);
  const value = (row) => row[`${key}_ms`];
  return {
    key, label: key, numeric: true, value,
    text: (row) => `${ms(value(row))} ${objective(row)?.line_ms ?? ""}`,
    paint: (cell, row) => {
      const under = objective(row);
      cell.dataset.state = under && value(row) > under.line_ms ? "bad" : "";
      cell.replaceChildren(el("span", {}, ms(value(row))), under ? el("span", { class: "sub" }, `line ${line(under.line_ms)}`) : "");
    },
  };
}

/** The worse of a model's burn rates; the title has each. */
function burning([window, label]) {
  const worst = (row) => (row.objectives.length === 0 ? null : Math.max(...row.objectives.map((one) => rateOf(one, window))));
  return {
    key: window, label, numeric: true, value: worst,
    text: (row) => row.objectives.map((one) => `${series(one)} ${burn(rateOf(one, window))}`).join(", ") || "–",
    paint: (cell, row) => {
      const value = worst(row);
      cell.dataset.state = value !== null && value > LIMITS[window] ? "bad" : "";
      cell.title = row.objectives.map((one) => `${series(one)}: ${burn(rateOf(one, window))}`).join(", ");
      cell.textContent = value === null ? "–" : burn(value);
    },
  };
}

export const MODELS = {
  caption: "Models, their percentiles, error budgets and burn rates",
  noun: "models",
  sort: { key: "state", down: true },
  filters: [
    { label: "all", test: () => true },
    { label: "over a line or burning", test: (row) => row.over || row.urgency !== "calm" },
    { label: "with traffic", test: (row) => row.count > 0 },
  ],
  columns: [
    {
      key: "id", label: "Model", value: (row) => row.id, text: (row) => `${row.id} ${row.own}`,
      paint: (cell, row) => cell.replaceChildren(
        el("span", { class: "name" }, row.model),
        el("span", { class: "sub" }, [CLASS_NAMES[row.class] ?? row.class, row.own ? "own lines" : ""].filter(Boolean).join(" · ")),
      ),
    },
    {
      key: "state", label: "State", value: (row) => row.weight, text: (row) => row.words,
      paint: (cell, row) => cell.replaceChildren(el("span", { class: "badge", "data-state": row.sign }, row.words)),
    },
    { key: "rate", label: "Requests/s", numeric: true, value: (row) => row.rate, text: (row) => rate(row.rate) },
    { key: "failed", label: "Failed", numeric: true, value: (row) => row.failed, text: (row) => (row.count ? percent(row.failed) : "–") },
    { key: "p50", label: "p50", numeric: true, value: (row) => row.p50_ms, text: (row) => ms(row.p50_ms) },
    percentile("p95"),
    percentile("p99"),
    { key: "left", label: "Budget left", numeric: true, value: (row) => row.left, text: (row) => (row.left === null ? "–" : percent(row.left)) },
    ...WINDOWS.map(burning),
  ],
};

function stateOf({ objectives, urgency, over, left }) {
  if (objectives.length === 0) return ["No objective", ""];
  if (urgency !== "calm") return URGENCY[urgency];
  if (over) return ["Over its line", "warn"];
  return left <= 0 ? ["Overspent", "warn"] : URGENCY.calm;
}

/** `general` are the objectives of the classes, by which a model's own lines are told from theirs. */
export function modelRows(models, general) {
  const usual = new Map(general.map((objective) => [objective.name, objective.line_ms]));
  return models.map((model) => {
    const { objectives, count, errors } = model;
    const urgency = objectives.reduce((worst, one) => (RANKS[one.urgency] > RANKS[worst] ? one.urgency : worst), "calm");
    const over = count > 0 && objectives.some((one) => (model[`${series(one)}_ms`] ?? 0) > one.line_ms);
    const left = objectives.length === 0 ? null : Math.min(...objectives.map((one) => one.budget_remaining));
    const own = objectives.some((one) => one.line_ms !== usual.get(one.name));
    const [words, sign] = stateOf({ objectives, urgency, over, left });
    const failed = count ? errors / count : 0;
    return {
      ...model, urgency, over, left, own, words, sign, failed,
      id: `${model.model} ${model.class}`,
      weight: RANKS[urgency] * 10 + (over ? 5 : 0) + Math.min(1, Math.max(0, 1 - (left ?? 1))) + failed,
      level: urgency === "fast" ? "bad" : urgency === "slow" || over ? "warn" : "",
      search: [model.model, CLASS_NAMES[model.class] ?? "", model.class, words, own ? "own lines" : ""].join(" "),
    };
  });
}
