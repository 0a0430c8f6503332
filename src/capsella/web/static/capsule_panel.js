/** One capsule from all sides: where it looks, its pose, and what it did over the test set. */

import { Query, runPath } from "./api.js";
import { columns, histogram } from "./charts.js";
import { button, count, fixed, h, percent, write } from "./dom.js";
import { imagePath } from "./pictures.js";
import { overlay, paint } from "./pixels.js";
import { capsuleName, isWhole, layerName } from "./tree_figure.js";

/** Where a capsule looks, in words. */
export function fieldWords({ box, peak }, run) {
  if (box === null) return "No pixel can reach it.";
  const isAll = box.left === 0 && box.top === 0 && box.right === run.width - 1 && box.bottom === run.height - 1;
  const where = isAll
    ? "It sees the whole image"
    : `It sees columns ${box.left + 1} to ${box.right + 1} and rows ${box.top + 1} to ${box.bottom + 1} (framed)`;
  return peak
    ? `${where}. The warmer a pixel, the more it moves the activation: at most ${short(peak)} for each unit of input.`
    : `${where}. Just now no pixel moves its activation.`;
}

const short = (value) => Number(value.toPrecision(2)).toString();

export class CapsulePanel {
  #asked = null;

  /** @param {{store: object, hint?: string}} options */
  constructor({ store }) {
    this.store = store;
    this.query = new Query(
      (answer, { body }) => this.#show(answer, body),
      () => this.clear(),
    );
    this.title = h("h3", {});
    this.facts = h("p", { class: "capsule-facts" });
    this.canvas = h("canvas", { class: "pixels", role: "img", width: 28, height: 28 });
    this.field = h("div", { class: "field-box", hidden: true });
    this.words = h("p", { class: "note" });
    this.pose = columns({ label: "pose" });
    this.history = histogram({ label: "activations over the test set" });
    this.historyWords = h("p", { class: "note" });
    this.classes = columns({ label: "mean activation for each class", height: 88 });
    this.strongest = h("ul", { class: "thumbs few" });
    this.close = button("Close", () => store.set({ capsule: null }), { class: "small" });
    const part = (text, ...children) => h("section", { class: "part" }, h("h4", {}, text), ...children);
    this.classesPart = part("Mean activation by class", this.classes.element);
    this.historyPart = h(
      "div",
      { class: "parts" },
      part("Over the test set", this.history.element, this.historyWords),
      this.classesPart,
      part("Test images that activate it most", this.strongest),
    );
    this.full = h(
      "div",
      { class: "capsule-full" },
      h("div", { class: "capsule-head" }, this.title, this.close),
      this.facts,
      h(
        "div",
        { class: "parts" },
        part("Where it looks", h("div", { class: "field-view" }, this.canvas, this.field), this.words),
        part("Pose", this.pose.element),
      ),
      this.historyPart,
    );
    this.hint = h(
      "p",
      { class: "hint" },
      "Point at a capsule, tap it, or move to it with the arrow keys: here is where it looks, its pose, and what it does over the test set.",
    );
    this.element = h(
      "section",
      { class: "card capsule", "aria-label": "The chosen capsule", "aria-live": "off" },
      this.hint,
      this.full,
    );
    this.full.hidden = true;
  }

  /** Ask about a capsule; null for none. */
  update(run, scene, negate, capsule) {
    if (!capsule || !run.layers[capsule[0]] || capsule[1] >= run.layers[capsule[0]].capsules) {
      this.clear();
      return;
    }
    this.#asked = { run, capsule };
    this.query.want(runPath(run.key, "capsule"), { scene, layer: capsule[0], capsule: capsule[1], negate });
  }

  clear() {
    this.#asked = null;
    this.query.drop();
    this.full.hidden = true;
    this.hint.hidden = false;
  }

  /** What the tree says of the same image: its pixels. */
  image(pixels) {
    this.pixels = pixels;
  }

  #show(answer, body) {
    if (this.#asked === null || this.pixels === undefined) return;
    const { run } = this.#asked;
    const { history } = answer;
    this.full.hidden = false;
    this.hint.hidden = true;
    const name = capsuleName(run, answer.layer, answer.capsule);
    write(this.title, `${name[0].toUpperCase()}${name.slice(1)}`);
    const layer = layerName(run, answer.layer);
    const dead = history?.dead && history.images >= 100 ? " · dead" : "";
    const isOneOfThem = answer.layer === 0 && isWhole(run);
    const negated = body.negate ? ` · ${isOneOfThem ? "" : "primary capsules "}negated` : "";
    write(this.facts, `${layer} · activation ${fixed(answer.activation, 3)}${negated}${dead}`);
    this.facts.classList.toggle("wrong", Boolean(dead));
    paint(this.canvas, this.pixels);
    overlay(this.canvas, answer.sensitivity);
    this.canvas.setAttribute("aria-label", `The image, with the pixels that move ${name}`);
    this.#frame(answer.box, run);
    write(this.words, fieldWords(answer, run));
    const dims = answer.pose.map((_, k) => String(k + 1));
    this.pose.show({ names: dims, values: answer.pose }, `Pose: ${answer.pose.map((value) => fixed(value)).join(", ")}`);
    this.historyPart.hidden = history === null;
    if (history) this.#showHistory(run, history);
  }

  #frame(box, run) {
    this.field.hidden = box === null;
    if (box === null) return;
    const { style } = this.field;
    style.left = `${(100 * box.left) / run.width}%`;
    style.top = `${(100 * box.top) / run.height}%`;
    style.width = `${(100 * (box.right - box.left + 1)) / run.width}%`;
    style.height = `${(100 * (box.bottom - box.top + 1)) / run.height}%`;
  }

  #showHistory(run, history) {
    const words = `Mean ${fixed(history.mean)} ± ${fixed(history.std)}; active in ${percent(history.active)} of ${count(history.images)} images.`;
    this.history.show(history, `Histogram of its activations. ${words}`);
    write(this.historyWords, words);
    this.classesPart.hidden = history.by_class.length === 0;
    if (history.by_class.length) {
      const names = history.by_class.map((_, k) => run.data_classes[k]);
      this.classes.show(
        { names, values: history.by_class },
        names.map((name, k) => `${name}: ${fixed(history.by_class[k])}`).join(", "),
      );
    }
    const key = `${run.key} ${history.strongest}`;
    if (key === this.key) return;
    this.key = key;
    this.strongest.replaceChildren(
      ...history.strongest.map((index) => {
        const picture = h("img", { src: imagePath(run.key, index), alt: "", class: "pixels", width: 48, height: 48 });
        const words = `Show test image ${index}`;
        return h(
          "li",
          {},
          button([picture], () => this.store.set({ picture: { kind: "test", run: run.key, index } }), {
            class: "thumb",
            "aria-label": words,
            title: words,
          }),
        );
      }),
    );
  }
}
