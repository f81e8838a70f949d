/* Colours: one of two hundred looks for each member.

   look = hue (8, distinct with any kind of colour vision) + tint (5) + pattern (5)

   No one can distinguish two hundred colours, so a look is a colour and a pattern, and the name is always one movement
   away. The first eight members get plain hues. A look belongs to a name for as long as this browser remembers it: a
   member that comes back looks the same as before, and one that is gone keeps its look in the history. No member ever
   changes another's look.
*/

import { keep, kept } from "./kept.js";

const HUES = 8;
const PATTERNS = 5;
const TINTS = 5;
const LOOKS = HUES * PATTERNS * TINTS;

const KEPT_AS = `neli.colours ${location.pathname}`;

export class Colours {
  constructor() {
    this.places = new Map(remembered());
  }

  /* Members, and names in the history. Looks of departed members are reused only when all looks are taken. */
  know(names, past) {
    const before = [...this.places.keys()].join("\n");
    const present = new Set(names);
    for (const name of names) {
      if (this.places.has(name)) continue;
      if (this.places.size >= LOOKS) {
        const gone = [...this.places].find(([other]) => !present.has(other));
        if (gone) {
          this.places.delete(gone[0]);
          this.places.set(name, gone[1]);
          continue;
        }
      }
      this.places.set(name, this.places.size % LOOKS);
    }
    for (const name of past) {
      if (!this.places.has(name) && this.places.size < LOOKS) this.places.set(name, this.places.size);
    }
    if ([...this.places.keys()].join("\n") !== before) {
      keep("localStorage", KEPT_AS, JSON.stringify([...this.places].slice(0, LOOKS)));
    }
  }

  hue(name) {
    return (this.places.get(name) ?? 0) % HUES;
  }

  /* The classes that page.css draws. Patterns change before tints, because they are easier to distinguish. */
  look(name) {
    const place = this.places.get(name);
    if (place === undefined) return "gone"; // There are more names than looks.
    const round = Math.floor(place / HUES);
    return `hue-${place % HUES} mark-${round % PATTERNS} tint-${Math.floor(round / PATTERNS) % TINTS}`;
  }
}

/* The name and place of each member that this browser knows; none if another program has written there. */
function remembered() {
  try {
    const known = JSON.parse(kept("localStorage", KEPT_AS) ?? "[]");
    const isSound = ([name, place]) => typeof name === "string" && Number.isInteger(place) && place >= 0 && place < LOOKS;
    return known.every(isSound) && known.length <= LOOKS ? known : [];
  } catch {
    return [];
  }
}

/* Two letters or digits that distinguish names of one family: "worker-17" is 17, "alice" is al. */
export function initials(name) {
  const number = name.match(/(\d{1,3})\D*$/);
  return number ? number[1] : name.replace(/[^\p{L}\p{N}]/gu, "").slice(0, 2);
}
