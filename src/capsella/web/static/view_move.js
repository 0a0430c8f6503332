/** Move the world: the image turned, shifted, leaned and scaled, and what the tree makes of it. */

import { saysWords } from "./answer.js";
import { Query, runPath } from "./api.js";
import { kinships, lineChart, lineWords } from "./charts.js";
import { button, chooser, fixed, h, percent, signed, slider, write } from "./dom.js";
import { Finding } from "./finding.js";
import { settled } from "./motion.js";
import { still } from "./pixels.js";
import { isMoved } from "./scene.js";
import { MOVES, STILL } from "./state.js";
import { TreeFigure, layerName } from "./tree_figure.js";
import { sharedLines } from "./tree_layout.js";
import { noTree } from "./view_tree.js";

const FOLLOW_AFTER = 250;
const LETTER = 7.4;
const NAMES = { rotation: "Rotation", x: "Right", y: "Down", shear: "Shear", scale: "Scale" };
const WORDS = {
  rotation: (value) => `${signed(value, 0)}°`,
  x: (value) => `${signed(value, 1)} px`,
  y: (value) => `${signed(value, 1)} px`,
  shear: (value) => `${signed(value, 0)}°`,
  scale: (value) => `× ${fixed(value)}`,
};
const AXES = {
  rotation: "degrees, clockwise",
  x: "pixels to the right",
  y: "pixels down",
  shear: "degrees",
  scale: "times as large",
};

/** A change in words. */
export const moveWords = (move) =>
  MOVES.filter((name) => move[name] !== STILL[name])
    .map((name) => `${NAMES[name].toLowerCase()} ${WORDS[name](move[name])}`)
    .join(", ");

/** What became of the answer. */
export function movedWords(run, { before, after }, move) {
  const name = (sight) => run.class_names[sight.answer];
  if (!isMoved(move))
    return "Move a slider: the image is changed, and its tree beside the original’s shows whether the capsules notice.";
  const how = moveWords(move);
  if (before.answer === after.answer)
    return `With ${how} it still says ${name(before)}: ${percent(before.confidence)} before, ${percent(after.confidence)} now.`;
  return `With ${how} it says ${name(after)} (${percent(after.confidence)}) instead of ${name(before)}.`;
}

export class MoveView {
  title = "Move the world";
  #moved = null;
  #followed = null;

