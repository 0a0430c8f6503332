/**
 * What is shown, and its address: everything that a colleague needs to see the same is in the fragment.
 *
 * @typedef {{kind: "test", run: string, index: number}
 *   | {kind: "drawn", height: number, width: number, channels: number, data: string}} Picture as the API takes it
 */

import { clamp } from "./dom.js";
import { fromBase64, pack, toBase64, unpack } from "./pixels.js";

export const VIEWS = ["tree", "knobs", "move", "compare", "overlap", "training"];
export const MOVES = ["rotation", "x", "y", "shear", "scale"];
export const STILL = Object.freeze({ rotation: 0, x: 0, y: 0, shear: 0, scale: 1 });
export const ORDERS = ["index", "sure", "unsure"];
export const ANY_IMAGE = Object.freeze({ label: null, answer: null, mistakes: false, order: "index", offset: 0 });

const MOST_SIDE = 512;
const WRITE_AFTER = 250;

/** What is shown when an address says nothing. */
export const initial = (run) => ({
  run,
  view: "tree",
  picture: { kind: "test", run, index: 0 },
  most: 32,
  weak: 0.01,
  iteration: null,
  capsule: null,
  negate: false,
  drawnClass: null,
  offsets: [],
  move: { ...STILL },
  follow: "rotation",
  other: null,
  second: null,
  x: 0,
  y: 0,
  gallery: { ...ANY_IMAGE },
});

/** The picture of a run until one is chosen: its first test image, or where it has none a black one. */
export function firstPicture(run) {
  if (run.images > 0) return { kind: "test", run: run.key, index: 0 };
  const [height, width, channels] = [Math.min(run.height, MOST_SIDE), Math.min(run.width, MOST_SIDE), run.channels === 3 ? 3 : 1];
  return { kind: "drawn", height, width, channels, data: toBase64(new Uint8Array(height * width * channels)) };
}

/** Write a picture in letters that an address takes as they are. */
function pictureText(picture) {
  if (picture === null) return null;
  if (picture.kind === "test") return `t.${picture.index}.${picture.run}`;
  return ["d", picture.height, picture.width, picture.channels, pack(fromBase64(picture.data))].join(".");
}

function readPicture(text, about) {
  const [kind, ...parts] = (text ?? "").split(".");
  if (kind === "t") {
    const [index, key] = [Number(parts[0]), parts.slice(1).join(".")];
    const run = about.runs.find((each) => each.key === key);
    return run && Number.isInteger(index) && index >= 0 && index < run.images ? { kind: "test", run: key, index } : null;
  }
  const [height, width, channels] = parts.map(Number);
  const fits = [height, width].every((side) => Number.isInteger(side) && side >= 1 && side <= MOST_SIDE);
  if (kind !== "d" || !fits || ![1, 3].includes(channels)) return null;
  const bytes = unpack(parts[3] ?? "", height * width * channels);
  return bytes && { kind: "drawn", height, width, channels, data: toBase64(bytes) };
}

/** Write a state as a fragment; what is as it would be anyway is left out. */
export function toFragment(state) {
  const plain = initial(state.run);
  const written = new URLSearchParams();
  const put = (name, value, usual) => {
    if (value !== null && value !== undefined && String(value) !== String(usual)) written.set(name, value);
  };
  written.set("run", state.run);
  written.set("view", state.view);
  put("pic", pictureText(state.picture));
  put("most", state.most, plain.most);
  put("weak", state.weak, plain.weak);
  put("step", state.iteration);
  put("capsule", state.capsule?.join("."));
  put("negate", state.negate ? 1 : null);
  put("class", state.drawnClass);
  put("knobs", state.offsets.some(Boolean) ? state.offsets.map((value) => Number(value.toFixed(3))).join("_") : null);
  for (const name of MOVES) put(name, state.move[name], STILL[name]);
  put("follow", state.follow, plain.follow);
  put("other", state.other);
  put("over", pictureText(state.second));
  put("ox", state.x, 0);
  put("oy", state.y, 0);
  put("label", state.gallery.label);
  put("answer", state.gallery.answer);
  put("mistakes", state.gallery.mistakes ? 1 : null);
  put("order", state.gallery.order, ANY_IMAGE.order);
  put("offset", state.gallery.offset, 0);
  return `#${written}`;
}

