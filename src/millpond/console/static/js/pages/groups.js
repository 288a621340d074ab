// Consumer groups: members, lag, rebalances; and resetting offsets.

import { change, get, live, name } from "../api.js";
import { curve } from "../charts.js";
import { ask, card, choice, confirmByName, empty, fault, field, fill, h, head, note, svg, tile } from "../dom.js";
import { NOTHING, ago, compact, count, counted, moment, rate, span } from "../format.js";
import { list, local } from "../list.js";
import { go, state } from "../router.js";

const LEVEL = { stable: "good", rebalancing: "warn", empty: "", dead: "bad" };
const CURVE_MAX = 120;
// If read and write rates differ by a smaller share than this, the lag counts as steady.
const FLAT = 0.05;

export async function draw(main, words, params, signal) {
  if (words.length) return one(main, words.join("/"), params, signal);
  const { table } = list({
    path: "/api/groups", label: "groups", params, signal,
    columns: [
      ["Group", (each) => h("a", { href: `/groups/${name(each.group)}` }, each.group), "name"],
      ["State", (each) => h("span", { class: `state ${LEVEL[each.state] ?? ""}` }, each.state)],
      ["Members", (each) => count(each.members), "num optional"],
      ["Topics", (each) => each.topics.slice(0, 3).join(", ") + (each.topics.length > 3 ? ` and ${each.topics.length - 3} more` : ""), "optional soft"],
      ["Unread", (each) => compact(each.lag), "num"],
      ["Behind", (each) => (each.behind_ms === null ? NOTHING : span(each.behind_ms)), "num"],
    ],
    none: () => empty("No group reads yet.", h("span", {}, "A consumer with a group.id appears here once it joins or commits:"), h("code", {}, "Consumer({\"bootstrap.servers\": …, \"group.id\": \"billing\"})")),
  });
  fill(main, head("Groups"), table);
}

