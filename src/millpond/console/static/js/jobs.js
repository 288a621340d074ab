// Long tasks: how far one is, a way to stop it, and what came of it.

import { change, get } from "./api.js";
import { fill, h } from "./dom.js";
import { count } from "./format.js";

const LOOK_MS = 300;
const FIRST_LOOK_MS = 40;

// Draws the task into `place` until it has ended, and gives it back. `more` says what else there is to say of it.
export async function follow(job, place, { signal = null, stop = "Stop", more = () => null, unit = "" } = {}) {
  const bar = h("div", { class: "progress", role: "progressbar", "aria-label": job.what, "aria-valuemin": "0", "aria-valuemax": "100" }, h("div", { "width%": 0 }));
  const text = h("p", { role: "status" }, "Beginning …");
  const details = h("div");
  fill(place, bar, text, details, stop ? h("button", { type: "button", onclick: () => change("POST", `/api/jobs/${job.id}/stop`) }, stop) : null);
  const draw = () => {
    const share = job.total ? (job.done / job.total) * 100 : 0;
    bar.firstChild.style.width = `${share}%`;
    bar.setAttribute("aria-valuenow", String(Math.round(share)));
    if (job.total !== null) text.textContent = `${count(job.done)} of ${count(job.total)}${unit ? ` ${unit}` : ""}`;
    fill(details, more(job));
  };
  draw();
  // Many are done at once.
  for (let pause = FIRST_LOOK_MS; job.state === "running" && !signal?.aborted; pause = Math.min(LOOK_MS, pause * 2)) {
    await new Promise((resume) => setTimeout(resume, pause));
    job = await get(`/api/jobs/${job.id}`, signal);
    draw();
  }
  return job;
}
