/* The members, and how long the lease of each still holds.

   Each status gives the leases, which run down until the next one: the bars are moved here, by this browser's clock,
   counted from when the status arrived. A lease shorter than the time between two statuses would run out each time
   before the next one, although its member beats, so its bar stands still. Without a stream nothing is known. Rows are
   kept by name, so that focus and hover survive every update.
*/

import { amount, borrows, lasting, make, many, moment, say, whole } from "./words.js";

const COLUMNS = [
  { key: "name", title: "Member", of: (member) => member.name },
  { key: "lease", title: "Lease left", of: (member) => member.lease_left ?? -1 },
  { key: "partitions", title: "Partitions", of: (member) => member.partitions, number: true },
  { key: "weight", title: "Weight", of: (member) => member.weight, number: true, ofWishes: true },
  { key: "load", title: "Load", of: (member) => member.load, number: true, ofWishes: true },
  { key: "lag", title: "Lag", of: (member) => member.lag ?? -1, number: true, ofWishes: true, hint: "records still to read at its last heartbeat" },
  { key: "witness", title: "Witness", of: (member) => member.witness, ofWishes: true, hint: "what would know for certain that it has died" },
  { key: "zone", title: "Zone", of: (member) => member.zone },
  { key: "address", title: "Address", of: (member) => member.address },
  { key: "joined", title: "Joined", of: (member) => member.joined, number: true, hint: "by this browser's clock" },
];
const classOf = ({ number, ofWishes }) => [number ? "number" : "", ofWishes ? "of-wishes" : ""].filter(Boolean).join(" ");
const TOLD_EVERY_S = 1;
const NATURAL = new Intl.Collator("en", { numeric: true });