async function one(main, group, params, signal) {
  const chips = h("div", { class: "tools" });
  const body = h("div", { class: "columns-none" }, h("p", { class: "hint" }, "Measuring …"));
  const past = h("div");
  const curvePoints = [];
  let last = null;
  let membersById = new Map();
  const parts = local({
    label: "partitions", size: 100, text: (each) => `${each.topic}-${each.partition} ${holder(each)}`,
    none: () => empty("The group has no committed offsets and no members."),
    columns: [
      ["Partition", (each) => h("a", { href: `/topics/${name(each.topic)}/records?partition=${each.partition}&from=${each.committed ?? "beginning"}` }, `${each.topic}-${each.partition}`), "name"],
      ["Member", (each) => holder(each), "optional soft"],
      ["Committed", (each) => count(each.committed), "num optional"],
      ["End", (each) => count(each.end), "num optional"],
      ["Unread", (each) => [count(each.lag), each.lost ? h("div", { class: "bad-text" }, `${count(each.lost)} lost`) : null], "num"],
      ["Behind", (each) => (each.behind_ms === null ? NOTHING : span(each.behind_ms)), "num"],
      ["Trend", (each) => trend(each), "num optional"],
      ["Caught up in", (each) => catchUp(each), "num"],
    ],
  });
  const members = local({
    label: "members", text: (each) => `${each.instance ?? ""} ${each.client} ${each.id} ${each.host} ${each.partitions.map(([topic, index]) => `${topic}-${index}`).join(" ")}`,
    none: () => empty("It has no members now.", h("span", {}, "Its offsets are kept: the next member continues from there.")),
    columns: [
      ["Member", (each) => [each.instance || each.client || each.id, h("div", { class: "hint mono" }, each.id)], "name"],
      ["Host", (each) => each.host, "soft"],
      ["Partitions", (each) => (each.partitions.length ? assigned(each.partitions) : h("span", { class: "warn-text" }, "none: more members than partitions"))],
    ],
  });
  const holder = (each) => (each.member ? membersById.get(each.member)?.instance || membersById.get(each.member)?.client || each.member : "no member");
  const top = h("div", { class: "stack" }, h("p", { class: "hint" }, "Measuring …"));
  const frame = h("div", { class: "stack" }, top, card("Partitions", parts.parts), card("Members", members.parts));
  // Its topics are known from the first sample on.
  const resets = h("button", { disabled: true, onclick: () => reset(group, last.topics) }, "Reset offsets …");
  fill(main, head(group, { crumb: h("a", { href: "/groups" }, "Groups"), chips: [chips], actions: state.readOnly ? [] : [
    resets, h("button", { class: "danger", onclick: () => remove(group) }, "Delete …")] }), body, past);
  const remember = async () => {
    try {
      fill(past, rebalances((await get(`/api/groups/${name(group)}/history`, signal)).rebalances));
    } catch (error) {
      if (!signal.aborted) fill(past, card("Rebalances", h("div", { class: "pad" }, fault(error))));
    }
  };
  const paint = (look) => {
    // Other members or another state may mean another rebalance.
    if (last && (last.state !== look.state || last.members !== look.members)) remember();
    last = look;
    resets.disabled = past.hidden = false;
    if (!frame.isConnected) fill(body, frame);
    curvePoints.push(look.lag);
    if (curvePoints.length > CURVE_MAX) curvePoints.shift();
    fill(chips, h("span", { class: "chip" }, h("span", { class: `state ${LEVEL[look.state] ?? ""}` }, look.state)), h("span", { class: "chip" }, counted(look.members, "member")), h("span", { class: "chip" }, `${look.type} protocol${look.assignor ? `, ${look.assignor}` : ""}`), h("span", { class: "chip optional" }, `coordinator ${look.coordinator}`));
    membersById = new Map(look.member_list.map((each) => [each.id, each]));
    parts.set(look.partitions);
    members.set(look.member_list);
    fill(top, verdict(look),
      h("div", { class: "tiles" },
        tile("Unread", count(look.lag), ["records ", trend(look), look.uncommitted ? `; ${compact(look.uncommitted)} of them in partitions without a committed offset` : ""], { extra: curve(curvePoints, "Unread records since this page was opened") }),
        tile("Behind", look.behind_ms === null ? (look.lag ? NOTHING : "0 s") : span(look.behind_ms), "the age of the oldest unread record"),
        tile("Reads", rate(look.read_per_second), `written ${rate(look.written_per_second)}`),
        tile("Caught up in", catchUp(look), "at this pace")),
      look.partitions_total > look.partitions.length ? h("p", { class: "hint" }, `The ${count(look.partitions.length)} partitions with the largest lag of ${count(look.partitions_total)}:`) : null);
  };
  const failure = ({ error }) => {
    if (last) return false;
    fill(body, h("div", { class: "stack tight" }, fault(new Error(error)), h("div", {}, h("a", { class: "button", href: "/groups" }, "See all groups"))));
    past.hidden = true;
    return true;
  };
  live(`/api/live/groups/${name(group)}`, { look: paint, failure }, signal);
  await remember();
}

function catchUp(each) {
  if (each.lag === null) return NOTHING;
  return !each.lag ? "now" : each.catch_up_seconds === null ? NOTHING : each.catch_up_seconds === "never" ? "never" : span(each.catch_up_seconds * 1000);
}

// The trend of the lag: read rate against write rate.
function trend(each) {
  const { read_per_second: read, written_per_second: written } = each;
  if (each.lag === null) return NOTHING;
  if (read === null || written === null || (!read && !written)) return h("span", { class: "soft" }, "steady");
  const gain = read - written;
  if (Math.abs(gain) <= FLAT * Math.max(read, written)) return h("span", { class: "soft" }, "steady");
  return gain > 0 ? h("span", { class: "good-text" }, `▼ ${rate(gain)}`) : h("span", { class: "warn-text" }, `▲ ${rate(-gain)}`);
}

function verdict(look) {
  if (look.lost) return h("p", { class: "fault" }, `${counted(look.lost, "record")} were deleted before this group read them. Keep records longer in its topics (retention.ms).`);
  if (!look.members && look.lag) return h("p", { class: "caution" }, "It has no members: start a consumer of this group.");
  if (look.catch_up_seconds === "never") return h("p", { class: "caution" }, "Records are written faster than they are read: it will not catch up at this rate. Start more members, up to one per partition, or make the handler faster.");
  return null;
}

