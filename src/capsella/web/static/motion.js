/** What depends on the window and on the reader: widths, and whether things may move. */

const stillness = matchMedia("(prefers-reduced-motion: reduce)");

export const wantsStillness = () => stillness.matches;

/** Call with the width of an element now and whenever it changes. */
export function onWidth(element, changed) {
  let before = 0;
  const observer = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width === before || width === 0) return;
    before = width;
    changed(width);
  });
  observer.observe(element);
}

/** The same call, once it has not been made for a while. */
export function settled(act, milliseconds) {
  let timer = 0;
  const call = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), milliseconds);
  };
  call.drop = () => clearTimeout(timer);
  return call;
}
