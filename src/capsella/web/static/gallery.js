/** Test images to pick from, by class, answer, mistake and confidence. */

import { Query, runPath } from "./api.js";
import { button, chooser, count, h, percent, tick, write } from "./dom.js";
import { settled } from "./motion.js";
import { imagePath } from "./pictures.js";

const LIMIT = 20;

/** The kind under which a test image is dragged: its number. */
export const DRAGGED = "text/x-capsella-image";
const LOOK_AGAIN = 3000;

/** What is asked for a page of images. */
export function galleryQuery({ label, answer, mistakes, order, offset }, limit = LIMIT) {
  const asked = new URLSearchParams({ order, offset, limit });
  if (label !== null) asked.set("label", label);
  if (answer !== null) asked.set("answer", answer);
  if (mistakes) asked.set("mistakes", "true");
  return `images?${asked}`;
}

/** What is true of an image, in words. */
export function imageWords(run, image) {
  const truth = image.label_name === null ? "" : `, class ${image.label_name}`;
  const answer =
    image.answer === null ? "" : `, taken for ${run.class_names[image.answer]}, sure by ${percent(image.confidence)}`;
  return `Test image ${image.index}${truth}${answer}`;
}

/** Why a run has no images to pick. */
export const noneWords = (run) =>
  `There are none to pick${run.away === null ? "" : `: ${run.away}`}. Drawings and image files can be shown to it all the same.`;

export class GalleryPicker {
  #state = null;
  #run = null;

  /** @param {{change: (gallery: object) => void, pick: (index: number) => void}} options */
  constructor({ change, pick }) {
    this.change = (patch) => change({ ...this.#state, offset: 0, ...patch });
    this.pick = pick;
    this.query = new Query((answer) => this.#show(answer));
    const number = (text) => (text === "" ? null : Number(text));
    this.label = chooser("Class", [], (value) => this.change({ label: number(value) }));
    this.answer = chooser("Answer", [], (value) => this.change({ answer: number(value) }));
    const orders = [
      ["index", "by number"],
      ["sure", "surest first"],
      ["unsure", "least sure"],
    ];
    this.order = chooser("Order", orders, (value) => this.change({ order: value }));
    this.mistakes = tick("Mistakes only", (value) => this.change({ mistakes: value }));
    this.list = h("ul", { class: "thumbs" });
    this.words = h("p", { class: "note" });
    this.back = button("←", () => this.change({ offset: Math.max(0, this.#state.offset - LIMIT) }), {
      "aria-label": "Earlier images",
      class: "small",
    });
    this.next = button("→", () => this.change({ offset: this.#state.offset + LIMIT }), {
      "aria-label": "Further images",
      class: "small",
    });
    this.lookAgain = settled(() => this.query.again(), LOOK_AGAIN);
    this.none = h("p", { class: "note" });
    this.some = h(
      "div",
      {},
      h("div", { class: "filters" }, this.label.element, this.answer.element, this.order.element, this.mistakes.element),
      this.list,
      h("div", { class: "pager" }, this.back, this.words, this.next),
    );
    this.element = h(
      "div",
      { class: "gallery" },
      this.none,
      this.some,
    );
  }

  update(run, gallery, chosen) {
    if (run !== this.#run) {
      const any = (names) => [["", "any"], ...names.map((name, k) => [k, name])];
      this.label.fill(any(run.data_classes));
      this.answer.fill(any(run.class_names));
      this.label.element.hidden = !run.has_classes;
      // of classes that it does not know, a network can say nothing wrong.
      this.mistakes.element.hidden = !run.judges;
      this.query.drop();
    }
    this.#run = run;
    this.#state = gallery;
    this.some.hidden = run.images === 0;
    this.none.hidden = run.images > 0;
    if (run.images === 0) {
      write(this.none, noneWords(run));
      this.leave();
      return;
    }
    this.label.select.value = gallery.label ?? "";
    this.answer.select.value = gallery.answer ?? "";
    this.order.select.value = gallery.order;
    this.mistakes.input.checked = gallery.mistakes;
    this.chosen = chosen;
    this.#markChosen();
    this.query.want(runPath(run.key, galleryQuery({ ...gallery, mistakes: gallery.mistakes && run.judges })));
  }

  leave() {
    this.query.drop();
    this.lookAgain.drop();
  }

  #show({ total, images, surveyed }) {
    const run = this.#run;
    const key = JSON.stringify([run.key, images]);
    if (key !== this.key) {
      this.key = key;
      this.list.replaceChildren(
        ...images.map((image) => {
          const words = imageWords(run, image);
          const isWrong = image.answer !== null && image.label !== null && image.answer !== image.label;
          const picture = h("img", {
            src: imagePath(run.key, image.index),
            alt: "",
            class: "pixels",
            loading: "lazy",
            width: 48,
            height: 48,
          });
          const choose = button([picture], () => this.pick(image.index), {
            class: `thumb${isWrong ? " is-wrong" : ""}`,
            "aria-label": words,
            title: words,
          });
          choose.dataset.index = image.index;
          choose.addEventListener("dragstart", (event) => event.dataTransfer.setData(DRAGGED, String(image.index)));
          return h("li", {}, choose);
        }),
      );
    }
    this.#markChosen();
    const { offset } = this.#state;
    const range = images.length ? `${count(offset + 1)}–${count(offset + images.length)} of ${count(total)}` : "none";
    const isLooking = surveyed.done < surveyed.of;
    write(this.words, isLooking ? `${range} · looked at ${count(surveyed.done)} of ${count(surveyed.of)}` : range);
    this.back.disabled = offset === 0;
    this.next.disabled = offset + images.length >= total;
    // while the test set is still looked at, more may fit.
    if (isLooking) this.lookAgain();
  }

  #markChosen() {
    for (const each of this.list.querySelectorAll(".thumb")) {
      const isChosen = Number(each.dataset.index) === this.chosen;
      if (isChosen) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    }
  }
}
