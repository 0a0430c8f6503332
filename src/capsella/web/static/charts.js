/** Plots as SVG that take the width of their place: lines, and bars. */

import { change, clamp, fixed, h, percent, s } from "./dom.js";
import { onWidth } from "./motion.js";

const LEFT = 46;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 40;
const KINDS = 6;

/** Round numbers from one to another, about so many. */
export function ticks(low, high, about = 5) {
  if (!(high > low)) return [low];
  const raw = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const found = [];
  for (let k = first; k * step <= high + 1e-9 * step; k += 1) found.push(Number((k * step).toPrecision(12)));
  return found;
}

/** The round numbers of an axis that has two others between them. */
export function around(low, high, about = 5) {
  const [first, second] = ticks(low, high, about);
  const step = second === undefined ? 1 : second - first;
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
}

/** What an axis of shares covers: a little more than there is, and never so little that nothing looks like something. */
export function shareRange(low, high) {
  const room = Math.max(0.05 * (high - low), (0.1 - (high - low)) / 2, 0);
  return [Math.max(0, low - room), Math.min(1, high + room)];
}

/** Powers of ten around positive numbers. */
export function decades(low, high) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((to - from) / 6));
  return Array.from({ length: Math.floor((to - from) / every) + 1 }, (_, k) => 10 ** (from + k * every));
}

/** A number as an axis has it. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`.replace("-", "−");
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`.replace("-", "−");
  if (size > 0 && size < 1e-3) return value.toExponential(0).replace("-", "−").replace("e−", "e−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** A place that is drawn anew when its width or what it shows changes. */
function drawing(label, draw) {
  const svg = s("svg", { class: "plot", role: "img", "aria-label": label });
  let [width, data] = [0, null];
  const again = () => {
    if (width === 0 || data === null) return;
    const { height, parts } = draw(width, data);
    change(svg, { viewBox: `0 0 ${width} ${height}`, width, height });
    svg.replaceChildren(...parts);
  };
  const element = h("div", { class: "plot-box" }, svg);
  onWidth(element, (now) => {
    width = now;
    again();
  });
  const show = (given, words = label) => {
    data = given;
    change(svg, { "aria-label": words });
    again();
  };
  return { element, svg, show };
}

/**
 * Lines over numbers.
 *
 * @param {{label: string, height?: number}} options
 * @returns show({lines: [{name, x, y, isApart?}], xLabel, yLabel, isShare, isLog, marker}, words)
 */
export function lineChart({ label, height = 260 }) {
  const plot = drawing(label, (width, data) => ({ height, parts: lineParts(width, height, data) }));
  const legend = h("ul", { class: "legend" });
  let entries = [];
  const element = h("figure", { class: "figure" }, plot.element, legend);
  const show = (data, words) => {
    plot.show(data, words);
    const swatch = (line, k) =>
      s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("path", { class: kind(line, k), d: "M1 5H25" }));
    entries = data.lines.map((line, k) => ({ swatch: swatch(line, k), name: line.name }));
    legend.replaceChildren(...entries.map((entry) => h("li", {}, entry.swatch, entry.name)));
  };
  return { element, svg: plot.svg, show, legend: () => entries };
}

const kind = (line, k) => (line.isApart ? "series is-apart" : `series series-${k % KINDS}`);

