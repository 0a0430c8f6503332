/** A view as one picture in a file: its parts side by side, as SVG that needs nothing else, or as PNG. */

import { fixed, h, s } from "./dom.js";
import { toUri } from "./pixels.js";

const WIDE = 1180;
const GAP = 28;
const HEAD = 66;
const CAPTION = 22;
const FOOT = 34;
const PNG_SCALE = 2;
const ENTRY = 170;
const LINE = 20;
const BARS = { wide: 340, left: 120, right: 50, tall: 24 };
const LONGEST = 15;
const LETTER = 7.4;
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";

// what a stylesheet says of a picture's elements, as attributes that stand by themselves.
const LOOKS = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "opacity",
  "visibility",
  "font-size",
  "font-weight",
  "text-anchor",
];

/** A copy of an SVG that looks the same without the page's stylesheet. */
export function standalone(svg) {
  const copy = svg.cloneNode(true);
  const [ours, theirs] = [
    [svg, ...svg.querySelectorAll("*")],
    [copy, ...copy.querySelectorAll("*")],
  ];
  ours.forEach((element, k) => {
    const look = getComputedStyle(element);
    for (const name of [...theirs[k].getAttributeNames()]) {
      if (/^(class|id|tabindex|role|aria-)/.test(name)) theirs[k].removeAttribute(name);
    }
    for (const name of LOOKS) theirs[k].setAttribute(name, look.getPropertyValue(name));
    theirs[k].setAttribute("font-family", FONT);
  });
  return copy;
}

const box = (svg) => svg.viewBox.baseVal;

/**
 * Put parts into rows.
 *
 * @param parts [{caption, svg, legend?: [{swatch, name}]} | {caption, pixels, side?} | {caption, lines}
 *   | {caption, bars: [{name, value, isAnswer}]}]; a part may begin a row (`isFirst`)
 */
export function arrange(sizes, wide = WIDE) {
  let [x, y, tall, most] = [0, HEAD, 0, 0];
  const places = sizes.map(({ width, height, isFirst }) => {
    if (x > 0 && (isFirst || x + width > wide)) [x, y, tall] = [0, y + tall + GAP, 0];
    const place = { x, y };
    x += width + GAP;
    tall = Math.max(tall, height);
    most = Math.max(most, x - GAP);
    return place;
  });
  return { places, width: most, height: y + tall + FOOT };
}

/** A legend is written in as many columns as fit under its picture. */
const perRow = (width) => Math.max(1, Math.floor(width / ENTRY));
const rowsOf = (legend, width) => Math.ceil(legend.length / perRow(width));

/** How large a part is without its caption. */
function sizeOf(part) {
  if (part.svg) {
    const { width, height } = box(part.svg);
    return { width, height: height + CAPTION + LINE * rowsOf(part.legend ?? [], width) };
  }
  if (part.bars) return { width: BARS.wide, height: part.bars.length * BARS.tall + CAPTION };
  if (part.lines) return { width: part.width ?? 220, height: part.lines.length * 20 + CAPTION };
  const { width, height } = part.pixels;
  const side = part.side ?? 168;
  return { width: side, height: (side * height) / width + CAPTION };
}

