/* Kept: values that the browser remembers for this page. If it refuses to, the page works but forgets them. */

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
    /* Then the value lasts as long as this page. */
  }
}
