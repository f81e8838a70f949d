/* The page: one status in, everything shown from it.

   /v1/events --status, changed--> paint(status) --> facts, map, details, time line, members
                                      in between: the lease bars run down, the clock says how long ago

   #partition=7 in the address --once the map is there--> that cell is scrolled to, and its details are kept

   A status is complete and replaces the previous one. Paints wait for the next frame, so that a burst of changes costs
   only one.
*/

import { Colours } from "./colours.js";
import { Detail, whyNobody } from "./detail.js";
import { History } from "./history.js";
import { PartitionMap } from "./map.js";
import { MembersTable } from "./members.js";
import { PeersTable } from "./peers.js";
import { Stream } from "./stream.js";
import { startTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Wishes } from "./wishes.js";
import { borrows, isAlone, lasting, make, many, say, whole } from "./words.js";

const POWERLESS =
  "This member cannot expire one that dies, because its own heartbeats come back too late. If no member can, a dead one" +
  " keeps what it owned. Find what makes the ledger slow, or give the group a longer lease: neli doctor says how long.";
const NO_WISHES =
  "The broker assigns the partitions, evenly and by its own rules: it takes no drains, pins or weights. To empty a" +
  " member, stop it.";
const OF_PEERS = {
  term:
    "The members elect their leaders: there are no pins or weights. neli rebalance moves leaders; neli drain, at a member's" +
    " own agent, empties it.",
  gossip:
    "The members elect one that leads everything: there are no pins or weights. neli rebalance names another; neli drain, at" +
    " a member's own agent, makes it the last choice.",
};
const ALONE = "Peers and leaders are shown as this agent's own member sees them; other members may see them differently.";
const TICK_MS = 200;
const REDRAW_MS = 5000;

const at = (id) => document.getElementById(id);
const colours = new Colours();
const history = new History();
let newest = null;
let receivedAt = 0;
let waiting = false;
let keptMember = null;
let sought = null;

startTheme(at("theme"));

const map = new PartitionMap(at("map"), colours, {
  onShow: (place) => detail.pass(place),
  onKeep: keep,
});
const light = (name) => map.light(name || keptMember);
const members = new MembersTable(at("members"), at("members-count"), at("members-none"), colours, {
  onLight: light,
  onKeep: (name) => {
    keptMember = keptMember === name ? null : name;
    members.keep(keptMember);
    light(keptMember ?? name);
  },
  onWish: (wish, about) => wishes.ask(wish, about),
});
const peers = new PeersTable(at("peers-panel"), at("peers"), at("peers-count"), colours, { onLight: light });
const detail = new Detail(at("detail"), colours, { onWish: (wish, about) => wishes.ask(wish, about) });
const timeline = new Timeline(
  { list: at("moves"), strip: at("strip"), from: at("strip-from"), count: at("moves-count"), news: at("news") },
  colours,
  { onShow: light },
);
const wishes = new Wishes(
  {
    unlock: at("unlock"), form: at("token-form"), field: at("token"), dialog: at("wish"), title: at("wish-title"),
    weightRow: at("wish-weight-row"), weight: at("wish-weight"), summary: at("wish-summary"), moves: at("wish-moves"),
    error: at("wish-error"), confirm: at("wish-confirm"), toast: at("toast"), tokenError: at("token-error"),
    again: at("wish-token"), againRow: at("wish-token-row"),
  },
  {
    onAllowed: (allowed) => {
      document.body.classList.toggle("allowed", allowed);
      detail.allowed = allowed;
      detail.render();
    },
  },
);

function keep(place) {
  detail.keep(place);
  map.mark(place);
}

/* A frame has an address of its own: in Airflow, the link's fragment is in the address of the page around it. */
function seek() {
  if (location.hash === "" && parent.location.hash !== "") location.replace(parent.location.hash);
  const named = /^#partition=(\d+)$/.exec(location.hash);
  if (named) sought = Number(named[1]);
  if (newest !== null) reveal();
}

function reveal() {
  if (sought === null || sought >= map.cells.length) return;
  keep(sought);
  map.go(sought);
  map.cells[sought].scrollIntoView({ block: "center" });
  sought = null;
}

function paint() {
  waiting = false;
  const status = newest;
  const moved = status.history.flatMap((event) => event.moved.flatMap(({ source, target }) => [source, target]));
  const past = [...status.history.map((event) => event.member), ...moved].filter((name) => name);
  colours.know(status.members.map((member) => member.name), past);
  history.know(status, Date.now() - (performance.now() - receivedAt));
  header(status);
  map.show(status, history);
  detail.show(status, history);
  timeline.show(history);
  members.show(status, receivedAt);
  peers.show(status, isAlone(status));
  reveal();
}

