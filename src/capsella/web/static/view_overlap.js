/** Overlap: a second digit is dropped on the first, and the network draws both. */

import { certainties, nameOf } from "./answer.js";
import { ask, runPath } from "./api.js";
import { button, chooser, clamp, fixed, h, slider, write } from "./dom.js";
import { Finding } from "./finding.js";
import { DRAGGED, galleryQuery, noneWords } from "./gallery.js";
import { say } from "./notice.js";
import { inked, inOrder, placed, shiftedBy } from "./overlap.js";
import { levelsOf } from "./pictures.js";
import { fromBase64, paint, still } from "./pixels.js";
import { secondOf } from "./scene.js";
import { ANY_IMAGE } from "./state.js";
import { TreeFigure } from "./tree_figure.js";

const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** What the network makes of both: its strongest class, or the two that it draws. */
export function strongestWords(run, sight) {
  const sure = certainties(sight);
  const named = (number) => `${nameOf(run, number)} (${fixed(sure[number])})`;
  const [first, second] = sight.reconstructions.map((each) => each.class);
  if (second === undefined) return `strongest class is ${named(sight.answer)}`;
  return `two strongest classes are ${named(first)} and ${named(second)}`;
}

/** The same in a sentence. */
export const overlapWords = (run, sight) => `Its ${strongestWords(run, sight)}.`;

export class OverlapView {
  title = "Overlap";
  #sight = null;
  #drag = null;
  #wanted = 0;

