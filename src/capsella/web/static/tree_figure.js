/** A parse tree as SVG: capsules are discs whose area is their activation, couplings are lines. */

import { change, count, fixed, freshId, h, s } from "./dom.js";
import { onWidth, wantsStillness } from "./motion.js";
import * as layout from "./tree_layout.js";

const REACH = 22;
const TWEEN = 420;
const LETTER = 7.6;
const VALUE = 44;

const short = (name, longest) => (name.length > longest ? `${name.slice(0, longest - 1)}…` : name);

/** Whether a layer's capsules are the classes. */
const isClasses = (run, layer) => layer === run.layers.length - 1 && run.layers[layer]?.capsules === run.class_names.length;

/** Whether a tree stands on the primary capsules, and not on what convolutions made of them. */
export const isWhole = (run) => run.layers[0]?.name === "primary";

/** The words for a layer, counted from the primary capsules; where these are not drawn, its own name in the network. */
export function layerName(run, k) {
  if (isClasses(run, k)) return "Classes";
  if (!isWhole(run)) return run.layers[k].name;
  return k === 0 ? "Primary" : `Layer ${k}`;
}

/** The words for a capsule: a class has a name. */
export function capsuleName(run, layer, number) {
  return isClasses(run, layer) ? `class ${run.class_names[number]}` : `capsule ${number}`;
}

export class TreeFigure {
  #shown = null;
  #place = null;
  #key = "";
  #width = 0;
  #gaps = [];
  #motion = 0;
  #active = null;
  #full = [];
  #pointed = null;
  #pinned = null;

