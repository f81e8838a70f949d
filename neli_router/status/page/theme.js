/* Theme: the system's, unless another one was chosen here.

   system -> light -> dark -> system       this browser keeps the choice; it is not a secret
*/

import { keep, kept } from "./kept.js";

const CHOICES = ["system", "light", "dark"];
const SIGNS = { system: "\u25d0 System", light: "\u25cb Light", dark: "\u25cf Dark" };
const KEPT_AS = "neli.theme";

export function startTheme(button) {
  const before = kept("localStorage", KEPT_AS);
  let chosen = CHOICES.includes(before) ? before : "system";
  const show = () => {
    document.documentElement.dataset.theme = chosen;
    button.textContent = SIGNS[chosen];
    button.setAttribute("aria-label", `Theme: ${chosen}`);
  };
  button.addEventListener("click", () => {
    chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
    keep("localStorage", KEPT_AS, chosen);
    show();
  });
  show();
}
