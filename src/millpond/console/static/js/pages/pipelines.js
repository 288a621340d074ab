// Current and past Spark queries on this machine: progress, rates and errors of each job.

import { live, name } from "../api.js";
import { curve } from "../charts.js";
import { card, empty, fill, h, head, table, tile } from "../dom.js";
import { NOTHING, ago, compact, count, counted, rate, span } from "../format.js";

const LEVEL = { running: "good", waiting: "good", starting: "warn", stopping: "warn", stopped: "", finished: "good", failed: "bad", dead: "bad" };
const CURVE_MAX = 120;

export async function draw(main, words, params, signal) {
  const past = new Map();
  const body = h("div", { class: "stack" }, h("p", { class: "hint" }, "Loading pipelines …"));
  fill(main, head("Pipelines"), body);
  const wanted = words[0];
  live("/api/live/pipelines", { look: (look) => paint(body, look, past, wanted) }, signal);
}

function paint(body, look, past, wanted) {
  const all = look.pipelines.filter((each) => !wanted || each.name === wanted);
  if (!all.length) {
    fill(body, card(null, empty(wanted ? `There is no pipeline ${wanted}.` : "No pipeline has run here.",
      wanted ? h("a", { class: "button", href: "/pipelines" }, "See all pipelines") : [
        h("span", {}, "Begin one: ", h("code", {}, "millpond pipeline init TOPIC"), ", and then ", h("code", {}, "millpond pipeline run FILE")),
        h("span", { class: "hint" }, "Looked for in ", h("code", {}, look.home), "; another folder is named with ", h("code", {}, "millpond console --pipelines FOLDER"))])));
    return;
  }
  fill(body, all.map((each) => pipeline(each, past)), look.left_out ? h("p", { class: "hint" }, `${counted(look.left_out, "pipeline")} more are not shown.`) : null);
}

function pipeline(each, past) {
  const isOver = each.condition !== "running";
  const pace = each.jobs.reduce((sum, job) => sum + (job.done_per_second ?? 0), 0);
  const points = past.get(each.name) ?? [];
  if (!points.length || points.at(-1)[0] !== each.at_ms) points.push([each.at_ms, pace]);
  if (points.length > CURVE_MAX) points.shift();
  past.set(each.name, points);
  const lags = each.jobs.map((job) => job.lag).filter((lag) => lag !== null);
  const letters = Object.entries(each.dead_letters).filter(([, number]) => number);
  return card(h("div", { class: "cardhead" }, h("h2", {}, h("a", { href: `/pipelines/${name(each.name)}` }, each.name)),
    h("span", { class: "tools" }, h("span", { class: `state ${LEVEL[each.condition] ?? ""}` }, each.condition),
      h("span", { class: "soft" }, isOver ? `after ${span(each.at_ms - each.started_ms)}, ${ago(each.at_ms)}` : `for ${span(Date.now() - each.started_ms)}`))),
  h("div", { class: "pad stack" },
    each.error ? h("p", { class: "fault" }, each.error) : null,
    each.condition === "dead" ? h("p", { class: "caution" }, "Its process ended unexpectedly. The next run continues where it was.") : null,
    h("div", { class: "tiles" },
      tile("Done", isOver ? NOTHING : rate(pace), "rows per second", { extra: isOver ? null : curve(points.map(([, value]) => value), "Rows processed per second since this page was opened") }),
      tile("Unread", lags.length ? compact(lags.reduce((sum, lag) => sum + lag, 0)) : NOTHING, "records not processed yet"),
      tile("Read", compact(each.jobs.reduce((sum, job) => sum + job.rows_in, 0)), "rows since it started"),
      tile("Bad records", count(each.jobs.reduce((sum, job) => sum + (job.bad ?? 0), 0)), letters.length ? "in the dead letters" : "left out or none", { level: each.jobs.some((job) => job.bad) ? "warn-text" : "" }))),
  table([["Job"], ["State"], ["Batch", "num optional"], ["In", "num optional"], ["Done", "num"], ["Unread", "num"], ["A batch takes", "num optional"], ["Rows out", "num optional"], ["Writes to", "optional"]],
    each.jobs.map((job) => h("tr", {},
      h("td", { class: "name" }, job.name, h("div", { class: "hint" }, job.kind), job.error ? h("div", { class: "bad-text" }, job.error) : null),
      h("td", {}, h("span", { class: `state ${LEVEL[job.state] ?? ""}` }, job.state), job.watermark ? h("div", { class: "hint" }, `watermark ${job.watermark}`) : null),
      h("td", { class: "num optional" }, count(job.batch)), h("td", { class: "num optional" }, rate(job.input_per_second)), h("td", { class: "num" }, rate(job.done_per_second)),
      h("td", { class: "num" }, count(job.lag)), h("td", { class: "num optional" }, span(job.batch_ms)), h("td", { class: "num optional" }, count(job.rows_out)),
      h("td", { class: "optional soft" }, job.writes.topic ? h("a", { href: `/topics/${name(job.writes.topic)}` }, job.writes.topic) : job.writes.table ?? NOTHING,
        Object.entries(job.figures).filter(([, value]) => value !== 0).map(([key, value]) => h("div", { class: "hint" }, `${key.replaceAll("_", " ")} ${typeof value === "number" ? count(value) : value}`)))))),
  h("div", { class: "foot" }, h("span", {}, each.source ? `reads ${each.source}` : "", each.master ? ` on ${each.master}` : ""),
    letters.length ? h("span", {}, letters.map(([topic, number]) => h("a", { href: `/letters/${name(topic)}` }, `${topic} +${count(number)}`))) : null));
}
