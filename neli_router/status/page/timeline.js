/* The time line: what happened, when and why, one entry for each cause. A strip of bars for the shape of it, a list for
   the facts.

   The strip spans from the oldest event known, at least a minute and at most an hour ago, to now. A bar's height is the
   logarithm of how many partitions moved: a single move must be visible next to a thousand, and so must a member that
   died and owned nothing.
*/

import { lasting, make, many, moment, runs, say, whole } from "./words.js";

const SPAN_MIN_MS = 60_000;
const SPAN_MAX_MS = 3_600_000;
const BUCKETS = 90;
const SHOWN_MAX = 200;
const MOVED_MAX = 6;
const NOTHING = "Nothing has happened since this agent began to read.";
const SVG = "http://www.w3.org/2000/svg";

const OF_MEMBERS = ["join", "replace", "leave", "hear"];
const BAD = ["expire", "certify", "fence", "silence"];

const SENTENCES = {
  join: ({ member }) => `${member} joined`,
  replace: ({ member }) => `${member} was replaced by a newer process of its name`,
  leave: ({ member }) => `${member} left`,
  expire: ({ member, by }) => `${member} was expired by ${by}`,
  certify: ({ member, by }) => `${member} was certified dead by ${by}`,
  fence: ({ member }) => `${member} was heard again: it had lived on, and was fenced`,
  handover: ({ by }) => `${by} handed over`,
  drain: ({ member, by }) => `${member} was drained by ${by}`,
  undrain: ({ member, by }) => `${member} was undrained by ${by}`,
  pin: ({ member, by, partition }) => `partition ${partition} was pinned to ${member} by ${by}`,
  unpin: ({ by, partition }) => `partition ${partition} was unpinned by ${by}`,
  weigh: ({ member, by }) => `${member} was weighed by ${by}`,
  load: ({ by }) => `loads were set by ${by}`,
  upgrade: ({ by }) => `the group's version was raised by ${by}`,
  claim: ({ member }) => `${member} leads more`,
  release: ({ member }) => `${member} leads less`,
  silence: ({ member }) => `${member} is silent`,
  hear: ({ member }) => `${member} answers again`,
  elect: ({ member, term }) => (term ? `${member} leads, term ${whole(term)}` : `${member} leads`),
  vacate: ({ member }) => `${member} no longer leads`,
  other: ({ by }) => (by ? `a record of ${by}` : "records that were not read"),
};

export class Timeline {
  constructor({ list, strip, from, count, news }, colours, { onShow }) {
    Object.assign(this, { list, strip, from, count, news, colours, onShow });
    this.entries = [];
    list.addEventListener("pointerover", (event) => onShow(event.target.closest("[data-member]")?.dataset.member || null));
    list.addEventListener("pointerleave", () => onShow(null));
  }

  show(history) {
    const newest = history.entries[0];
    const key = `${history.entries.map(({ offset, last, number }) => `${offset} ${last} ${number}`)} ${history.base}`;
    if (key !== this.key) {
      this.key = key;
      this.entries = history.entries;
      this.list.replaceChildren(...this.entries.slice(0, SHOWN_MAX).map((entry) => this.item(entry, history)));
      if (this.entries.length === 0) this.list.append(make("li", { className: "note none", textContent: NOTHING }));
      this.announce(newest);
      const oldest = this.entries.at(-1);
      say(this.count, oldest ? `${many(this.entries.length, "event")} since ${moment(oldest.time)}` : "nothing yet");
    }
    this.draw();
  }

  /* Announces the newest event to screen readers; events from before the page opened are not news. */
  announce(newest) {
    if (this.announced !== undefined && newest !== undefined && newest.offset > this.announced) {
      const moved = newest.moved.slice(0, MOVED_MAX).map(({ source, target, number }) =>
        `${many(number, "partition")} from ${source ?? "nobody"} to ${target ?? "nobody"}`);
      say(this.news, [SENTENCES[newest.cause](newest), newest.reason, ...moved].filter((part) => part).join(", "));
    }
    this.announced = Math.max(newest?.offset ?? -1, this.announced ?? -1);
  }

  item(entry, history) {
    const swatch = entry.member ? make("span", { className: `cell sample ${this.colours.look(entry.member)}` }) : null;
    const moves = [...entry.moved].sort((one, other) => other.number - one.number);
    const rest = moves.slice(MOVED_MAX).reduce((sum, { number }) => sum + number, 0);
    const record = history.isBorrowed ? "" : `record ${whole(entry.offset)}`;
    const item = make("li", { className: `cause-${entry.cause}` },
      make("time", { textContent: moment(entry.time), dateTime: new Date(entry.time).toISOString(), title: record }),
      make("div", {},
        make("p", { className: "moved what" }, swatch, make("span", { textContent: SENTENCES[entry.cause](entry) })),
        entry.reason ? make("p", { className: "note", textContent: entry.reason }) : null,
        ...moves.slice(0, MOVED_MAX).map((moved) => this.moved(moved, entry.member)),
        rest ? make("p", { className: "note", textContent: `and ${many(rest, "partition")} to others` }) : null,
        entry.number ? make("p", { className: "note places", textContent: places(entry, history), title: places(entry, history) }) : null));
    item.dataset.member = entry.member;
    return item;
  }

  /* The event's member is shown above, and is not repeated as the source. */
  moved({ source, target, number }, about) {
    const who = (name) =>
      name === null
        ? make("span", { className: "who none", textContent: "nobody" })
        : make("span", { className: "who" }, make("span", { className: `cell sample ${this.colours.look(name)}` }), name);
    const line = make("p", { className: "moved" }, source === null || source !== about ? who(source) : null,
      make("span", { className: "arrow", textContent: "\u2192", "aria-label": "to" }), who(target),
      make("span", { className: "note", textContent: many(number, "partition") }));
    line.dataset.member = target ?? "";
    return line;
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
      const kind = BAD.includes(entry.cause) ? "expire" : OF_MEMBERS.includes(entry.cause) ? "join" : "other";
      buckets[Math.min(BUCKETS - 1, place)][kind] += Math.max(1, entry.number);
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
    this.strip.setAttribute("aria-label", `${many(recent, "event")} in the last ${lasting(span / 1000)}`);
    say(this.from, `${lasting(span / 1000)} ago`);
  }
}

/* Each Handover gives its own term; partitions that moved in one record share one. */
function places(entry, history) {
  const isOne = entry.last === entry.offset;
  const numbers = entry.moved.flatMap(({ partitions }) => partitions);
  return [
    history.isBorrowed ? null : entry.term ? `${isOne ? "term" : "terms up to"} ${entry.term}` : `record ${entry.last}`,
    isOne || entry.lasted === 0 ? null : `within ${lasting(entry.lasted)}`,
    numbers.length ? runs(numbers, 8) : null,
  ].filter((part) => part !== null).join(" \u00b7 ");
}

function rectangle(kind, x, y, height) {
  const bar = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ x, y: y.toFixed(1), width: 3, height: height.toFixed(1), rx: 0.8 })) {
    bar.setAttribute(name, value);
  }
  bar.setAttribute("class", kind);
  return bar;
}
