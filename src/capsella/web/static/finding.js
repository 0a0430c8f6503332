/** A sentence that follows what is shown: seen at once, and read aloud once it has come to rest. */

import { h, write } from "./dom.js";
import { settled } from "./motion.js";

const SPEAK_AFTER = 800;

export class Finding {
  constructor() {
    this.words = h("p", { class: "finding" });
    this.spoken = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.speak = settled((text) => write(this.spoken, text), SPEAK_AFTER);
    this.element = h("div", { class: "finding-box" }, this.words, this.spoken);
  }

  show(text) {
    write(this.words, text);
    this.speak(text);
  }

  /** Show it, or say nothing any more. */
  toggle(isShown) {
    this.element.hidden = !isShown;
    if (isShown) return;
    this.speak.drop();
    // shown again, it says nothing until it knows.
    write(this.words, "");
    write(this.spoken, "");
  }
}
