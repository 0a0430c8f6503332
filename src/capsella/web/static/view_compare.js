/** Two runs beside each other, on the same image. */

import { Answer, barRows, nameOf } from "./answer.js";
import { Query, runPath } from "./api.js";
import { chooser, count, h, percent, slider, write } from "./dom.js";
import { Finding } from "./finding.js";
import { Player } from "./player.js";
import { still } from "./pixels.js";
import { otherOf, runOf, sceneOf } from "./scene.js";
import { TreeFigure } from "./tree_figure.js";
import { sharedLines, stepsOf } from "./tree_layout.js";
import { routingWords, stepWords } from "./view_tree.js";

/** Whether two networks agree about an image, in a sentence. */
export function verdict(runs, sights) {
  const names = sights.map((sight, k) => nameOf(runs[k], sight.answer));
  const sure = sights.map((sight) => percent(sight.confidence));
  if (names[0] === names[1])
    return `Both say ${names[0]}: ${runs[0].title} is sure by ${sure[0]}, ${runs[1].title} by ${sure[1]}.`;
  return `${runs[0].title} says ${names[0]} (${sure[0]}), ${runs[1].title} says ${names[1]} (${sure[1]}).`;
}

/** What is different between two runs: [name, of the one, of the other]. */
export function differences(one, other) {
  const rows = (run) =>
    new Map([
      ["network", run.model],
      ["parameters", count(run.parameters)],
      ["tree", run.layers.length ? run.layers.map((layer) => layer.capsules).join(" → ") : "none"],
      ["images", `${run.data}, ${run.channels} × ${run.height} × ${run.width}`],
      ...run.facts,
    ]);
  const [a, b] = [rows(one), rows(other)];
  return [...new Set([...a.keys(), ...b.keys()])].map((name) => [name, a.get(name) ?? "–", b.get(name) ?? "–"]);
}

/** A name that may go on in the next line after each of its parts, and nowhere else. */
const breakable = (text) => text.split(/(?<=[_/-])/).flatMap((part, k) => (k === 0 ? [part] : [h("wbr"), part]));

/** One of the two. */
class Side {
  sight = null;

  constructor(view, word) {
    this.query = new Query((sight) => this.show(sight));
    this.view = view;
    this.title = h("h3", {});
    this.seen = still("what it sees");
    this.drawing = still("what it draws");
    this.answer = new Answer();
    this.tree = new TreeFigure({
      label: `Parse tree of the ${word} run`,
      pick: (capsule) => this.tree.mark(capsule),
      point: (capsule) => this.tree.mark(capsule),
    });
    this.routing = h("p", { class: "note" });
    this.element = h(
      "section",
      { class: "card side", "aria-label": `The ${word} run` },
      this.title,
      h(
        "div",
        { class: "side-body" },
        h("div", { class: "side-stills" }, this.seen.element, this.drawing.element),
        this.answer.element,
      ),
      this.tree.element,
      this.routing,
    );
  }

  update(state, about, run) {
    if (run !== this.run) this.sight = null;
    this.run = run;
    write(this.title, run.title);
    write(this.routing, run.layers.length ? routingWords(run) : `No parse tree: ${run.no_tree ?? "it has no capsules"}.`);
    this.tree.element.hidden = run.layers.length === 0;
    this.query.want(runPath(run.key, "see"), { scene: sceneOf(state, about), most: state.most, draw: 1 });
    if (this.sight) this.paint();
  }

  show(sight) {
    this.sight = sight;
    // the other's lines are drawn on the same scale.
    for (const side of this.view.sides) if (side.sight) side.paint();
    this.view.seen();
  }

  paint() {
    const { run, sight } = this;
    const full = this.view.fullLines();
    const { iteration, weak } = this.view.store.state;
    this.seen.show(sight.image, "what it sees");
    this.answer.show(run, sight);
    const [drawn] = sight.reconstructions;
    this.drawing.element.hidden = !drawn;
    if (drawn) this.drawing.show(drawn.image, "what it draws");
    if (run.layers.length) this.tree.show({ run, sight, iteration, weak, capsule: null, full });
  }
}

export class CompareView {
  title = "Compare";

