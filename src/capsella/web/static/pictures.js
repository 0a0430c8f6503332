/** Test images by their address, and their grey levels, read once. */

import { runPath } from "./api.js";
import { fromBase64 } from "./pixels.js";

const MOST_KEPT = 200;
const kept = new Map();

export const imagePath = (run, index) => runPath(run, `images/${index}`);

/** The levels of a test image, from the file that a browser shows. */
async function read(path) {
  const image = new Image();
  image.src = path;
  await image.decode();
  const { naturalWidth: width, naturalHeight: height } = image;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  const bytes = new Uint8Array(3 * width * height);
  let isGrey = true;
  for (let k = 0; k < width * height; k += 1) {
    bytes.set(data.subarray(4 * k, 4 * k + 3), 3 * k);
    isGrey &&= data[4 * k] === data[4 * k + 1] && data[4 * k] === data[4 * k + 2];
  }
  if (!isGrey) return { height, width, channels: 3, data: bytes };
  return { height, width, channels: 1, data: bytes.filter((_, k) => k % 3 === 0) };
}

/** A picture's grey levels {height, width, channels, data}; a drawing has them. */
export async function levelsOf(picture) {
  if (picture.kind === "drawn") return { ...picture, data: fromBase64(picture.data) };
  const path = imagePath(picture.run, picture.index);
  if (!kept.has(path)) {
    if (kept.size >= MOST_KEPT) kept.delete(kept.keys().next().value);
    kept.set(path, read(path));
    kept.get(path).catch(() => kept.delete(path));
  }
  return kept.get(path);
}
