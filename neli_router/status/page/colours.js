/* Colours: one of two hundred looks for each member.

   look = hue (8, told apart with any kind of colour vision) + tint (5) + pattern (5)

   No two hundred colours can be told apart, so a look is a colour and a pattern, and the name is always one movement
   away. The first eight members get plain hues. A look belongs to a name while the page is open: a member that comes
   back looks as before, and one that goes changes no other look.
*/

const HUES = 8;
const PATTERNS = 5;
const TINTS = 5;
const LOOKS = HUES * PATTERNS * TINTS;

export class Colours {
  constructor() {
    this.places = new Map();
  }

  /* The looks of members that are gone are given away only when all others are taken. */
  know(names) {
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
  }

  hue(name) {
    return (this.places.get(name) ?? 0) % HUES;
  }

  /* The classes that page.css draws. Patterns change before tints: they are easier to tell apart. */
  look(name) {
    const place = this.places.get(name);
    if (place === undefined) return "gone"; // In a move of long ago, and no member since the page was opened.
    const round = Math.floor(place / HUES);
    return `hue-${place % HUES} mark-${round % PATTERNS} tint-${Math.floor(round / PATTERNS) % TINTS}`;
  }
}

/* Two letters or digits that tell names of one family apart: "worker-17" is 17, "alice" is al. */
export function initials(name) {
  const number = name.match(/(\d{1,3})\D*$/);
  return number ? number[1] : name.replace(/[^\p{L}\p{N}]/gu, "").slice(0, 2);
}