/** The SVG text of a whole figure. @param {{title: string, subtitle: string, foot: string, parts: object[]}} what */
export function composed({ title, subtitle, foot, parts }) {
  const page = getComputedStyle(document.documentElement);
  const colour = (name) => resolved(page, name);
  const kept = parts.filter((part) => !part.svg || box(part.svg)?.width > 0);
  const sizes = kept.map((part) => ({ ...sizeOf(part), isFirst: part.isFirst }));
  const { places, width: filled, height } = arrange(sizes);
  // the subtitle is no picture, and is not to be cut off either.
  const wide = Math.max(420, filled, LETTER * subtitle.length);
  const [ink, muted] = [colour("--ink"), colour("--muted")];
  const text = (x, y, words, attributes) => s("text", { x, y, "font-family": FONT, fill: ink, ...attributes }, words);
  const drawn = kept.map((part, k) => {
    const { x, y } = places[k];
    const group = s(
      "g",
      { transform: `translate(${x} ${y})` },
      text(0, 13, part.caption ?? "", { "font-size": 13, fill: muted }),
    );
    const inner = s("g", { transform: `translate(0 ${CAPTION})` });
    if (part.svg) inner.append(standalone(part.svg), ...entries(part, text, muted));
    else if (part.bars) inner.append(...part.bars.flatMap((row, at) => bar(row, at * BARS.tall, text, colour)));
    else if (part.lines) inner.append(...part.lines.map((line, at) => text(0, 14 + 20 * at, line, { "font-size": 14 })));
    else {
      const { width } = sizes[k];
      inner.append(
        s("image", {
          href: toUri(larger(part.pixels, width)),
          width,
          height: sizes[k].height - CAPTION,
          "image-rendering": "pixelated",
        }),
      );
    }
    group.append(inner);
    return group;
  });
  const pad = 32;
  const [fullWidth, fullHeight] = [Math.ceil(wide + 2 * pad), Math.ceil(height + 2 * pad - 12)];
  const svg = s(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${fullWidth} ${fullHeight}`, width: fullWidth, height: fullHeight },
    s("title", {}, `${title}. ${subtitle}`),
    s("rect", { width: fullWidth, height: fullHeight, fill: colour("--ground") }),
    s(
      "g",
      { transform: `translate(${pad} ${pad})` },
      text(0, 20, title, { "font-size": 22, "font-weight": 650 }),
      text(0, 44, subtitle, { "font-size": 14, fill: muted }),
      ...drawn,
      text(0, height, foot, { "font-size": 12, fill: muted }),
    ),
  );
  return { text: new XMLSerializer().serializeToString(svg), width: fullWidth, height: fullHeight };
}

/** One class: its name, how sure the network is of it as a bar, and as a number. */
function bar({ name, value, isAnswer }, y, text, colour) {
  const whole = BARS.wide - BARS.left - BARS.right;
  const ink = isAnswer ? { "font-weight": 650, fill: colour("--accent") } : {};
  const track = (width, fill) => s("rect", { x: BARS.left, y: y + 4, width, height: 10, rx: 5, fill });
  const words = name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name;
  return [
    text(0, y + 14, words, { "font-size": 13, ...ink }),
    track(whole, colour("--line")),
    track((whole * (value ?? 0)).toFixed(1), colour(isAnswer ? "--accent" : "--muted")),
    text(BARS.wide, y + 14, fixed(value), { "font-size": 13, "text-anchor": "end", ...ink }),
  ];
}

/** A legend's entries, under its picture. */
function entries({ svg, legend = [] }, text, fill) {
  const { width, height } = box(svg);
  return legend.flatMap(({ swatch, name }, k) => {
    const [x, y] = [(k % perRow(width)) * ENTRY, height + 14 + LINE * Math.floor(k / perRow(width))];
    return [
      s("g", { transform: `translate(${x} ${y - 9})` }, standalone(swatch)),
      text(x + 34, y, name, { "font-size": 12, fill }),
    ];
  });
}

/** A colour of the page, as every program reads it. */
function resolved(page, name) {
  const probe = h("span", { hidden: true });
  probe.style.color = page.getPropertyValue(name);
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** The same picture with each pixel a square of several, for programs that would blur it. */
function larger({ height, width, channels, data }, wanted) {
  const bytes = data instanceof Uint8Array ? data : Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const times = Math.max(1, Math.round((2 * wanted) / width));
  const grown = new Uint8Array(bytes.length * times * times);
  for (let y = 0; y < height * times; y += 1) {
    for (let x = 0; x < width * times; x += 1) {
      const from = (Math.floor(y / times) * width + Math.floor(x / times)) * channels;
      for (let c = 0; c < channels; c += 1) grown[(y * width * times + x) * channels + c] = bytes[from + c];
    }
  }
  return { height: height * times, width: width * times, channels, data: grown };
}

const svgBlob = (text) => new Blob([text], { type: "image/svg+xml" });

/** Draw an SVG text as PNG. */
async function pngBlob({ text, width, height }) {
  const url = URL.createObjectURL(svgBlob(text));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = h("canvas", { width: width * PNG_SCALE, height: height * PNG_SCALE });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Hand a figure to the reader as a file. @param {"svg" | "png"} kind */
export async function save(what, name, kind) {
  const figure = composed(what);
  const blob = kind === "svg" ? svgBlob(figure.text) : await pngBlob(figure);
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: `${name}.${kind}` }).click();
  // the browser has taken it by then.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