  constructor({ store, about }) {
    Object.assign(this, { store, about });
    this.query = new Query((answer) => this.#show(answer));
    this.follow = new Query((answer) => this.#showFollowed(answer));
    this.askFollow = settled((path, body) => this.follow.want(path, body), FOLLOW_AFTER);
    const set = (name) => (value) => store.set({ move: { ...store.state.move, [name]: value } });
    const ranges = {
      rotation: [-180, 180, 1],
      x: [-10, 10, 0.5],
      y: [-10, 10, 0.5],
      shear: [-60, 60, 1],
      scale: [0.4, 2.5, 0.01],
    };
    this.sliders = Object.fromEntries(
      MOVES.map((name) => {
        const [min, max, step] = ranges[name];
        return [
          name,
          slider({ label: NAMES[name], min, max, step, say: WORDS[name], oninput: set(name), neutral: STILL[name] }),
        ];
      }),
    );
    this.finding = new Finding();
    this.stills = [still("as it is"), still("moved")];
    this.trees = ["as it is", "moved"].map(
      (word) =>
        new TreeFigure({
          label: `Parse tree of the image ${word}`,
          pick: (capsule) => this.#mark(capsule),
          point: (capsule) => this.#mark(capsule),
        }),
    );
    this.sides = this.trees.map((tree, k) =>
      h(
        "section",
        { class: "card side", "aria-label": k ? "Moved" : "As it is" },
        h(
          "div",
          { class: "side-head" },
          this.stills[k].element,
          h("div", {}, h("h3", {}, k ? "Moved" : "As it is"), h("p", { class: "side-answer" })),
        ),
        tree.element,
      ),
    );
    this.kinship = kinships({ label: "correlation of activations by layer" });
    this.kinshipWords = h("p", { class: "note" });
    this.which = chooser(
      "Follow",
      MOVES.map((name) => [name, NAMES[name]]),
      (follow) => store.set({ follow }),
    );
    this.chart = lineChart({ label: "correlation over the change" });
    this.charts = h(
      "div",
      { class: "duo" },
      h(
        "section",
        { class: "card", "aria-label": "Correlation by layer" },
        h("h3", {}, "How alike the layers stay"),
        this.kinship.element,
        this.kinshipWords,
      ),
      h(
        "section",
        { class: "card", "aria-label": "Correlation over a growing change" },
        h("div", { class: "card-head" }, h("h3", {}, "While it changes"), this.which.element),
        this.chart.element,
      ),
    );
    this.none = h("div", { class: "card empty", hidden: true });
    this.pair = h("div", { class: "duo" }, ...this.sides);
    this.element = h(
      "div",
      { class: "stack" },
      h(
        "section",
        { class: "card", "aria-label": "Move the image" },
        h("div", { class: "movers" }, ...MOVES.map((name) => this.sliders[name].element)),
        h(
          "div",
          { class: "controls" },
          button("Put it back", () => store.set({ move: { ...STILL } })),
          this.finding.element,
        ),
      ),
      this.pair,
      this.none,
      this.charts,
    );
  }

  update(state, run) {
    // what another network said is not this one's.
    if (run !== this.run) [this.#moved, this.#followed] = [null, null];
    this.run = run;
    // of a run without images at hand nobody knows what two of them have in common.
    const mark = run.images > 0 ? " The mark is what two different test images have." : "";
    write(this.kinshipWords, `Correlation of each layer’s activations before and after.${mark}`);
    const hasTree = run.layers.length > 0;
    for (const tree of this.trees) tree.element.hidden = !hasTree;
    this.none.hidden = hasTree;
    this.charts.firstChild.hidden = !hasTree;
    if (!hasTree) this.none.replaceChildren(...noTree(run));
    const third = (side) => Math.round(side / 3);
    this.sliders.x.show(state.move.x, { min: -third(run.width), max: third(run.width) });
    this.sliders.y.show(state.move.y, { min: -third(run.height), max: third(run.height) });
    for (const name of ["rotation", "shear", "scale"]) this.sliders[name].show(state.move[name]);
    this.which.select.value = state.follow;
    const scene = { picture: state.picture, move: state.move };
    this.query.want(runPath(run.key, "move"), { scene, most: state.most });
    this.askFollow(runPath(run.key, "follow"), {
      scene: { ...scene, move: { ...state.move, [state.follow]: STILL[state.follow] } },
      view: state.follow,
    });
    if (this.#followed) this.#draw();
  }

  sight() {}

  leave() {
    this.query.drop();
    this.askFollow.drop();
    this.follow.drop();
  }

  said() {
    return moveWords(this.store.state.move) || "not moved";
  }

  figure() {
    if (this.#moved === null) return [];
    const { before, after } = this.#moved;
    const trees = this.run.layers.length > 0;
    const answer = (sight, k) => {
      const words = saysWords(this.run, sight);
      return trees ? { caption: words, svg: this.trees[k].svg } : { lines: [words], width: LETTER * words.length };
    };
    return [
      { caption: "as it is", pixels: before.image, side: 130 },
      answer(before, 0),
      { caption: "moved", pixels: after.image, side: 130 },
      answer(after, 1),
      ...(trees
        ? [
            { caption: "correlation by layer; the mark: of different test images", svg: this.kinship.svg, isFirst: true },
          ]
        : []),
      {
        caption: `while ${NAMES[this.store.state.follow].toLowerCase()} changes`,
        svg: this.chart.svg,
        legend: this.chart.legend(),
      },
    ];
  }

  #mark(capsule) {
    for (const tree of this.trees) tree.mark(capsule);
  }

  #show(moved) {
    this.#moved = moved;
    const { run } = this;
    [moved.before, moved.after].forEach((sight, k) => {
      this.stills[k].show(sight.image, k ? "moved" : "as it is");
      write(this.sides[k].querySelector(".side-answer"), `${run.class_names[sight.answer]} · ${percent(sight.confidence)}`);
    });
    this.#drawTrees();
    this.finding.show(movedWords(run, moved, this.store.state.move));
    const names = moved.layers.map((_, k) => layerName(run, k));
    if (moved.layers.length) {
      const words = moved.layers.map(
        (layer, k) =>
          `${names[k]}: ${fixed(layer.correlation)}${layer.chance === null ? "" : `, by chance ${fixed(layer.chance)}`}`,
      );
      this.kinship.show({ names, layers: moved.layers }, `Correlation of activations. ${words.join("; ")}`);
    }
  }

  #drawTrees() {
    const { before, after } = this.#moved;
    if (before.layers.length === 0 || before.layers.length !== this.run.layers.length) return;
    const full = sharedLines([before, after]);
    [before, after].forEach((sight, k) =>
      this.trees[k].show({ run: this.run, sight, iteration: null, weak: this.store.state.weak, capsule: null, full }),
    );
  }

  #showFollowed(followed) {
    this.#followed = followed;
    this.#draw();
  }

  #draw() {
    const { view, amounts, layers, scores } = this.#followed;
    if (view !== this.store.state.follow || layers.length !== this.run.layers.length) return;
    const lines = [
      ...layers.map((y, k) => ({ name: layerName(this.run, k), x: amounts, y })),
      { name: "confidence in the first answer", x: amounts, y: scores, isApart: true },
    ];
    const words = `${NAMES[view]}. ${lines.map((line) => lineWords(line, false)).join("; ")}`;
    this.chart.show(
      {
        lines,
        xLabel: AXES[view],
        yLabel: layers.length ? "correlation" : "confidence",
        range: [Math.min(0, ...lines.flatMap((line) => line.y)), 1],
        isShare: false,
        marker: this.store.state.move[view],
      },
      words,
    );
  }
}
