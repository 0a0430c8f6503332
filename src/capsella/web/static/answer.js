/** What the network says: a bar for each class, the answer in words, and its drawing. */

import { fixed, h, percent, ranked, write } from "./dom.js";
import { settled } from "./motion.js";

const MOST_BARS = 12;
const SPEAK_AFTER = 800;

/** How sure a network is of each class, from 0 to 1. */
export const certainties = (sight) =>
  (sight.certainties ?? sight.scores).map((value) => (value === null ? null : Math.min(1, Math.max(0, value))));

/** The answer in a sentence. */
export function sentence(run, sight) {
  const name = run.class_names[sight.answer];
  const truth = sight.label_name === null || sight.label === sight.answer ? "" : ` ${truthWords(sight)}.`;
  return `The network says ${name}, sure of it by ${percent(sight.confidence)}.${truth}`;
}

/** The answer in a few words, as a figure that is saved has it. */
export function saysWords(run, sight) {
  const says = `says ${nameOf(run, sight.answer)} (${percent(sight.confidence)})`;
  return sight.label_name === null || sight.label === sight.answer ? says : `${says}, the test set says ${sight.label_name}`;
}

/** A row for each class, or for the likeliest of very many: {name, value, isAnswer, isTruth}. */
export function barRows(run, sight) {
  const values = certainties(sight);
  const shown = values.length <= MOST_BARS ? values.map((_, k) => k) : ranked(values).slice(0, MOST_BARS);
  return shown.map((number) => ({
    name: run.class_names[number],
    value: values[number],
    isAnswer: number === sight.answer,
    isTruth: number === sight.label,
  }));
}

/** What the test set says of its image; nothing of others. Where its classes are not the network’s, no answer is right or wrong. */
export function truthWords({ label, label_name: name, answer }) {
  if (name === null) return "";
  if (label === null) return `The test set says ${name}, in classes of its own`;
  return label === answer ? "as the test set says" : `The test set says ${name}`;
}

export const nameOf = (run, label) => run.class_names[label] ?? String(label);

export class Answer {
  /** @param {{isLoud?: boolean}} options whether a screen reader is told of every answer */
  constructor({ isLoud = false } = {}) {
    this.name = h("strong", { class: "answer-name" }, "–");
    this.sure = h("span", { class: "answer-sure" });
    this.truth = h("p", { class: "answer-truth" });
    this.bars = h("ol", { class: "bars" });
    this.spoken = isLoud ? h("p", { class: "unseen", role: "status", "aria-live": "polite" }) : null;
    this.speak = settled((text) => write(this.spoken, text), SPEAK_AFTER);
    this.element = h(
      "div",
      { class: "answer" },
      h("p", { class: "answer-line" }, this.name, this.sure),
      this.truth,
      this.bars,
      this.spoken,
    );
  }

  show(run, sight) {
    const rows = barRows(run, sight);
    write(this.name, run.class_names[sight.answer]);
    write(this.sure, percent(sight.confidence));
    write(this.truth, truthWords(sight));
    this.truth.classList.toggle("wrong", sight.label !== null && sight.label !== sight.answer);
    this.#rows(rows.length);
    rows.forEach((given, at) => {
      const { row, name, fill, value } = this.rows[at];
      write(name, given.name);
      write(value, fixed(given.value));
      fill.style.transform = `scaleX(${given.value ?? 0})`;
      row.classList.toggle("is-answer", given.isAnswer);
      row.classList.toggle("is-truth", given.isTruth);
    });
    if (this.spoken) this.speak(sentence(run, sight));
  }

  #rows(number) {
    if (this.rows?.length === number) return;
    this.rows = Array.from({ length: number }, () => {
      const [name, fill, value] = [
        h("span", { class: "bar-name" }),
        h("span", { class: "bar-fill" }),
        h("span", { class: "bar-value" }),
      ];
      return { row: h("li", {}, name, h("span", { class: "bar-track" }, fill), value), name, fill, value };
    });
    this.bars.replaceChildren(...this.rows.map((each) => each.row));
  }
}
