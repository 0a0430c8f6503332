/** Grey levels: on the wire in base64, in addresses with runs of black in two bytes, on the page as a canvas. */

import { h } from "./dom.js";

export const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

export function toBase64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** Bytes for an address: a run of up to 255 zeros is a zero and its length. */
export function pack(bytes) {
  const packed = [];
  for (let k = 0; k < bytes.length; k += 1) {
    packed.push(bytes[k]);
    if (bytes[k] !== 0) continue;
    let length = 1;
    while (length < 255 && bytes[k + length] === 0) length += 1;
    packed.push(length);
    k += length - 1;
  }
  return toBase64(packed).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Read what `pack` wrote; null unless it is exactly so many bytes. */
export function unpack(text, size) {
  let packed;
  try {
    packed = fromBase64(text.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    return null;
  }
  const bytes = new Uint8Array(size);
  let at = 0;
  for (let k = 0; k < packed.length; k += 1) {
    if (packed[k] === 0) {
      k += 1;
      at += packed[k];
    } else {
      bytes[at] = packed[k];
      at += 1;
    }
  }
  return at === size ? bytes : null;
}

/** Paint grey levels or colours on a canvas, which takes their size. */
export function paint(canvas, { height, width, channels, data }) {
  const bytes = data instanceof Uint8Array ? data : fromBase64(data);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const image = new ImageData(width, height);
  for (let k = 0; k < width * height; k += 1) {
    for (let c = 0; c < 3; c += 1) image.data[4 * k + c] = bytes[channels * k + Math.min(c, channels - 1)];
    image.data[4 * k + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Lay how much each pixel matters over a picture, as warm as it matters. */
export function overlay(canvas, { height, width, data }) {
  const bytes = fromBase64(data);
  const heat = new OffscreenCanvas(width, height);
  const image = new ImageData(width, height);
  for (let k = 0; k < width * height; k += 1) image.data.set([255, 178, 36, 0.85 * bytes[k]], 4 * k);
  heat.getContext("2d").putImageData(image, 0, 0);
  canvas.getContext("2d").drawImage(heat, 0, 0);
}

/** Grey levels as a data URI. */
export function toUri(pixels) {
  const canvas = document.createElement("canvas");
  paint(canvas, pixels);
  return canvas.toDataURL();
}

/** A picture on the page with its caption. */
export function still(caption) {
  const canvas = h("canvas", { class: "pixels", role: "img", "aria-label": caption, width: 28, height: 28 });
  const words = h("figcaption", {}, caption);
  const show = (pixels, text = caption) => {
    paint(canvas, pixels);
    canvas.setAttribute("aria-label", text);
    words.textContent = text;
  };
  return { element: h("figure", { class: "still" }, canvas, words), canvas, show };
}
