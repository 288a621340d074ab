// Where a record spends its time between producer and reader, measured hop by hop.

import { change, get, name } from "../api.js";
import { card, choice, empty, fault, field, fill, h, head, table, tile } from "../dom.js";
import { counted } from "../format.js";
import { follow } from "../jobs.js";
import { keep, state } from "../router.js";

const MEANING = {
  linger: "in the producer, waiting for the batch to fill",
  send: "out of the producer, plus half a network round trip",
  append: "the leader writes it to its log",
  sync: "synced to disk, as acks=all requires with one replica",
  replicate: "the in-sync followers have it too",
  acknowledge: "the other half of the round trip",
  fetch: "until the reader receives it",
  process: "until the reader has processed it",
};

export async function draw(main, words, params, signal) {
  const topic = h("input", { name: "topic", autocomplete: "off", placeholder: "a temporary topic", value: params.get("topic") ?? "", list: "topics" });
  const names = h("datalist", { id: "topics" });
  const partition = number("partition", params.get("partition") ?? "0", 0, 99999);
  const records = number("count", params.get("count") ?? "50", 1, 1000);
  const size = number("size", params.get("size") ?? "1000", 0, 1000000);
  const linger = number("linger", params.get("linger") ?? "5", 0, 1000);
  const acks = choice("acks", [["all", "all: it survives"], ["1", "1: the leader has it"]], params.get("acks") ?? "all");
  const commit = h("input", { type: "checkbox", checked: params.get("commit") === "1" });
  const result = h("div", { class: "stack" });
  const go = h("button", { class: "main", type: "submit", disabled: state.readOnly }, "Measure");
  const form = h("form", { class: "card pad stack", onsubmit: (event) => { event.preventDefault(); run(); } },
    h("div", { class: "three" }, field("Topic", topic), field("Partition", partition), field("Records", records), field("Bytes each", size), field("Linger, ms", linger), field("acks", acks)),
    h("div", { class: "tools" }, go, h("label", { class: "check" }, commit, "The reader commits each record"),
      h("span", { class: "hint" }, state.readOnly ? "This console is read-only: a trace writes records." : "Records are written one at a time, each after the previous one was read back. They carry the header millpond-trace.")), names);
  fill(main, head("Trace", { chips: [h("span", { class: "hint" }, "The latency budget of a record, from send to read")] }), form, result);
  fill(result, card(null, empty("No measurement yet.", h("span", {}, "Press Measure: fifty records take about two seconds. In a terminal: ", h("code", {}, "millpond trace")))));

  const run = async () => {
    const order = { topic: topic.value.trim() || null, partition: partition.valueAsNumber || 0, count: records.valueAsNumber || 50, size: size.valueAsNumber || 0, linger_ms: linger.valueAsNumber || 0, acks: acks.value, commit: commit.checked };
    keep({ topic: order.topic, partition: order.partition || "", count: order.count === 50 ? "" : order.count, size: order.size === 1000 ? "" : order.size, linger: order.linger_ms === 5 ? "" : order.linger_ms, acks: order.acks === "all" ? "" : order.acks, commit: order.commit });
    go.disabled = true;
    try {
      const place = h("div", { class: "pad stack" });
      fill(result, card("Measuring", place));
      const job = await follow(await change("POST", "/api/trace", order), place, { signal, unit: "records there and back" });
      if (job.state === "failed") throw new Error(job.error);
      if (job.state === "stopped") fill(result, card(null, empty("Stopped.")));
      else if (job.result) fill(result, shown(job.result));
    } catch (error) {
      if (!signal.aborted) fill(result, fault(error));
    } finally {
      go.disabled = state.readOnly;
    }
  };
  get("/api/topics", signal).then((page) => fill(names, page.rows.map((each) => h("option", { value: each.name })))).catch(() => {});
}

function number(key, value, min, max) {
  return h("input", { name: key, type: "number", min: String(min), max: String(max), value });
}

function ms(value) {
  return value === null || value === undefined ? "" : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function shown(trace) {
  const { hops, totals } = trace.budget;
  const end = Math.max(1e-6, ...hops.map((hop) => hop.begins_ms + hop.p50_ms));
  const where = trace.order.topic ? h("a", { href: `/topics/${name(trace.topic)}` }, `${trace.topic}-${trace.order.partition}`) : "a temporary topic";
  return [
    h("div", { class: "tiles" }, totals.map((total) => tile(total.name === "end to end" ? "From send to read" : "Acknowledged", `${ms(total.p50_ms)} ms`, `median; p99 ${ms(total.p99_ms)} ms, worst ${ms(total.worst_ms)} ms`)),
      tile("Network", `${ms(trace.network_ms)} ms`, "a round trip, measured by handshakes"),
      tile("Replicas", String(trace.replicas), `acks=${trace.order.acks}`)),
    card(h("div", { class: "cardhead" }, h("h2", {}, "Hop by hop"), h("span", { class: "soft" }, `${counted(trace.order.count, "record")} to `, where)),
      h("div", { class: "pad waterfall", role: "img", "aria-label": hops.map((hop) => `${hop.name} ${ms(hop.p50_ms)} ms`).join(", ") }, hops.map((hop, at) => [
        h("span", { class: "name" }, hop.name),
        h("div", { class: "lane" }, h("div", { class: `span g${at % 6}`, "left%": (hop.begins_ms / end) * 100, "width%": Math.max(0.4, (hop.p50_ms / end) * 100), title: MEANING[hop.name] ?? "" })),
        h("span", { class: "num" }, `${ms(hop.p50_ms)} ms`)])),
      table([["Hop"], ["What happens", "optional soft"], ["Median, ms", "num"], ["p99, ms", "num"], ["Slowest record, ms", "num"]],
        hops.map((hop, at) => h("tr", {}, h("td", { class: "name" }, hop.name), h("td", { class: "optional soft" }, MEANING[hop.name] ?? ""), h("td", { class: "num" }, ms(hop.p50_ms)),
          // Hops that cannot be separated are shown at the first of the two.
          h("td", { class: "num" }, hop.p99_ms === null ? (at ? "included in the row above" : "") : ms(hop.p99_ms)), h("td", { class: "num" }, hop.worst_ms === null ? "" : ms(hop.worst_ms)))))),
    card("Notes", h("ul", { class: "pad plain" }, trace.notes.map((each) => h("li", {}, each)))),
  ];
}
