/* The peers of a group without a broker: who answers, who does not and why, how many partitions each leads, and which
   of them are drained.

   This is how the agent's own member sees them; another member may see them differently. Where a store has the members'
   names, the table of members next to this one lists them.
*/

import { lasting, make, many, say, whole } from "./words.js";

const STATES = {
  here: () => "this agent",
  alive: () => "answers",
  unknown: () => "not heard yet",
  silent: ({ heard_ago }) => (heard_ago === null ? "silent, and never heard" : "silent: down, or cut off"),
  "one-way": () => "heard, but does not answer: it has just started, or what is sent to it is lost",
  refused: ({ reason }) => `refused: ${REASONS[reason] ?? reason}`,
};
const REASONS = {
  group: "it has another group",
  key: "it has another key, or none",
  lease: "it has other settings, such as the lease",
  list: "it has another list of peers",
  size: "its list has another number of peers",
  protocol: "it has another protocol, or another number of partitions, replicas or first-class peers",
  version: "it has a newer release",
  replaced: "two processes run as this peer",
};
const BAD_STATES = ["silent", "one-way", "refused"];

function standing({ drained, shed, votes }) {
  if (drained) return ", drained: leads only while no other can";
  if (!votes) return ", second class: votes as soon as the leader needs it";
  return shed ? `, sheds ${many(shed, "partition")}` : "";
}

export class PeersTable {
  constructor(panel, table, count, colours, { onLight }) {
    Object.assign(this, { panel, count, colours });
    this.body = table.tBodies[0];
    this.rows = new Map();
    const nameAt = (event) => event.target.closest("tr")?.dataset.member ?? null;
    this.body.addEventListener("pointerover", (event) => onLight(nameAt(event)));
    this.body.addEventListener("pointerleave", () => onLight(null));
  }

  show({ peers }, isAlone) {
    this.panel.hidden = peers === null || peers === undefined;
    if (this.panel.hidden) return;
    const most = Math.max(1, ...peers.peers.map(({ leads }) => leads));
    for (const peer of peers.peers) {
      if (!this.rows.has(peer.peer)) this.rows.set(peer.peer, this.build(peer.peer, isAlone));
      this.fill(this.rows.get(peer.peer), peer, most);
    }
    const unled = peers.unled ? `, ${many(peers.unled, "partition")} without a leader` : "";
    const all = peers.peers.length;
    const who = peers.voters === all ? `${peers.alive} of ${all} answer` : `of ${peers.voters} that elect together, ${peers.alive} answer`;
    say(this.count, `${who}, ${peers.majority} are a majority${unled}`);
  }

  build(name, isAlone) {
    // Where members have names of their own, the map uses their colours, and these would mean other members.
    const swatch = isAlone ? make("span", { className: `cell sample ${this.colours.look(name)}` }) : null;
    const state = make("span", { className: "state" });
    const share = make("span", { className: "share-fill" });
    const leads = make("span");
    const heard = make("td", { className: "number" });
    const element = make("tr", {},
      make("th", { scope: "row" }, make("div", { className: "named" }, swatch, make("span", { className: "name", textContent: name, title: name }))),
      make("td", {}, state),
      make("td", { className: "number" }, make("span", { className: "share" }, share), leads),
      heard);
    element.dataset.member = isAlone ? name : "";
    this.body.append(element);
    return { element, state, share, leads, heard };
  }

  fill(row, peer, most) {
    const isBad = BAD_STATES.includes(peer.state);
    say(row.state, (STATES[peer.state] ?? (() => peer.state))(peer) + (isBad ? "" : standing(peer)));
    row.state.dataset.is = isBad ? "bad" : peer.drained ? "drained" : peer.state;
    say(row.leads, whole(peer.leads));
    row.share.style.width = `${(100 * peer.leads) / most}%`;
    // Each peer is heard several times a second, or every five seconds: the exact time would only flicker.
    const isFresh = peer.heard_ago !== null && peer.heard_ago < 6 && !BAD_STATES.includes(peer.state);
    say(row.heard, peer.state === "here" ? "\u2013" : peer.heard_ago === null ? "never" : isFresh ? "now" : `${lasting(peer.heard_ago)} ago`);
  }
}