export class MembersTable {
  constructor(table, count, nobody, colours, { onLight, onKeep, onWish }) {
    Object.assign(this, { table, count, nobody, colours, onLight, onKeep, onWish });
    this.body = table.tBodies[0];
    this.rows = new Map();
    this.inSight = new Set();
    this.known = true;
    this.sorting = { key: "joined", falling: false };
    this.receivedAt = 0;
    this.allowed = false;
    this.kept = null;
    const headers = COLUMNS.map((column) => {
      const button = make("button", { type: "button", textContent: column.title, title: column.hint ?? "" });
      button.addEventListener("click", () => this.sortBy(column.key));
      return make("th", { scope: "col", className: classOf(column) }, button);
    });
    table.tHead.rows[0].append(...headers, make("th", { scope: "col", className: "acts", textContent: "Change" }));
    this.body.addEventListener("pointerover", (event) => this.onLight(this.nameAt(event)));
    this.body.addEventListener("pointerleave", () => this.onLight(null));
    this.body.addEventListener("focusin", (event) => this.onLight(this.nameAt(event)));
    this.body.addEventListener("focusout", () => this.onLight(null));
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    // Only visible bars move: two hundred invisible ones would cost half a core.
    this.sight = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) this.inSight[isIntersecting ? "add" : "delete"](target);
      this.tick(performance.now(), this.known);
    });
    this.sortBy("joined", false);
  }

  show(status, receivedAt) {
    this.status = status;
    this.receivedAt = receivedAt;
    const most = Math.max(1, ...status.members.map((member) => member.partitions));
    const { partitions } = status.table;
    const giving = new Set(partitions.filter(({ owner, target }) => target !== owner).map(({ owner }) => owner));
    const present = new Set(status.members.map((member) => member.name));
    for (const [name, row] of this.rows) {
      if (present.has(name)) continue;
      row.element.remove();
      this.sight.unobserve(row.element);
      this.inSight.delete(row.element);
      this.rows.delete(name);
    }
    status.members.forEach((member, place) => {
      if (!this.rows.has(member.name)) this.rows.set(member.name, this.build(member.name));
      this.fill(this.rows.get(member.name), member, most, giving.has(place));
    });
    const drained = status.members.filter((member) => member.drained).length;
    this.nobody.hidden = status.members.length > 0;
    say(this.count, many(status.members.length, "member") + (drained ? `, ${drained} drained` : ""));
    this.order();
    this.tick(performance.now(), true, true);
  }

  build(name) {
    const swatch = make("span", { className: `cell sample ${this.colours.look(name)}` });
    const button = make("button", { type: "button", className: "name", textContent: name, title: name, "aria-pressed": "false" });
    button.addEventListener("click", () => this.onKeep(name));
    const badges = make("span", { className: "badges" });
    const bar = make("span", { className: "bar-fill" });
    const left = make("span", { className: "left" });
    const lease = make("div", { className: "lease" }, make("span", { className: "bar-track" }, bar), left);
    const share = make("span", { className: "share-fill" });
    const owned = make("span");
    const cells = {
      name: make("th", { scope: "row" }, make("div", { className: "named" }, swatch, button, badges)),
      lease: make("td", {}, lease),
      partitions: make("td", { className: "number" }, make("span", { className: "share" }, share), owned),
    };
    for (const column of COLUMNS.slice(3)) cells[column.key] = make("td", { className: classOf(column) });
    const drain = make("button", { type: "button", className: "quiet small drain" });
    drain.addEventListener("click", () => this.onWish(drain.dataset.wish, { name }));
    const weigh = make("button", { type: "button", className: "quiet small", textContent: "Weigh\u2026" });
    weigh.addEventListener("click", () => this.onWish("weigh", { name, weight: this.rows.get(name).member.weight }));
    const acts = make("td", { className: "acts" }, drain, weigh);
    const element = make("tr", {}, ...COLUMNS.map((column) => cells[column.key]), acts);
    element.dataset.member = name;
    this.sight.observe(element);
    return { element, button, badges, bar, left, share, owned, cells, drain, weigh, member: null, look: swatch };
  }

  fill(row, member, most, gives) {
    const { cells } = row;
    row.member = member;
    const badges = [];
    if (member.name === this.status.agent) badges.push("this agent");
    if (member.drained) badges.push(gives ? "draining" : "drained");
    if (row.badges.dataset.says !== badges.join()) {
      row.badges.dataset.says = badges.join();
      row.badges.replaceChildren(...badges.map((text) => make("span", { className: "badge", textContent: text })));
    }
    say(row.owned, whole(member.partitions));
    row.share.style.width = `${(100 * member.partitions) / most}%`;
    say(cells.weight, whole(member.weight));
    say(cells.load, amount(member.load));
    say(cells.lag, member.lag === null ? "\u2013" : many(member.lag, "record"));
    say(cells.witness, member.witness || "\u2013");
    say(cells.zone, member.zone || "\u2013");
    say(cells.address, member.address || "\u2013");
    this.fillJoined(row, member);
    row.drain.dataset.wish = member.drained ? "undrain" : "drain";
    say(row.drain, member.drained ? "Undrain\u2026" : "Drain\u2026");
    row.drain.setAttribute("aria-label", `${member.drained ? "Undrain" : "Drain"} ${member.name}`);
    row.weigh.setAttribute("aria-label", `Weigh ${member.name}`);
  }

  /* The time at which its Join was read. Each status gives it slightly differently: the first one counts. */
  fillJoined(row, member) {
    const isKnown = member.joined_ago !== null;
    const key = `${member.joined} ${isKnown}`;
    if (row.joined === key) return;
    row.joined = key;
    const time = Date.now() - (performance.now() - this.receivedAt) - 1000 * (member.joined_ago ?? 0);
    say(row.cells.joined, isKnown ? moment(time) : "before this agent");
    row.cells.joined.title = borrows(this.status) ? "" : `record ${whole(member.joined)}`;
  }

  /* Moves the bars to where they are at `now`; called several times a second. At each status it also moves those out
     of sight, because a screen reader reads them all. */
  tick(now, known = true, all = false) {
    this.known = known;
    if (!this.status) return;
    const { lease } = this.status;
    const past = lease > 2 * TOLD_EVERY_S ? (now - this.receivedAt) / 1000 : 0;
    for (const { member, bar, left, element } of this.rows.values()) {
      if (!all && !this.inSight.has(element)) continue;
      const unheard = member.lease_left === null;
      const unknown = !known || (unheard && borrows(this.status)); // Its store does not answer, and may have heard it.
      const rest = unheard || !known ? 0 : Math.max(0, member.lease_left - past);
      const out = known && member.lease_left === 0;
      bar.style.transform = `scaleX(${Math.min(1, rest / lease).toFixed(3)})`;
      say(left, unknown ? "not known" : member.away ? "away" : unheard ? "not heard yet" : out ? "ran out" : lasting(rest));
      element.classList.toggle("out", out);
    }
  }

  sortBy(key, falling = this.sorting.key === key && !this.sorting.falling) {
    this.sorting = { key, falling };
    const headers = this.table.tHead.rows[0].cells;
    COLUMNS.forEach((column, place) => {
      const sorted = column.key !== key ? "none" : falling ? "descending" : "ascending";
      headers[place].setAttribute("aria-sort", sorted);
    });
    this.order();
  }

  order() {
    const { of } = COLUMNS.find((column) => column.key === this.sorting.key);
    const sign = this.sorting.falling ? -1 : 1;
    const compare = (one, other) => (typeof one === "string" ? NATURAL.compare(one, other) : one - other);
    const rows = [...this.rows.values()];
    rows.sort((one, other) => sign * compare(of(one.member), of(other.member)) || one.member.joined - other.member.joined);
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    rows.forEach(({ element }, place) => {
      if (this.body.rows[place] !== element) this.body.insertBefore(element, this.body.rows[place] ?? null);
    });
    if (focused !== document.activeElement) focused?.focus({ preventScroll: true }); // Moving a row loses the focus.
    this.rove(this.body.contains(document.activeElement) ? document.activeElement.closest("tr") : rows[0]?.element);
  }

  /* Only one row is a tab stop, or there would be two hundred stops between the table and the next control. */
  rove(current) {
    for (const { element, button, drain, weigh } of this.rows.values()) {
      for (const control of [button, drain, weigh]) control.tabIndex = element === current ? 0 : -1;
    }
  }

  onKey(event) {
    if (event.key === "Escape" && this.kept !== null) return this.onKeep(this.kept);
    const row = event.target.closest("tr");
    const rows = [...this.body.rows];
    const place = rows.indexOf(row);
    const next = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (next === undefined || !rows[next]) return undefined;
    event.preventDefault();
    const column = event.target.closest("th, td").cellIndex;
    this.rove(rows[next]);
    rows[next].cells[column].querySelector("button").focus();
    return undefined;
  }

  keep(name) {
    this.kept = name;
    for (const [other, { button }] of this.rows) button.setAttribute("aria-pressed", String(other === name));
  }

  nameAt(event) {
    return event.target.closest("tr")?.dataset.member ?? null;
  }
}
