/* The map: a cell for each partition, coloured by its owner.

   one tab stop for all cells;  arrows, Home, End, Page Up, Page Down move inside;  Enter keeps the details open,
   Escape closes them

   Cells are made once. A status touches only those whose owner, target, term or pin changed, so that following a group
   of thousands of partitions costs no more than its changes.
*/

import { clock, isAlone, make, tellApart } from "./words.js";
import { initials } from "./colours.js";

/* The least width of a cell, by how many there are: as large as fits on a screen with the rest. */
const WIDTHS = [[64, 92], [256, 29], [1024, 16], [Infinity, 8.5]];
/* Column counts to choose from: with these, people can work with the numbers of the rows. */
const COLUMNS = [128, 120, 100, 80, 64, 60, 50, 40, 32, 24, 20, 16, 12, 10, 8, 6, 4];
const NOTHING = "No group was read from the ledger yet.";
const NAMED_MAX = 64;
const INITIALS_MAX = 256;

export class PartitionMap {
  constructor(root, colours, { onShow, onKeep }) {
    Object.assign(this, { root, colours, onShow, onKeep });
    this.size = null;
    this.cells = [];
    this.known = [];
    this.owners = [];
    this.columns = 0;
    this.current = 0;
    this.kept = null;
    this.lit = null;
    root.addEventListener("keydown", (event) => this.onKey(event));
    root.addEventListener("pointerover", (event) => this.onPoint(event));
    root.addEventListener("pointerleave", () => this.onShow(null));
    root.addEventListener("focusin", (event) => this.onPoint(event));
    root.addEventListener("focusout", (event) => {
      if (!root.contains(event.relatedTarget)) this.onShow(null);
    });
    root.addEventListener("click", (event) => this.onClick(event));
    new ResizeObserver(() => this.layOut()).observe(root);
  }

  show(status, history) {
    const { partitions } = status.table;
    if (partitions.length !== this.size) this.build(partitions.length);
    const { members } = status;
    const looks = members.map((member) => this.colours.look(member.name));
    const names = members.map((member) => member.name);
    const short = isAlone(status) ? tellApart(names) : names;
    partitions.forEach((partition, place) => {
      const owner = partition.owner === null ? null : members[partition.owner].name;
      const target = partition.target === null ? null : members[partition.target].name;
      const since = history.since.get(place);
      const key = `${owner}\n${target}\n${partition.term}\n${partition.pinned}\n${since}\n${place === this.kept}`;
      if (this.known[place] === key) return;
      this.known[place] = key;
      this.owners[place] = owner;
      const cell = this.cells[place];
      const moves = owner !== null && target !== null && target !== owner;
      const look = owner === null ? "nobody" : looks[partition.owner];
      const to = moves ? ` moving to-hue-${this.colours.hue(target)}` : "";
      const marks = `${partition.pinned === null ? "" : " pinned"}${place === this.kept ? " kept" : ""}`;
      cell.className = `cell ${look}${to}${marks}`;
      cell.setAttribute("aria-label", this.label(place, partition, owner, moves ? target : null, since));
      if (partitions.length <= NAMED_MAX) {
        cell.replaceChildren(make("small", { textContent: place }), make("span", { textContent: short[partition.owner] ?? "nobody" }));
      } else if (partitions.length <= INITIALS_MAX) {
        cell.textContent = owner === null ? "" : initials(short[partition.owner]);
      }
    });
    if (this.lit !== null) this.light(this.lit);
  }

  label(place, partition, owner, target, since) {
    const words = [`partition ${place}`, owner === null ? "no owner" : `owner ${owner}`];
    if (owner !== null) words.push(`term ${partition.term}`);
    if (owner !== null) words.push(since === undefined ? "since before the events known" : `since ${clock(since)}`);
    if (target !== null) words.push(`being handed to ${target}`);
    if (partition.pinned !== null) words.push(`pinned to ${partition.pinned}`);
    return words.join(", ");
  }

  build(size) {
    this.size = size;
    this.cells = Array.from({ length: size }, (_, place) => {
      const cell = make("div", { className: "cell", role: "gridcell", tabIndex: place === 0 ? 0 : -1 });
      cell.dataset.partition = place;
      return cell;
    });
    this.known = [];
    this.owners = [];
    this.columns = 0;
    this.current = 0;
    if (size === 0) this.root.replaceChildren(make("p", { className: "note", textContent: NOTHING }));
    this.layOut();
  }

  /* Rows are rebuilt when the width allows for another number of columns. */
  layOut() {
    const size = this.cells.length;
    if (size === 0) return;
    const least = WIDTHS.find(([most]) => size <= most)[1];
    const fits = Math.floor((this.root.clientWidth - 44) / least);
    const columns = Math.min(COLUMNS.find((count) => count <= fits) ?? COLUMNS.at(-1), size);
    if (columns === this.columns) return;
    this.columns = columns;
    const focused = this.root.contains(document.activeElement) ? document.activeElement : null;
    const rows = [];
    for (let first = 0; first < size; first += columns) {
      const label = make("span", { className: "row-label", "aria-hidden": "true", textContent: first });
      const cells = this.cells.slice(first, first + columns);
      const fill = columns - cells.length;
      const rest = fill === 0 ? [] : Array.from({ length: fill }, () => make("span", { className: "cell none" }));
      rows.push(make("div", { className: "row", role: "row" }, label, ...cells, ...rest));
    }
    this.root.replaceChildren(...rows);
    this.root.classList.toggle("fine", size > 1024);
    this.root.classList.toggle("coarse", size <= INITIALS_MAX);
    this.root.classList.toggle("large", size <= NAMED_MAX);
    this.root.setAttribute("aria-rowcount", rows.length);
    this.root.setAttribute("aria-colcount", columns);
    focused?.focus({ preventScroll: true });
  }

  placeOf(event) {
    const cell = event.target.closest?.("[data-partition]");
    return cell ? Number(cell.dataset.partition) : null;
  }

  onPoint(event) {
    const place = this.placeOf(event);
    if (place !== null) this.onShow(place);
  }

  onClick(event) {
    const place = this.placeOf(event);
    if (place === null) return;
    this.go(place);
    this.onKeep(place);
  }

  onKey(event) {
    const place = this.placeOf(event);
    if (place === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = this.columns * 8;
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns,
      PageUp: -page, PageDown: page, Home: -place, End: this.cells.length - 1 - place,
    };
    if (event.key in steps) {
      const next = place + steps[event.key];
      if (next >= 0 && next < this.cells.length) this.go(next);
    } else if (event.key === "Enter" || event.key === " ") {
      this.onKeep(place);
    } else if (event.key === "Escape") {
      this.onKeep(null);
    } else {
      return;
    }
    event.preventDefault(); // Or the page would scroll under the focus.
  }

  go(place) {
    this.cells[this.current].tabIndex = -1;
    this.current = place;
    this.cells[place].tabIndex = 0;
    this.cells[place].focus();
  }

  /* Marks the cell whose details are kept; null clears the mark. */
  mark(place) {
    for (const other of [this.kept, place]) {
      if (other === null || !this.cells[other]) continue;
      this.cells[other].classList.toggle("kept", other === place);
      this.known[other] = null;
    }
    this.kept = place;
  }

  /* Highlights the cells of the member called `name`; null ends it. */
  light(name) {
    this.lit = name;
    this.root.classList.toggle("dimmed", name !== null);
    this.cells.forEach((cell, place) => cell.classList.toggle("lit", name !== null && this.owners[place] === name));
  }
}
