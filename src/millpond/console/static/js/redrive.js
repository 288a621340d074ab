// Redriving dead letters: a dry run, and then exactly what it has shown.

import { change, name } from "./api.js";
import { ask, field, fill, h, note } from "./dom.js";
import { count, counted } from "./format.js";
import { dryRun, follow, whileOpen } from "./jobs.js";

export function outcome(job) {
  return job.state === "stopped" ? `${counted(job.done, "letter")} sent; the other ${count(job.total - job.done)} are still waiting.` : `Redrove ${counted(job.done, "letter")}.`;
}

export function redrive(topic, which, done) {
  const path = `/api/letters/${name(topic)}/redrive`;
  let agreed = null;
  const plan = h("div", { class: "stack" });
  const dialog = ask({
    title: `Redrive letters of ${topic}`, action: "Dry run",
    body: [h("p", { class: "hint" }, "They go back to their original topic and partition, each exactly once, for the group that failed. A dry run first shows what would happen; then exactly that is done."),
      which.edits ? h("p", { class: "caution" }, "One letter is sent as edited.") : null,
      h("div", { class: "two" }, field("To another topic", h("input", { name: "to", placeholder: "their original topic", autocomplete: "off" })),
        field("Records per second", h("input", { name: "rate", type: "number", min: "1", max: "1000000", placeholder: "without a limit" }))), plan],
    act: async (form) => {
      if (agreed === null) {
        const order = { ...which, to: form.elements.to.value.trim() || null, rate: form.elements.rate.valueAsNumber || null };
        const dry = await dryRun(path, order, plan, signal);
        const unnamed = dry.targets_total - Object.keys(dry.targets).length;
        fill(plan, Object.entries(dry.targets).map(([target, number]) => h("p", {}, `${counted(number, "letter")} → ${target}`)),
          unnamed ? h("p", {}, `and some to ${count(unnamed)} more topics`) : null,
          dry.done ? h("p", { class: "soft" }, `${count(dry.done)} were redriven before and are not sent again.`) : null,
          dry.held ? h("p", { class: "soft" }, `${count(dry.held)} are skipped: they came back too often.`) : null,
          dry.no_target ? h("p", { class: "soft" }, `${count(dry.no_target)} are skipped: their original topic is unknown or does not exist. Name a topic.`) : null,
          dry.missing ? h("p", { class: "soft" }, `${count(dry.missing)} no longer exist.`) : null,
          dry.leaderless.length ? h("p", { class: "caution" }, `${counted(dry.leaderless.length, "partition")} without a leader: its letters are left out.`) : null,
          dry.records ? null : h("p", { class: "caution" }, "Nothing would be sent."));
        if (dry.records) { agreed = dry.agreed; button(`Redrive ${counted(dry.records, "letter")}`); }
        throw null;
      }
      try {
        const job = await follow(await change("POST", path, { agreed }), plan, { unit: "sent", stop: "Cancel the rest" });
        if (job.state === "failed") throw new Error(job.error);
        note(outcome(job));
      } catch (error) {
        afresh();
        throw error;
      }
      done();
    },
  });
  const signal = whileOpen(dialog);
  const button = (text) => { dialog.querySelector("button[type=submit]").textContent = text; };
  // A confirmed plan runs once, exactly as it was shown.
  const afresh = () => { agreed = null; fill(plan); button("Dry run"); };
  for (const each of dialog.querySelectorAll("input")) each.addEventListener("input", afresh);
}
