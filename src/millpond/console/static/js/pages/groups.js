// Consumer groups: who reads what, how far behind, since when; and starting again from somewhere else.

import { change, get, live, name } from "../api.js";
import { curve } from "../charts.js";
import { ask, card, choice, empty, fault, field, fill, h, head, note } from "../dom.js";
import { NOTHING, ago, compact, count, counted, moment, rate, span } from "../format.js";
import { list } from "../list.js";
import { go, state } from "../router.js";

const LEVEL = { stable: "good", rebalancing: "warn", empty: "", dead: "bad" };
const CURVE_MAX = 120;
const ROWS = 100;

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
  let page = 1;
  fill(main, head(group, { crumb: h("a", { href: "/groups" }, "Groups"), chips: [chips], actions: state.readOnly ? [] : [
    h("button", { onclick: () => reset(group, last) }, "Reset offsets …"), h("button", { class: "danger", onclick: () => remove(group) }, "Delete …")] }), body, past);
  const paint = (look) => {
    last = look;
    curvePoints.push(look.lag);
    if (curvePoints.length > CURVE_MAX) curvePoints.shift();
    fill(chips, h("span", { class: "chip" }, h("span", { class: `state ${LEVEL[look.state] ?? ""}` }, look.state)), h("span", { class: "chip" }, counted(look.members, "member")), h("span", { class: "chip" }, `${look.type} protocol${look.assignor ? `, ${look.assignor}` : ""}`), h("span", { class: "chip optional" }, `coordinator ${look.coordinator}`));
    fill(body, h("div", { class: "stack" }, verdict(look),
      h("div", { class: "tiles" },
        tile("Unread", count(look.lag), "records", curve(curvePoints, "Unread records since you look")),
        tile("Behind", look.behind_ms === null ? (look.lag ? NOTHING : "0 s") : span(look.behind_ms), "the age of the oldest unread record"),
        tile("Reads", rate(look.read_per_second), `written ${rate(look.written_per_second)}`),
        tile("Caught up in", look.lag === 0 ? "now" : look.catch_up_seconds === null ? NOTHING : look.catch_up_seconds === "never" ? "never" : span(look.catch_up_seconds * 1000), "at this pace")),
      partitions(look), members(look)));
  };
  const partitions = (look) => {
    const pages = Math.max(1, Math.ceil(look.partitions.length / ROWS));
    const shown = look.partitions.slice((page - 1) * ROWS, page * ROWS);
    const people = Object.fromEntries(look.people.map((each) => [each.id, each]));
    return card("Partitions", look.partitions.length ? [h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, [["Partition"], ["Member", "optional"], ["Committed", "num optional"], ["End", "num optional"], ["Unread", "num"], ["Behind", "num"], ["Reads", "num optional"], ["Caught up in", "num"]].map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", {}, shown.map((each) => h("tr", {},
        h("td", { class: "name" }, h("a", { href: `/topics/${name(each.topic)}/records?partition=${each.partition}&from=${each.committed ?? "beginning"}` }, `${each.topic}-${each.partition}`)),
        h("td", { class: "optional soft" }, each.member ? people[each.member]?.instance || people[each.member]?.client || each.member : "nobody"),
        h("td", { class: "num optional" }, count(each.committed)), h("td", { class: "num optional" }, count(each.end)),
        h("td", { class: "num" }, count(each.lag), each.lost ? h("div", { class: "bad-text" }, `${count(each.lost)} lost`) : null),
        h("td", { class: "num" }, each.behind_ms === null ? NOTHING : span(each.behind_ms)),
        h("td", { class: "num optional" }, rate(each.read_per_second)),
        h("td", { class: "num" }, !each.lag ? "now" : each.catch_up_seconds === null ? NOTHING : each.catch_up_seconds === "never" ? "never" : span(each.catch_up_seconds * 1000))))))),
      pages > 1 ? h("div", { class: "foot" }, `${counted(look.partitions_total, "partition")}, the largest lag first`, h("span", { class: "tools" }, h("button", { disabled: page <= 1, onclick: () => { page -= 1; paint(last); }, "data-focus": "previous" }, "Previous"), h("button", { disabled: page >= pages, onclick: () => { page += 1; paint(last); }, "data-focus": "next" }, "Next"))) : null]
      : empty("The group has committed nothing and reads nothing."));
  };
  live(`/api/live/groups/${name(group)}`, { look: paint, failure: ({ error }) => { if (!last) fill(body, fault(new Error(error)), h("a", { class: "button", href: "/groups" }, "See all groups")); return !last; } }, signal);
  try {
    fill(past, rebalances((await get(`/api/groups/${name(group)}/history`, signal)).rebalances));
  } catch (error) {
    if (!signal.aborted) fill(past, card("Rebalances", h("div", { class: "pad" }, fault(error))));
  }
}

