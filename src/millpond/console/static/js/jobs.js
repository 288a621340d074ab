// Long tasks: progress, stop button and result.

import { change, get } from "./api.js";
import { fill, h } from "./dom.js";
import { count } from "./format.js";

const LOOK_MS = 300;
const FIRST_LOOK_MS = 40;

// Draws the task into `place` until it ends, and returns it. `more` returns further details to show.
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
  // Many complete at the same time.
  for (let pause = FIRST_LOOK_MS; job.state === "running" && !signal?.aborted; pause = Math.min(LOOK_MS, pause * 2)) {
    await new Promise((resume) => setTimeout(resume, pause));
    job = await get(`/api/jobs/${job.id}`, signal);
    draw();
  }
  return job;
}

// The result of a dry run, a task that may have to read everything. Closing the dialog stops it.
export async function dryRun(path, wanted, place, signal) {
  let job = await change("POST", path, wanted);
  const stop = () => change("POST", `/api/jobs/${job.id}/stop`).catch(() => null);
  signal.addEventListener("abort", stop);
  if (signal.aborted) stop();
  try {
    job = await follow(job, place, { signal, unit: "read" });
  } finally {
    signal.removeEventListener("abort", stop);
    fill(place);
  }
  if (job.state === "failed") throw new Error(job.error);
  if (job.state !== "done") throw null;
  return { ...job.result, agreed: job.id };
}

export function whileOpen(dialog) {
  const leave = new AbortController();
  dialog.addEventListener("close", () => leave.abort());
  return leave.signal;
}
