// The nodes of the cluster: who leads, who is in sync, who votes, how much room is left.

import { live, name } from "../api.js";
import { meter } from "../charts.js";
import { card, empty, fill, h, head } from "../dom.js";
import { NOTHING, bytes, count, counted } from "../format.js";

export async function draw(main, words, params, signal) {
  fill(main, head("Cluster"), h("p", { class: "hint" }, "Looking at the nodes …"));
  live("/api/live/cluster", { look: (look) => paint(main, look) }, signal);
}

function paint(main, look) {
  const voters = look.nodes.filter((each) => each.quorum?.is_voter);
  const there = voters.filter((each) => each.address && !each.quorum.is_fenced).length;
  const needed = Math.floor(voters.length / 2) + 1;
  const leads = Math.max(1, ...look.nodes.map((each) => each.leads));
  fill(main,
    head("Cluster", { chips: [h("span", { class: "hint" }, "Id ", h("code", {}, look.cluster_id || "none"))] }),
    h("div", { class: "tiles" },
      tile("Nodes", count(look.nodes.filter((each) => each.address).length), look.nodes.every((each) => each.address) ? "all there" : `${count(look.nodes.filter((each) => !each.address).length)} away`),
      tile("Quorum", voters.length ? `${there} of ${voters.length}` : NOTHING, voters.length ? `voters there; ${needed} ${needed === 1 ? "is" : "are"} needed` : "this cluster does not say who votes", voters.length && there < needed ? "bad-text" : ""),
      tile("Replicas behind", count(look.behind_total), look.behind_total ? "not in sync with their leaders" : "all are in sync", look.behind_total ? "warn-text" : ""),
      tile("Without a leader", count(look.leaderless_total), look.leaderless_total ? "can be neither written nor read" : "every partition is led", look.leaderless_total ? "bad-text" : "")),
    card("Nodes", h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, [["Node"], ["State"], ["Address", "optional"], ["Leads"], ["In sync", "num optional"], ["Vote", "optional"], ["Disk"]].map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", {}, look.nodes.map((each) => row(each, leads)))))),
    look.leaderless_total ? names("Partitions without a leader", look.leaderless.map((each) => [each.topic, each.partition]), look.leaderless_total, "They come back when a node with a replica in sync does.") : null,
    look.behind_total ? names("Replicas that are behind", look.behind.map(([node, each]) => [each.topic, each.partition, `on node ${node}`]), look.behind_total, "They catch up by themselves while their node runs.") : null);
}

function tile(title, value, more, level = "") {
  return h("div", { class: "card tile" }, h("span", { class: "name" }, title), h("span", { class: `value ${level}` }, value), h("span", { class: "more" }, more));
}

function row(node, most) {
  const behind = node.replicas - node.in_sync;
  const fenced = node.quorum?.is_fenced;
  const [level, word] = !node.address ? ["bad", "away"] : fenced ? ["warn", "on its way in"] : behind ? ["warn", `behind with ${count(behind)}`] : ["good", "ready"];
  return h("tr", {},
    h("td", { class: "name" }, `Node ${node.node_id}`, node.is_controller ? [" ", h("span", { class: "chip accent" }, "controller")] : null, node.rack ? h("div", { class: "hint" }, `rack ${node.rack}`) : null),
    h("td", {}, h("span", { class: `state ${level}` }, word)),
    h("td", { class: "mono soft optional" }, node.address ?? NOTHING),
    h("td", {}, meter(node.leads / most, `Leads ${node.leads} partitions`), h("span", { class: "hint" }, counted(node.leads, "partition"))),
    h("td", { class: "num optional" }, `${count(node.in_sync)} of ${count(node.replicas)}`),
    h("td", { class: "optional" }, !node.quorum ? NOTHING : node.quorum.is_voter ? "voter" : "observer", node.quorum?.metadata_lag ? h("div", { class: "hint" }, `${counted(node.quorum.metadata_lag, "record")} behind`) : null),
    h("td", {}, node.disks.length ? node.disks.map(disk) : NOTHING));
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
