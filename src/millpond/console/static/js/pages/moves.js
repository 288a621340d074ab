// Moves of partitions: the request, the plan that is shown first, and the run of exactly that plan.

import { change, get } from "../api.js";
import { ask, card, choice, fault, field, fill, h, note, table } from "../dom.js";
import { bytes, count, counted, span } from "../format.js";
import { follow } from "../jobs.js";

// Requests a plan, shows it, and starts it. `body` holds the fields of the dialog, `order` reads them.
export function moveDialog({ title, hint, body = [], order, started }) {
  let agreed = null;
  const plan = h("div", { class: "stack tight" });
  const rate = h("input", { name: "rate", type: "number", min: "1", placeholder: "without a limit" });
  const dialog = ask({
    title, action: "Show the plan",
    body: [h("p", { class: "hint" }, hint), body, field("MB per second for each node", rate), plan],
    act: async (form) => {
      const wanted = { ...order(form.elements), rate: rate.value ? Math.round(Number(rate.value) * 1e6) : null };
      if (agreed === null) {
        const found = await change("POST", "/api/cluster/moves", { ...wanted, dry_run: true });
        fill(plan, planned(found));
        if (found.moves_total || found.to_elect || wanted.what === "drain") {
          agreed = found.agreed;
          button(found.moves_total ? `Move ${counted(found.moves_total, "partition")}` : wanted.what === "drain" ? "Drain it" : "Change the leaders");
        }
        throw null;
      }
      // Whatever the outcome, the same request needs a new preview first.
      const mark = agreed;
      afresh();
      const job = await change("POST", "/api/cluster/moves", { ...wanted, agreed: mark });
      note(`${job.what} has started.`);
      started(job);
    },
  });
  const button = (text) => { dialog.querySelector("button[type=submit]").textContent = text; };
  const afresh = () => { agreed = null; fill(plan); button("Show the plan"); };
  for (const each of dialog.querySelectorAll("input, select")) each.addEventListener("input", afresh);
}

function planned(found) {
  if (!found.moves_total && !found.to_elect) return h("p", { class: "caution" }, "There is nothing to move: everything is in place.");
  const list = (nodes) => nodes.join(", ");
  const arrow = (before, after) => (before === after ? before : `${before} → ${after}`);
  return [
    h("p", {}, h("strong", {}, found.moves_total ? `${counted(found.moves_total, "partition")} to move, ${bytes(found.bytes_to_copy)} to copy` : "Nothing to copy"),
      found.seconds === null || !found.bytes_to_copy ? "" : `: ${span(found.seconds * 1000)} or more`, found.to_elect ? `; ${counted(found.to_elect, "partition")} to be led by the first replica again` : "", "."),
    found.waits_for.length ? h("p", { class: "caution" }, `It has to wait for node ${list(found.waits_for)}, which is offline.`) : null,
    table([["Node"], ["Replicas", "num"], ["Bytes", "num"], ["Leads", "num"]], found.shares.map((each) => h("tr", {}, h("td", {}, `Node ${each.node_id}`), h("td", { class: "num" }, arrow(count(each.now.replicas), count(each.then.replicas))),
      h("td", { class: "num" }, arrow(bytes(each.now.size_bytes), bytes(each.then.size_bytes))), h("td", { class: "num" }, arrow(count(each.now.leads), count(each.then.leads)))))),
    found.moves.length ? h("details", {}, h("summary", {}, "Which partitions"), table([["Partition"], ["From"], ["To"], ["To copy", "num"]], found.moves.map((each) => h("tr", {}, h("td", {}, `${each.partition.topic}-${each.partition.partition}`), h("td", {}, list(each.before)), h("td", {}, list(each.target)), h("td", { class: "num" }, bytes(each.bytes))))),
      found.moves_total > found.moves.length ? h("p", { class: "hint" }, `and ${count(found.moves_total - found.moves.length)} more`) : null) : null,
  ];
}

