/** Questions to the server. Each view asks through a Query: one at a time, and of what was wanted since, the newest. */

import { gone, say } from "./notice.js";

const PAUSE = 2000;
const BUSY_PAUSE = 400;

/** Why there is no answer. A status of 0: there is no server. */
export class Trouble extends Error {
  constructor(detail, status) {
    super(detail);
    this.status = status;
  }
}

const later = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const nextFrame = () => new Promise((resolve) => requestAnimationFrame(resolve));

/** Ask once. */
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Trouble("The explorer’s server does not answer.", 0);
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const detail = typeof answer.detail === "string" ? answer.detail : `The server answers with ${response.status}.`;
  throw new Trouble(detail, response.status);
}

/** Where a run's answers are. */
export const runPath = (key, what) => `/api/runs/${encodeURIComponent(key)}/${what}`;

export class Query {
  #wanted = null;
  #answered = null;
  #isBusy = false;

  /**
   * @param {(answer: any, about: {trip: number, body: any, path: string}) => void} show
   * @param {(trouble: Trouble) => void} fail what to do besides saying so
   */
  constructor(show, fail = () => {}) {
    this.show = show;
    this.fail = fail;
  }

  /** Want the answer to a question, unless it is the last one that was wanted; with a body it is posted. */
  want(path, body) {
    const text = body === undefined ? undefined : JSON.stringify(body);
    if (this.#wanted?.path === path && this.#wanted.text === text) return;
    this.#wanted = { path, text, body };
    this.#run();
  }

  /** Want the last answer anew. */
  again() {
    if (this.#wanted === null) return;
    this.#wanted = { ...this.#wanted };
    this.#run();
  }

  /** Want nothing any more; an answer on its way is not shown. */
  drop() {
    this.#wanted = null;
  }

  async #run() {
    if (this.#isBusy) return;
    this.#isBusy = true;
    try {
      // an error in what shows an answer ends this loop, and the next question begins another.
      while (this.#wanted !== null && this.#wanted !== this.#answered) {
        await nextFrame();
        if (this.#wanted !== null) await this.#askFor(this.#wanted);
      }
    } finally {
      this.#isBusy = false;
    }
  }

  async #askFor(asked) {
    const headers = { "content-type": "application/json" };
    const options = asked.text === undefined ? {} : { method: "POST", headers, body: asked.text };
    const begun = performance.now();
    let answer;
    try {
      answer = await ask(asked.path, options);
    } catch (trouble) {
      await this.#recover(trouble, asked);
      return;
    }
    const trip = performance.now() - begun;
    gone(false);
    this.#answered = asked;
    // while one draws, an answer that is a little late is better than none; of another run, it would be wrong.
    if (this.#wanted?.path === asked.path) this.show(answer, { ...asked, trip });
  }

  async #recover(trouble, asked) {
    if (!(trouble instanceof Trouble)) throw trouble;
    if (trouble.status === 0) {
      gone(true);
      await later(PAUSE);
    } else if (trouble.status === 503 && !asked.isSecond) {
      asked.isSecond = true;
      await later(BUSY_PAUSE);
    } else {
      this.#answered = asked;
      if (this.#wanted === asked) {
        say(trouble.message);
        this.fail(trouble);
      }
    }
  }
}
