// The state of the cluster at a glance: what needs attention, and what to do about it.

import { live, name } from "../api.js";
import { curve, meter } from "../charts.js";
import { asFirstCommand } from "../code.js";
import { card, empty, fill, h, head } from "../dom.js";
import { bytes, compact, count, counted, rate, span } from "../format.js";
import { state } from "../router.js";

const SERIOUS = ["NodeAway", "Leaderless", "DiskFailed", "NoCoordinators", "GroupLost"];

// The text of each concern, and its advice.
const WORDS = {
  NodeAway: (f) => [`Node ${f.node_id} is offline.`, ["Start it again; other nodes serve its partitions if they have replicas. ", link("/cluster", "See the nodes")]],
  NodeBehind: (f) => [`Node ${f.node_id} is behind with ${counted(f.replicas, "replica")}.`, ["It catches up after a restart. If it stays behind, check its disk and network. ", link("/cluster", "See the nodes")]],
  Leaderless: (f) => [`No leader for ${f.partitions.slice(0, 3).map((each) => `${each.topic}-${each.partition}`).join(", ")}${f.partitions.length > 3 ? ` and ${f.partitions.length - 3} more` : ""}.`, ["They can be neither written nor read until a node with an in-sync replica is back. ", link("/cluster", "See the nodes")]],
  DiskFailed: (f) => [`The disk of node ${f.node_id} cannot be used (${f.folder}).`, "Replace it; the node copies its data from the others."],
  DiskNearlyFull: (f) => [`The disk of node ${f.node_id} is nearly full: ${bytes(f.free_bytes)} left for ${f.folder}.`, ["Free some space, or shorten retention (retention.ms, retention.bytes). ", link("/topics", "See the topics")]],
  NoCoordinators: (f) => ["The group coordinators do not answer.", f.reason],
  GroupLate: (f) => [`Group ${f.group} is ${span(f.behind_ms)} behind: ${counted(f.lag, "record")} unread, ${counted(f.members, "member")}.`, [f.members ? "Its members read more slowly than records are written: look for a stuck one, or start more. " : "It has no members: start its consumers. ", link(`/groups/${name(f.group)}`, "See the group")]],
  LettersWaiting: (f) => [`${counted(f.count, "dead letter")} ${f.count === 1 ? "waits" : "wait"} in ${f.topic}.`, ["See why they failed, and redrive them once that is fixed. ", link(`/letters/${name(f.topic)}`, "See the letters")]],
  QueueUnread: (f) => [`Queue ${f.topic} of group ${f.group} has no members: ${counted(f.waiting, "record")} waiting.`, ["Start its workers. ", link(`/groups/${name(f.group)}`, "See the group")]],
  QueueLate: (f) => [`The oldest record of queue ${f.topic} of group ${f.group} is ${span(f.oldest_age_ms)} old: ${counted(f.unfinished, "record")} unfinished, ${counted(f.members, "member")}.`, ["Start more workers, or look for a stuck one. ", link(`/groups/${name(f.group)}`, "See the group")]],
  GroupLost: (f) => [`Group ${f.group} has missed ${counted(f.lost, "record")} that were deleted unread.`, ["Keep records longer in its topics, then check where it reads. ", link(`/groups/${name(f.group)}`, "See the group")]],
};

function link(href, text) {
  return h("a", { href }, text);
}

function concerns(look) {
  return look.concerns.map(({ kind, facts }) => [WORDS[kind]?.(facts) ?? [kind, ""], SERIOUS.includes(kind)]);
}

function healthCard(look) {
  const items = concerns(look);
  const level = items.some(([, serious]) => serious) ? "bad" : items.length ? "warn" : "";
  const title = items.length ? `${counted(items.length, "thing")} ${items.length === 1 ? "needs" : "need"} attention` : "All is well";
  return h("section", { class: "card", "aria-label": "Health" },
    h("div", { class: `health ${level}` }, h("div", {}, h("strong", {}, title),
      h("p", { class: "soft" }, items.length ? "What it is, and what to do about it:" : "Every node answers, every partition has a leader and is in sync, and no group is late."))),
    items.length ? h("ul", { class: "concerns" }, items.map(([[what, todo]]) => h("li", {}, h("span", {}, what), h("span", { class: "todo" }, todo)))) : null);
}

