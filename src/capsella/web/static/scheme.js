/** Light or dark: as the system has it, until the reader chooses. */

import { chooser } from "./dom.js";

const KEY = "capsella-scheme";

export function schemeChooser() {
  const root = document.documentElement;
  const choose = (value) => {
    if (value === "auto") delete root.dataset.scheme;
    else root.dataset.scheme = value;
    try {
      localStorage.setItem(KEY, value);
    } catch {
      // it holds until the page is left.
    }
  };
  const options = [
    ["auto", "auto"],
    ["light", "light"],
    ["dark", "dark"],
  ];
  const { element, select } = chooser("Colours", options, choose);
  select.value = root.dataset.scheme ?? "auto";
  return element;
}
