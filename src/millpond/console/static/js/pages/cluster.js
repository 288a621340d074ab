// The nodes of the cluster: leaders, in-sync replicas, voters and free disk space.

import { live, name } from "../api.js";
import { meter } from "../charts.js";
import { card, empty, fill, h, head, table, tile } from "../dom.js";
import { NOTHING, bytes, count, counted } from "../format.js";
import { state } from "../router.js";
import { balance, changeFactor, drain, movePartitions, undrain, watchMoves } from "./moves.js";

export async function draw(main, words, params, signal) {
  const body = h("div", { class: "stack" }, h("p", { class: "hint" }, "Loading the nodes …"));
  const task = h("div");
  const chips = h("div", { class: "tools" });
  let nodes = [];
  const started = (job) => watchMoves(task, signal, job);
  fill(main, head("Cluster", { chips: [chips], actions: state.readOnly ? [] : [
    h("button", { onclick: () => balance(started) }, "Balance …"), h("button", { onclick: () => movePartitions(nodes, started) }, "Move partitions …"), h("button", { onclick: () => changeFactor(started) }, "Replicas …")] }), task, body);
  started();
  live("/api/live/cluster", { look: (look) => { nodes = look.nodes.map((each) => each.node_id); paint(body, chips, look, started); } }, signal);
}

function paint(body, chips, look, started) {
  const voters = look.nodes.filter((each) => each.quorum?.is_voter);
  const there = voters.filter((each) => each.address && !each.quorum.is_fenced).length;
  const needed = Math.floor(voters.length / 2) + 1;
  const leads = Math.max(1, ...look.nodes.map((each) => each.leads));
  fill(chips, h("span", { class: "hint" }, "Id ", h("code", {}, look.cluster_id || "none")));
  fill(body,
    h("div", { class: "tiles" },
      tile("Nodes", count(look.nodes.filter((each) => each.address).length), look.nodes.every((each) => each.address) ? "all there" : `${count(look.nodes.filter((each) => !each.address).length)} away`),
      tile("Quorum", voters.length ? `${there} of ${voters.length}` : NOTHING, voters.length ? `voters online; ${needed} needed` : "this cluster does not report its voters", voters.length && there < needed ? { level: "bad-text" } : {}),
      tile("Replicas behind", count(look.behind_total), look.behind_total ? "not in sync with their leaders" : "all are in sync", look.behind_total ? { level: "warn-text" } : {}),
      tile("Without a leader", count(look.leaderless_total), look.leaderless_total ? "can be neither written nor read" : "every partition has a leader", look.leaderless_total ? { level: "bad-text" } : {})),
    card("Nodes", table([["Node"], ["State"], ["Address", "optional"], ["Leads"], ["In sync", "num optional"], ["Vote", "optional"], ["Disk"], ...(state.readOnly ? [] : [["What to do", "num"]])], look.nodes.map((each) => row(each, leads, started)))),
    look.moving_total ? card(`${counted(look.moving_total, "partition")} moving`, table([["Partition"], ["Replicas"], ["Come"], ["Go"]], look.moving.map((each) => h("tr", {}, h("td", { class: "name" }, h("a", { href: `/topics/${name(each.partition.topic)}` }, `${each.partition.topic}-${each.partition.partition}`)), h("td", {}, each.replicas.join(", ")), h("td", {}, each.adding.join(", ") || NOTHING), h("td", {}, each.removing.join(", ") || NOTHING))))) : null,
    look.leaderless_total ? names("Partitions without a leader", look.leaderless.map((each) => [each.topic, each.partition]), look.leaderless_total, "They come back when a node with an in-sync replica does.") : null,
    look.behind_total ? names("Replicas that are behind", look.behind.map(([node, each]) => [each.topic, each.partition, `on node ${node}`]), look.behind_total, "They catch up automatically while their node runs.") : null);
}

function row(node, most, started) {
  const behind = node.behind;
  const fenced = node.quorum?.is_fenced;
  const [level, word] = !node.address ? ["bad", "away"] : fenced ? ["warn", "joining"] : behind ? ["warn", `behind with ${count(behind)}`] : ["good", "ready"];
  return h("tr", {},
    h("td", { class: "name" }, `Node ${node.node_id}`, node.is_controller ? [" ", h("span", { class: "chip accent" }, "controller")] : null, node.rack ? h("div", { class: "hint" }, `rack ${node.rack}`) : null),
    h("td", {}, h("span", { class: `state ${level}` }, word), node.is_drained ? h("div", { class: "hint" }, "drained: gets no new replicas") : null),
    h("td", { class: "mono soft optional" }, node.address ?? NOTHING),
    h("td", {}, meter(node.leads / most, `Leads ${node.leads} partitions`), h("span", { class: "hint" }, counted(node.leads, "partition"))),
    h("td", { class: "num optional" }, `${count(node.in_sync)} of ${count(node.replicas)}`),
    h("td", { class: "optional" }, !node.quorum ? NOTHING : node.quorum.is_voter ? "voter" : "observer", node.quorum?.metadata_lag ? h("div", { class: "hint" }, `${counted(node.quorum.metadata_lag, "record")} behind`) : null),
    h("td", {}, node.disks.length ? node.disks.map(disk) : NOTHING),
    state.readOnly ? null : h("td", { class: "num" }, node.is_drained ? h("button", { onclick: () => undrain(node), "data-focus": `drain ${node.node_id}`, "aria-label": `Undo the drain of node ${node.node_id}` }, "Undo the drain") : h("button", { onclick: () => drain(node, started), "data-focus": `drain ${node.node_id}`, "aria-label": `Drain node ${node.node_id}` }, "Drain …")));
}

function disk(each) {
  if (each.is_failed) return h("div", { class: "bad-text" }, `failed: ${each.folder}`);
  if (each.free_bytes === null) return h("div", { class: "soft" }, each.folder);
  const share = each.total_bytes ? 1 - each.free_bytes / each.total_bytes : 0;
  return h("div", { title: each.folder }, meter(share, `Disk ${Math.round(share * 100)} % full`, share > 0.95 ? "bad" : share > 0.85 ? "warn" : ""), h("span", { class: "hint" }, `${bytes(each.free_bytes)} of ${bytes(each.total_bytes)} free`));
}

function names(title, items, total, todo) {
  return card(title, h("div", { class: "pad" }, h("p", { class: "hint" }, todo), items.length ? h("ul", {}, items.map(([topic, partition, more]) => h("li", {}, h("a", { href: `/topics/${name(topic)}` }, `${topic}-${partition}`), more ? ` ${more}` : ""))) : empty("None"), total > items.length ? h("p", { class: "hint" }, `and ${count(total - items.length)} more`) : null));
}
