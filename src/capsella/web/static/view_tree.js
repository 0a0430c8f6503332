/** The parse tree: what each capsule does, and how they are coupled, iteration by iteration. */

import { Query, runPath } from "./api.js";
import { barRows, certainties, saysWords } from "./answer.js";
import { CapsulePanel } from "./capsule_panel.js";
import { count, fixed, h, percent, slider, tick, write } from "./dom.js";
import { Finding } from "./finding.js";
import { Player } from "./player.js";
import { sceneOf } from "./scene.js";
import { TreeFigure, isWhole, layerName } from "./tree_figure.js";
import { stepsOf } from "./tree_layout.js";
import { TreeWords } from "./tree_words.js";

/** What became of the answer when the primary capsules were negated. */
export function negationWords(run, plain, negated) {
  const name = (number) => run.class_names[number];
  const sure = percent(negated.confidence);
  if (plain.answer === negated.answer)
    return `With its primary capsules negated the network still says ${name(negated.answer)}: ${percent(plain.confidence)} before, ${sure} now.`;
  return `With its primary capsules negated the network says ${name(negated.answer)} (${sure}) instead of ${name(plain.answer)} (${fixed(certainties(negated)[plain.answer])} now).`;
}

export class TreeView {
  title = "Parse tree";
  #pointed = null;
  #plain = null;
  #shown = null;
  #isNegated = false;

