/* History: when things happened, by this browser's clock, and under which term.

   The agent says how long ago it read a record, so each status would place the same record at a slightly different
   time. The first status counts.

   A term is the group's base plus the offset at which the ownership began. The base is not in the status, but no
   ownership began before its partition last moved, or before its owner joined; nearly always it began at the later of
   the two. So each partition gives a number that is at least the base, and the least of them is the base. In a borrowed
   group, terms have nothing to do with the numbers of events.
*/

import { borrows } from "./words.js";

export class History {
  constructor() {
    this.times = new Map();
    this.at = 0;
    this.base = null;
    this.isBorrowed = false;
    this.entries = [];
    this.since = new Map();
  }

  know(status, now) {
    if (status.table.at < this.at) this.times = new Map(); // Another ledger: its offsets mean something else.
    this.at = status.table.at;
    const times = new Map();
    const place = (offset, ago) => {
      const time = this.times.get(offset) ?? times.get(offset) ?? now - ago * 1000;
      times.set(offset, time);
      return time;
    };
    const last = new Map();
    this.since = new Map();
    this.entries = status.history.map((event) => {
      const time = place(event.offset, event.ago);
      const ended = place(event.last, event.ago - event.lasted);
      for (const { partitions } of event.moved) {
        for (const partition of partitions) {
          // A plan's Handover comes somewhere after the plan's record; its exact place is not in the status.
          last.set(partition, event.offset);
          this.since.set(partition, ended);
        }
      }
      return { ...event, time, ended, number: event.moved.reduce((sum, { number }) => sum + number, 0) };
    });
    this.entries.reverse();
    this.times = times; // The page forgets what the agent has forgotten.
    this.base = null;
    this.isBorrowed = borrows(status);
    if (this.isBorrowed) return;
    status.table.partitions.forEach(({ owner, term }, partition) => {
      if (owner === null) return;
      const base = term - Math.max(last.get(partition) ?? 0, status.members[owner].joined);
      if (this.base === null || base < this.base) this.base = base;
    });
  }

  term(offset) {
    return this.base === null ? null : this.base + offset;
  }
}
