// A table that stays usable while its numbers change every second: search, sorting, paging, rows kept by their id so
// that focus is never lost, and no re-ordering under somebody's cursor.

import { count, el, say } from "./format.js";

const PAGE_SIZES = [5, 10, 25, 100];

export class LiveTable {
  /**
   * columns: [{ key, label, numeric, value(row) for sorting, text(row), paint(cell, row)? }]
   * filters: [{ label, test(row) }]; the first is the default.
   */
  constructor(host, { caption, noun, columns, filters, sort, actions }) {
    const pageSize = PAGE_SIZES[matchMedia("(max-width: 700px)").matches ? 0 : 1];
    Object.assign(this, { noun, columns, filters, actions, pageSize, sort, rows: [], page: 0, query: "" });
    this.filter = filters?.[0];
    this.kept = new Map();
    this.build(host, caption);
  }

  build(host, caption) {
    const search = el("input", { type: "search", "aria-label": `Search ${this.noun}`, placeholder: "Search", spellcheck: "false" });
    search.addEventListener("input", () => this.show({ query: search.value.trim().toLowerCase() }));
    const controls = el("div", { class: "controls" }, search);
    if (this.filters) {
      const select = el("select", { "aria-label": `Which ${this.noun}` });
      this.filters.forEach((filter, at) => select.append(el("option", { value: at }, filter.label)));
      select.addEventListener("change", () => this.show({ filter: this.filters[Number(select.value)] }));
      controls.append(select);
    }
    const title = host.querySelector("h2");
    const head = el("div", { class: "head" });
    title.replaceWith(head);
    head.append(title, controls);

    this.headings = this.columns.map((column) => {
      const button = el("button", { type: "button", class: "sort", onclick: () => this.sortBy(column) }, column.label);
      return el("th", { scope: "col", class: column.numeric ? "n" : undefined }, button);
    });
    const headRow = el("tr", {}, ...this.headings);
    if (this.actions) headRow.append(el("th", { scope: "col", class: "actions" }, "Actions"));
    this.body = el("tbody");
    const table = el("table", { class: "rows" }, el("caption", { class: "hidden" }, caption), el("thead", {}, headRow), this.body);
    this.empty = el("p", { class: "muted", hidden: true });
    this.position = el("span", { class: "muted", "aria-live": "polite" });
    this.before = el("button", { type: "button", onclick: () => this.show({ page: this.page - 1 }) }, "Previous");
    this.after = el("button", { type: "button", onclick: () => this.show({ page: this.page + 1 }) }, "Next");
    this.sizes = el("select", {}, ...PAGE_SIZES.map((size) => el("option", { value: size }, String(size))));
    this.sizes.value = String(this.pageSize);
    this.sizes.addEventListener("change", () => this.show({ pageSize: Number(this.sizes.value) }));
    this.pager = el("nav", { class: "pager", "aria-label": `Pages of ${this.noun}` }, this.before, this.position, this.after, el("label", {}, "Rows ", this.sizes));
    host.append(el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, table), this.empty, this.pager);
    this.markSort();
  }

  sortBy(column) {
    const same = this.sort.key === column.key;
    this.show({ sort: { key: column.key, down: same ? !this.sort.down : Boolean(column.numeric) } });
    this.markSort();
  }

  markSort() {
    this.columns.forEach((column, at) => {
      const direction = column.key === this.sort.key ? (this.sort.down ? "descending" : "ascending") : "none";
      this.headings[at].setAttribute("aria-sort", direction);
    });
  }

  /** New numbers; the order stays while somebody works in the table. */
  update(rows, context) {
    this.rows = rows;
    this.context = context;
    this.render(this.body.contains(document.activeElement) || this.body.matches(":hover"));
  }

  show(change) {
    if (!("page" in change)) this.page = 0;
    Object.assign(this, change);
    this.render(false);
  }

  matching() {
    const words = this.query.split(/\s+/).filter(Boolean);
    const found = this.rows.filter((row) => {
      if (this.filter && !this.filter.test(row)) return false;
      const text = row.search.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const column = this.columns.find((candidate) => candidate.key === this.sort.key) ?? this.columns[0];
    const sign = this.sort.down ? -1 : 1;
    return found
      .map((row) => [column.value(row), row])
      .sort(([a, x], [b, y]) => sign * compare(a, b) || compare(x.id, y.id))
      .map(([, row]) => row);
  }

  render(keepOrder) {
    const found = this.matching();
    const pages = Math.max(1, Math.ceil(found.length / this.pageSize));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    let shown = found.slice(this.page * this.pageSize, (this.page + 1) * this.pageSize);
    if (keepOrder) shown = this.inPresentOrder(found, shown.length) ?? shown;
    const ids = new Set(shown.map((row) => row.id));
    for (const [id, line] of this.kept) {
      if (!ids.has(id)) {
        line.node.remove();
        this.kept.delete(id);
      }
    }
    shown.forEach((row, at) => {
      const line = this.kept.get(row.id) ?? this.newLine(row);
      this.paint(line, row);
      if (this.body.children[at] !== line.node) this.body.insertBefore(line.node, this.body.children[at] ?? null);
    });
    const first = found.length === 0 ? 0 : this.page * this.pageSize + 1;
    say(this.position, `${count(first)} to ${count(first + shown.length - (shown.length ? 1 : 0))} of ${count(found.length)}`);
    this.before.disabled = this.page === 0;
    this.after.disabled = this.page >= pages - 1;
    this.pager.hidden = this.rows.length <= PAGE_SIZES[0];
    this.empty.hidden = found.length > 0;
    say(this.empty, this.rows.length === 0 ? `There are no ${this.noun}.` : `No ${this.noun} match.`);
  }

  /** The rows that are on screen now, with their new numbers, if they all still match. */
  inPresentOrder(found, length) {
    const byId = new Map(found.map((row) => [row.id, row]));
    const present = [...this.body.children].map((node) => byId.get(node.dataset.id));
    return present.length === length && present.every(Boolean) ? present : null;
  }

  newLine(row) {
    const node = el("tr", { "data-id": row.id });
    const cells = this.columns.map((column, at) => {
      const tag = at === 0 ? "th" : "td";
      const cell = el(tag, { class: column.numeric ? "n" : undefined, "data-label": column.label, scope: at === 0 ? "row" : undefined });
      node.append(cell);
      return cell;
    });
    const line = { node, cells, signs: [], row };
    if (this.actions) {
      line.actionCell = el("td", { class: "actions" });
      node.append(line.actionCell);
    }
    this.kept.set(row.id, line);
    return line;
  }

  paint(line, row) {
    line.row = row;
    this.columns.forEach((column, at) => {
      const text = column.text(row, this.context);
      const sign = column.sign ? column.sign(row) : text;
      if (line.signs[at] === sign) return;
      line.signs[at] = sign;
      if (column.paint) column.paint(line.cells[at], row, this.context);
      else line.cells[at].textContent = text;
    });
    const level = row.level ?? "";
    if (line.node.dataset.level !== level) line.node.dataset.level = level;
    if (this.actions) this.paintActions(line, row);
  }

  paintActions(line, row) {
    const wanted = this.actions(row);
    const sign = wanted.map((action) => action.label).join("|");
    if (line.actionSign === sign) return;
    line.actionSign = sign;
    const focused = [...line.actionCell.children].indexOf(document.activeElement);
    line.actionCell.replaceChildren(...wanted.map((action) => el(
      "button",
      { type: "button", class: "small", "aria-label": `${action.label} ${row.id}`, onclick: () => action.run(line.row) },
      action.label,
    )));
    if (focused >= 0) line.actionCell.children[Math.min(focused, wanted.length - 1)]?.focus();
  }
}

function compare(a, b) {
  const [left, right] = [a ?? -Infinity, b ?? -Infinity];
  if (typeof left === "string" && typeof right === "string") return left.localeCompare(right, "en", { numeric: true });
  return left < right ? -1 : left > right ? 1 : 0;
}