function lineParts(width, height, { lines, xLabel, yLabel, isShare = false, isLog = false, marker = null, range = null }) {
  const known = lines.flatMap((line) => line.y.filter((value) => value !== null));
  const isPower = isLog && known.every((value) => value > 0);
  const xs = lines.flatMap((line) => line.x);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = range ?? [Math.min(...known), Math.max(...known)];
  if (isShare && range === null) [y0, y1] = shareRange(y0, y1);
  const many = Math.max(3, Math.round(height / 55));
  if (!isShare && !isPower && range === null) [y0, y1] = around(y0, y1, many);
  const yTicks = isPower ? decades(y0, y1) : ticks(y0, y1, many);
  if (isPower) [y0, y1] = [yTicks[0], yTicks.at(-1)];
  const scale = isPower ? Math.log10 : (value) => value;
  const across = (x) => LEFT + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (width - LEFT - RIGHT);
  const down = (y) =>
    height -
    BOTTOM -
    (scale(y1) > scale(y0) ? (scale(y) - scale(y0)) / (scale(y1) - scale(y0)) : 0.5) * (height - TOP - BOTTOM);
  const grid = yTicks.flatMap((value) => [
    s("path", { class: "grid", d: `M${LEFT} ${down(value)}H${width - RIGHT}` }),
    s("text", { x: LEFT - 7, y: down(value) + 4, "text-anchor": "end" }, isShare ? percentShort(value) : short(value)),
  ]);
  const xTicks = ticks(x0, x1, Math.max(3, Math.floor(width / 64))).map((value) =>
    s("text", { x: across(value), y: height - BOTTOM + 18, "text-anchor": "middle" }, short(value)),
  );
  const axes = [
    s("path", { class: "axis", d: `M${LEFT} ${height - BOTTOM}H${width - RIGHT}` }),
    s("text", { x: width - RIGHT, y: height - 5, "text-anchor": "end", class: "axis-label" }, xLabel),
    s("text", { x: 2, y: height - 5, class: "axis-label" }, `↑ ${yLabel}`),
  ];
  const drawn = lines.map((line, k) => {
    const points = line.x.map((x, i) => [across(x), line.y[i]]).filter(([, y]) => y !== null && (!isPower || y > 0));
    const d = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${down(y).toFixed(1)}`).join("");
    if (points.length === 1)
      return s("circle", { class: `${kind(line, k)} is-dot`, cx: points[0][0], cy: down(points[0][1]), r: 3.5 });
    return s("path", { class: kind(line, k), d: d || "M0 0" });
  });
  const now =
    marker === null
      ? []
      : [s("path", { class: "now", d: `M${across(Math.min(x1, Math.max(x0, marker)))} ${TOP}V${height - BOTTOM}` })];
  return [...grid, ...xTicks, ...axes, ...now, ...drawn];
}

const percentShort = (value) => `${Number((100 * value).toPrecision(3))} %`;

/** Bars up from a line: counts of a histogram. */
export function histogram({ label, height = 96 }) {
  return drawing(label, (width, { edges, counts }) => {
    const most = Math.max(1, ...counts);
    const room = height - 22;
    const step = (width - 2) / counts.length;
    const bars = counts.map((number, k) => {
      // one image among thousands is still to be seen.
      const tall = number === 0 ? 0 : Math.max(1.5, (number / most) * (room - 4));
      return s("rect", { class: "bar", x: 1 + k * step + 0.75, y: room - tall, width: Math.max(1, step - 1.5), height: tall });
    });
    const ends = [
      s("text", { x: 1, y: height - 5 }, short(edges[0])),
      s("text", { x: width - 1, y: height - 5, "text-anchor": "end" }, short(Number(edges.at(-1).toFixed(2)))),
    ];
    return { height, parts: [s("path", { class: "axis", d: `M0 ${room}H${width}` }), ...bars, ...ends] };
  });
}

/** Upright bars with a name under each, from zero up or down; the axis says how far the longest goes. */
export function columns({ label, height = 120 }) {
  return drawing(label, (width, { names, values }) => {
    const known = values.map((value) => value ?? 0);
    const high = Math.max(...known.map(Math.abs));
    const isSigned = known.some((value) => value < 0);
    const scale = columnScale(high, isSigned);
    const [head, left] = [7, 8 + 7.5 * Math.max(...scale.map(({ text }) => text.length))];
    const room = height - 20 - head;
    const long = isSigned ? room / 2 : room;
    const zero = head + long;
    const step = (width - left) / values.length;
    const shown = names.map((name) => (name.length > 8 ? `${name.slice(0, 7)}…` : name));
    const wide = shown.map((name) => 7.5 * name.length);
    const every = Math.ceil((Math.max(...wide) + 6) / step);
    const bars = known.map((value, k) => {
      const tall = high > 0 ? (Math.abs(value) / high) * long : 0;
      const title = s("title", {}, `${names[k]}: ${fixed(values[k])}`);
      return s(
        "rect",
        {
          class: `bar${value < 0 ? " negative" : ""}`,
          x: left + k * step + step * 0.14,
          y: value < 0 ? zero : zero - tall,
          width: step * 0.72,
          height: Math.max(tall, 0.5),
        },
        title,
      );
    });
    // the widest letters are about so much wider than the mean one.
    const place = (k) => clamp(left + (k + 0.5) * step, 0.65 * wide[k], width - 0.65 * wide[k]);
    const words = shown.map((name, k) =>
      k % every ? null : s("text", { x: place(k), y: height - 4, "text-anchor": "middle" }, name),
    );
    const axis = scale.flatMap(({ share, text }) => [
      s("path", { class: share === 0 ? "axis" : "grid", d: `M${left} ${zero - share * long}H${width}` }),
      s("text", { x: left - 6, y: zero - share * long + 4, "text-anchor": "end" }, text),
    ]);
    return { height, parts: [...axis, ...bars, ...words.filter(Boolean)] };
  });
}

/** What stands at an axis whose ends are as far as the longest bar: shares of its length, and numbers. */
export function columnScale(high, isSigned) {
  const text = short(Number(high.toPrecision(2)));
  const ends = high > 0 ? [{ share: 1, text }, ...(isSigned ? [{ share: -1, text: `−${text}` }] : [])] : [];
  return [{ share: 0, text: "0" }, ...ends];
}

/** How alike layers are, each beside what chance would give. */
export function kinships({ label }) {
  return drawing(label, (width, { names, layers }) => {
    const [row, left] = [34, Math.min(110, width * 0.3)];
    const long = width - left - 58;
    const parts = layers.flatMap(({ correlation, chance }, k) => {
      const y = k * row + 8;
      const mark =
        chance === null ? [] : [s("path", { class: "chance", d: `M${left + long * Math.max(0, chance)} ${y - 2}v18` })];
      return [
        s("text", { x: 0, y: y + 11 }, names[k]),
        s("rect", { class: "track", x: left, y, width: long, height: 14, rx: 7 }),
        s("rect", { class: "bar", x: left, y, width: long * Math.max(0, correlation ?? 0), height: 14, rx: 7 }),
        ...mark,
        s(
          "text",
          { x: width, y: y + 11, "text-anchor": "end", class: "value" },
          correlation === null ? "–" : fixed(correlation),
        ),
      ];
    });
    return { height: layers.length * row + 4, parts };
  });
}

/** Words for a line, for those who do not see it. */
export const lineWords = (line, isShare) => {
  const known = line.y.filter((value) => value !== null);
  const write = isShare ? percent : short;
  return known.length ? `${line.name}: from ${write(known[0])} to ${write(known.at(-1))}` : `${line.name}: nothing`;
};
