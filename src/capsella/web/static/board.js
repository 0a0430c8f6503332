/** The drawing board: a canvas of the network's own pixels, for mouse, touch, pen and keyboard. */

import { blank, Stroke } from "./brush.js";
import { change, clamp, freshId, h, write } from "./dom.js";
import { paint } from "./pixels.js";

const MOST_UNDOS = 30;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Board {
  #stroke = null;
  #last = null;
  #undos = [];
  #cursor = null;
  #isDown = false;

  /**
   * @param {{draw: (bytes: Uint8Array, size: object) => void, tool: (isErasing: boolean) => void}} options called with every
   *   change by hand, and when the other end of the pencil is taken
   */
  constructor({ draw, tool }) {
    Object.assign(this, { draw, tool });
    this.size = { height: 28, width: 28, channels: 1 };
    this.bytes = blank(28, 28, 1);
    this.colour = [255, 255, 255];
    this.thickness = 1;
    this.isErasing = false;
    const help = freshId("help");
    this.canvas = h("canvas", {
      class: "pixels board",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "drawing board",
      "aria-label": "Drawing board",
      "aria-describedby": help,
      onpointerdown: (event) => this.#begin(event),
      onpointermove: (event) => this.#goOn(event),
      onpointerup: () => this.#end(),
      onpointercancel: () => this.#end(),
      onkeydown: (event) => this.#press(event),
      onblur: () => this.#lift(),
    });
    this.point = h("div", { class: "board-point", hidden: true });
    this.words = h("p", { class: "unseen", role: "status" });
    const text = "Arrow keys move a brush, space puts it down and lifts it, E takes the eraser, delete clears, Z undoes.";
    this.element = h(
      "div",
      { class: "board-box" },
      this.canvas,
      this.point,
      this.words,
      h("p", { id: help, class: "unseen" }, text),
    );
  }

  /** Show an image: levels of a size of their own. */
  show(bytes, size, name) {
    // one's own stroke is there already.
    if (this.bytes === bytes) return;
    this.bytes = bytes;
    this.size = size;
    this.#stroke = null;
    paint(this.canvas, { ...size, data: bytes });
    change(this.canvas, { "aria-label": `Drawing board, showing ${name}` });
  }

  /** Take the eraser, or lay it down. */
  erase() {
    this.isErasing = !this.isErasing;
    this.tool(this.isErasing);
  }

  get canUndo() {
    return this.#undos.length > 0;
  }

  undo() {
    const before = this.#undos.pop();
    if (before) this.#put(before.bytes, before.size);
  }

  clear() {
    this.replace(blank(this.size.height, this.size.width, this.size.channels));
  }

  /** Put another image in the place of this one, so that it can be undone. */
  replace(bytes, size = this.size) {
    this.#remember();
    this.#put(bytes, size);
  }

  #put(bytes, size) {
    this.bytes = bytes;
    this.size = size;
    paint(this.canvas, { ...size, data: bytes });
    this.draw(bytes, size);
  }

  #remember() {
    this.#undos.push({ bytes: this.bytes.slice(), size: this.size });
    if (this.#undos.length > MOST_UNDOS) this.#undos.shift();
  }

  get #ink() {
    const colour = this.size.channels === 3 ? this.colour : [Math.max(...this.colour)];
    return this.isErasing ? colour.map(() => 0) : colour;
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [
      ((event.clientX - box.left) / box.width) * this.size.width,
      ((event.clientY - box.top) / box.height) * this.size.height,
    ];
  }

  #start(at) {
    this.#remember();
    this.#stroke = new Stroke(this.size, this.bytes, this.#ink);
    this.#last = at;
    this.#to(at);
  }

  #to(at, thickness = this.thickness) {
    this.#put(this.#stroke.segment(this.#last, at, this.isErasing ? 1.6 * thickness : thickness).slice(), this.size);
    this.#last = at;
  }

  #begin(event) {
    if (event.button !== 0 || !event.isPrimary) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.#start(this.#place(event));
  }

  #goOn(event) {
    if (this.#stroke === null || !this.canvas.hasPointerCapture(event.pointerId)) return;
    const parts = event.getCoalescedEvents?.() ?? [];
    for (const part of parts.length ? parts : [event]) {
      // a pen says how hard it is pressed; a mouse always says one half.
      const pressure = event.pointerType === "pen" ? 0.5 + part.pressure : 1;
      this.#to(this.#place(part), this.thickness * pressure);
    }
  }

  #end() {
    if (!this.#isDown) this.#stroke = null;
  }

  // --- keys ---------------------------------------------------------------------------------------------------------

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { height, width } = this.size;
    this.#cursor ??= [Math.floor(width / 2) + 0.5, Math.floor(height / 2) + 0.5];
    const step = STEPS[event.key];
    if (step) {
      const fast = event.shiftKey ? 4 : 1;
      this.#cursor = [
        clamp(this.#cursor[0] + fast * step[0], 0.5, width - 0.5),
        clamp(this.#cursor[1] + fast * step[1], 0.5, height - 0.5),
      ];
      if (this.#isDown && this.#stroke) this.#to(this.#cursor);
    } else if (event.key === " ") {
      if (this.#isDown) this.#lift();
      else {
        this.#isDown = true;
        this.#start(this.#cursor);
      }
    } else if (event.key === "e" || event.key === "E") {
      this.#lift();
      this.erase();
    } else if (event.key === "Delete" || event.key === "Backspace") this.clear();
    else if (event.key === "z" || event.key === "Z") this.undo();
    else return;
    event.preventDefault();
    this.#tell();
  }

  #lift() {
    this.#isDown = false;
    this.#stroke = null;
    this.point.hidden = true;
  }

  #tell() {
    const [x, y] = this.#cursor;
    this.point.hidden = false;
    this.point.classList.toggle("is-down", this.#isDown);
    this.point.style.left = `${(100 * x) / this.size.width}%`;
    this.point.style.top = `${(100 * y) / this.size.height}%`;
    const tool = this.isErasing ? "eraser" : "brush";
    write(this.words, `column ${Math.ceil(x)}, row ${Math.ceil(y)}, ${tool} ${this.#isDown ? "down" : "up"}`);
  }
}
