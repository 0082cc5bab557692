// The two charts: percentiles against the objectives' lines, and traffic with failures. Their data is kept here.

import { clock, ms, percent, rate } from "./format.js";

const KEEP_S = 6 * 3600 + 600;
const COLUMNS = ["p50", "p95", "p99", "rate", "error_ratio"];

/** The columns of each class, joined from what the server sends in pieces. */
export class HistoryStore {
  constructor() {
    this.classes = new Map();
  }

  get last() {
    return Math.max(0, ...[...this.classes.values()].map((series) => series.at.at(-1) ?? 0));
  }

  add(history) {
    for (const piece of history.classes) {
      const kept = this.classes.get(piece.class) ?? { at: [], p50: [], p95: [], p99: [], rate: [], error_ratio: [] };
      const last = kept.at.at(-1) ?? -Infinity;
      piece.at.forEach((at, index) => {
        // The server tells times by its clock's present offset, so a point may come again shifted by a second.
        if (at < last + 3) return;
        kept.at.push(at);
        for (const column of COLUMNS) kept[column].push(piece[column][index]);
      });
      const surplus = kept.at.findIndex((at) => at >= (kept.at.at(-1) ?? 0) - KEEP_S);
      if (surplus > 0) for (const column of ["at", ...COLUMNS]) kept[column].splice(0, surplus);
      this.classes.set(piece.class, kept);
    }
  }

  of(name) {
    return this.classes.get(name) ?? { at: [], p50: [], p95: [], p99: [], rate: [], error_ratio: [] };
  }
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: color("muted"), grid: color("grid"), p50: color("p50"), p95: color("p95"), p99: color("p99"),
    rate: color("p95"), bad: color("bad"),
  };
}

const FONT = "12px system-ui, sans-serif";

function axes(colors, sides) {
  const base = { stroke: colors.text, font: FONT, grid: { stroke: colors.grid, width: 1 }, ticks: { stroke: colors.grid, width: 1, size: 4 } };
  const time = { ...base, space: 70, values: (_, splits) => splits.map((at) => (at === null ? "" : clock(at * 1000, false))) };
  return [time, ...sides.map((side) => ({ ...base, size: 46, gap: 4, ...side }))];
}

/** Draws each objective as a dashed line; the caption names it, so that no label covers the series. */
function drawLines(plot, lines) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio * 1.5;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  for (const { at, color } of lines) {
    const y = plot.valToPos(at, "y", true);
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    ctx.strokeStyle = color;
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.restore();
}

export class Charts {
  constructor(latencyHost, trafficHost, reading) {
    this.hosts = { latency: latencyHost, traffic: trafficHost };
    this.reading = reading;
    this.lines = [];
    this.range = 3600;
    this.data = { at: [], p50: [], p95: [], p99: [], rate: [], error_ratio: [] };
    this.now = Date.now() / 1000;
    this.build();
    const restyle = () => this.build();
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", restyle);
    new ResizeObserver(() => this.resize()).observe(latencyHost);
    for (const name of ["latency", "traffic"]) this.hosts[name].addEventListener("keydown", (event) => this.step(name, event));
  }

  size(host) {
    return { width: Math.max(240, host.clientWidth), height: innerWidth < 700 ? 200 : 250 };
  }

  build() {
    this.latency?.destroy();
    this.traffic?.destroy();
    const colors = theme();
    const time = { label: "Time", value: (_, at) => (at === null ? "–" : clock(at * 1000)) };
    const cursor = { sync: { key: "vectorgate" }, drag: { x: false, y: false }, points: { size: 7 } };
    const x = { time: true, range: () => [this.now - this.range, this.now] };
    const line = (label, color, extra = {}) => ({ label, stroke: color, width: 2, spanGaps: false, points: { show: false }, ...extra });
    this.latency = new window.uPlot({
      ...this.size(this.hosts.latency),
      cursor,
      scales: { x, y: { range: (_, low, high) => [0, Math.max(high ?? 0, ...this.lines.map((l) => l.at), 1) * 1.12] } },
      axes: axes(colors, [{}]),
      series: [
        time,
        line("p50", colors.p50, { width: 1.5, value: (_, v) => ms(v) }),
        line("p95", colors.p95, { value: (_, v) => ms(v) }),
        line("p99", colors.p99, { value: (_, v) => ms(v) }),
      ],
      hooks: { draw: [(plot) => drawLines(plot, this.lines.map((l) => ({ ...l, color: colors[l.series] })))] },
    }, this.columns("latency"), this.hosts.latency);
    this.traffic = new window.uPlot({
      ...this.size(this.hosts.traffic),
      cursor,
      scales: {
        x,
        y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.12] },
        share: { range: (_, low, high) => [0, Math.min(1, Math.max((high ?? 0) * 1.12, 0.05))] },
      },
      axes: axes(colors, [
        {},
        { scale: "share", side: 1, grid: { show: false }, values: (_, splits) => splits.map((v) => percent(v)) },
      ]),
      series: [
        time,
        line("Requests/s", colors.rate, { value: (_, v) => (v === null ? "–" : rate(v)) }),
        line("Failed", colors.bad, { scale: "share", dash: [5, 3], value: (_, v) => percent(v) }),
      ],
    }, this.columns("traffic"), this.hosts.traffic);
  }

  columns(name) {
    const from = this.data.at.findIndex((at) => at >= this.now - this.range - 60);
    const cut = (column) => (from < 0 ? [] : this.data[column].slice(from));
    return name === "latency" ? ["at", "p50", "p95", "p99"].map(cut) : ["at", "rate", "error_ratio"].map(cut);
  }

  show(data, lines, range, now) {
    Object.assign(this, { data, lines, range, now });
    this.latency.setData(this.columns("latency"));
    this.traffic.setData(this.columns("traffic"));
    for (const plot of [this.latency, this.traffic]) {
      // Without a cursor the legend tells the newest values.
      if ((plot.cursor.idx ?? null) === null && plot.data[0].length > 0) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
    }
  }

  resize() {
    this.latency.setSize(this.size(this.hosts.latency));
    this.traffic.setSize(this.size(this.hosts.traffic));
  }

  /** Moves the cursor by keyboard and says what it points at. */
  step(name, event) {
    const plot = this[name];
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    const length = plot.data[0].length;
    if (move === undefined || length === 0) return;
    event.preventDefault();
    const present = plot.cursor.idx ?? length;
    const index = Math.min(length - 1, Math.max(0, present + move));
    plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: plot.over.clientHeight / 2 });
    const values = plot.series.slice(1).map((series, at) => `${series.label} ${series.value(plot, plot.data[at + 1][index])}`);
    this.reading.textContent = `${clock(plot.data[0][index] * 1000)}: ${values.join(", ")}`;
  }
}
