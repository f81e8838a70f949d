/* History: when things happened, by this browser's clock, and under which term.

   The agent says how long ago it read a move, so each status would place the same move at a slightly other time. Its
   first status counts.

   A term is the group's base plus the offset at which the ownership began. The base is not told, but no ownership
   began before its partition last moved, nor before its owner joined; nearly always it began at the later of the two.
   So each partition gives a number that is at least the base, and the least of them is it.
*/

export class History {
  constructor() {
    this.times = new Map();
    this.at = 0;
    this.base = null;
    this.entries = [];
    this.since = new Map();
  }

  know(status, now) {
    if (status.table.at < this.at) this.times = new Map(); // Another ledger: its offsets mean something else.
    this.at = status.table.at;
    const times = new Map();
    const last = new Map();
    for (const move of status.moves) {
      const time = this.times.get(move.offset) ?? times.get(move.offset) ?? now - move.ago * 1000;
      times.set(move.offset, time);
      for (const partition of move.partitions) last.set(partition, move.offset);
    }
    this.times = times; // The page forgets the moves that the agent has forgotten.
    this.since = new Map([...last].map(([partition, offset]) => [partition, times.get(offset)]));
    this.base = null;
    status.table.partitions.forEach(({ owner, term }, partition) => {
      if (owner === null) return;
      const base = term - Math.max(last.get(partition) ?? 0, status.members[owner].joined);
      if (this.base === null || base < this.base) this.base = base;
    });
    this.entries = gathered(status.moves, times);
  }

  term(offset) {
    return this.base === null ? null : this.base + offset;
  }
}

const TOGETHER_MS = 3000;

/* Handovers come one partition a record. Those of one kind that follow each other are one entry, newest first. */
function gathered(moves, times) {
  const entries = [];
  const open = new Map();
  for (const move of moves) {
    const key = JSON.stringify([move.source, move.target, move.cause, move.by]);
    const time = times.get(move.offset);
    let entry = open.get(key);
    if (entry === undefined || time - entry.time > TOGETHER_MS || move.cause !== "handover") {
      entry = { ...move, partitions: [], first: move.offset, time };
      open.set(key, entry);
      entries.push(entry);
    }
    entry.partitions.push(...move.partitions);
    entry.offset = move.offset;
    entry.time = time;
  }
  return entries.sort((one, other) => other.offset - one.offset);
}
