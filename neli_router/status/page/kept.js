/* Kept: what the browser remembers for this page. A browser may refuse to, and then the page forgets, and works. */

export function kept(storage, key) {
  try {
    return window[storage].getItem(key);
  } catch {
    return null;
  }
}

/* null forgets it. */
export function keep(storage, key, text) {
  try {
    if (text === null) window[storage].removeItem(key);
    else window[storage].setItem(key, text);
  } catch {
    /* Then it lasts as long as this page. */
  }
}
