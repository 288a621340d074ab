// Hot partitions: how evenly a topic is loaded, which keys cause the skew, and what would help.

import { live, name, query } from "../api.js";
import { meter } from "../charts.js";
import { asText, decode, isCut, preview } from "../data.js";
import { card, choice, copyButton, empty, fault, fill, h, head, table, tile } from "../dom.js";
import { bytes, compact, count, counted } from "../format.js";
import { list } from "../list.js";
import { keep } from "../router.js";

const SPANS = [["600000", "The last 10 minutes"], ["3600000", "The last hour"], ["86400000", "The last day"], ["", "All records"]];
const CAUSES = {
  balanced: ["good", "Even"], hot_key: ["bad", "A hot key"], few_keys: ["warn", "Too few keys"], other_partitioner: ["warn", "Another partitioner"],
  unlucky_hash: ["warn", "Keys fall unevenly"], empty: ["", "No records"],
};

export async function draw(main, words, params, signal) {
  if (words.length) return one(main, words[0], params, signal);
  const { table: listed } = list({
    path: "/api/skew", label: "topics", params, signal,
    columns: [
      ["Topic", (each) => h("a", { href: `/hot/${name(each.topic)}` }, each.topic), "name"],
      ["Partitions", (each) => count(each.partitions), "num optional"],
      ["On disk", (each) => bytes(each.bytes), "num"],
      ["Busiest", (each) => [meter(each.bytes ? each.busiest_bytes / each.bytes : 0, `Partition ${each.busiest} has ${bytes(each.busiest_bytes)}`, level(each.imbalance)), h("span", { class: "hint" }, each.bytes ? `partition ${each.busiest}: ${Math.round((each.busiest_bytes / each.bytes) * 100)} %` : "empty")]],
      ["Compared with the average", (each) => h("span", { class: each.bytes && each.imbalance > 1.25 ? "warn-text" : "" }, each.bytes ? `${each.imbalance.toFixed(2)}×` : "–"), "num"],
    ],
    none: () => empty("No topic has more than one partition.", h("span", {}, "A topic with one partition cannot be uneven.")),
  });
  fill(main, head("Hot partitions", { chips: [h("span", { class: "hint" }, "Topics by how far their busiest partition exceeds the average; open one to see the keys that cause it")] }), listed);
}

function level(imbalance) {
  return imbalance > 2 ? "bad" : imbalance > 1.25 ? "warn" : "";
}

async function one(main, topic, params, signal) {
  const span = choice("span", SPANS, params.get("span") ?? "", { "aria-label": "Which records" });
  const records = choice("records", [["10000", "Read up to 10,000"], ["50000", "Read up to 50,000"], ["200000", "Read up to 200,000"], ["500000", "Read up to 500,000"]], params.get("records") ?? "50000", { "aria-label": "How many records to read" });
  const bar = h("div", { class: "progress" }, h("div", { "width%": 0 }));
  const status = h("span", { class: "hint", role: "status" }, "Reading …");
  const cancel = h("button", { type: "button" }, "Cancel");
  const result = h("div", { class: "stack" });
  let leave = new AbortController();
  signal.addEventListener("abort", () => leave.abort());
  const look = () => {
    leave.abort();
    leave = new AbortController();
    keep({ span: span.value, records: records.value === "50000" ? "" : records.value });
    bar.hidden = cancel.hidden = false;
    status.textContent = "Reading …";
    const since = span.value ? Date.now() - Number(span.value) : "";
    const end = (text) => { bar.hidden = cancel.hidden = true; status.textContent = text; };
    cancel.onclick = () => { leave.abort(); end("Stopped."); };
    live(`/api/live/skew/${name(topic)}${query({ since_ms: since, records: records.value })}`, {
      progress: (event) => { bar.firstChild.style.width = `${event.total ? (event.scanned / event.total) * 100 : 100}%`; status.textContent = `${count(event.scanned)} of ${count(event.total)} read`; },
      report: (report) => { end(`${counted(report.records_read, "record")} read${report.is_estimate ? ` of ${count(report.records)}: the numbers are an estimate` : ""}`); fill(result, shown(topic, report)); },
      failure: ({ error }) => { end(""); fill(result, fault(new Error(error)), h("a", { class: "button", href: "/hot" }, "See all topics")); return true; },
    }, leave.signal, { once: true });
  };
  span.addEventListener("change", look);
  records.addEventListener("change", look);
  fill(main, head(topic, { crumb: h("a", { href: "/hot" }, "Hot partitions"), actions: [h("a", { class: "button", href: `/topics/${name(topic)}` }, "See the topic")] }),
    h("section", { class: "card" }, h("div", { class: "cardhead tools" }, span, records, h("span", { class: "grow" }, status), cancel, h("button", { type: "button", onclick: look }, "Look again")), bar), result);
  look();
}

