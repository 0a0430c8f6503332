/** Where the capsules of a tree stand and which couplings are drawn: pure functions of an answer. */

export const MOST_ROWS = 32;
/** Couplings that are drawn at once: more are a grey cloud, and no longer quick. */
export const MOST_EDGES = 4000;
/** Kinds of lines: what is between two of them is drawn as the nearer one. */
export const GRADES = 10;

const HEAD = 46;
const FOOT = 10;
const LEAST_ROW = 15;
const LARGEST_ROW = 38;
const LARGEST_RADIUS = 10;
const ASIDE = 15;

const largest = (values, least) => values.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), least);

/**
 * Place capsules: layers are columns from left to right, a layer of many capsules has several columns side by side.
 *
 * @param layers as the API has them: {shown, activations, dead}
 * @param width in pixels
 * @param right how much of it the names of the classes take
 * @returns {{height: number, columns: object[], nodes: object[][], radius: number}} nodes by layer
 */
export function place(layers, width, right) {
  const rows = layers.map((layer) => Math.min(layer.shown.length, MOST_ROWS));
  const most = Math.max(1, ...rows);
  const height = HEAD + FOOT + Math.max(180, most * Math.max(LEAST_ROW, Math.min(18, 460 / most)));
  const room = height - HEAD - FOOT;
  const files = layers.map((layer) => Math.max(1, Math.ceil(layer.shown.length / MOST_ROWS)));
  const radius = Math.min(LARGEST_RADIUS, (room / most) * 0.46);
  const wide = files.map((count) => (count - 1) * Math.min(ASIDE, (0.5 * width) / files.reduce((a, b) => a + b, 0)));
  const first = radius + 4 + Math.max(16, width > 560 ? 30 : 16);
  const free = width - first - right - radius - wide.reduce((a, b) => a + b, 0);
  const gap = layers.length > 1 ? free / (layers.length - 1) : 0;
  let left = first;
  const columns = layers.map((layer, k) => {
    const column = { left, right: left + wide[k], middle: left + wide[k] / 2 };
    left = column.right + gap;
    return column;
  });
  const nodes = layers.map((layer, k) => {
    const top = largest(layer.activations, 1e-9);
    // the disc of a layer's scale is full at 1, or at its strongest capsule where that is above 1.
    const scale = Math.max(1, top);
    const step = Math.min(room / rows[k], LARGEST_ROW);
    return layer.shown.map((number, at) => {
      const [file, row] = [Math.floor(at / rows[k]), at % rows[k]];
      const inFile = Math.min(rows[k], layer.shown.length - file * rows[k]);
      return {
        layer: k,
        number,
        x: columns[k].left + (files[k] > 1 ? (wide[k] * file) / (files[k] - 1) : 0),
        // every other column a little lower, so that lines pass between its capsules.
        y: HEAD + room / 2 + (row - (inFile - 1) / 2) * step + (file % 2 ? step / 3 : 0),
        activation: layer.activations[at],
        share: Math.sqrt(Math.max(0, layer.activations[at] ?? 0) / scale),
        isDead: layer.dead[at] === true,
      };
    });
  });
  return { height, columns, nodes, radius };
}

/** The couplings of each gap after an iteration, counted from 1; after the last one if null or where there are fewer. */
export const couplingsAt = (sight, iteration) =>
  sight.couplings.map((steps) => (steps.length ? steps[Math.min(iteration ?? steps.length, steps.length) - 1] : []));

/** How many iterations a tree can be stepped through. */
export const stepsOf = (sight) => sight.couplings.reduce((most, steps) => Math.max(most, steps.length), 0);

/**
 * The coupling with the full line in each gap: the strongest in any iteration, so that lines can be compared over all; twice
 * the mean where that is more, so that couplings which are all alike are not all strong.
 */
export const fullLines = (sight) => sight.couplings.map((steps) => Math.max(1e-9, ...steps.map(fullLine)));

function fullLine(step) {
  const values = step.flat().map((value) => Math.abs(value ?? 0));
  return values.length ? Math.max(largest(values, 0), (2 * values.reduce((a, b) => a + b, 0)) / values.length) : 0;
}

/** The full lines of several trees of one shape, so that they can be compared with each other. */
export const sharedLines = (sights) => sights.map(fullLines).reduce((a, b) => a.map((value, k) => Math.max(value, b[k] ?? 0)));