function tile(title, value, more, extra) {
  return h("div", { class: "card tile" }, h("span", { class: "name" }, title), h("span", { class: "value" }, value), h("span", { class: "more" }, more), extra);
}

function verdict(look) {
  if (look.lost) return h("p", { class: "fault" }, `${counted(look.lost, "record")} were deleted before this group read them. Let its topics keep records for longer (retention.ms).`);
  if (!look.members && look.lag) return h("p", { class: "caution" }, "Nobody reads: start a consumer of this group.");
  if (look.catch_up_seconds === "never") return h("p", { class: "caution" }, "More is written than read: it will not catch up at this pace. Start more members, up to one for each partition, or make the handler faster.");
  return null;
}

function members(look) {
  return card("Members", look.people.length ? h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Member", "Host", "Partitions"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, look.people.map((each) => h("tr", {}, h("td", { class: "name" }, each.instance || each.client || each.id, h("div", { class: "hint mono" }, each.id)), h("td", { class: "soft" }, each.host),
      h("td", {}, each.partitions.length ? assigned(each.partitions) : h("span", { class: "warn-text" }, "none: more members than partitions")))))))
    : empty("It has no members now.", h("span", {}, "Its offsets stay, so that whoever joins goes on from there.")));
}

function assigned(partitions) {
  const topics = {};
  for (const [topic, index] of partitions) (topics[topic] ??= []).push(index);
  return Object.entries(topics).map(([topic, indexes]) => h("div", {}, topic, ": ", h("span", { class: "soft" }, indexes.length > 40 ? `${indexes.slice(0, 40).join(", ")} …` : indexes.join(", "))));
}

function rebalances(all) {
  if (!all?.length) return card("Rebalances", empty("No rebalance of this group is written down.", h("span", {}, "Only a Millpond cluster keeps that history, from a group’s first rebalance on.")));
  const longest = Math.max(1, ...all.map((each) => each.paused_ms ?? 0));
  return card("Rebalances", h("ol", { class: "timeline" }, all.map((each) => h("li", {},
    h("div", {}, h("div", {}, ago(each.started_ms)), h("div", { class: "hint" }, moment(each.started_ms).slice(0, 19))),
    h("div", {}, h("div", {}, each.causes.map((cause) => `${cause.why}${cause.client_id || cause.member_id ? ` (${cause.instance_id || cause.client_id || cause.member_id}${cause.client_host ? ` on ${cause.client_host}` : ""})` : ""}${cause.detail ? `: ${cause.detail}` : ""}`).join("; ") || "No cause was noted."),
      h("div", { class: "hint" }, `${each.generation === null ? "" : `generation ${each.generation}, `}${counted(each.members, "member")}, ${each.moves_total < 0 ? "moves not counted" : `${counted(each.moves_total, "partition")} moved`}, ${each.paused_ms === null ? "not finished" : `paused ${span(each.paused_ms)}`}`),
      each.paused_ms ? h("div", { class: "meter", role: "img", "aria-label": `Paused ${span(each.paused_ms)}` }, h("div", { "width%": Math.max(1, (each.paused_ms / longest) * 100) })) : null)))));
}

