/** Elements in one expression, and how numbers are written. */

const SVG = "http://www.w3.org/2000/svg";

function complete(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element: attributes by name, listeners as `onclick`, children as nodes or text. */
export const h = (tag, attributes = {}, ...children) => complete(document.createElement(tag), attributes, children);

/** The same for SVG. */
export const s = (tag, attributes = {}, ...children) => complete(document.createElementNS(SVG, tag), attributes, children);

/** Change the attributes of an element that is there. */
export const change = (element, attributes) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : value);
  }
};

/** Write text only where it differs, so that a screen reader is not told the same twice. */
export const write = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

let made = 0;

/** An id that no other element has. */
export const freshId = (word) => `${word}-${(made += 1)}`;

/** A number with a true minus; a dash for what is none. */
export const fixed = (value, digits = 2) =>
  value === null || value === undefined
    ? "–"
    : value
        .toFixed(digits)
        .replace(/^-(?=0\.?0*$)/, "")
        .replace("-", "−");

/** The same with its sign. */
export const signed = (value, digits = 2) => (value > 0 ? `+${fixed(value, digits)}` : fixed(value, digits));

export const percent = (value) =>
  value === null || value === undefined ? "–" : `${(100 * value).toFixed(value > 0 && value < 0.0995 ? 1 : 0)} %`;

/** A whole number in groups of three. */
export const count = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** Indices of the largest values, the largest first; what is no number comes last. */
export const ranked = (values) =>
  values
    .map((value, k) => [value ?? -Infinity, k])
    .sort((a, b) => b[0] - a[0] || a[1] - b[1])
    .map((pair) => pair[1]);

/**
 * A labelled slider with its value written beside it.
 *
 * @param {{label: string, min: number, max: number, step: number, say?: (value: number) => string,
 *   oninput: (value: number) => void, neutral?: number}} options with `neutral`, a button sets it back to that
 */
export function slider({ label, min, max, step, say = String, oninput, neutral }) {
  const id = freshId("slider");
  const output = h("output", { for: id });
  const input = h("input", { type: "range", id, min, max, step, oninput: () => oninput(Number(input.value)) });
  const reset = () => oninput(neutral);
  const back =
    neutral !== undefined &&
    h("button", { type: "button", class: "reset", "aria-label": `Reset ${label}`, title: "Reset", onclick: reset }, "↺");
  const element = h("div", { class: "slider" }, h("label", { for: id }, label), output, input, back);
  const show = (value, bounds = {}) => {
    change(input, bounds);
    input.value = value;
    if (back) back.disabled = value === neutral;
    input.setAttribute("aria-valuetext", say(value));
    write(output, say(value));
  };
  return { element, input, show };
}

/** A labelled choice of one of many: `options` are pairs of value and text. */
export function chooser(label, options, onchange) {
  const id = freshId("choice");
  const select = h("select", { id, onchange: () => onchange(select.value) });
  const fill = (pairs) => select.replaceChildren(...pairs.map(([value, text]) => h("option", { value }, text)));
  fill(options);
  return { element: h("div", { class: "field" }, h("label", { for: id }, label), select), select, fill };
}

/** A labelled box to tick. */
export function tick(label, onchange) {
  const input = h("input", { type: "checkbox", onchange: () => onchange(input.checked) });
  return { element: h("label", { class: "tick" }, input, h("span", {}, label)), input };
}

export const button = (text, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, text);