/**
 * How a line of a grade looks among so many: the more there are, the more the weak ones must step back.
 *
 * @returns {{"stroke-width": string, "stroke-opacity": string}}
 */
export function lineLook(grade, among) {
  const share = (grade + 1) / GRADES;
  const power = Math.min(4.5, Math.max(1.2, 1.2 + 0.8 * Math.log2(Math.max(1, among) / 40)));
  const strength = share ** power;
  return { "stroke-width": (0.6 + 2.2 * strength).toFixed(2), "stroke-opacity": (0.07 + 0.83 * strength).toFixed(3) };
}

/** Part of the way from one table of couplings to another of the same size. */
export const between = (from, to, share) =>
  to.map((gap, k) =>
    gap.map((row, i) => row.map((value, j) => (1 - share) * (from[k]?.[i]?.[j] ?? value ?? 0) + share * (value ?? 0))),
  );

/**
 * The lines of a tree, sorted into grades by their strength.
 *
 * @param gaps [gap][lower][upper]
 * @param full the coupling of the full line in each gap
 * @param weak share of the full line below which none is drawn
 * @returns {{grades: {k: number, i: number, j: number}[][], negative: object[][], drawn: number, left: number}}
 */
export function edges(gaps, full, weak, most = MOST_EDGES) {
  let left = 0;
  const found = gaps.flatMap((gap, k) => {
    const strong = [];
    gap.forEach((row, i) => {
      row.forEach((value, j) => {
        const share = Math.abs(value ?? 0) / full[k];
        if (share >= weak && share > 0) strong.push({ k, i, j, share, isNegative: value < 0 });
      });
    });
    // each gap has its part, or one of many capsules would leave nothing to the others.
    const room = Math.floor(most / gaps.length);
    if (strong.length > room) strong.sort((a, b) => b.share - a.share).length = room;
    left += gap.length * (gap[0]?.length ?? 0) - strong.length;
    return strong;
  });
  const make = () => Array.from({ length: GRADES }, () => []);
  const [grades, negative] = [make(), make()];
  for (const edge of found) {
    const grade = Math.min(GRADES - 1, Math.floor(edge.share * GRADES));
    (edge.isNegative ? negative : grades)[grade].push(edge);
  }
  return { grades, negative, drawn: found.length, left };
}

/** A line between two capsules, leaving and arriving level. */
export function curve(from, to) {
  const middle = ((from.x + to.x) / 2).toFixed(1);
  return `M${from.x.toFixed(1)} ${from.y.toFixed(1)}C${middle} ${from.y.toFixed(1)} ${middle} ${to.y.toFixed(1)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
}

/** The capsule nearest to a point; null where none is within reach. */
export function nearest(nodes, x, y, reach) {
  let [best, found] = [reach, null];
  for (const node of nodes.flat()) {
    const far = Math.hypot(node.x - x, node.y - y);
    if (far < best) [best, found] = [far, node];
  }
  return found;
}

/** The capsule to which an arrow key leads: along its layer, or to the capsule of the next layer that stands nearest. */
export function towards(nodes, from, key) {
  const layer = nodes[from.layer];
  const at = layer.findIndex((node) => node.number === from.number);
  const near = (other) => other && [...other].sort((a, b) => Math.abs(a.y - from.y) - Math.abs(b.y - from.y))[0];
  const found = {
    ArrowUp: layer[at - 1],
    ArrowDown: layer[at + 1],
    ArrowLeft: near(nodes[from.layer - 1]),
    ArrowRight: near(nodes[from.layer + 1]),
    Home: layer[0],
    End: layer.at(-1),
  }[key];
  return found ?? from;
}

/** The couplings of one capsule to the shown ones around it: [{layer, number, coupling}], the strongest first. */
export function partners(sight, gaps, layer, number) {
  const at = sight.layers[layer]?.shown.indexOf(number) ?? -1;
  if (at < 0) return [];
  const up = (gaps[layer]?.[at] ?? []).map((coupling, j) => ({
    layer: layer + 1,
    number: sight.layers[layer + 1].shown[j],
    coupling,
  }));
  const down =
    layer > 0
      ? (gaps[layer - 1] ?? []).map((row, i) => ({
          layer: layer - 1,
          number: sight.layers[layer - 1].shown[i],
          coupling: row[at],
        }))
      : [];
  return [...down, ...up].sort((a, b) => Math.abs(b.coupling ?? 0) - Math.abs(a.coupling ?? 0));
}