function shown(topic, report) {
  const [mood, title] = CAUSES[report.cause] ?? ["", report.cause];
  const whole = report.loads.reduce((sum, each) => sum + each.bytes, 0);
  const most = Math.max(1, ...report.loads.map((each) => each.bytes));
  const average = whole / Math.max(1, report.loads.length);
  const hot = report.hottest.filter((each) => each.share > 0.5 / report.loads.length);
  const salted = report.predictions.filter((each) => each.key.startsWith("hot keys"));
  const salt = salted.find((each) => each.imbalance <= report.even) ?? salted.toSorted((one, other) => one.imbalance - other.imbalance)[0];
  return [
    h("section", { class: "card" }, h("div", { class: `health ${mood === "good" ? "" : mood}` }, h("div", {}, h("strong", {}, title), h("p", {}, report.advice)))),
    h("div", { class: "tiles" },
      tile("Busiest partition", `${report.imbalance.toFixed(2)}×`, "the average, by bytes", { level: report.imbalance > 2 ? "bad-text" : report.imbalance > report.even ? "warn-text" : "" }),
      tile("Keys", compact(report.keys), `${compact(report.keyless)} records without one`), tile("Records", compact(report.records), bytes(whole)), tile("Partitions", count(report.loads.length), `${bytes(average)} on average`)),
    h("div", { class: "columns" },
      card("By partition", h("div", { class: "pad" }, h("div", { class: "bars" }, report.loads.toSorted((one, other) => other.bytes - one.bytes).slice(0, 24).map((each) => [
        h("span", {}, `Partition ${each.partition}`), meter(each.bytes / most, `Partition ${each.partition}: ${bytes(each.bytes)}`, each.bytes > average * 2 ? "bad" : each.bytes > average * 1.25 ? "warn" : ""), h("span", { class: "num" }, bytes(each.bytes))])),
      report.loads.length > 24 ? h("p", { class: "hint" }, `and ${counted(report.loads.length - 24, "partition")} with less`) : null)),
      card("Hottest keys", report.hottest.length ? table([["Key"], ["Partition", "num optional"], ["Records", "num"], ["Share", "num"]],
        report.hottest.slice(0, 12).map((each) => h("tr", {}, h("td", { class: "mono" }, preview(each.key)), h("td", { class: "num optional" }, each.partition), h("td", { class: "num" }, compact(each.records)), h("td", { class: "num" }, `${(each.share * 100).toFixed(1)} %`))))
        : empty("No record has a key.", h("span", {}, "Clients spread such records evenly.")))),
    card("What would help", h("div", { class: "pad stack tight" },
      table([["With"], ["Partitions", "num"], ["Busiest compared with the average", "num"], ["Then it is"]], report.predictions.map((each) => h("tr", {}, h("td", {}, each.key), h("td", { class: "num" }, count(each.partitions)), h("td", { class: "num" }, `${each.imbalance.toFixed(2)}×`), h("td", {}, h("span", { class: `state ${each.imbalance <= report.even ? "good" : "warn"}` }, each.imbalance <= report.even ? "even" : "uneven"))))),
      h("p", { class: "hint" }, "These are calculated: the keys that were read are hashed again as clients would. Partitions can be added but not removed; keys move when the number changes."),
      report.cause === "hot_key" && salt ? fix(hot, salt) : null)),
  ];
}

// Keys that are not text, or are truncated here, cannot be written as code.
function fix(hot, salt) {
  const keys = hot.slice(0, 5).map((each) => (isCut(each.key) ? null : asText(decode(each.key)))).filter((each) => each !== null);
  if (!keys.length) return null;
  const parts = /\d+/.exec(salt.key)?.[0] ?? "8";
  const code = [
    "from millpond import salted", "",
    `HOT = {${keys.map((each) => JSON.stringify(each)).join(", ")}}`, "",
    `key = salted(key, ${parts}, by=order_id) if key in HOT else key  # records of one order keep their order`,
  ].join("\n");
  return [h("h2", {}, `Spread the hot keys over ${parts} parts each`), h("pre", { class: "data", tabindex: "0", "aria-label": "code" }, code), h("div", {}, copyButton(code, "Copy the code"))];
}
