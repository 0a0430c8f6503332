/** The page: one image, one answer, and one of the views of it. */

import { Query, ask, runPath } from "./api.js";
import { button, change, chooser, h } from "./dom.js";
import { save } from "./figure.js";
import { forget, noticeLine, say } from "./notice.js";
import { runOf, sceneOf, subtitle, withRun } from "./scene.js";
import { schemeChooser } from "./scheme.js";
import { Source } from "./source.js";
import { Store, VIEWS, toFragment } from "./state.js";
import { CompareView } from "./view_compare.js";
import { KnobsView } from "./view_knobs.js";
import { MoveView } from "./view_move.js";
import { OverlapView } from "./view_overlap.js";
import { TrainingView } from "./view_training.js";
import { TreeView } from "./view_tree.js";

const KINDS = {
  tree: TreeView,
  knobs: KnobsView,
  move: MoveView,
  compare: CompareView,
  overlap: OverlapView,
  training: TrainingView,
};

class Page {
  #current = null;

  constructor(about) {
    this.about = about;
    this.store = new Store(about, (state) => this.update(state));
    const context = { about, store: this.store };
    this.views = Object.fromEntries(VIEWS.map((name) => [name, new KINDS[name](context)]));
    this.source = new Source(context);
    this.sights = new Query((sight, { path, trip }) => this.#seen(sight, path, trip));
    this.links = Object.fromEntries(VIEWS.map((name) => [name, this.#link(name)]));
    this.runs = chooser(
      "Run",
      about.runs.map((run) => [run.key, run.title]),
      (key) => this.store.set(withRun(this.store.state, key)),
    );
    this.place = h("div", { class: "view", id: "view", tabindex: -1 });
    this.heading = h("h1", { class: "unseen" });
    this.main = h("main", { "aria-labelledby": "view-name" }, this.heading, this.place);
    change(this.heading, { id: "view-name" });
    this.address = h("input", { class: "address", readonly: true, hidden: true, "aria-label": "Address of what is shown" });
  }

  /** Put everything in its place. */
  mount(body) {
    const share = h(
      "div",
      { class: "share", role: "group", "aria-label": "Share" },
      button("Copy link", () => this.#copy()),
      button("SVG", () => this.#save("svg"), { "aria-label": "Save this view as SVG" }),
      button("PNG", () => this.#save("png"), { "aria-label": "Save this view as PNG" }),
    );
    this.tabs = h(
      "nav",
      { class: "tabs", "aria-label": "Views" },
      h("ul", {}, ...VIEWS.map((name) => h("li", {}, this.links[name]))),
    );
    const top = h(
      "header",
      { class: "top" },
      button("Skip to the view", () => this.place.focus(), { class: "skip" }),
      h(
        "div",
        { class: "brand" },
        h("img", { src: "/static/favicon.svg", alt: "", width: 26, height: 26 }),
        h("span", {}, "capsella", h("span", { class: "brand-what" }, " explorer")),
      ),
      this.runs.element,
      this.tabs,
      share,
      schemeChooser(),
    );
    body.replaceChildren(top, h("div", { class: "page" }, this.source.element, this.main), this.address, noticeLine);
    this.update(this.store.state);
    this.#showTab(this.store.state.view);
  }

  update(state) {
    const { about } = this;
    const run = runOf(about, state.run);
    const view = this.views[state.view];
    if (view !== this.#current) {
      if (this.#current) this.#showTab(state.view);
      this.#current?.leave();
      if (this.#current) forget();
      this.#current = view;
      this.place.replaceChildren(view.element);
      this.heading.textContent = view.title;
    }
    document.title = `${view.title} · ${run.title} · capsella explorer`;
    this.runs.select.value = run.key;
    for (const name of VIEWS)
      change(this.links[name], {
        href: toFragment({ ...state, view: name }),
        "aria-current": name === state.view ? "page" : null,
      });
    this.source.update(state);
    const asked = { scene: sceneOf(state, about), most: state.most, draw: state.view === "overlap" ? 2 : 1 };
    const isNew = this.latest?.run !== run || this.latest.text !== JSON.stringify(asked);
    this.asked = { run, text: JSON.stringify(asked) };
    this.sights.want(runPath(run.key, "see"), asked);
    view.update(state, run);
    // a view that is opened for an image that was seen already has its answer.
    if (!isNew && view.lastSight !== this.latest.sight) this.#tell(view, this.latest.sight, run);
  }

  /** On a narrow page, scroll the names of the views so that this one is among them. */
  #showTab(name) {
    const link = this.links[name];
    this.tabs.scrollLeft = link.offsetLeft - (this.tabs.clientWidth - link.offsetWidth) / 2;
  }

  #tell(view, sight, run) {
    view.lastSight = sight;
    view.sight(sight, run);
  }

  #seen(sight, path, trip) {
    const { run, text } = this.asked;
    this.latest = { run, text, sight };
    this.source.sight(run, sight, trip);
    this.#tell(this.#current, sight, run);
  }

  #link(name) {
    const follow = (event) => {
      // another key asks for another window, which the address is good for.
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      this.store.set({ view: name });
    };
    return h("a", { href: "#", onclick: follow }, this.views[name].title);
  }

  async #copy() {
    const address = this.store.address();
    const { needs_token: needsToken } = this.about;
    const token = needsToken ? " Whoever opens it needs the token as well." : "";
    try {
      await navigator.clipboard.writeText(address);
      say(`The address of what is shown is in the clipboard.${token}`, { isBrief: !needsToken });
    } catch {
      // not every browser lets a page write there; the reader can.
      this.address.hidden = false;
      this.address.value = address;
      this.address.select();
      say(`Here is the address of what is shown, to be copied.${token}`);
    }
  }

  async #save(kind) {
    const { state } = this.store;
    const run = runOf(this.about, state.run);
    const view = this.#current;
    const parts = view.figure();
    if (parts.length === 0) {
      say(view.noFigure?.(run) ?? "There is nothing to save in this view yet.");
      return;
    }
    const words = { title: view.heading?.(run) ?? view.title, subtitle: subtitle(state, this.about, view.said?.()) };
    try {
      await save(
        { ...words, foot: `capsella ${this.about.version} explorer`, parts },
        `capsella-${run.key}-${state.view}`,
        kind,
      );
    } catch (error) {
      say(`It cannot be saved: ${error.message}`);
      throw error;
    }
  }
}

async function begin() {
  const body = document.querySelector("#app");
  try {
    const page = new Page(await ask("/api/about"));
    page.mount(body);
  } catch (trouble) {
    body.replaceChildren(h("p", { class: "card empty", role: "alert" }, trouble.message));
    throw trouble;
  }
}

begin();
