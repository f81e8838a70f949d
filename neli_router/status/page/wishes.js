/* Wishes: changes that a person with a token may make, each shown before it is made.

   token --asked of the agent--> right: changes are offered      wrong: says so, and stays in the field

   asked --POST preview--> the moves it would cause --Confirm--> POST --> done
      '--------- refused: wanted, found and remedy <------------------------'

   A refusal loses nothing: the dialog stays, with everything that was typed and chosen, and accepts another token.
   The token lives in this tab's session storage and in the header of these requests, nowhere else.
*/

import { keep, kept } from "./kept.js";
import { make, many, runs, say } from "./words.js";

const KEPT_AS = "neli.token";
const SHOWN_MAX = 60;
const TOAST_MS = 6000;
const SILENCE = {
  wanted: "an answer of the agent was wanted", found: "none came", remedy: "see whether it runs, and try again",
};
const NO_WEIGHT = {
  wanted: "a weight was wanted", found: "this is no whole number", remedy: "give one, or leave it empty",
};

const TOKEN = /^[!-~]+$/;
const NO_TOKEN = {
  wanted: "the agent's token was wanted", found: "this one has characters that no token has", remedy: "give another one",
};

const TITLES = {
  drain: ({ name }) => `Drain ${name}`,
  undrain: ({ name }) => `Undrain ${name}`,
  pin: ({ name, partition }) => `Pin partition ${partition} to ${name}`,
  unpin: ({ partition }) => `Unpin partition ${partition}`,
  weigh: ({ name }) => `Weigh ${name}`,
};

export class Wishes {
  constructor(parts, { onAllowed }) {
    Object.assign(this, parts, { onAllowed });
    this.token = kept("sessionStorage", KEPT_AS);
    this.asked = 0;
    this.unlock.addEventListener("click", () => (this.token === null ? this.open(this.form.hidden) : this.allow(null)));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.try(this.field.value.trim());
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.open(false);
      this.unlock.focus();
    });
    this.confirm.addEventListener("click", () => this.make());
    this.weight.addEventListener("input", () => this.preview());
    this.again.addEventListener("change", () => this.retry());
    for (const field of [this.weight, this.again]) {
      field.addEventListener("keydown", (event) => {
        if (event.key !== "Enter") return;
        event.preventDefault(); // It would press Cancel, the form's first button.
        if (field === this.again) this.retry();
        else if (!this.confirm.disabled) this.confirm.focus();
      });
    }
    this.showToken();
  }

  open(shown) {
    this.form.hidden = !shown;
    this.tokenError.hidden = true;
    this.unlock.setAttribute("aria-expanded", String(shown));
    if (shown) this.field.focus();
  }

  /* Accepts `token` if the agent does. It asks for a lease, because that needs a token and changes nothing. */
  async try(token) {
    const answer = await this.send("v1/lease?partition=0", token);
    if (answer.status === 401 || answer.status === 0) {
      refuse(this.tokenError, answer.said);
      this.field.select();
      return;
    }
    this.field.value = "";
    this.allow(token);
    this.unlock.focus();
  }

  allow(token) {
    this.token = token;
    keep("sessionStorage", KEPT_AS, token);
    this.open(false);
    this.showToken();
  }

  showToken() {
    const allowed = this.token !== null;
    say(this.unlock, allowed ? "Forget token" : "Read-only");
    this.unlock.title = allowed ? "Changes are allowed in this tab" : "Give a token to allow changes";
    this.onAllowed(allowed);
  }

  /* Opens the dialog for `wish`, such as "drain" of {name}. */
  ask(wish, about) {
    this.wish = wish;
    this.about = about;
    say(this.title, TITLES[wish](about));
    this.weightRow.hidden = wish !== "weigh";
    this.weight.value = wish === "weigh" ? about.weight : "";
    this.dialog.showModal();
    this.preview();
  }

  /* The same wish with another token. */
  retry() {
    if (this.again.value === "" || !this.dialog.open) return;
    this.token = this.again.value.trim();
    keep("sessionStorage", KEPT_AS, this.token);
    this.again.value = "";
    this.preview();
  }

  body(preview) {
    const { name = null, partition = null } = this.about;
    const weight = this.wish === "weigh" && this.weight.value !== "" ? Number(this.weight.value) : null;
    return { name, partition, weight, preview };
  }

  async preview() {
    const asked = ++this.asked;
    this.confirm.disabled = true;
    this.error.hidden = this.againRow.hidden = true;
    if (this.weight.validity.badInput) return this.refuse({ said: NO_WEIGHT });
    say(this.summary, "Asking what it would move\u2026");
    this.moves.replaceChildren();
    const answer = await this.send(`v1/${this.wish}`, this.token, this.body(true));
    if (asked !== this.asked) return undefined; // Another weight was typed in the meantime.
    if (answer.status !== 200) {
      say(this.summary, "");
      return this.refuse(answer);
    }
    this.showMoves(answer.said.moves);
    this.confirm.disabled = false;
    return undefined;
  }

  showMoves(moves) {
    const moved = moves.reduce((sum, move) => sum + move.partitions.length, 0);
    say(this.summary, moved ? `This will move ${many(moved, "partition")}:` : "This will move nothing now.");
    const items = moves.slice(0, SHOWN_MAX).map((move) =>
      make("li", {}, make("strong", { textContent: `${move.source ?? "nobody"} \u2192 ${move.target ?? "nobody"}` }),
        ` ${many(move.partitions.length, "partition")}: ${runs(move.partitions)}`));
    const more = moves.length - SHOWN_MAX;
    if (more > 0) items.push(make("li", { textContent: `and ${more} more pairs of members` }));
    this.moves.replaceChildren(...items);
  }

  async make() {
    const asked = ++this.asked;
    this.confirm.disabled = true;
    this.error.hidden = this.againRow.hidden = true;
    const title = TITLES[this.wish](this.about);
    const answer = await this.send(`v1/${this.wish}`, this.token, this.body(false));
    if (answer.status !== 200) {
      if (asked !== this.asked || !this.dialog.open) return this.toastOf(`${title}: ${sentence(answer.said)}`);
      this.refuse(answer);
      this.confirm.disabled = answer.status === 401; // A wish that was refused may be tried again.
      return undefined;
    }
    if (asked === this.asked) this.dialog.close();
    return this.toastOf(`${title}: done`);
  }

  refuse({ said, status }) {
    refuse(this.error, said);
    this.againRow.hidden = status !== 401;
    if (status === 401) this.again.focus();
  }

  toastOf(text) {
    say(this.toast, text);
    this.toast.hidden = false;
    clearTimeout(this.fading);
    this.fading = setTimeout(() => (this.toast.hidden = true), TOAST_MS);
  }

  /* The answer and its status, which is 0 if there is no answer. */
  async send(path, token, body) {
    if (!TOKEN.test(token)) return { status: 401, said: NO_TOKEN };
    try {
      const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
      const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
      const response = await fetch(path, options);
      return { status: response.status, said: await response.json() };
    } catch {
      return { status: 0, said: SILENCE };
    }
  }
}

const sentence = ({ wanted, found, remedy }) => [wanted, found, remedy].filter(Boolean).join(" \u2013 ");

/* Shows the parts that a refusal has, of three. */
function refuse(element, { wanted, found, remedy }) {
  const parts = [["Wanted", wanted], ["Found", found], ["Remedy", remedy]].filter(([, text]) => text);
  element.replaceChildren(make("dl", {}, ...parts.flatMap(([title, text]) => [
    make("dt", { textContent: title }), make("dd", { textContent: text }),
  ])));
  element.hidden = false;
}