function assigned(partitions) {
  // Not an object: a topic may be called __proto__.
  const topics = new Map();
  for (const [topic, index] of partitions) {
    if (!topics.has(topic)) topics.set(topic, []);
    topics.get(topic).push(index);
  }
  return Array.from(topics).map(([topic, indexes]) => h("div", {}, topic, ": ", h("span", { class: "soft" }, indexes.length > 40 ? `${indexes.slice(0, 40).join(", ")} …` : indexes.join(", "))));
}

function rebalances(all) {
  if (!all?.length) return card("Rebalances", empty("No rebalance of this group was recorded.", h("span", {}, "Only Millpond clusters record rebalances, from a group’s first one on.")));
  const longest = Math.max(1, ...all.map((each) => each.paused_ms ?? 0));
  return card(h("div", { class: "cardhead" }, h("h2", {}, "Rebalances"), h("span", { class: "soft" }, `the last ${count(all.length)}, paused ${span(all.reduce((sum, each) => sum + (each.paused_ms ?? 0), 0))} in all`)),
    h("div", { class: "pad" }, drawn(all)),
    h("ol", { class: "timeline" }, all.map((each) => h("li", {},
      h("div", {}, h("div", {}, ago(each.started_ms)), h("div", { class: "hint" }, moment(each.started_ms).slice(0, 19))),
      h("div", {}, h("div", {}, each.causes.map(said).join("; ") || "No cause was recorded."),
        h("div", { class: "hint" }, `${each.generation === null ? "" : `generation ${each.generation}, `}${counted(each.members, "member")}, ${each.moves_total < 0 ? "moves not counted" : `${counted(each.moves_total, "partition")} moved`}, ${each.paused_ms === null ? "not finished" : `paused ${span(each.paused_ms)}`}`),
        each.paused_ms ? h("div", { class: "meter", role: "img", "aria-label": `Paused ${span(each.paused_ms)}` }, h("div", { "width%": Math.max(1, (each.paused_ms / longest) * 100) })) : null,
        each.moves.length ? h("details", {}, h("summary", {}, "Who got what"), h("ul", { class: "plain" }, each.moves.slice(0, 100).map((move) => h("li", {}, `${move.partition.topic}-${move.partition.partition}: ${move.before ?? "no member"} → ${move.after ?? "no member"}`))),
          each.moves_total > Math.min(100, each.moves.length) ? h("p", { class: "hint" }, `and ${count(each.moves_total - Math.min(100, each.moves.length))} more`) : null) : null)))));
}

function said(cause) {
  const who = cause.instance_id || cause.client_id || cause.member_id;
  return `${cause.why}${who ? ` (${who}${cause.client_host ? ` on ${cause.client_host}` : ""})` : ""}${cause.detail ? `: ${cause.detail}` : ""}`;
}

// All rebalances on one time line: start, pause of reading, and moved partitions.
function drawn(all) {
  const first = Math.min(...all.map((each) => each.started_ms));
  const end = Math.max(Date.now(), ...all.map((each) => each.started_ms + (each.paused_ms ?? 0)));
  const wide = Math.max(1, end - first);
  const most = Math.max(1, ...all.map((each) => each.moves_total));
  const at = (ms) => 4 + ((ms - first) / wide) * 992;
  const words = `${counted(all.length, "rebalance")} since ${moment(first).slice(0, 19)}`;
  return h("div", { class: "line-of-time" },
    svg("svg", { viewBox: "0 0 1000 64", preserveAspectRatio: "none", role: "img", "aria-label": words, class: "moments" },
      svg("line", { x1: "0", x2: "1000", y1: "52", y2: "52", class: "axis" }),
      all.map((each) => {
        const height = 10 + 34 * (Math.max(0, each.moves_total) / most);
        const bar = svg("rect", { x: String(at(each.started_ms)), y: String(52 - height), width: String(Math.max(3, ((each.paused_ms ?? 0) / wide) * 992)), height: String(height), class: each.paused_ms === null ? "open" : "paused" });
        bar.append(svg("title", {}, `${moment(each.started_ms).slice(0, 19)}: ${each.causes.map(said).join("; ") || "no cause was recorded"}; ${counted(Math.max(0, each.moves_total), "partition")} moved, ${each.paused_ms === null ? "not finished" : `paused ${span(each.paused_ms)}`}`));
        return bar;
      })),
    h("div", { class: "ends" }, h("span", {}, moment(first).slice(0, 19)), h("span", {}, "the taller, the more partitions moved; as wide as the pause"), h("span", {}, "now")));
}

