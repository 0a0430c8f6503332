/** What became of the run while it was trained, how it was trained, and the doctor's report. */

import { Query, ask, runPath } from "./api.js";
import { lineChart, lineWords } from "./charts.js";
import { button, count, h, write } from "./dom.js";
import { say } from "./notice.js";

const LOOK_AGAIN = 1500;

export class TrainingView {
  title = "Training";
  #timer = 0;

  constructor() {
    this.query = new Query((answer) => this.#show(answer));
    this.plots = h("div", { class: "plots" });
    this.none = h("p", { class: "note", hidden: true }, "Too little was written down while it was trained for a curve.");
    this.facts = h("dl", { class: "facts" });
    this.doctorWords = h("p", { class: "finding", role: "status" });
    this.begin = button("Examine it", () => this.#examine(), { class: "primary" });
    this.link = h("a", { class: "button primary", target: "_blank", rel: "noopener", hidden: true }, "Open the report");
    this.element = h(
      "div",
      { class: "stack" },
      h("section", { class: "card", "aria-label": "Curves" }, h("h3", {}, "Curves"), this.none, this.plots),
      h(
        "div",
        { class: "duo" },
        h("section", { class: "card", "aria-label": "The run" }, h("h3", {}, "The run"), this.facts),
        h(
          "section",
          { class: "card", "aria-label": "The doctor" },
          h("h3", {}, "The doctor’s report"),
          h(
            "p",
            { class: "note" },
            "Dead capsules, starved gradients, couplings that do nothing: the doctor looks at the network’s health over its test set. It takes a minute or so.",
          ),
          this.doctorWords,
          h("div", { class: "controls" }, this.begin, this.link),
        ),
      ),
    );
  }

  update(_, run) {
    if (run === this.run) return;
    this.run = run;
    this.charts = [];
    this.plots.replaceChildren();
    const facts = [
      ["network", run.model],
      ["parameters", count(run.parameters)],
      ["test images", `${run.data}/${run.split}, ${count(run.images)}`],
      ...run.facts,
    ];
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    this.query.want(runPath(run.key, "curves"));
    this.begin.hidden = this.link.hidden = run.images === 0;
    // without images there is nothing to ask the doctor.
    if (run.images > 0) this.#look();
    else write(this.doctorWords, "It has no test images at hand to be examined with.");
  }

  sight() {}

  leave() {
    clearTimeout(this.#timer);
    this.query.drop();
    this.run = null;
  }

  noFigure() {
    return this.none.hidden ? null : "Too little was written down while it was trained: there is no curve to save.";
  }

  figure() {
    return (this.charts ?? []).map(({ plot, chart }) => ({ caption: plot.title, svg: chart.svg, legend: chart.legend() }));
  }

  #show({ plots }) {
    this.none.hidden = plots.length > 0;
    this.charts = plots.map((plot) => ({ plot, chart: lineChart({ label: plot.title, height: 240 }) }));
    this.plots.replaceChildren(
      ...this.charts.map(({ plot, chart }) => h("section", { class: "plot-card" }, h("h4", {}, plot.title), chart.element)),
    );
    for (const { plot, chart } of this.charts) {
      const words = `${plot.title}. ${plot.curves.map((curve) => lineWords(curve, plot.is_share)).join("; ")}`;
      chart.show(
        { lines: plot.curves, xLabel: plot.x_label, yLabel: plot.y_label, isShare: plot.is_share, isLog: plot.is_log },
        words,
      );
    }
  }

  async #look(method = "GET") {
    clearTimeout(this.#timer);
    const { run } = this;
    try {
      const state = await ask(runPath(run.key, "doctor"), { method });
      if (run === this.run) this.#showDoctor(state);
    } catch (trouble) {
      say(trouble.message);
    }
  }

  #examine() {
    this.begin.disabled = true;
    this.#look("POST");
  }

  #showDoctor({ state, page, problem }) {
    const words = {
      none: "",
      working: "Examining …",
      ready: "The report is ready.",
      failed: problem ?? "The examination failed.",
    };
    write(this.doctorWords, words[state]);
    this.begin.hidden = state === "ready";
    this.begin.disabled = state === "working";
    this.begin.textContent = state === "failed" ? "Try again" : "Examine it";
    this.link.hidden = state !== "ready";
    this.link.href = page;
    if (state === "working") this.#timer = setTimeout(() => this.#look(), LOOK_AGAIN);
  }
}
