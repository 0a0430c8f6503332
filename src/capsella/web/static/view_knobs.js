/** Turn the knobs: each value of a class capsule, and what the decoder makes of it. */

import { saysWords } from "./answer.js";
import { Query, runPath } from "./api.js";
import { button, chooser, clamp, fixed, freshId, h, ranked, signed, slider } from "./dom.js";
import { settled } from "./motion.js";
import { paint, still } from "./pixels.js";

const FARTHEST = 0.5;
const STEP = 0.01;
const SHEET_AFTER = 300;

/** Class capsules with offsets on one of them; null values are none. */
export const turned = (capsules, drawnClass, offsets) =>
  capsules.map((row, k) => row.map((value, d) => (value ?? 0) + (k === drawnClass ? (offsets[d] ?? 0) : 0)));

/** Which tile of a sheet is at a place, given in shares of its sides. */
export const tileAt = (x, y, rows, columns) => [
  clamp(Math.floor(y * rows), 0, rows - 1),
  clamp(Math.floor(x * columns), 0, columns - 1),
];

const whyNone = (run) => (run.decoder ? "its decoder does not draw from class capsules" : "it has no decoder");

export class KnobsView {
  title = "Turn the knobs";
  #sight = null;
  #sheet = null;

  constructor({ store }) {
    this.store = store;
    this.drawing = new Query((answer) => this.#drawn(answer));
    this.plainDrawing = new Query((answer) => this.#drawnPlain(answer));
    this.sheetQuery = new Query((answer) => this.#showSheet(answer));
    this.askSheet = settled((path, body) => this.sheetQuery.want(path, body), SHEET_AFTER);
    this.chooser = chooser("Class capsule", [], (value) =>
      store.set({ drawnClass: value === "" ? null : Number(value), offsets: [] }),
    );
    this.original = still("original");
    this.plain = still("reconstruction");
    this.turnedStill = still("with the knobs turned");
    this.knobs = h("div", { class: "knobs" });
    this.canvas = h("canvas", { class: "pixels sheet", role: "img", onclick: (event) => this.#take(event) });
    this.mark = h("div", { class: "sheet-mark", hidden: true });
    this.rowNames = h("ol", { class: "sheet-rows", "aria-hidden": "true" });
    this.columnNames = h("div", { class: "sheet-columns", "aria-hidden": "true" });
    const id = freshId("sheet");
    this.none = h("div", { class: "card empty", hidden: true });
    this.body = h(
      "div",
      { class: "knobs-view" },
      h(
        "section",
        { class: "card", "aria-label": "Knobs" },
        h(
          "div",
          { class: "controls" },
          this.chooser.element,
          button("All to zero", () => store.set({ offsets: [] })),
          button("Shake", () => this.#shake(), { title: "turn every knob a little, at random" }),
        ),
        h("div", { class: "trio" }, this.original.element, this.plain.element, this.turnedStill.element),
        this.knobs,
      ),
      h(
        "section",
        { class: "card", "aria-labelledby": id },
        h("h3", { id }, "Contact sheet"),
        h(
          "p",
          { class: "note" },
          "A row for each value of the capsule, a column for each change of it. A click turns that knob.",
        ),
        h(
          "div",
          { class: "sheet-box" },
          this.rowNames,
          h("div", { class: "sheet-place" }, this.canvas, this.mark),
          this.columnNames,
        ),
      ),
    );
    this.element = h("div", {}, this.none, this.body);
  }

  update(state, run) {
    this.body.hidden = !run.knobs;
    this.none.hidden = run.knobs;
    const isNew = run !== this.run;
    this.run = run;
    // what another network said and drew is not this one's.
    if (isNew) [this.#sight, this.#sheet, this.pixels, this.plainPixels] = [null, null, null, null];
    if (!run.knobs) {
      this.leave();
      this.none.replaceChildren(h("h3", {}, "No knobs"), h("p", {}, `${run.title} has none: ${whyNone(run)}.`));
      return;
    }
    if (isNew) this.chooser.fill([["", "the answer"], ...run.class_names.map((name, k) => [k, name])]);
    this.chooser.select.value = state.drawnClass ?? "";
    this.#show();
  }

  sight(sight, run) {
    if (!run.knobs || sight.capsules === null) return;
    this.#sight = sight;
    this.#show();
  }

  leave() {
    this.drawing.drop();
    this.plainDrawing.drop();
    this.askSheet.drop();
    this.sheetQuery.drop();
  }

  noFigure(run) {
    return run.knobs ? null : `${run.title} has no knobs, and nothing of them to save: ${whyNone(run)}.`;
  }

  said() {
    return saysWords(this.run, this.#sight);
  }

  figure() {
    if (!this.#sight || !this.pixels || !this.plainPixels) return [];
    const { offsets } = this.store.state;
    const lines = offsets
      .map((value, d) => [d, value])
      .filter(([, value]) => value)
      .map(([d, value]) => `value ${d + 1}: ${signed(value)}`);
    return [
      { caption: "original", pixels: this.#sight.image },
      { caption: `class ${this.#name} as it is`, pixels: this.plainPixels },
      { caption: "with the knobs turned", pixels: this.pixels },
      { caption: "turned", lines: lines.length ? lines : ["nothing"] },
      ...(this.#sheet
        ? [
            {
              caption: `a row for each value, a column for each change, from ${signed(this.#sheet.offsets[0])} to ${signed(this.#sheet.offsets.at(-1))}`,
              pixels: this.#sheet.image,
              side: 560,
              isFirst: true,
            },
          ]
        : []),
    ];
  }

  get #class() {
    const chosen = this.store.state.drawnClass;
    return chosen !== null && chosen < this.run.class_names.length ? chosen : this.#sight.answer;
  }

  get #name() {
    return this.run.class_names[this.#class];
  }

  #show() {
    const sight = this.#sight;
    if (sight === null || sight.capsules === null) return;
    const { offsets } = this.store.state;
    const row = sight.capsules[this.#class];
    this.original.show(sight.image, "original");
    this.#build(row.length);
    row.forEach((_, d) => this.sliders[d].show(offsets[d] ?? 0));
    const ask = (offsetsOf) => ({ capsules: turned(sight.capsules, this.#class, offsetsOf), class: this.#class });
    this.drawing.want(runPath(this.run.key, "reconstruct"), ask(offsets));
    this.plainDrawing.want(runPath(this.run.key, "reconstruct"), ask([]));
    this.askSheet(runPath(this.run.key, "sheet"), ask([]));
    this.#markSheet();
  }

  /** A value of the capsule as the network has it. */
  #value(d) {
    return this.#sight?.capsules[this.#class][d] ?? 0;
  }

  #build(size) {
    if (this.sliders?.length === size) return;
    this.sliders = Array.from({ length: size }, (_, d) =>
      slider({
        label: `Value ${d + 1}`,
        min: -FARTHEST,
        max: FARTHEST,
        step: STEP,
        say: (offset) => `${fixed(this.#value(d) + offset)} (${signed(offset)})`,
        oninput: (offset) => this.#turn(d, offset),
        neutral: 0,
      }),
    );
    this.knobs.replaceChildren(...this.sliders.map((each) => each.element));
  }

  #turn(d, offset) {
    const offsets = Array.from({ length: this.sliders.length }, (_, k) => this.store.state.offsets[k] ?? 0);
    offsets[d] = offset;
    this.store.set({ offsets: offsets.some(Boolean) ? offsets : [] });
  }

  #shake() {
    if (!this.sliders) return;
    this.store.set({ offsets: this.sliders.map(() => Number((0.5 * FARTHEST * (2 * Math.random() - 1)).toFixed(2))) });
  }

  #drawn(answer) {
    this.pixels = answer.image;
    this.turnedStill.show(answer.image, "with the knobs turned");
  }

  #drawnPlain(answer) {
    this.plainPixels = answer.image;
    this.plain.show(answer.image, `drawn as class ${this.#name}`);
  }

  #showSheet(sheet) {
    this.#sheet = sheet;
    const { rows, offsets } = sheet;
    paint(this.canvas, sheet.image);
    this.canvas.setAttribute(
      "aria-label",
      `Drawings of class ${this.#name}: ${rows} values, each changed by ${offsets.map((offset) => signed(offset)).join(", ")}`,
    );
    if (this.rowNames.children.length !== rows)
      this.rowNames.replaceChildren(...Array.from({ length: rows }, (_, k) => h("li", {}, String(k + 1))));
    this.columnNames.replaceChildren(
      ...offsets.map((offset, k) => h("span", {}, (k - offsets.indexOf(0)) % 2 && offsets.length > 7 ? "" : signed(offset))),
    );
    this.#markSheet();
  }

  /** Frame the tile that is nearest to the knob that was turned last. */
  #markSheet() {
    const { offsets: turnedBy } = this.store.state;
    const moved = turnedBy.map((value, d) => [d, value]).filter(([, value]) => value);
    this.mark.hidden = this.#sheet === null || moved.length !== 1;
    if (this.mark.hidden) return;
    const [[d, value]] = moved;
    const { rows, offsets } = this.#sheet;
    const [nearest] = ranked(offsets.map((offset) => -Math.abs(offset - value)));
    const { style } = this.mark;
    style.left = `${(100 * nearest) / offsets.length}%`;
    style.top = `${(100 * d) / rows}%`;
    style.width = `${100 / offsets.length}%`;
    style.height = `${100 / rows}%`;
  }

  #take(event) {
    if (this.#sheet === null) return;
    const box = this.canvas.getBoundingClientRect();
    const { rows, offsets } = this.#sheet;
    const [d, k] = tileAt((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height, rows, offsets.length);
    this.store.set({ offsets: Array.from({ length: rows }, (_, at) => (at === d ? offsets[k] : 0)) });
  }
}
