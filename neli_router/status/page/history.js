/* History: when things happened, by this browser's clock.

   The agent says how long ago it read a record, so each status would place the same record at a slightly different
   time. The first status counts.
*/

import { borrows } from "./words.js";

export class History {
  constructor() {
    this.times = new Map();
    this.at = 0;
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
    this.since = new Map();
    this.entries = status.history.map((event) => {
      const time = place(event.offset, event.ago);
      const ended = place(event.last, event.ago - event.lasted);
      for (const { partitions } of event.moved) {
        for (const partition of partitions) this.since.set(partition, ended);
      }
      return { ...event, time, ended, number: event.moved.reduce((sum, { number }) => sum + number, 0) };
    });
    this.entries.reverse();
    this.times = times; // The page forgets what the agent has forgotten.
    this.isBorrowed = borrows(status);
  }
}
