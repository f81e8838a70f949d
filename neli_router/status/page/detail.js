/* The details: one partition, under the pointer or the focus, and the last one that was kept by a click or by Enter.

   They say why a partition has no owner, and with a token the partition can be pinned here. While a control in them has
   the focus they stay, even if the pointer moves over other cells.
*/

import { amount, borrows, clock, isAlone, make, many } from "./words.js";

/* The agent's own reason. Its table may be a moment older and have none yet; then the members give one. */
export function whyNobody({ why, members }) {
  if (why !== "") return why;
  return members.length === 0 ? "the group has no member" : "the table is being read";
}

export class Detail {
  constructor(root, colours, { onWish }) {
    Object.assign(this, { root, colours, onWish });
    this.kept = null;
    this.passing = null;
    this.allowed = false;
    this.place = null;
    this.chosen = false;
  }

  keep(place) {
    this.kept = place;
    this.render();
  }

  pass(place) {
    this.passing = place;
    this.render();
  }

  show(status, history) {
    this.status = status;
    this.history = history;
    this.render();
  }

  render() {
    if (!this.status) return;
    const { partitions } = this.status.table;
    const chooses = this.root.contains(document.activeElement);
    const place = chooses ? this.kept : this.passing ?? this.kept;
    if (place === null || place >= partitions.length) return this.invite();
    const partition = partitions[place];
    const name = (member) => (member === null ? null : this.status.members[member].name);
    const owner = name(partition.owner);
    const target = name(partition.target);
    const standby = name(partition.standby ?? null);
    const since = this.history.since.get(place);
    const why = owner === null ? whyNobody(this.status) : "";
    const behind = Object.entries(this.status.behind ?? {}).filter(([, steps]) => place in steps)
      .map(([table, steps]) => `${table} by ${many(steps[place], "step")}`).join(", ");
    // Rebuilt only if its text changes, or an open list would close under the pointer.
    const names = this.status.members.map((member) => member.name);
    const allowed = this.allowed && !borrows(this.status);
    const key = JSON.stringify([place, partition, owner, target, standby, since, why, behind, allowed, allowed && names]);
    if (key === this.key) return undefined;
    this.key = key;
    const facts = [
      [isAlone(this.status) ? "Leader" : "Owner", owner === null ? "nobody" : this.member(owner)],
      ["Address", (owner !== null && this.status.members[partition.owner].address) || null],
      ["Term", owner === null ? null : String(partition.term)],
      ["Since", owner === null ? null : since === undefined ? "before the events known" : clock(since)],
      ["Going to", target !== null && target !== owner ? this.member(target) : null],
      ["Standby", standby === null ? null : this.member(standby)],
      ["Pinned to", partition.pinned],
      ["Load", partition.load ? amount(partition.load) : null],
      ["Behind", behind || null],
      ["Why", why || null],
    ];
    const held = this.held(place);
    this.root.replaceChildren(
      make("p", { className: "headline" },
        make("span", { className: `cell big ${owner === null ? "nobody" : this.colours.look(owner)}` }),
        make("span", {}, `Partition ${place}`)),
      make("dl", {}, ...facts.filter(([, value]) => value !== null).flatMap(([title, value]) => [
        make("dt", { textContent: title }), make("dd", {}, value),
      ])),
      allowed ? this.pinning(place, partition, owner, names) : "",
    );
    this.place = place;
    this.giveBack(held, names);
    return undefined;
  }

  /* The choice for `place`, and the control that has the focus: a new status must remove neither. */
  held(place) {
    const controls = [...this.root.querySelectorAll("select, button")];
    if (place !== this.place || controls.length === 0) return null;
    return { name: this.chosen ? controls[0].value : null, focused: controls.indexOf(document.activeElement) };
  }

  giveBack(held, names) {
    const controls = [...this.root.querySelectorAll("select, button")];
    this.chosen = held !== null && held.name !== null && controls.length > 0 && names.includes(held.name);
    if (this.chosen) controls[0].value = held.name;
    if (held !== null && held.focused >= 0) controls[Math.min(held.focused, controls.length - 1)]?.focus();
  }

  invite() {
    this.key = null;
    this.place = null;
    this.root.replaceChildren(
      make("p", { className: "note", textContent: "Point at a cell or a member, or walk through the cells with the "
        + "arrow keys. A click or Enter keeps a partition here, Escape lets it go." }),
      make("p", { className: "note", textContent: 
        `${many(this.status.table.partitions.length, "partition")} of ${many(this.status.table.slots, "slot")}.` }),
    );
  }

  member(name) {
    return make("span", { className: "who" }, make("span", { className: `cell sample ${this.colours.look(name)}` }), name);
  }

  pinning(place, partition, owner, names) {
    const choice = make("select", { id: "pin-to" }, ...names.map((name) => make("option", { value: name, textContent: name })));
    choice.value = partition.pinned ?? owner ?? names[0] ?? "";
    choice.addEventListener("change", () => (this.chosen = true));
    const pin = make("button", { type: "button", className: "quiet small", textContent: "Pin\u2026" });
    pin.addEventListener("click", () => this.onWish("pin", { partition: place, name: choice.value }));
    const unpin = make("button", { type: "button", className: "quiet small", textContent: "Unpin\u2026" });
    unpin.addEventListener("click", () => this.onWish("unpin", { partition: place }));
    const label = make("label", { for: "pin-to", textContent: "Pin to" });
    return make("p", { className: "pinning" }, label, choice, pin, partition.pinned === null ? "" : unpin);
  }
}
