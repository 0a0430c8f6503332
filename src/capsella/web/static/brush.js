/** Drawing on grey levels: what a stroke does to them, in pure functions of bytes. */

import { clamp } from "./dom.js";

// of an image 28 pixels wide, so that a stroke is about as thick and as soft as those of MNIST.
const RADIUS = 1.05;
const SOFT = 0.75;
const SIDE = 28;

/** A black image. */
export const blank = (height, width, channels) => new Uint8Array(height * width * channels);

/** Distance from a point to a segment. */
export function distance([x, y], [ax, ay], [bx, by]) {
  const [dx, dy] = [bx - ax, by - ay];
  const square = dx * dx + dy * dy;
  const along = square === 0 ? 0 : clamp(((x - ax) * dx + (y - ay) * dy) / square, 0, 1);
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}

/** How much ink a brush leaves at a distance from its path, from 0 to 1. */
export const ink = (far, thickness, side) => {
  const unit = side / SIDE;
  return clamp((RADIUS * thickness * unit + SOFT * unit - far) / (2 * SOFT * unit), 0, 1);
};

/**
 * One stroke, from the pen's touch to its lifting. Its ink is laid on what was there before it, so that a path that crosses or
 * repeats itself is no darker there.
 */
export class Stroke {
  /** @param {{height: number, width: number, channels: number}} size @param {number[]} colour one level for each channel */
  constructor(size, before, colour) {
    Object.assign(this, { size, before, colour });
    this.after = before.slice();
    this.mask = new Float32Array(size.height * size.width);
  }

  /** Go on from one point to another, in pixels from the top left corner; returns the new levels. */
  segment(from, to, thickness = 1) {
    const { height, width } = this.size;
    const side = Math.min(height, width);
    const reach = Math.ceil(((RADIUS * thickness + SOFT) * side) / SIDE) + 1;
    const between = (a, b, most) => [
      clamp(Math.floor(Math.min(a, b)) - reach, 0, most),
      clamp(Math.ceil(Math.max(a, b)) + reach, 0, most),
    ];
    const [left, right] = between(from[0], to[0], width);
    const [top, bottom] = between(from[1], to[1], height);
    for (let y = top; y < bottom; y += 1) {
      for (let x = left; x < right; x += 1) {
        const laid = ink(distance([x + 0.5, y + 0.5], from, to), thickness, side);
        if (laid > this.mask[y * width + x]) this.#lay(y * width + x, laid);
      }
    }
    return this.after;
  }

  #lay(pixel, laid) {
    this.mask[pixel] = laid;
    const count = this.colour.length;
    for (let c = 0; c < count; c += 1) {
      const at = pixel * count + c;
      this.after[at] = Math.round(this.before[at] * (1 - laid) + this.colour[c] * laid);
    }
  }
}

/** Shift what is drawn so that its centre of mass is in the middle, as MNIST's digits are; whole pixels only. */
export function centred(bytes, { height, width, channels }) {
  let [mass, sumX, sumY] = [0, 0, 0];
  for (let k = 0; k < bytes.length; k += 1) {
    const pixel = Math.floor(k / channels);
    mass += bytes[k];
    sumX += bytes[k] * ((pixel % width) + 0.5);
    sumY += bytes[k] * (Math.floor(pixel / width) + 0.5);
  }
  if (mass === 0) return bytes;
  return shifted(bytes, { height, width, channels }, Math.round(width / 2 - sumX / mass), Math.round(height / 2 - sumY / mass));
}

/** Shift an image; what leaves it is lost. */
export function shifted(bytes, { height, width, channels }, right, down) {
  const moved = new Uint8Array(bytes.length);
  for (let y = Math.max(0, down); y < Math.min(height, height + down); y += 1) {
    for (let x = Math.max(0, right); x < Math.min(width, width + right); x += 1) {
      const from = ((y - down) * width + x - right) * channels;
      moved.set(bytes.subarray(from, from + channels), (y * width + x) * channels);
    }
  }
  return moved;
}

/** Levels in another number of channels; from three to one, as a person sees them (ITU-R 601). */
export function withChannels(bytes, from, to) {
  if (from === to) return bytes;
  const count = bytes.length / from;
  const changed = new Uint8Array(count * to);
  for (let k = 0; k < count; k += 1) {
    const [r, g, b] = from === 3 ? bytes.subarray(3 * k, 3 * k + 3) : [bytes[k], bytes[k], bytes[k]];
    if (to === 3) changed.set([r, g, b], 3 * k);
    else changed[k] = Math.round(0.299 * r + 0.587 * g + 0.114 * b);
  }
  return changed;
}
