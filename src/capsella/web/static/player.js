/** Iterations of routing: one step at a time, or played. */

import { button, change, h, slider } from "./dom.js";

const BEAT = 1100;

export class Player {
  #steps = 0;
  #at = 0;
  #timer = 0;

  /** @param {(iteration: number | null) => void} go called with the iteration to show, counted from 1; null is the last */
  constructor(go) {
    this.go = go;
    this.back = button("◀", () => this.#step(-1), { "aria-label": "One iteration back", class: "small" });
    this.forth = button("▶", () => this.#step(1), { "aria-label": "One iteration on", class: "small" });
    this.play = button("Play", () => (this.#timer ? this.stop() : this.#start()));
    this.slider = slider({
      label: "Routing iteration",
      min: 1,
      max: 1,
      step: 1,
      say: (value) => `${value} of ${this.#steps}`,
      oninput: (value) => this.#to(value),
    });
    this.none = h("p", { class: "note" }, "This routing does not iterate.");
    this.controls = h("div", { class: "player" }, this.play, this.back, this.slider.element, this.forth);
    this.element = h("div", { role: "group", "aria-label": "Iterations of routing" }, this.controls, this.none);
  }

  /** @param {number} steps how many there are @param {number | null} iteration which is shown; null is the last */
  show(steps, iteration) {
    this.#steps = steps;
    this.#at = Math.min(iteration ?? steps, steps);
    this.controls.hidden = steps < 2;
    this.none.hidden = steps >= 2;
    this.slider.show(this.#at, { max: Math.max(1, steps) });
    this.back.disabled = this.#at <= 1;
    this.forth.disabled = this.#at >= steps;
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = 0;
    this.play.textContent = "Play";
    change(this.play, { "aria-pressed": "false" });
  }

  #start() {
    this.play.textContent = "Stop";
    change(this.play, { "aria-pressed": "true" });
    // from the beginning, round and round.
    this.#to(1);
    this.#timer = setInterval(() => this.#to(this.#at >= this.#steps ? 1 : this.#at + 1), BEAT);
  }

  #step(by) {
    this.stop();
    this.#to(this.#at + by);
  }

  #to(iteration) {
    this.go(iteration >= this.#steps ? null : iteration);
  }
}
