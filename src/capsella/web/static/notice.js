/** The status line: what went wrong, said once and politely. */

import { button, h } from "./dom.js";

const words = h("p", { role: "status", "aria-live": "polite" });
const line = h(
  "div",
  { class: "notice", hidden: true },
  words,
  button("Dismiss", () => hide()),
);
let isGone = false;
let timer = 0;

function hide() {
  line.hidden = true;
  words.textContent = "";
}

export const noticeLine = line;

/** Say a line; it stays until it is dismissed, unless it is good news. */
export function say(text, { isBrief = false } = {}) {
  clearTimeout(timer);
  words.textContent = text;
  line.hidden = false;
  if (isBrief) timer = setTimeout(hide, 4000);
}

/** What was said of another view is no longer of use; that the server does not answer is. */
export function forget() {
  if (!isGone) hide();
}

/** Say that the server does not answer, until it does. */
export function gone(now) {
  if (now && !isGone) say("The explorer’s server does not answer. It is asked again every other second.");
  if (!now && isGone) say("The server is back.", { isBrief: true });
  isGone = now;
}
