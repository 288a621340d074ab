// Transactions: the open ones, their age, what they hold back; and aborting them.

import { change, live, name } from "../api.js";
import { meter } from "../charts.js";
import { ask, card, confirmByName, empty, fill, h, head, note, table, tile } from "../dom.js";
import { NOTHING, ago, compact, count, counted, span } from "../format.js";
import { list } from "../list.js";
import { state } from "../router.js";

const LEVEL = { ongoing: "warn", committing: "warn", aborting: "warn", committed: "good", aborted: "", empty: "", dead: "bad" };

export async function draw(main, words, params, signal) {
  const now = h("div", { class: "stack" }, h("p", { class: "hint" }, "Loading the transactions …"));
  const { table: listed, load } = list({
    path: "/api/transactions", label: "transactional ids", params, signal,
    columns: [
      ["Transactional id", (each) => each.id, "name"],
      ["Last state", (each) => h("span", { class: `state ${LEVEL[each.state] ?? ""}` }, each.state)],
      ["Producer", (each) => `${each.producer_id}, epoch ${each.producer_epoch}`, "soft optional"],
      ["Timeout", (each) => span(each.timeout_ms), "num optional"],
      ["Partitions", (each) => (each.partitions_total ? count(each.partitions_total) : NOTHING), "num"],
    ],
    none: () => empty("No transaction has been used yet.", h("span", {}, "A producer with a transactional.id appears here.")),
  });
  fill(main, head("Transactions"), now, h("h2", {}, "Every id"), listed);
  live("/api/live/transactions", { look: (look) => paint(now, look, load) }, signal);
}

function paint(now, look, again) {
  const oldest = look.open[0];
  fill(now,
    h("div", { class: "tiles" },
      tile("Open", count(look.open_total), `of ${counted(look.ids, "transactional id")}`),
      tile("Oldest", oldest ? span(oldest.age_ms) : NOTHING, oldest ? oldest.id : "none is open"),
      tile("Held back", compact(look.held_back), "records hidden from read_committed consumers"),
      tile("Hanging", count(look.hanging.length), look.hanging.length ? "no coordinator will end them" : "none", look.hanging.length ? { level: "bad-text" } : {})),
    look.blocked.length ? card("Transactions that hold back readers", table([["Partition"], ["Held back", "num"], ["By"], ["From offset", "num optional"], ["Last write", "optional"]], look.blocked.map((each) => h("tr", {},
      h("td", { class: "name" }, h("a", { href: `/topics/${name(each.partition.topic)}/records?partition=${each.partition.partition}&from=${each.first_offset}` }, `${each.partition.topic}-${each.partition.partition}`)),
      h("td", { class: "num" }, counted(each.records, "record")), h("td", {}, each.transaction === null ? h("span", { class: "bad-text" }, `producer ${each.producer_id}, which no coordinator will end`) : each.transaction),
      h("td", { class: "num optional" }, count(each.first_offset)), h("td", { class: "optional soft" }, ago(each.last_write_ms))))),
    h("div", { class: "foot" }, look.blocked_total > look.blocked.length ? `${count(look.blocked.length)} of ${counted(look.blocked_total, "partition")}` : "read_committed consumers wait at the first open transaction of each partition.")) : null,
    card("Open", look.open.length ? h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, [["Transactional id"], ["State"], ["Age"], ["Partitions", "optional"], ["Holds back", "num"], ["What to do", "num"]].map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", {}, look.open.map((each) => h("tr", {},
        h("td", { class: "name" }, each.id, h("div", { class: "hint" }, `producer ${each.producer_id}`)),
        h("td", {}, h("span", { class: `state ${LEVEL[each.state] ?? ""}` }, each.state)),
        h("td", {}, meter(each.age_ms / each.timeout_ms, `${span(each.age_ms)} of ${span(each.timeout_ms)}`, each.age_ms > each.timeout_ms * 0.8 ? "warn" : ""), h("span", { class: "hint" }, `${span(each.age_ms)}, aborted after ${span(each.timeout_ms)}`)),
        h("td", { class: "optional" }, each.partitions.slice(0, 4).map(([topic, index]) => h("div", {}, h("a", { href: `/topics/${name(topic)}` }, `${topic}-${index}`))), each.partitions_total > 4 ? h("div", { class: "hint" }, `and ${count(each.partitions_total - 4)} more`) : null),
        h("td", { class: "num" }, count(each.holds_back)),
        h("td", { class: "num" }, state.readOnly ? null : h("button", { class: "danger", "data-focus": `abort ${each.id}`, onclick: () => abort(each, again) }, "Abort …")))))))
      : empty("No transaction is open.", h("span", {}, "read_committed consumers see every record.")),
    look.open_total > look.open.length ? h("div", { class: "foot" }, `The oldest ${count(look.open.length)} of ${count(look.open_total)}`) : null),
    look.hanging.length ? card("Hanging", h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Partition", "Producer", "Last write", "Holds back", "What to do"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, look.hanging.map((each) => h("tr", {}, h("td", { class: "name" }, h("a", { href: `/topics/${name(each.topic)}/records?partition=${each.partition}&from=${each.first_offset}` }, `${each.topic}-${each.partition}`)), h("td", {}, each.producer_id), h("td", {}, ago(each.last_write_ms)), h("td", {}, count(each.holds_back)),
        h("td", { class: "num" }, state.readOnly ? null : h("button", { class: "danger", onclick: () => abortHanging(each) }, "Abort …")))))))) : null);
}

function abort({ id }, again) {
  confirmByName({
    title: `Abort the transaction of ${id}?`, action: "Abort it", label: "Type the transactional id to confirm",
    warning: "Its records are discarded and its producer is fenced: it must start again.",
    act: async (confirm) => {
      await change("POST", "/api/transactions/abort", { id, confirm });
      note(`Aborted the transaction of ${id}.`);
      again();
    },
  });
}

function abortHanging(each) {
  ask({
    title: `Abort the hanging transaction in ${each.topic}-${each.partition}?`, action: "Abort it", danger: true,
    body: [h("p", { class: "caution" }, `Producer ${each.producer_id} left it open at offset ${count(each.first_offset)}, and no coordinator knows it. The abort marker is written directly to the partition.`)],
    act: async () => {
      await change("POST", "/api/transactions/abort-hanging", { topic: each.topic, partition: each.partition, producer_id: each.producer_id });
      note("Aborted.");
    },
  });
}
