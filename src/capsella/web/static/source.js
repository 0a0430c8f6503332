/** Where the image comes from: drawn, picked or uploaded; and beside it what the network says. */

import { Answer } from "./answer.js";
import { ask, runPath } from "./api.js";
import { Board } from "./board.js";
import { blank, centred, withChannels } from "./brush.js";
import { button, change, count, fixed, h, slider, write } from "./dom.js";
import { DRAGGED, GalleryPicker } from "./gallery.js";
import { say } from "./notice.js";
import { levelsOf } from "./pictures.js";
import { fromBase64, still, toBase64 } from "./pixels.js";
import { pictureName, runOf } from "./scene.js";

/** Levels as the API takes a drawing. */
export const drawn = (bytes, { height, width, channels }) => ({
  kind: "drawn",
  height,
  width,
  channels,
  data: toBase64(bytes),
});

/** The channels of a colour that the browser writes as #rrggbb. */
export const channelsOf = (text) => [1, 3, 5].map((at) => Number.parseInt(text.slice(at, at + 2), 16));

export class Source {
  #picture = null;
  #run = null;
  #before = null;

  constructor({ about, store }) {
    Object.assign(this, { about, store });
    this.board = new Board({
      draw: (bytes, size) => this.#drawn(bytes, size),
      tool: (isErasing) => change(this.eraser, { "aria-pressed": String(isErasing) }),
    });
    this.caption = h("p", { class: "note board-caption" });
    this.trip = h("p", { class: "note trip", title: "from the question to the answer" });
    this.undo = button("Undo", () => this.board.undo(), { class: "small" });
    this.eraser = button("Eraser", () => this.board.erase(), { class: "small", "aria-pressed": "false" });
    this.colour = h("input", { type: "color", value: "#ffffff", "aria-label": "Ink", oninput: () => this.#tint() });
    this.brush = slider({
      label: "Brush",
      min: 0.5,
      max: 2.5,
      step: 0.1,
      say: (value) => fixed(value, 1),
      oninput: (value) => {
        this.board.thickness = value;
        this.brush.show(value);
      },
    });
    this.brush.show(1);
    this.file = h("input", {
      type: "file",
      accept: "image/*",
      class: "unseen",
      tabindex: -1,
      "aria-hidden": "true",
      onchange: () => this.#upload(this.file.files[0]),
    });
    this.gallery = new GalleryPicker({
      change: (gallery) => store.set({ gallery }),
      pick: (index) => this.#pick(index),
    });
    this.answer = new Answer({ isLoud: true });
    this.drawing = still("what the decoder draws");
    const tools = [
      button("Clear", () => this.#clear(), { class: "small" }),
      this.undo,
      this.eraser,
      button("Centre", () => this.board.replace(centred(this.board.bytes, this.board.size)), {
        class: "small",
        title: "put the middle of its mass in the middle",
      }),
      button("Invert", () => this.board.replace(this.board.bytes.map((level) => 255 - level)), { class: "small" }),
      this.colour,
    ];
    this.random = button("Random test image", () => this.#random());
    const others = [
      this.random,
      button("Upload…", () => this.file.click(), { title: "or drop an image file on the board" }),
      this.file,
    ];
    const box = this.board.element;
    box.addEventListener("dragover", (event) => event.preventDefault());
    box.addEventListener("drop", (event) => {
      event.preventDefault();
      // one of the gallery's comes as a file, too.
      if (event.dataTransfer.types.includes(DRAGGED)) this.#pick(Number(event.dataTransfer.getData(DRAGGED)));
      else this.#upload(event.dataTransfer.files[0]);
    });
    const heading = (text, id) => h("h2", { id, class: "quiet" }, text);
    // by mouse a thumbnail is dragged on the stage; by key and touch it is picked, and then made the second.
    this.second = button("As the second image", () => this.#asSecond(), { class: "small as-second", hidden: true });
    this.pickBox = h(
      "details",
      { class: "card fold", open: true, ontoggle: () => this.update(store.state) },
      h("summary", {}, h("h2", {}, "Test images")),
      this.gallery.element,
      this.second,
    );
    this.element = h(
      "aside",
      { class: "source", "aria-label": "Image and answer" },
      h(
        "section",
        { class: "card", "aria-labelledby": "image-heading" },
        heading("Draw or pick", "image-heading"),
        box,
        this.caption,
        h("div", { class: "tools" }, ...tools),
        this.brush.element,
        h("div", { class: "tools" }, ...others),
      ),
      h(
        "section",
        { class: "card says", "aria-labelledby": "answer-heading" },
        h("div", { class: "says-head" }, heading("The network says", "answer-heading"), this.trip),
        h("div", { class: "says-body" }, this.answer.element, this.drawing.element),
      ),
      this.pickBox,
    );
    // on a phone the gallery would push everything else away.
    if (matchMedia("(max-width: 60rem)").matches) this.pickBox.open = false;
  }

  update(state) {
    const run = runOf(this.about, state.run);
    this.#offerSecond(state);
    if (run !== this.#run) {
      this.#run = run;
      this.colour.hidden = run.channels !== 3;
      this.random.hidden = run.images === 0;
    }
    if (state.picture !== this.#picture) {
      this.#picture = state.picture;
      this.#show(state.picture);
    }
    this.undo.disabled = !this.board.canUndo;
    if (this.pickBox.open) this.gallery.update(run, state.gallery, this.#chosen(run, state.picture));
    else this.gallery.leave();
  }

  /** Which of a run's test images is shown; networks of the same set have the same. */
  #chosen(run, picture) {
    if (picture.kind !== "test") return null;
    const { data, split } = runOf(this.about, picture.run);
    return data === run.data && split === run.split ? picture.index : null;
  }

  sight(run, sight, trip) {
    this.answer.show(run, sight);
    write(this.trip, `${Math.round(trip)} ms`);
    const [first] = sight.reconstructions;
    this.drawing.element.hidden = first === undefined;
    if (first) this.drawing.show(first.image, `its decoder draws ${run.class_names[first.class]}`);
  }

  async #show(picture) {
    const run = runOf(this.about, picture.kind === "test" ? picture.run : this.#run.key);
    write(
      this.caption,
      picture.kind === "test"
        ? `Test image ${count(picture.index)} of ${run.data}. Draw on it, or clear it.`
        : "Your own image.",
    );
    // one's own stroke comes back by the state; it is on the board already.
    if (picture === this.ownPicture) return;
    try {
      const levels = await levelsOf(picture);
      if (this.#picture !== picture) return;
      // drawn on in the network's channels.
      const channels = Math.max(levels.channels, this.#run.channels);
      this.board.show(
        withChannels(levels.data, levels.channels, channels),
        { ...levels, data: undefined, channels },
        pictureName(picture),
      );
    } catch {
      say(`${pictureName(picture)} cannot be shown.`);
    }
  }

  #drawn(bytes, size) {
    this.ownPicture = drawn(bytes, size);
    this.store.set({ picture: this.ownPicture });
  }

  #clear() {
    const { height, width, channels } = this.#run;
    this.board.replace(blank(height, width, channels), { height, width, channels });
  }

  #tint() {
    this.board.colour = channelsOf(this.colour.value);
  }

  #pick(index) {
    const { picture } = this.store.state;
    if (picture.kind !== "test" || picture.run !== this.#run.key || picture.index !== index) this.#before = picture;
    this.store.set({ picture: { kind: "test", run: this.#run.key, index } });
  }

  #offerSecond({ view, picture }) {
    this.second.hidden = view !== "overlap" || picture.kind !== "test";
    if (picture.kind === "test") write(this.second, `Test image ${count(picture.index)} as the second`);
  }

  /** Lay what was picked over what was there before it. */
  #asSecond() {
    const { picture } = this.store.state;
    this.store.set({ second: picture, picture: this.#before ?? picture });
    this.#before = null;
  }

  #random() {
    this.#pick(Math.floor(Math.random() * this.#run.images));
  }

  async #upload(file) {
    if (!file) return;
    this.file.value = "";
    const { upload_bytes: most } = this.about.limits;
    if (file.size > most) {
      say(`${file.name} has ${count(file.size)} bytes; expected at most ${count(most)}.`);
      return;
    }
    try {
      const pixels = await ask(runPath(this.#run.key, "upload"), {
        method: "POST",
        headers: { "content-type": file.type.startsWith("image/") ? file.type : "application/octet-stream" },
        body: file,
      });
      this.board.replace(fromBase64(pixels.data), { height: pixels.height, width: pixels.width, channels: pixels.channels });
    } catch (trouble) {
      say(trouble.message);
    }
  }
}