  constructor({ store, about }) {
    Object.assign(this, { store, about });
    this.canvas = h("canvas", {
      class: "pixels stage",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "stage",
      "aria-label": "Both images. Drag the second one, or move it with the arrow keys.",
      onpointerdown: (event) => this.#grab(event),
      onpointermove: (event) => this.#pull(event),
      onpointerup: () => (this.#drag = null),
      onpointercancel: () => (this.#drag = null),
      onkeydown: (event) => this.#press(event),
      ondragover: (event) => event.preventDefault(),
      ondrop: (event) => this.#drop(event),
    });
    const move = (name) => (value) => store.set({ [name]: value });
    const pixels = (value) => `${fixed(value, 0)} px`;
    this.x = slider({ label: "Right", min: -14, max: 14, step: 1, say: pixels, oninput: move("x"), neutral: 0 });
    this.y = slider({ label: "Down", min: -14, max: 14, step: 1, say: pixels, oninput: move("y"), neutral: 0 });
    this.which = chooser("Second image", [], () => this.#another());
    this.finding = new Finding();
    this.seen = still("what it sees");
    this.drawings = [still("–"), still("–")];
    this.both = still("both drawings");
    this.tree = new TreeFigure({
      label: "Parse tree of both images",
      pick: (capsule) => this.tree.mark(capsule),
      point: (capsule) => this.tree.mark(capsule),
    });
    this.treeCard = h(
      "section",
      { class: "card", "aria-label": "Parse tree" },
      h("h3", {}, "Its parse tree"),
      this.tree.element,
    );
    this.none = h("p", { class: "note" });
    this.how = h("span", {});
    this.another = button("Another", () => this.#another());
    this.element = h(
      "div",
      { class: "stack" },
      h(
        "section",
        { class: "card overlap", "aria-label": "Two images" },
        h(
          "figure",
          { class: "stage-box" },
          this.canvas,
          h(
            "figcaption",
            {},
            h("span", { class: "ink-first" }, "first"),
            " and ",
            h("span", { class: "ink-second" }, "second"),
            this.how,
          ),
        ),
        h(
          "div",
          { class: "stack tight" },
          h(
            "div",
            { class: "controls" },
            this.which.element,
            this.another,
            button("Swap", () => this.#swap()),
          ),
          this.x.element,
          this.y.element,
          this.finding.element,
          this.none,
        ),
      ),
      h(
        "section",
        { class: "card", "aria-label": "What it draws" },
        h("h3", {}, "What it draws"),
        h("div", { class: "quartet" }, this.seen.element, ...this.drawings.map((each) => each.element), this.both.element),
      ),
      this.treeCard,
    );
  }

  update(state, run) {
    if (run !== this.run) {
      this.run = run;
      this.#sight = null;
      this.which.fill([
        ["", run.has_classes ? "of any class" : "any"],
        ...(run.has_classes ? run.data_classes.map((name, k) => [k, name]) : []),
      ]);
      // of a run without images at hand there is none to choose.
      const hasImages = run.images > 0;
      this.which.element.hidden = this.another.hidden = !hasImages;
      write(this.how, hasImages ? ": drag the second, or drop a test image here" : ": drag the second");
      write(this.none, run.knobs ? "" : `${run.title} draws no single classes${run.decoder ? "" : ": it has no decoder"}.`);
      for (const each of [...this.drawings, this.both]) each.element.hidden = !run.knobs;
      this.treeCard.hidden = run.layers.length === 0;
    }
    const half = (side) => Math.round(side / 2);
    this.x.show(state.x, { min: -half(run.width), max: half(run.width) });
    this.y.show(state.y, { min: -half(run.height), max: half(run.height) });
    this.#stage(state);
  }

  sight(sight, run) {
    this.#sight = sight;
    this.finding.show(overlapWords(run, sight));
    this.seen.show(sight.image, "what it sees");
    if (run.layers.length) this.tree.show({ run, sight, iteration: null, weak: this.store.state.weak, capsule: null });
    this.#draw();
  }

  leave() {
    this.#drag = null;
  }

  said() {
    return strongestWords(this.run, this.#sight);
  }

  figure() {
    if (!this.#sight || !this.levels) return [];
    const drawings = this.drawnPixels ?? [];
    return [
      { caption: "first and second", pixels: this.stagePixels },
      { caption: "what it sees", pixels: this.#sight.image },
      ...drawings.map(({ name, pixels }) => ({ caption: name, pixels })),
      ...(this.run.layers.length ? [{ caption: "parse tree", svg: this.tree.svg, isFirst: true }] : []),
    ];
  }

  async #stage(state) {
    const turn = (this.#wanted += 1);
    let both;
    try {
      both = await Promise.all([state.picture, secondOf(state, this.about)].map(levelsOf));
    } catch {
      say("one of the two images cannot be shown.");
      return;
    }
    if (turn !== this.#wanted) return;
    const { run } = this;
    const [first, second] = both.map((levels) => placed(levels, run));
    this.levels = [first, shiftedBy(second, run, state.x, state.y)];
    this.stagePixels = inked(...this.levels, run);
    paint(this.canvas, this.stagePixels);
    this.#draw();
  }

  /** The drawings, each in the ink of the image that it is of. */
  #draw() {
    if (this.#sight === null || this.levels === undefined) return;
    const { run } = this;
    const found = this.#sight.reconstructions;
    const sizes = found.every(({ image }) => image.height === run.height && image.width === run.width);
    if (found.length < 2 || !sizes) return;
    const grey = found.map(({ image }) => placed({ ...image, data: fromBase64(image.data) }, run));
    const isInOrder = inOrder(grey, this.levels);
    const order = isInOrder ? [0, 1] : [1, 0];
    const black = new Uint8Array(grey[0].length);
    const inks = [inked(grey[order[0]], black, run), inked(black, grey[order[1]], run)];
    this.drawnPixels = order.map((k, at) => ({ name: `as class ${nameOf(run, found[k].class)}`, pixels: inks[at] }));
    this.drawnPixels.forEach(({ name, pixels }, at) => this.drawings[at].show(pixels, name));
    const pixels = inked(grey[order[0]], grey[order[1]], run);
    this.both.show(pixels, "both drawings");
    this.drawnPixels.push({ name: "both drawings", pixels });
  }

  // --- moving the second ------------------------------------------------------------------------------------------

  #bounded(x, y) {
    const [wide, tall] = [Math.round(this.run.width / 2), Math.round(this.run.height / 2)];
    this.store.set({ x: clamp(Math.round(x), -wide, wide), y: clamp(Math.round(y), -tall, tall) });
  }

  #grab(event) {
    if (event.button !== 0 || !event.isPrimary) return;
    this.canvas.setPointerCapture(event.pointerId);
    const { x, y } = this.store.state;
    this.#drag = { left: event.clientX, top: event.clientY, x, y };
  }

  #pull(event) {
    if (this.#drag === null) return;
    const box = this.canvas.getBoundingClientRect();
    const { left, top, x, y } = this.#drag;
    this.#bounded(
      x + ((event.clientX - left) / box.width) * this.run.width,
      y + ((event.clientY - top) / box.height) * this.run.height,
    );
  }

  #press(event) {
    const step = KEYS[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const { x, y } = this.store.state;
    this.#bounded(x + step[0], y + step[1]);
  }

  #drop(event) {
    const index = Number(event.dataTransfer.getData(DRAGGED));
    if (!event.dataTransfer.types.includes(DRAGGED) || !Number.isInteger(index)) return;
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    // its middle is where it is dropped.
    const [x, y] = [
      ((event.clientX - box.left) / box.width - 0.5) * this.run.width,
      ((event.clientY - box.top) / box.height - 0.5) * this.run.height,
    ];
    this.store.set({ second: { kind: "test", run: this.run.key, index } });
    this.#bounded(x, y);
  }

  #swap() {
    const { picture, x, y } = this.store.state;
    this.store.set({ picture: secondOf(this.store.state, this.about), second: picture, x: -x, y: -y });
  }

  /** Take another second image at random, of the class that was chosen. */
  async #another() {
    const { run } = this;
    const label = this.which.select.value === "" ? null : Number(this.which.select.value);
    const find = (offset) => ask(runPath(run.key, galleryQuery({ ...ANY_IMAGE, label, offset }, 1)));
    try {
      const { total } = await find(0);
      if (total === 0) throw new Error(label === null ? noneWords(run) : `No test image of class ${run.data_classes[label]}.`);
      const { images } = await find(Math.floor(Math.random() * total));
      this.store.set({ second: { kind: "test", run: run.key, index: images[0].index } });
    } catch (trouble) {
      say(trouble.message);
    }
  }
}