  constructor({ store, about }) {
    Object.assign(this, { store, about });
    this.sides = ["first", "second"].map((word) => new Side(this, word));
    this.other = chooser("Beside it", [], (key) => store.set({ other: key }));
    this.player = new Player((iteration) => store.set({ iteration }));
    this.weak = slider({
      label: "Hide weak couplings",
      min: 0,
      max: 0.95,
      step: 0.01,
      say: (value) => `below ${Math.round(100 * value)} %`,
      oninput: (weak) => store.set({ weak }),
    });
    this.finding = new Finding();
    this.table = h("table", { class: "data pair" });
    this.none = h(
      "div",
      { class: "card empty", hidden: true },
      h("h3", {}, "One run alone"),
      h("p", {}, "Name two runs to see them side by side:"),
      h("p", {}, h("code", {}, "capsella explore RUN OTHER")),
    );
    this.body = h(
      "div",
      { class: "stack" },
      h(
        "section",
        { class: "card", "aria-label": "What is compared" },
        h("div", { class: "controls" }, this.other.element, this.weak.element),
        this.player.element,
        this.finding.element,
      ),
      h("div", { class: "duo" }, ...this.sides.map((side) => side.element)),
      h(
        "section",
        { class: "card", "aria-label": "The runs" },
        h("h3", {}, "The runs"),
        h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The runs in a table" }, this.table),
      ),
    );
    this.element = h("div", {}, this.none, this.body);
  }

  update(state, run) {
    const key = otherOf(state, this.about);
    this.body.hidden = key === null;
    this.none.hidden = key !== null;
    if (key === null) return;
    const other = runOf(this.about, key);
    const options = this.about.runs.filter((each) => each !== run).map((each) => [each.key, each.title]);
    if (this.options !== JSON.stringify(options)) {
      this.options = JSON.stringify(options);
      this.other.fill(options);
    }
    this.other.select.value = key;
    this.weak.show(state.weak);
    this.sides[0].update(state, this.about, run);
    this.sides[1].update(state, this.about, other);
    const hasTree = run.layers.length > 0 || other.layers.length > 0;
    this.weak.element.hidden = !hasTree;
    this.player.element.hidden = !hasTree;
    this.#table(run, other);
    this.seen();
  }

  sight() {}

  leave() {
    this.player.stop();
    for (const side of this.sides) side.query.drop();
  }

  noFigure() {
    return otherOf(this.store.state, this.about) === null ? "One run alone has nothing beside it that could be saved." : null;
  }

  figure() {
    return this.sides
      .filter((side) => side.sight)
      .flatMap((side) => [
        { caption: side.run.title, lines: answerLines(side.run, side.sight), width: 240, isFirst: true },
        { caption: "what it sees", pixels: side.sight.image, side: 140 },
        ...side.sight.reconstructions.slice(0, 1).map((each) => ({ caption: "what it draws", pixels: each.image, side: 140 })),
        side.run.layers.length
          ? { caption: stepWords(side.sight, this.store.state.iteration), svg: side.tree.svg }
          : { caption: "how sure it is of each class", bars: barRows(side.run, side.sight) },
      ]);
  }

  /** One scale for both trees, where they can be compared at all. */
  fullLines() {
    const sights = this.sides.map((side) => side.sight);
    const gaps = sights.map((sight) => sight?.couplings.length ?? 0);
    return gaps[0] > 0 && gaps[0] === gaps[1] ? sharedLines(sights) : undefined;
  }

  seen() {
    const sights = this.sides.map((side) => side.sight);
    if (sights.includes(null)) return;
    this.finding.show(
      verdict(
        this.sides.map((side) => side.run),
        sights,
      ),
    );
    this.player.show(Math.max(...sights.map(stepsOf)), this.store.state.iteration);
  }

  #table(run, other) {
    const key = `${run.key} ${other.key}`;
    if (key === this.key) return;
    this.key = key;
    const head = ["", run.title, other.title].map((text) => h("th", { scope: "col" }, breakable(text)));
    const rows = differences(run, other).map(([name, a, b]) =>
      h("tr", { class: a === b ? "" : "differs" }, h("th", { scope: "row" }, name), ...[a, b].map((value) => h("td", {}, breakable(value)))),
    );
    this.table.replaceChildren(h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows));
  }
}

const answerLines = (run, sight) => [
  `says ${nameOf(run, sight.answer)}`,
  `sure by ${percent(sight.confidence)}`,
  ...(sight.label_name === null ? [] : [`the test set says ${sight.label_name}`]),
];