function tile(title, value, more, href, extra, wide = false) {
  return h(href ? "a" : "div", { class: `card tile${wide ? " wide" : ""}`, href }, h("span", { class: "name" }, title), h("span", { class: "value" }, value), more ? h("span", { class: "more" }, more) : null, extra);
}

function nodeRow(node) {
  const [disk] = node.disks;
  const share = disk?.total_bytes ? 1 - disk.free_bytes / disk.total_bytes : null;
  return h("tr", {},
    h("td", { class: "name" }, `Node ${node.node_id}`, node.is_controller ? [" ", h("span", { class: "chip accent" }, "controller")] : null),
    h("td", {}, h("span", { class: `state ${!node.address ? "bad" : node.behind ? "warn" : "good"}` }, !node.address ? "away" : node.behind ? "behind" : "ready")),
    h("td", { class: "num" }, `leads ${count(node.leads)}`),
    h("td", {}, share === null ? "" : [meter(share, `Disk ${Math.round(share * 100)} % full`, share > 0.9 ? "bad" : ""), h("span", { class: "hint" }, `${bytes(disk.free_bytes)} free`)]));
}

export async function draw(main, words, params, signal) {
  const place = h("div");
  fill(main, head("Overview"), h("p", { class: "hint" }, "Loading the cluster …"));
  const paint = (look) => {
    const rates = look.history.map((each) => each.rate);
    fill(main, head("Overview", { chips: [h("span", { class: "hint" }, "Cluster ", h("code", {}, look.cluster_id || "without an id"))] }),
      healthCard(look),
      h("div", { class: "tiles" },
        tile("Written", rate(look.records_per_second), look.records_per_second === null ? "measuring …" : "records per second, all topics", null, curve(rates.length ? rates : [0], "Records written per second over the last minutes"), true),
        tile("Unread", compact(look.lag), `records, by ${counted(look.groups, "group")}`, "/groups", curve(look.history.length ? look.history.map((each) => each.lag) : [look.lag], "Unread records over the last minutes"), true),
        tile("Topics", count(look.topics), counted(look.partitions, "partition"), "/topics"),
        tile("Nodes", count(look.nodes.filter((each) => each.address).length), look.nodes.some((each) => !each.address) ? `${look.nodes.filter((each) => !each.address).length} away` : "all ready", "/cluster")),
      h("div", { class: "columns" },
        card("Busiest topics", look.busiest.length ? h("table", {}, h("tbody", {}, look.busiest.map((each) => h("tr", {}, h("td", { class: "name" }, link(`/topics/${name(each.topic)}`, each.topic)), h("td", { class: "num" }, rate(each.rate))))))
          : look.topics ? empty("Nothing is being written now.", h("span", {}, "Produce a record: ", h("code", {}, asFirstCommand(state.bootstrap, "TOPIC"))))
            : empty("There are no topics yet.", h("a", { class: "button", href: "/topics?create=1" }, "Create one"))),
        card("Groups with the largest lag", look.latest.length ? h("table", {}, h("tbody", {}, look.latest.map((each) => h("tr", {},
          h("td", { class: "name" }, link(`/groups/${name(each.group)}`, each.group)),
          h("td", { class: "num" }, counted(each.lag, "record")),
          h("td", { class: "num soft" }, each.behind_ms === null ? "" : `${span(each.behind_ms)} behind`)))))
          : empty("No group reads yet.", h("span", {}, "A consumer with a group.id appears here once it commits."))),
        card("Nodes", h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, look.nodes.map(nodeRow)))))),
      place);
  };
  live("/api/live/overview", { look: paint }, signal);
}