  constructor({ store, about }) {
    Object.assign(this, { store, about });
    this.negated = new Query((sight) => this.#draw(sight, true));
    this.tree = new TreeFigure({
      label: "Parse tree: capsules by layer. Arrow keys move between capsules, Enter chooses one.",
      pick: (capsule) => store.set({ capsule }),
      point: (capsule) => this.#point(capsule),
    });
    this.player = new Player((iteration) => store.set({ iteration }));
    this.words = new TreeWords();
    this.panel = new CapsulePanel({ store });
    this.most = slider({ label: "Capsules of a layer", min: 4, max: 64, step: 1, oninput: (most) => store.set({ most }) });
    this.weak = slider({
      label: "Hide weak couplings",
      min: 0,
      max: 0.95,
      step: 0.01,
      say: (value) => `below ${Math.round(100 * value)} %`,
      oninput: (weak) => store.set({ weak }),
    });
    this.negate = tick("Negate the primary capsules", (negate) => store.set({ negate }));
    this.notice = new Finding();
    this.routing = h("p", { class: "note" });
    this.none = h("div", { class: "card empty", hidden: true });
    const legend = h(
      "ul",
      { class: "key" },
      h("li", {}, h("span", { class: "key-disc" }), "disc: activation"),
      h("li", {}, h("span", { class: "key-line" }), "line: coupling"),
      h("li", {}, h("span", { class: "key-dash" }), "dashed: negative"),
      h("li", {}, h("span", { class: "key-dead" }, "×"), "dead over the test set"),
    );
    this.body = h(
      "div",
      { class: "tree-view" },
      h(
        "section",
        { class: "card tree-card", "aria-label": "The parse tree" },
        this.player.element,
        this.notice.element,
        this.tree.element,
        legend,
        this.routing,
        h("div", { class: "controls" }, this.most.element, this.weak.element, this.negate.element),
        this.words.element,
      ),
      this.panel.element,
    );
    this.element = h("div", {}, this.none, this.body);
  }

  update(state, run) {
    const hasTree = run.layers.length > 0;
    this.body.hidden = !hasTree;
    this.none.hidden = hasTree;
    // what another network said is not this one's.
    if (run !== this.run) [this.#plain, this.#shown] = [null, null];
    this.run = run;
    if (!hasTree) {
      this.negated.drop();
      this.none.replaceChildren(...noTree(run));
      return;
    }
    const most = Math.min(this.about.limits.most_shown, Math.max(...run.layers.map((layer) => layer.capsules)));
    this.most.show(Math.min(state.most, most), { max: most });
    this.most.element.hidden = most <= 4;
    this.weak.show(state.weak);
    this.negate.input.checked = state.negate;
    this.negate.element.hidden = !run.negates;
    write(
      this.negate.element.querySelector("span"),
      isWhole(run) ? "Negate the primary capsules" : "Negate the primary capsules, which stand below this tree",
    );
    write(this.routing, routingWords(run));
    if (state.negate)
      this.negated.want(runPath(run.key, "see"), {
        scene: sceneOf(state, this.about),
        most: state.most,
        draw: 1,
        negate: true,
      });
    else this.negated.drop();
    this.notice.toggle(state.negate);
    if (!state.negate && this.#plain !== null && this.#plain !== this.#shown) this.#draw(this.#plain);
    else this.#show();
    this.tree.pin(state.capsule);
    this.#ask();
  }

  /** What the network says of the image as it is. */
  sight(sight, run) {
    this.#plain = sight;
    if (run.layers.length === 0) [this.#shown, this.#isNegated] = [sight, false];
    else if (!this.store.state.negate) this.#draw(sight);
    else this.#compare();
  }

  leave() {
    this.player.stop();
    this.negated.drop();
    this.panel.clear();
    this.#pointed = null;
  }

  /** What a figure of it is called. */
  heading(run) {
    return run.layers.length ? this.title : "Answer";
  }

  /** What a figure says of the answer. */
  said() {
    const negated = this.#isNegated ? ", its primary capsules negated" : "";
    return saysWords(this.run, this.#shown) + negated;
  }

  figure() {
    if (!this.#shown) return [];
    return [
      { caption: "image", pixels: this.#shown.image, side: 140 },
      ...this.#shown.reconstructions.slice(0, 1).map((each) => ({ caption: "reconstruction", pixels: each.image, side: 140 })),
      this.run.layers.length
        ? { caption: this.#stepWords(), svg: this.tree.svg }
        : { caption: "how sure it is of each class", bars: barRows(this.run, this.#shown) },
    ];
  }

  #stepWords() {
    const step = stepWords(this.#shown, this.store.state.iteration);
    return this.#isNegated ? `${step}, primary capsules negated` : step;
  }

  #draw(sight, isNegated = false) {
    this.#shown = sight;
    this.#isNegated = isNegated;
    this.#show();
    this.#compare();
    this.panel.image(sight.image);
  }

  #show() {
    const { iteration, weak, capsule } = this.store.state;
    if (this.#shown === null || this.#shown.layers.length !== this.run.layers.length) return;
    const shown = { run: this.run, sight: this.#shown, iteration, weak, capsule: this.#pointed ?? capsule };
    this.tree.show(shown);
    this.player.show(stepsOf(this.#shown), iteration);
    this.words.show(this.run, this.#shown, iteration);
  }

  #compare() {
    if (!this.store.state.negate || this.#plain === null || this.#shown === this.#plain || this.#shown === null) return;
    this.notice.show(negationWords(this.run, this.#plain, this.#shown));
  }

  #point(capsule) {
    this.#pointed = capsule;
    this.tree.mark(capsule ?? this.store.state.capsule);
    this.#ask();
  }

  #ask() {
    const state = this.store.state;
    this.panel.update(this.run, sceneOf(state, this.about), state.negate, this.#pointed ?? state.capsule);
  }
}

/** Which iteration a tree shows, in words. */
export const stepWords = (sight, iteration) => {
  const steps = stepsOf(sight);
  return steps < 2 ? "parse tree" : `parse tree after routing iteration ${Math.min(iteration ?? steps, steps)} of ${steps}`;
};

/** How each layer is made, in words. */
export function routingWords(run) {
  const groups = [];
  run.layers.forEach((layer, k) => {
    const made =
      layer.routing === null ? "" : `, by ${layer.routing}${layer.iterations ? ` in ${layer.iterations} iterations` : ""}`;
    const words = `${count(layer.capsules)} capsules of ${layer.dim} values${made}`;
    // what is said of several layers is said once.
    if (groups.at(-1)?.words === words) groups.at(-1).names.push(layerName(run, k));
    else groups.push({ words, names: [layerName(run, k)] });
  });
  const made = groups.map(({ names, words }) => `${names.length > 1 ? `${names[0]} to ${names.at(-1)}` : names[0]}: ${words}`);
  return [...made, run.below].filter(Boolean).join(" · ");
}

/** What is said in the place of a tree. */
export function noTree(run) {
  return [
    h("h3", {}, "No parse tree"),
    h("p", {}, `${run.title} has none: ${run.no_tree ?? "it has no capsules"}. What it says is beside its image.`),
  ];
}
