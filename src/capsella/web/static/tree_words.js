/** A tree in words: the strongest capsules of each layer and where they send what they have. */

import { fixed, h } from "./dom.js";
import { couplingsAt, partners } from "./tree_layout.js";
import { capsuleName, layerName } from "./tree_figure.js";

const MOST = 6;

/** Rows of the table: {layer, capsule, activation, isDead, targets}. */
export function treeRows(run, sight, iteration, most = MOST) {
  const gaps = couplingsAt(sight, iteration);
  return sight.layers.flatMap((layer, k) => {
    const places = layer.shown.map((_, at) => at).sort((a, b) => (layer.activations[b] ?? 0) - (layer.activations[a] ?? 0));
    return places.slice(0, most).map((at) => ({
      layer: layerName(run, k),
      capsule: capsuleName(run, k, layer.shown[at]),
      activation: layer.activations[at],
      isDead: layer.dead[at] === true,
      targets: partners(sight, gaps, k, layer.shown[at])
        .filter((each) => each.layer > k)
        .slice(0, 2)
        .map((each) => `${capsuleName(run, each.layer, each.number)} (${fixed(each.coupling)})`),
    }));
  });
}

export class TreeWords {
  #shown = null;

  constructor(label = "The tree in words") {
    this.body = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label });
    this.element = h("details", { class: "fold words", ontoggle: () => this.#write() }, h("summary", {}, label), this.body);
  }

  show(run, sight, iteration) {
    this.#shown = { run, sight, iteration };
    this.#write();
  }

  #write() {
    // a table that nobody reads is not made while one draws.
    if (!this.element.open || this.#shown === null) return;
    const { run, sight, iteration } = this.#shown;
    const rows = treeRows(run, sight, iteration).map((row) =>
      h(
        "tr",
        {},
        h("td", {}, row.layer),
        h("th", { scope: "row" }, row.capsule),
        h("td", { class: "number" }, fixed(row.activation)),
        h("td", {}, row.isDead ? "dead" : row.targets.join(", ") || "–"),
      ),
    );
    const heads = ["Layer", "Capsule", "Activation", "Coupled most to"].map((text) => h("th", { scope: "col" }, text));
    const caption = h(
      "caption",
      {},
      `The strongest capsules of each layer${iteration === null ? "" : `, after iteration ${iteration}`}`,
    );
    this.body.replaceChildren(
      h("table", { class: "data" }, caption, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows)),
    );
  }
}
