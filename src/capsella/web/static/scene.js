/** From what is shown to what is asked: pure functions of the state. */

import { MOVES, STILL, firstPicture } from "./state.js";

export const runOf = (about, key) => about.runs.find((run) => run.key === key);

export const isMoved = (move) => MOVES.some((name) => move[name] !== STILL[name]);

/** The run beside which this one is seen; null where it is the only one. */
export const otherOf = (state, about) =>
  state.other !== null && state.other !== state.run
    ? state.other
    : (about.runs.find((run) => run.key !== state.run)?.key ?? null);

/** The second picture of an overlap: until one is chosen, the test image after the first. */
export function secondOf(state, about) {
  if (state.second !== null) return state.second;
  const run = runOf(about, state.picture.kind === "test" ? state.picture.run : state.run);
  if (state.picture.kind !== "test") return firstPicture(run);
  return { kind: "test", run: run.key, index: (state.picture.index + 1) % run.images };
}

/** What the network sees in a view, before it is moved. */
export function sceneOf(state, about) {
  if (state.view !== "overlap") return { picture: state.picture };
  return { picture: state.picture, over: { picture: secondOf(state, about), x: state.x, y: state.y } };
}

/** What is left when another run is shown: the image, and what means the same in every network. */
export const withRun = (state, key) => ({
  run: key,
  other: state.other === key ? state.run : state.other,
  capsule: null,
  drawnClass: null,
  offsets: [],
  iteration: null,
  gallery: { ...state.gallery, label: null, answer: null, offset: 0 },
});

/** What a figure that is saved is of: networks, images, and what is said of them. */
export function subtitle(state, about, said = "") {
  const titles = [state.run, state.view === "compare" ? otherOf(state, about) : null]
    .filter((key) => key !== null)
    .map((key) => runOf(about, key).title);
  if (state.view === "training") return titles[0];
  const name = (picture) =>
    picture.kind === "test" ? `${pictureName(picture)} of ${runOf(about, picture.run).data}` : pictureName(picture);
  const image =
    state.view === "overlap" ? `${name(state.picture)}, over it ${name(secondOf(state, about))}` : name(state.picture);
  return [titles.join(" and "), image, said].filter(Boolean).join(" · ");
}

/** A run's words for a test picture or a drawing. */
export const pictureName = (picture) => (picture.kind === "test" ? `test image ${picture.index}` : "drawing");