function reset(group, look) {
  const topics = look?.topics ?? [];
  let steps = null;
  const offset = field("Offset", h("input", { name: "offset", type: "number", min: "0" }));
  const time = field("Time", h("input", { name: "time", type: "datetime-local", step: "1" }));
  const shift = field("Records on (or back, with a minus)", h("input", { name: "count", type: "number" }));
  const to = choice("to", [["beginning", "The beginning: read everything again"], ["end", "The end: skip what is unread"], ["time", "A time"], ["offset", "An offset"], ["shift", "So many records on or back"]], "beginning");
  const plan = h("div", { class: "scroll" });
  const adapt = () => { steps = null; fill(plan); offset.hidden = to.value !== "offset"; time.hidden = to.value !== "time"; shift.hidden = to.value !== "shift"; button("Preview"); };
  const topicChoice = choice("topic", [["", "All topics that it reads"], ...topics.map((each) => [each, each])], "");
  const dialog = ask({
    title: `Reset the offsets of ${group}`, action: "Preview",
    body: [h("p", { class: "hint" }, "The group must have no members. Nothing changes before you have seen what would."), field("Topic", topicChoice), field("Read from", to), offset, time, shift, plan],
    act: async (form) => {
      const fields = form.elements;
      const wanted = { topics: topicChoice.value ? [topicChoice.value] : topics, to: to.value };
      if (to.value === "offset") wanted.offset = fields.offset.valueAsNumber || 0;
      if (to.value === "shift") wanted.count = fields.count.valueAsNumber || 0;
      if (to.value === "time") {
        if (!fields.time.value) throw new Error("Give a time.");
        wanted.time_ms = new Date(fields.time.value).getTime();
      }
      if (steps) wanted.steps = steps;
      const result = await change("POST", `/api/groups/${name(group)}/reset`, wanted);
      if (result.is_done) {
        note(`${group} goes on from there.`);
        return;
      }
      steps = result.steps;
      fill(plan, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Partition"), h("th", { class: "num" }, "Now"), h("th", { class: "num" }, "Then"), h("th", { class: "num" }, ""))),
        h("tbody", {}, steps.slice(0, 200).map((each) => h("tr", {}, h("td", {}, `${each.topic}-${each.partition}`, each.note ? h("div", { class: "hint" }, each.note) : null), h("td", { class: "num" }, count(each.before)), h("td", { class: "num" }, count(each.after)), h("td", { class: "num soft" }, each.before === null ? "new" : each.after === each.before ? "stays" : `${each.after > each.before ? "+" : "−"}${count(Math.abs(each.after - each.before))}`))))));
      button(`Reset ${counted(steps.filter((each) => each.before !== each.after).length, "partition")}`);
      throw null;
    },
  });
  const button = (text) => { const submit = dialog?.querySelector("button[type=submit]"); if (submit) submit.textContent = text; };
  to.addEventListener("change", adapt);
  topicChoice.addEventListener("change", adapt);
  for (const each of [offset, time, shift]) each.addEventListener("input", () => { steps = null; fill(plan); button("Preview"); });
  offset.hidden = time.hidden = shift.hidden = true;
}

function remove(group) {
  ask({
    title: `Delete ${group}?`, action: "Delete for good", danger: true,
    body: [h("p", { class: "caution" }, "All that it has committed goes: whoever joins under this name begins as auto.offset.reset says."),
      field("Type the group’s name to confirm", h("input", { name: "confirm", required: true, autocomplete: "off", autofocus: true }))],
    act: async (form) => {
      await change("DELETE", `/api/groups/${name(group)}`, { confirm: form.elements.confirm.value });
      note(`Deleted ${group}.`);
      go("/groups");
    },
  });
}