function header(status) {
  const { partitions } = status.table;
  say(at("agent"), status.agent);
  say(at("address"), `${status.table.address} \u00b7 neli ${status.version}`);
  const isBorrowed = borrows(status);
  document.body.classList.toggle("borrowed", isBorrowed);
  document.body.classList.toggle("alone", isAlone(status));
  at("borrowed").hidden = !isBorrowed;
  if (isBorrowed) {
    const told = status.store ? `Members and owners are read from ${status.store}.` : ALONE;
    say(at("borrowed"), `${told} ${OF_PEERS[status.protocol] ?? NO_WISHES}`);
  }
  document.title = `${status.agent} \u00b7 NELI`;
  const unowned = partitions.filter((partition) => partition.owner === null).length;
  const moving = partitions.filter(({ owner, target }) => owner !== null && target !== null && owner !== target).length;
  const facts = [
    ["partitions", isAlone(status) ? "Led" : "Owned", `${whole(partitions.length - unowned)} of ${whole(partitions.length)}`, unowned > 0],
    ["moving", "In handover", isBorrowed ? null : whole(moving), false],
    ["led", "Led here", whole(status.led), false],
    ["members", "Members", isAlone(status) ? null : whole(status.members.length), status.members.length === 0],
    ["peers", "Peers that answer", ...answering(status)],
    ["term", "Term", status.peers ? whole(status.peers.term) : null, false],
    ["member", "This member", doing(status), !["member", "joining"].includes(status.member)],
    ["protocol", "Protocol", isBorrowed ? status.protocol : null, false],
    ["guarantee", "Guarantee", status.guarantee, false],
    ["lease", "Lease", lasting(status.lease), false],
    ["at", "Read up to", isBorrowed ? null : whole(status.table.at), false],
  ];
  for (const [key, title, text, alarms] of facts) {
    let fact = at(`fact-${key}`);
    if (fact === null) {
      fact = make("div", { id: `fact-${key}` }, make("dt", { textContent: title }), make("dd"));
      at("facts").append(fact);
    }
    fact.hidden = text === null; // Not known for a group of this kind.
    say(fact.lastChild, text ?? "");
    fact.classList.toggle("alarms", alarms);
  }
  const why = at("why");
  why.hidden = status.why === "" && unowned === 0;
  if (!why.hidden) {
    const holes = unowned ? `${many(unowned, "partition")} ${unowned === 1 ? "has" : "have"} no owner` : "The table cannot be believed";
    say(why, `${holes}: ${whyNobody(status)}`);
  }
  const powerless = at("powerless");
  powerless.hidden = status.can_expire;
  say(powerless, status.can_expire ? "" : POWERLESS); // Screen readers read text that is added, not text that is unhidden.
}

/* The agent's own member in a word or two. A drained member leads only what no other can. */
function doing({ member, shed, table }) {
  if (!shed) return member;
  return shed >= table.partitions.length ? "drained" : `member, gives away ${whole(shed)}`;
}

function answering({ peers }) {
  return peers ? [`${whole(peers.alive)} of ${whole(peers.voters)}`, peers.alive < peers.majority] : [null, false];
}

function connection() {
  const words = {
    connecting: "connecting",
    live: "live",
    silent: "silent",
    lost: "not connected",
  };
  at("connection").dataset.is = stream.is;
  document.body.classList.toggle("stale", !isKnown());
  say(at("connection-text"), words[stream.is]);
  since();
}

/* Apart from the word, which screen readers read out: this text changes every second. */
function since() {
  const past = (performance.now() - stream.seenAt) / 1000;
  say(at("connection-since"), isKnown() || stream.seenAt === null ? "" : `, last seen ${lasting(Math.max(1, Math.round(past)))} ago`);
}

const isKnown = () => ["live", "connecting"].includes(stream.is);

const stream = new Stream("v1/events", {
  onStatus: (status) => {
    newest = status;
    receivedAt = performance.now();
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(paint);
    }
  },
  onConnection: connection,
});
stream.open();
addEventListener("hashchange", seek);
seek();

setInterval(() => {
  if (document.hidden) return;
  stream.tick(performance.now());
  since();
  members.tick(performance.now(), isKnown());
}, TICK_MS);
setInterval(() => {
  if (!document.hidden && newest !== null) timeline.draw();
}, REDRAW_MS);
