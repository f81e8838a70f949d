/* Words: numbers, times and lists as people read them, and the few DOM helpers that all parts share.

   Nothing here knows about partitions. Text is always inserted as text: a member's name is untrusted input.
*/

const WHOLE = new Intl.NumberFormat("en");
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const whole = (number) => WHOLE.format(number).replaceAll(",", "\u202f");

export const clock = (time) => CLOCK.format(time);

/* The time of day; with the date, if that is not today. */
export function moment(time) {
  const isToday = new Date(time).toDateString() === new Date().toDateString();
  return isToday ? clock(time) : `${DAY.format(time)} ${clock(time)}`;
}

export function many(count, one, more = one + "s") {
  return `${whole(count)} ${count === 1 ? one : more}`;
}

export function lasting(seconds) {
  if (seconds < 0.95) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function amount(number) {
  if (number === 0) return "0";
  if (Math.abs(number) >= 1000) return whole(Math.round(number));
  return String(Number(number.toPrecision(3)));
}

/* 1, 2, 3, 7 as "1-3, 7"; at most `most` runs. */
export function runs(numbers, most = 12) {
  const sorted = [...numbers].sort((one, other) => one - other);
  const found = [];
  for (const number of sorted) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  const shown = found.slice(0, most).map(([low, high]) => (low === high ? `${low}` : `${low}\u2013${high}`));
  return shown.join(", ") + (found.length > most ? ", \u2026" : "");
}

/* Whether a broker assigns the partitions; then wishes, handovers, loads and lags do not exist. */
export const borrows = ({ protocol }) => protocol !== undefined && protocol !== "induction";

/* Whether members are the peers of a list, as this agent sees them, because no store has their names. */
export const isAlone = ({ peers, store }) => Boolean(peers) && !store;

/* HOST:PORT, shortened for a small space: without the port, or the host, that all of them share. */
export function tellApart(peers) {
  const parts = peers.map((peer) => [peer.slice(0, peer.lastIndexOf(":")), peer.slice(peer.lastIndexOf(":"))]);
  const differ = (place) => new Set(parts.map((part) => part[place])).size > 1;
  if (differ(0) && !differ(1)) return parts.map(([host]) => host);
  return differ(1) && !differ(0) ? parts.map(([, port]) => port) : peers;
}

/* An element with properties and children; text is inserted as text, never as markup. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/* Touches the document only if something changed: this keeps an update of two hundred rows cheap. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