function reset(group, topics) {
  let steps = null;
  const offset = field("Offset", h("input", { name: "offset", type: "number", min: "0" }));
  const time = field("Time", h("input", { name: "time", type: "datetime-local", step: "1" }));
  const shift = field("Records forward (or back, with a minus)", h("input", { name: "count", type: "number" }));
  const to = choice("to", [["beginning", "The beginning: read everything again"], ["end", "The end: skip what is unread"], ["time", "A time"], ["offset", "An offset"], ["shift", "A number of records forward or back"]], "beginning");
  const plan = h("div", { class: "scroll" });
  const afresh = () => { steps = null; fill(plan); button("Preview"); };
  const adapt = () => { afresh(); offset.hidden = to.value !== "offset"; time.hidden = to.value !== "time"; shift.hidden = to.value !== "shift"; };
  const topicChoice = choice("topic", [["", "All its topics"], ...topics.map((each) => [each, each])], "");
  const dialog = ask({
    title: `Reset the offsets of ${group}`, action: "Preview",
    body: [h("p", { class: "hint" }, "The group must have no members. A preview comes before any change."), field("Topic", topicChoice), field("Read from", to), offset, time, shift, plan],
    act: async (form) => {
      if (!topics.length) throw new Error("The group has no committed offsets and no members: there is nothing to reset.");
      const fields = form.elements;
      const wanted = { topics: topicChoice.value ? [topicChoice.value] : topics, to: to.value };
      if (to.value === "offset") wanted.offset = fields.offset.valueAsNumber || 0;
      if (to.value === "shift") wanted.count = fields.count.valueAsNumber || 0;
      if (to.value === "time") {
        if (!fields.time.value) throw new Error("Give a time.");
        wanted.time_ms = new Date(fields.time.value).getTime();
      }
      // Whatever the outcome, the same request needs a new preview first.
      if (steps) {
        // Without a prototype: a topic may be called __proto__.
        wanted.steps = Object.create(null);
        for (const each of steps) (wanted.steps[each.topic] ??= []).push([each.partition, each.before, each.after]);
      }
      afresh();
      const result = await change("POST", `/api/groups/${name(group)}/reset`, wanted);
      if (result.is_done) {
        note(`${group} continues from there.`);
        return;
      }
      steps = result.steps;
      fill(plan, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Partition"), h("th", { class: "num" }, "Now"), h("th", { class: "num" }, "Then"), h("th", { class: "num" }, "Change"))),
        h("tbody", {}, steps.slice(0, 200).map((each) => h("tr", {}, h("td", {}, `${each.topic}-${each.partition}`, each.note ? h("div", { class: "hint" }, each.note) : null), h("td", { class: "num" }, count(each.before)), h("td", { class: "num" }, count(each.after)), h("td", { class: "num soft" }, each.before === null ? "new" : each.after === each.before ? "stays" : `${each.after > each.before ? "+" : "−"}${count(Math.abs(each.after - each.before))}`))))));
      button(`Reset ${counted(steps.filter((each) => each.before !== each.after).length, "partition")}`);
      throw null;
    },
  });
  const button = (text) => { const submit = dialog?.querySelector("button[type=submit]"); if (submit) submit.textContent = text; };
  to.addEventListener("change", adapt);
  topicChoice.addEventListener("change", adapt);
  for (const each of [offset, time, shift]) each.addEventListener("input", afresh);
  offset.hidden = time.hidden = shift.hidden = true;
}

function remove(group) {
  confirmByName({
    title: `Delete ${group}?`, action: "Delete for good", label: "Type the group’s name to confirm",
    warning: "Its committed offsets are deleted: consumers that join under this name start where auto.offset.reset says.",
    act: async (confirm) => {
      await change("DELETE", `/api/groups/${name(group)}`, { confirm });
      note(`Deleted ${group}.`);
      go("/groups");
    },
  });
}