  /** @param {{label: string, pick?: (capsule: number[] | null) => void, point?: (capsule: number[] | null) => void}} options */
  constructor({ label, pick = () => {}, point = () => {} }) {
    Object.assign(this, { label, pick, point });
    this.lines = s("g", { class: "lines" });
    this.marked = s("g", { class: "marked" });
    this.body = s("g");
    this.cursor = s("circle", { class: "cursor", visibility: "hidden" });
    this.svg = s(
      "svg",
      { class: "tree", role: "listbox", tabindex: 0, "aria-label": label, onkeydown: (event) => this.#press(event) },
      this.lines,
      this.marked,
      this.body,
      this.cursor,
    );
    this.svg.addEventListener("pointermove", (event) => event.pointerType !== "touch" && this.#pointTo(this.#at(event)));
    this.svg.addEventListener("pointerleave", () => this.#pointTo(null));
    this.svg.addEventListener("click", (event) => this.#choose(this.#at(event)));
    this.svg.addEventListener("focus", () => this.#focus());
    this.svg.addEventListener("blur", () => {
      this.#moveTo(null);
      this.#pointTo(null);
    });
    this.note = h("p", { class: "note" });
    this.element = h("div", { class: "tree-box" }, this.svg, this.note);
    onWidth(this.element, (width) => {
      this.#width = width;
      this.#draw();
    });
  }

  /** Show an answer. @param {{run: object, sight: object, iteration: number|null, weak: number, capsule: number[]|null, full?: number[]}} what */
  show(what) {
    const isStep = this.#shown?.sight === what.sight && this.#shown?.iteration !== what.iteration;
    this.#shown = what;
    this.#draw(isStep);
  }

  /** Mark another capsule without asking for a new picture. */
  mark(capsule) {
    if (this.#shown === null) return;
    this.#shown = { ...this.#shown, capsule };
    this.#mark();
  }

  #draw(isStep = false) {
    if (this.#shown === null || this.#width === 0) return;
    const { run, sight, iteration } = this.#shown;
    const whole = this.#names(run, sight);
    const right = Math.min(
      Math.max(110, 0.34 * this.#width),
      20 + VALUE + LETTER * Math.max(...whole.map((name) => name.length), 2),
    );
    // names of classes may take their part of the width, and no more of it.
    const names = whole.map((name) => short(name, Math.max(3, Math.floor((right - 20 - VALUE) / LETTER))));
    this.#place = layout.place(sight.layers, this.#width, right);
    this.#full = this.#shown.full ?? layout.fullLines(sight);
    const key = [this.#width, run.key, ...sight.layers.map((layer) => `${layer.shown}`)].join("|");
    if (key !== this.#key) {
      this.#key = key;
      this.#build(run, sight, names);
    }
    this.#paint(run, sight, names);
    cancelAnimationFrame(this.#motion);
    const gaps = layout.couplingsAt(sight, iteration);
    if (isStep && !wantsStillness()) this.#tween(this.#gaps, gaps);
    else this.#paintLines(gaps);
  }

  #names(run, sight) {
    const last = sight.layers.length - 1;
    return sight.layers[last].shown.map((number) =>
      run.layers[last].capsules === run.class_names.length ? run.class_names[number] : String(number),
    );
  }

  /** Make the elements; what changes from answer to answer of the same capsules is left to #paint. */
  #build(run, sight, names) {
    const { height, columns, nodes, radius } = this.#place;
    change(this.svg, { viewBox: `0 0 ${this.#width} ${height}`, width: this.#width, height });
    const word = freshId("capsule");
    const last = nodes.length - 1;
    this.marks = nodes.map((layer, k) =>
      layer.map((node, at) => {
        const ring = s("circle", { class: "ring", cx: node.x, cy: node.y, r: radius });
        const disc = s("circle", { class: "disc", cx: node.x, cy: node.y, r: 0 });
        const d = `M${node.x - radius} ${node.y - radius}l${2 * radius} ${2 * radius}m0 ${-2 * radius}l${-2 * radius} ${2 * radius}`;
        const cross = s("path", { class: "cross", d, visibility: "hidden" });
        const name = k === last ? s("text", { class: "class-name", x: node.x + radius + 9, y: node.y + 4.5 }) : null;
        const value = name && s("tspan", { class: "value", dx: 7 });
        name?.append(names[at], value);
        const group = s("g", { role: "option", id: `${word}-${k}-${node.number}`, class: "node" }, ring, disc, cross, name);
        return { group, disc, cross, value };
      }),
    );
    const narrow = columns.length > 2 && columns[1].middle - columns[0].middle < 78;
    const heads = columns.map((column, k) => {
      const anchor = k === 0 ? "start" : k === last ? "end" : "middle";
      const x =
        k === 0
          ? Math.max(2, narrow ? 0 : column.left - radius)
          : k === last
            ? Math.min(this.#width - 2, column.right + radius + 70)
            : column.middle;
      const { shown, capsules } = sight.layers[k];
      const many = shown.length < capsules ? `${shown.length} of ${count(capsules)}` : `${count(capsules)}`;
      return s(
        "g",
        { class: "head", "text-anchor": anchor, "aria-hidden": "true" },
        // where there is no room beside each other, every other name is a line lower.
        s("text", { x, y: narrow && k % 2 ? 30 : 14, class: "head-name" }, layerName(run, k)),
        narrow ? null : s("text", { x, y: 30 }, columns.length > 3 && this.#width < 520 ? many : `${many} capsules`),
      );
    });
    const groups = this.marks.map((layer, k) =>
      s("g", { role: "group", "aria-label": layerName(run, k) }, ...layer.map((mark) => mark.group)),
    );
    this.body.replaceChildren(...heads, ...groups);
    change(this.cursor, { r: radius + 4.5 });
  }

  #paint(run, sight) {
    const last = sight.layers.length - 1;
    const { radius } = this.#place;
    this.#place.nodes.forEach((layer, k) =>
      layer.forEach((node, at) => {
        const mark = this.marks[k][at];
        change(mark.disc, { r: (radius * node.share).toFixed(2) });
        change(mark.cross, { visibility: node.isDead ? "visible" : "hidden" });
        const dead = node.isDead ? ", dead" : "";
        change(mark.group, {
          "aria-label": `${capsuleName(run, k, node.number)}, activation ${fixed(node.activation)}${dead}`,
        });
        mark.group.classList.toggle("is-answer", k === last && node.number === sight.answer);
        mark.group.classList.toggle("is-dead", node.isDead);
        if (mark.value) mark.value.textContent = fixed(node.activation);
      }),
    );
    this.#mark(false);
  }

  #tween(from, to) {
    const begun = performance.now();
    const step = (now) => {
      const share = Math.min(1, Math.max(0, now - begun) / TWEEN);
      this.#paintLines(layout.between(from, to, share * (2 - share)));
      if (share < 1) this.#motion = requestAnimationFrame(step);
    };
    this.#motion = requestAnimationFrame(step);
  }

  #paintLines(gaps) {
    this.#gaps = gaps;
    const { nodes } = this.#place;
    const { grades, negative, drawn, left } = layout.edges(gaps, this.#full, this.#shown.weak);
    const path = (found) => found.map(({ k, i, j }) => layout.curve(nodes[k][i], nodes[k + 1][j])).join("");
    const paths = (table, kind) =>
      table.map((found, grade) =>
        found.length ? s("path", { class: `line${kind}`, ...layout.lineLook(grade, drawn), d: path(found) }) : null,
      );
    this.lines.replaceChildren(...[...paths(grades, ""), ...paths(negative, " negative")].filter(Boolean));
    const full = this.#full.map((value) => fixed(value)).join(", ");
    const hidden = left > 0 ? ` ${count(left)} weaker ${left === 1 ? "one is" : "ones are"} not drawn.` : "";
    const scale = `A line of full strength is a coupling of ${full}${this.#full.length > 1 ? ", from left to right" : ""}.`;
    this.note.textContent = scale + hidden;
    this.#markLines();
  }

  #mark(withLines = true) {
    const chosen = this.#shown.capsule;
    this.#place.nodes.forEach((layer, k) =>
      layer.forEach((node, at) => {
        const isChosen = chosen !== null && chosen !== undefined && chosen[0] === k && chosen[1] === node.number;
        this.marks[k][at].group.classList.toggle("is-chosen", isChosen);
        change(this.marks[k][at].group, { "aria-selected": String(isChosen) });
      }),
    );
    if (withLines) this.#markLines();
  }

  /** Draw the chosen capsule's couplings above all others. */
  #markLines() {
    const chosen = this.#shown.capsule;
    const { nodes } = this.#place;
    const at = chosen ? (nodes[chosen[0]]?.findIndex((node) => node.number === chosen[1]) ?? -1) : -1;
    this.lines.classList.toggle("is-behind", at >= 0);
    if (at < 0) {
      this.marked.replaceChildren();
      return;
    }
    const [layer] = chosen;
    const mark = (k, i, j, value) => {
      const share = Math.abs(value ?? 0) / this.#full[k];
      if (share < this.#shown.weak || share === 0) return null;
      const grade = Math.min(layout.GRADES - 1, Math.floor(share * layout.GRADES));
      return s("path", {
        class: `line${value < 0 ? " negative" : ""}`,
        ...layout.lineLook(grade, 1),
        d: layout.curve(nodes[k][i], nodes[k + 1][j]),
      });
    };
    const up = (this.#gaps[layer]?.[at] ?? []).map((value, j) => mark(layer, at, j, value));
    const down = layer > 0 ? (this.#gaps[layer - 1] ?? []).map((row, i) => mark(layer - 1, i, at, row[at])) : [];
    this.marked.replaceChildren(...[...up, ...down].filter(Boolean));
  }

  // --- pointing, tapping and keys ---------------------------------------------------------------------------------

  #at(event) {
    if (this.#place === null) return null;
    const box = this.svg.getBoundingClientRect();
    const scale = this.#width / box.width;
    return layout.nearest(this.#place.nodes, (event.clientX - box.left) * scale, (event.clientY - box.top) * scale, REACH);
  }

  #pointTo(node) {
    if (node?.layer === this.#pointed?.layer && node?.number === this.#pointed?.number) return;
    this.#pointed = node;
    this.svg.classList.toggle("is-pointing", node !== null);
    this.point(node && [node.layer, node.number]);
  }

  #choose(node) {
    // what is chosen already is let go.
    const isSame = node?.layer === this.#pinned?.[0] && node?.number === this.#pinned?.[1];
    this.#pinned = node && !isSame ? [node.layer, node.number] : null;
    this.pick(this.#pinned);
  }

  /** Tell which capsule was chosen elsewhere, by an address for one. */
  pin(capsule) {
    this.#pinned = capsule;
  }

  #node(capsule) {
    return capsule ? this.#place?.nodes[capsule[0]]?.find((node) => node.number === capsule[1]) : undefined;
  }

  #focus() {
    if (this.#place === null) return;
    const last = this.#place.nodes.at(-1);
    const strongest = [...last].sort((a, b) => b.share - a.share)[0];
    this.#moveTo(this.#node(this.#active) ?? this.#node(this.#shown.capsule) ?? strongest ?? null);
  }

  #moveTo(node) {
    if (node === null) {
      change(this.cursor, { visibility: "hidden" });
      return;
    }
    this.#active = [node.layer, node.number];
    change(this.cursor, { cx: node.x, cy: node.y, visibility: "visible" });
    const at = this.#place.nodes[node.layer].indexOf(node);
    change(this.svg, { "aria-activedescendant": this.marks[node.layer][at].group.id });
  }

  #press(event) {
    if (this.#place === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const node = this.#node(this.#active);
    if (event.key === "Escape") {
      this.#pointTo(null);
      this.#choose(null);
    } else if (node && (event.key === "Enter" || event.key === " ")) this.#choose(node);
    else if (node && /^(Arrow|Home|End)/.test(event.key)) {
      const next = layout.towards(this.#place.nodes, node, event.key);
      this.#moveTo(next);
      this.#pointTo(next);
    } else return;
    event.preventDefault();
  }
}