// The moves of this console until they end: a new task, or the running one.
export async function watchMoves(place, signal, begun = null) {
  try {
    const job = begun ?? (await get("/api/jobs?kind=moves", signal))[0];
    if (!job) return;
    const box = h("div", { class: "pad stack tight" });
    fill(place, card(job.what, box));
    const ended = await follow(job, box, { signal, unit: "partitions", stop: "Stop: running moves are cancelled",
      more: ({ details }) => (details.bytes_to_copy ? h("p", { class: "hint" }, `${bytes(details.copied_bytes)} of ${bytes(details.bytes_to_copy)} copied`) : null) });
    if (!signal.aborted) fill(place, card(ended.what, h("div", { class: "pad stack tight" }, outcome(ended))));
  } catch (error) {
    if (!signal.aborted) fill(place, fault(error));
  }
}

function outcome({ state: how, error, result }) {
  if (how === "failed") return h("p", { class: "fault" }, error);
  const told = [["called_off", "cancelled, unchanged"], ["going_on", "not cancelled: too few of the old replicas are in sync"], ["overtaken", "moved, cancelled or deleted by another command"], ["waiting", "not begun"], ["refused_total", "refused"]];
  return [
    h("p", {}, h("strong", {}, `${how === "stopped" ? "Stopped. " : ""}${counted(result.moved, "partition")} moved.`)),
    told.filter(([name]) => result[name]).map(([name, words]) => h("p", { class: "soft" }, `${count(result[name])} ${words}.`)),
    result.refused.map((reason) => h("p", { class: "bad-text" }, reason)),
    result.is_limited ? h("p", { class: "hint" }, "The rate limit stays, because partitions are still moving: the next move removes it.") : null,
  ];
}

export function drain(node, started) {
  moveDialog({
    title: `Drain node ${node.node_id}`, hint: "All replicas move to other nodes, and it gets no new ones. Once it is empty, stop it and remove it: millpond node remove.",
    order: () => ({ what: "drain", nodes: [node.node_id] }), started,
  });
}

export async function undrain(node) {
  try {
    await change("POST", "/api/cluster/undrain", { node: node.node_id });
    note(`Node ${node.node_id} is in use again.`);
  } catch (error) {
    note(error.message);
  }
}

export function balance(started) {
  const what = choice("what", [["balance", "Replicas and leaders"], ["leaders", "Leaders only: nothing is copied"]], "balance");
  moveDialog({ title: "Balance the cluster", hint: "Every node gets an equal share of replicas, bytes and leaders.", body: [field("What", what)], order: () => ({ what: what.value }), started });
}

export function movePartitions(nodes, started) {
  const numbers = (text, what) => text.split(/[\s,]+/).filter(Boolean).map((each) => { if (!/^\d{1,9}$/.test(each)) throw new Error(`${what} must be numbers separated by commas: ${each}`); return Number(each); });
  moveDialog({
    title: "Move partitions", hint: "The first node of the list leads.",
    body: [field("Topic", h("input", { name: "topic", required: true, autocomplete: "off", autofocus: true })), h("div", { class: "two" },
      field("Partitions", h("input", { name: "partitions", autocomplete: "off", placeholder: "all" }), "As 0, 1, 2."), field("To the nodes", h("input", { name: "nodes", autocomplete: "off", required: true }), `There are ${nodes.join(", ")}.`))],
    order: (fields) => ({ what: "move", topic: fields.topic.value.trim(), partitions: numbers(fields.partitions.value, "Partitions"), nodes: numbers(fields.nodes.value, "Nodes") }), started,
  });
}

export function changeFactor(started) {
  moveDialog({
    title: "Change the number of replicas", hint: "New replicas go to the nodes with the fewest, in other racks; replicas out of sync are removed first.",
    body: [h("div", { class: "two" }, field("Topic", h("input", { name: "topic", required: true, autocomplete: "off", autofocus: true })), field("Replicas", h("input", { name: "factor", type: "number", min: "1", max: "100", required: true })))],
    order: (fields) => ({ what: "factor", topic: fields.topic.value.trim(), factor: fields.factor.valueAsNumber }), started,
  });
}
