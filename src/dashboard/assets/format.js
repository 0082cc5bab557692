// How values are written, and how elements are made without markup in strings.

const NONE = "–";

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Sets an element's text only when it differs, so that nothing is announced or repainted for no reason. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  return grouped.format(value);
}

export function ms(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  if (value >= 100) return `${Math.round(value)} ms`;
  if (value >= 10) return `${value.toFixed(1)} ms`;
  return `${value.toFixed(2)} ms`;
}

/** An objective's line: configured in whole or half milliseconds, so without padding. */
export function line(value) {
  if (value >= 1000) return `${Number((value / 1000).toFixed(3))} s`;
  return `${Number(value.toFixed(3))} ms`;
}

export function rate(value) {
  if (value === 0) return "0";
  if (value >= 100) return count(value);
  return value >= 1 ? value.toFixed(1) : value.toFixed(2);
}

export function percent(value) {
  if (value === null || value === undefined) return NONE;
  const points = value * 100;
  const size = Math.abs(points);
  if (size < 0.005 || size >= 10) return `${Math.round(points)} %`;
  return `${points.toFixed(size >= 1 ? 1 : 2)} %`;
}

export function burn(value) {
  return value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

/** A large number in three digits: 12.3k, 1.20M. */
export function short(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${(value / size).toPrecision(3)}${unit}`;
  }
  return String(Math.round(value));
}

/** An exact decimal string with two decimals at least and six at most; the whole amount belongs in a title. */
export function money(text, currency) {
  if (text === null || text === undefined) return NONE;
  const [whole, fraction = ""] = String(text).split(".");
  const digits = fraction.slice(0, whole === "0" || whole === "-0" ? 6 : 2).padEnd(2, "0");
  return `${whole.replace(/\B(?=(\d{3})+$)/g, " ")}.${digits} ${currency}`;
}

/** A small float amount with three significant digits. */
export function tinyMoney(value, currency) {
  if (!value) return `0 ${currency}`;
  const digits = Math.min(12, Math.max(2, 2 - Math.floor(Math.log10(Math.abs(value)))));
  return `${value.toFixed(digits)} ${currency}`;
}

const two = (value) => String(value).padStart(2, "0");

export function clock(atMs, seconds = true) {
  const at = new Date(atMs);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return seconds ? `${text}:${two(at.getSeconds())}` : text;
}

export function day(atMs) {
  const at = new Date(atMs);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export function ago(fromMs, nowMs) {
  const seconds = Math.max(0, Math.round((nowMs - fromMs) / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export function uptime(seconds) {
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export const CLASS_NAMES = {
  "interactive-search": "Interactive search",
  "batch-ingestion": "Batch ingestion",
  rerank: "Rerank",
  chat: "Chat",
};