/** Read a fragment; whatever in it makes no sense is as if it were not there. */
export function fromFragment(fragment, about) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const isRun = (key) => about.runs.some((run) => run.key === key);
  const state = initial(isRun(given.get("run")) ? given.get("run") : about.runs[0].key);
  const among = (name, choices, usual) => (choices.includes(given.get(name)) ? given.get(name) : usual);
  const real = (name, usual, low, high) => {
    const value = Number.parseFloat(given.get(name) ?? "");
    return Number.isFinite(value) ? clamp(value, low, high) : usual;
  };
  const whole = (name, usual, low, high) => {
    const value = real(name, usual, low, high);
    return value === null ? null : Math.round(value);
  };
  state.view = among("view", VIEWS, state.view);
  state.picture = readPicture(given.get("pic"), about) ?? firstPicture(about.runs.find((run) => run.key === state.run));
  state.most = whole("most", state.most, 1, about.limits.most_shown);
  state.weak = real("weak", state.weak, 0, 1);
  state.iteration = whole("step", null, 1, 1000);
  if (/^\d{1,9}\.\d{1,9}$/.test(given.get("capsule") ?? "")) state.capsule = given.get("capsule").split(".").map(Number);
  state.negate = given.get("negate") === "1";
  state.drawnClass = whole("class", null, 0, 1e6);
  state.offsets = (given.get("knobs") ?? "")
    .split("_")
    .filter(Boolean)
    .map((text) => clamp(Number(text) || 0, -1, 1));
  const ranges = {
    rotation: [-180, 180],
    x: [-MOST_SIDE, MOST_SIDE],
    y: [-MOST_SIDE, MOST_SIDE],
    shear: [-80, 80],
    scale: [0.1, 10],
  };
  for (const name of MOVES) state.move[name] = real(name, STILL[name], ...ranges[name]);
  state.follow = among("follow", MOVES, state.follow);
  state.other = isRun(given.get("other")) ? given.get("other") : null;
  state.second = readPicture(given.get("over"), about);
  state.x = whole("ox", 0, -MOST_SIDE, MOST_SIDE);
  state.y = whole("oy", 0, -MOST_SIDE, MOST_SIDE);
  state.gallery = {
    label: whole("label", null, 0, 1e6),
    answer: whole("answer", null, 0, 1e6),
    mistakes: given.get("mistakes") === "1",
    order: among("order", ORDERS, ANY_IMAGE.order),
    offset: whole("offset", 0, 0, 1e9),
  };
  return state;
}

/** Where the browser goes back to: another run, view or picture is a step of its own, another stroke or degree is not. */
const place = ({ run, view, picture, other }) =>
  [run, view, picture.kind, picture.kind === "test" ? `${picture.run}.${picture.index}` : "", other].join("\n");

/** The state of the page, kept in its address. */
export class Store {
  #timer = 0;

  /** @param {(state: object) => void} changed called after every change, also by the browser's back and forward */
  constructor(about, changed) {
    this.about = about;
    this.changed = changed;
    this.state = fromFragment(location.hash, about);
    this.#write();
    addEventListener("hashchange", () => {
      if (location.hash === toFragment(this.state)) return;
      clearTimeout(this.#timer);
      this.state = fromFragment(location.hash, about);
      this.#write();
      this.changed(this.state);
    });
  }

  set(patch) {
    const before = this.state;
    const after = { ...before, ...patch };
    if (place(before) === place(after)) {
      clearTimeout(this.#timer);
      // browsers allow a page only so many changes of its address.
      this.#timer = setTimeout(() => this.#write(), WRITE_AFTER);
    } else {
      this.#write();
      history.pushState(null, "", toFragment(after));
    }
    this.state = after;
    this.changed(after);
  }

  /** The whole address of what is shown. */
  address() {
    this.#write();
    return location.origin + location.pathname + location.hash;
  }

  #write() {
    clearTimeout(this.#timer);
    if (location.hash !== toFragment(this.state)) history.replaceState(null, "", toFragment(this.state));
  }
}
