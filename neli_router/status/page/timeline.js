/* The time line: the moves, when and why they happened. A strip of bars for the shape of it, a list for the facts.

   The strip spans from the oldest move known, at least a minute and at most an hour, to now. A bar's height is the
   logarithm of how many partitions moved: one that moved must be seen beside a thousand.
*/

import { clock, lasting, make, many, runs, say } from "./words.js";

const SPAN_MIN_MS = 60_000;
const SPAN_MAX_MS = 3_600_000;
const BUCKETS = 90;
const SHOWN_MAX = 200;
const NOTHING = "Nothing has moved since this agent began to read.";
const SVG = "http://www.w3.org/2000/svg";

const SENTENCES = {
  join: (by) => `${by} joined`,
  leave: (by) => `${by} left`,
  expire: (by) => `expired by ${by}`,
  handover: (by) => `handed over by ${by}`,
  drain: (by) => `drained by ${by}`,
  undrain: (by) => `undrained by ${by}`,
  pin: (by) => `pinned by ${by}`,
  unpin: (by) => `unpinned by ${by}`,
  weigh: (by) => `weighed by ${by}`,
  load: (by) => `for its load, told by ${by}`,
  other: (by) => (by ? `by ${by}` : "in records that were not read"),
};

export class Timeline {
  constructor({ list, strip, from, count, news }, colours, { onShow }) {
    Object.assign(this, { list, strip, from, count, news, colours, onShow });
    this.entries = [];
    list.addEventListener("pointerover", (event) => onShow(event.target.closest("li")?.dataset.member ?? null));
    list.addEventListener("pointerleave", () => onShow(null));
  }

  show(history) {
    const newest = history.entries[0];
    const key = `${history.entries.length} ${newest?.offset} ${newest?.partitions.length} ${history.base}`;
    if (key !== this.key) {
      this.key = key;
      this.entries = history.entries;
      this.list.replaceChildren(...this.entries.slice(0, SHOWN_MAX).map((entry) => this.item(entry, history)));
      if (this.entries.length === 0) this.list.append(make("li", { className: "note none", textContent: NOTHING }));
      this.announce(newest);
      const moved = this.entries.reduce((sum, entry) => sum + entry.partitions.length, 0);
      say(this.count, moved ? `${many(moved, "partition")} moved` : "nothing moved yet");
    }
    this.draw();
  }

  /* Tells screen readers the newest move; moves that were there when the page opened are no news. */
  announce(newest) {
    if (this.announced !== undefined && newest !== undefined && newest.offset > this.announced) {
      const places = many(newest.partitions.length, "partition");
      const by = SENTENCES[newest.cause](newest.by);
      say(this.news, `${places} from ${newest.source ?? "nobody"} to ${newest.target ?? "nobody"}, ${by}`);
    }
    this.announced = Math.max(newest?.offset ?? -1, this.announced ?? -1);
  }

  item(entry, history) {
    const who = (name) =>
      name === null
        ? make("span", { className: "who none", textContent: "nobody" })
        : make("span", { className: "who" }, make("span", { className: `cell sample ${this.colours.look(name)}` }), name);
    const moved = make("p", { className: "moved" }, who(entry.source), make("span", { className: "arrow", textContent: "\u2192", "aria-label": "to" }), who(entry.target));
    const term = entry.target === null ? null : history.term(entry.offset);
    const facts = [many(entry.partitions.length, "partition"), SENTENCES[entry.cause](entry.by)];
    const places = `${term === null ? `offset ${entry.offset}` : `term ${term}`} \u00b7 ${runs(entry.partitions, 8)}`;
    const item = make("li", { className: `cause-${entry.cause}` },
      make("time", { textContent: clock(entry.time), dateTime: new Date(entry.time).toISOString() }),
      make("div", {}, moved,
        make("p", { className: "note", textContent: facts.join(" \u00b7 ") }),
        make("p", { className: "note places", textContent: places, title: `offset ${entry.offset}` })));
    item.dataset.member = entry.target ?? "";
    return item;
  }

  draw() {
    const now = Date.now();
    const oldest = this.entries.at(-1)?.time ?? now;
    const span = Math.min(SPAN_MAX_MS, Math.max(SPAN_MIN_MS, (now - oldest) * 1.05));
    const buckets = Array.from({ length: BUCKETS }, () => ({ join: 0, expire: 0, other: 0 }));
    let recent = 0;
    for (const entry of this.entries) {
      const place = BUCKETS - 1 - Math.floor(((now - entry.time) / span) * BUCKETS);
      if (place < 0) continue;
      recent += 1;
      const kind = entry.cause === "expire" ? "expire" : ["join", "leave"].includes(entry.cause) ? "join" : "other";
      buckets[Math.min(BUCKETS - 1, place)][kind] += entry.partitions.length;
    }
    this.strip.setAttribute("viewBox", `0 0 ${BUCKETS * 4} 48`);
    const bars = [];
    const highest = Math.max(6, ...buckets.map(({ join, expire, other }) => Math.log2(1 + join + expire + other)));
    buckets.forEach((bucket, place) => {
      const whole = bucket.join + bucket.expire + bucket.other;
      const height = whole === 0 ? 1 : Math.max(3, (46 * Math.log2(1 + whole)) / highest);
      let top = 48 - height;
      if (whole === 0) bars.push(rectangle("empty", place * 4, top, height));
      for (const kind of ["other", "join", "expire"]) {
        if (bucket[kind] === 0) continue;
        const part = (height * bucket[kind]) / whole;
        bars.push(rectangle(kind, place * 4, top, part));
        top += part;
      }
    });
    this.strip.replaceChildren(...bars);
    this.strip.setAttribute("aria-label", `${many(recent, "change")} of owners in the last ${lasting(span / 1000)}`);
    say(this.from, `${lasting(span / 1000)} ago`);
  }
}

function rectangle(kind, x, y, height) {
  const bar = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ x, y: y.toFixed(1), width: 3, height: height.toFixed(1), rx: 0.8 })) {
    bar.setAttribute(name, value);
  }
  bar.setAttribute("class", kind);
  return bar;
}
