/** Two images on one another: where each is, in pure functions of grey levels. */

import { shifted, withChannels } from "./brush.js";

/** The two inks of an overlap: the first image and the second; where both are, they add up to white. */
export const INKS = [
  [64, 214, 196],
  [255, 140, 80],
];

/** One grey image, brought to a size: a smaller one is put in the middle, a larger one shrunk as a whole. */
export function placed({ height, width, channels, data }, size) {
  const grey = withChannels(data, channels, 1);
  const shrink = Math.min(1, size.height / height, size.width / width);
  const [tall, wide] = [Math.max(1, Math.round(height * shrink)), Math.max(1, Math.round(width * shrink))];
  const [top, left] = [Math.floor((size.height - tall) / 2), Math.floor((size.width - wide) / 2)];
  const found = new Uint8Array(size.height * size.width);
  for (let y = 0; y < tall; y += 1) {
    for (let x = 0; x < wide; x += 1) {
      const from =
        Math.min(height - 1, Math.floor((y + 0.5) / shrink)) * width + Math.min(width - 1, Math.floor((x + 0.5) / shrink));
      found[(top + y) * size.width + left + x] = grey[from];
    }
  }
  return found;
}

/** Shift a grey image of a size. */
export const shiftedBy = (bytes, { height, width }, x, y) => shifted(bytes, { height, width, channels: 1 }, x, y);

/** Two grey images in two inks, as a picture of three channels. */
export function inked(first, second, { height, width }) {
  const data = new Uint8Array(3 * height * width);
  for (let k = 0; k < height * width; k += 1) {
    for (let c = 0; c < 3; c += 1) data[3 * k + c] = Math.min(255, (first[k] * INKS[0][c] + second[k] * INKS[1][c]) / 255);
  }
  return { height, width, channels: 3, data };
}

const alike = (a, b) => {
  let [product, own, other] = [0, 0, 0];
  for (let k = 0; k < a.length; k += 1) [product, own, other] = [product + a[k] * b[k], own + a[k] * a[k], other + b[k] * b[k]];
  return own && other ? product / Math.sqrt(own * other) : 0;
};

/** Which of two drawings is of the first image: true where they stand in the order of the images. */
export const inOrder = (drawings, images) =>
  alike(drawings[0], images[0]) + alike(drawings[1], images[1]) >=
  alike(drawings[0], images[1]) + alike(drawings[1], images[0]);
