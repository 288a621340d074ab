// Work queues: what waits, what is out with whom, what was given up; send, look at the next jobs, purge, redrive.

import { change, get, live, name, query } from "../api.js";
import { curve } from "../charts.js";
import { ask, card, choice, empty, fault, field, fill, h, head, note, table, tile } from "../dom.js";
import { NOTHING, ago, compact, count, counted, moment, rate, span } from "../format.js";
import { dryRun, whileOpen } from "../jobs.js";
import { local } from "../list.js";
import { preview } from "../data.js";
import { redrive } from "../redrive.js";
import { state } from "../router.js";

const LEVEL = { stable: "good", rebalancing: "warn", empty: "", dead: "bad" };
const STATES = { waiting: "good", delayed: "", out: "warn", archiving: "bad", unknown: "" };
const CURVE_MAX = 120;
const JOBS_MAX = 200;
const DELIVER_AT = "queue.deliver-at";
const PRIORITY = "queue.priority";

export async function draw(main, words, params, signal) {
  // A group's name may have slashes, a topic's has none.
  if (words.length > 1) return one(main, words.slice(0, -1).join("/"), words.at(-1), signal);
  const under = h("div");
  const body = h("div", {}, h("p", { class: "hint" }, "Measuring …"));
  let dead = new Map();
  let last = null;
  const listed = local({
    label: "queues", params, text: (each) => `${each.topic} ${each.group}`,
    none: () => empty("There is no queue yet.", h("span", {}, "A queue is a topic that a share group reads. It appears here once a worker joins:"), h("code", {}, "ShareConsumer({\"bootstrap.servers\": …, \"group.id\": \"mailers\"})")),
    columns: [
      ["Queue", (each) => [h("a", { href: at(each) }, each.topic), h("div", { class: "hint" }, each.group)], "name"],
      ["Workers", (each) => h("span", { class: `state ${LEVEL[each.state] ?? ""}` }, count(each.members)), "optional"],
      ["Waiting", (each) => waiting(each), "num"],
      ["Out", (each) => compact(each.out), "num"],
      ["Delayed", (each) => compact(each.delayed), "num optional"],
      ["Dead", (each) => deadCount(dead.get(key(each))), "num"],
      ["Oldest", (each) => span(each.oldest_age_ms), "num"],
      ["Written", (each) => rate(each.rates?.written), "num optional soft"],
      ["Finished", (each) => rate(each.rates?.finished), "num optional"],
    ],
  });
  fill(main, head("Queues"), body, under);
  const frame = card(null, listed.parts);
  const paint = () => {
    if (!frame.isConnected) fill(body, frame);
    listed.set(last.queues);
    fill(under, last.queues_total > last.queues.length ? h("p", { class: "hint" }, `The first ${count(last.queues.length)} of ${count(last.queues_total)} queues.`) : null,
      last.groups_left_out ? h("p", { class: "hint" }, `${counted(last.groups_left_out, "share group")} were not examined: there are too many.`) : null);
  };
  live("/api/live/queues", {
    look: (look) => { last = look; paint(); },
    dead: (counts) => { dead = byQueue(counts); if (last) paint(); },
    failure: ({ error }) => { if (!last) fill(body, fault(new Error(error))); return !last; },
  }, signal);
}

function at(queue) {
  return `/queues/${name(queue.group)}/${name(queue.topic)}`;
}

function key(queue) {
  return JSON.stringify([queue.group, queue.topic]);
}

function byQueue(counts) {
  return new Map(counts.map((each) => [key(each), each]));
}

function isUnread(queue) {
  return queue.not_started === queue.partitions_total;
}

// How many wait is not known before the group has begun somewhere.
function waiting(queue) {
  return isUnread(queue) ? NOTHING : compact(queue.waiting);
}

function deadCount(found) {
  if (!found || found.dead === null) return NOTHING;
  return h("a", { href: `/letters/${name(found.letters)}`, class: found.dead ? "bad-text" : "" }, `${found.is_exact ? "" : "~"}${compact(found.dead)}`);
}

async function one(main, group, topic, signal) {
  const path = `/api/queues/${name(group)}/${name(topic)}`;
  const chips = h("div", { class: "tools" });
  const body = h("div", { class: "columns-none" }, h("p", { class: "hint" }, "Measuring …"));
  const curvePoints = [];
  let last = null;
  let dead = null;
  const holders = local({
    label: "workers", text: (each) => `${each.client ?? ""} ${each.member} ${each.host ?? ""}`,
    none: () => h("p", { class: "pad hint" }, last?.out === null ? "This cluster does not say who holds which records." : "No worker holds a record now."),
    columns: [
      ["Worker", (each) => [each.client || each.member, h("div", { class: "hint mono" }, each.client ? each.member : "it has left the group")], "name"],
      ["Host", (each) => each.host ?? NOTHING, "soft optional"],
      ["Records", (each) => count(each.records), "num"],
      ["First lock ends in", (each) => span(each.lock_left_ms), "num"],
    ],
  });
  const parts = local({
    label: "partitions", size: 100, text: (each) => `${topic}-${each.partition} ${each.holders.map((holder) => holder.client ?? holder.member).join(" ")}`,
    none: () => empty("The topic has no partitions."),
    columns: [
      ["Partition", (each) => h("a", { href: `/topics/${name(topic)}/records?partition=${each.partition}&from=${each.start ?? "end"}` }, `${topic}-${each.partition}`), "name"],
      ["Leader", (each) => (each.leader < 0 ? h("span", { class: "bad-text" }, "none") : String(each.leader)), "num optional soft"],
      ["Read up to", (each) => (each.start === null ? h("span", { class: "soft" }, "not read yet") : count(each.start)), "num optional"],
      ["End", (each) => count(each.end), "num optional"],
      ["Waiting", (each) => count(each.waiting), "num"],
      ["Out", (each) => [count(each.out), each.holders.length ? h("div", { class: "hint" }, whoHolds(each.holders)) : null], "num"],
      ["Delayed", (each) => count(each.delayed), "num optional"],
      ["Oldest", (each) => span(each.oldest_age_ms), "num"],
    ],
  });
  const top = h("div", { class: "stack" });
  const totals = h("div");
  const next = h("div");
  const rules = h("div");
  const frame = h("div", { class: "stack" }, top, h("div", { class: "columns" }, card("Workers with records", holders.parts), totals), card("Partitions", parts.parts), next, rules);
  const peek = () => showJobs(path, next, signal);
  fill(main, head(topic, {
    crumb: [h("a", { href: "/queues" }, "Queues"), ` · read by `, h("a", { href: `/groups/${name(group)}` }, group)], chips: [chips],
    actions: [h("button", { onclick: peek }, "Next jobs"), state.readOnly ? null : [
      h("button", { class: "main", onclick: () => send(topic) }, "Send one …"),
      h("button", { class: "danger", onclick: () => purge(path, topic, group) }, "Purge …")]],
  }), body);
  const paint = () => {
    if (!frame.isConnected) { fill(body, frame); showSettings(path, rules, signal); }
    const look = last;
    fill(chips, h("span", { class: "chip" }, h("span", { class: `state ${LEVEL[look.state] ?? ""}` }, look.state)), h("span", { class: "chip" }, counted(look.members, "worker")), h("span", { class: "chip optional" }, `coordinator ${look.coordinator}`));
    holders.set(look.holders);
    parts.set(look.partitions);
    fill(totals, history(look));
    fill(top, verdict(look, dead),
      h("div", { class: "tiles" },
        tile("Waiting", waiting(look), isUnread(look) ? "its workers have not read the topic yet" : look.out === null ? "may include records that are out" : "for a worker", { extra: curve(curvePoints, "Waiting records since this page was opened") }),
        tile("Out", compact(look.out), look.holders_total ? `with ${counted(look.holders_total, "worker")}` : "with no worker"),
        tile("Delayed", compact(look.delayed), look.next_due_ms ? `the next one at ${moment(look.next_due_ms).slice(11, 19)}` : "for later"),
        tile("Dead", dead && dead.dead !== null ? `${dead.is_exact ? "" : "~"}${compact(dead.dead)}` : NOTHING, dead ? [h("a", { href: `/letters/${name(dead.letters)}` }, dead.letters), redriveButton(dead, group, topic)] : "no dead-letter topic", { level: dead?.dead ? "bad-text" : "" }),
        tile("Oldest", look.oldest_age_ms === null ? NOTHING : span(look.oldest_age_ms), "the age of the oldest unfinished record"),
        tile("Finished", rate(look.rates?.finished), `written ${rate(look.rates?.written)}`)),
      look.partitions_total > look.partitions.length ? h("p", { class: "hint" }, `The ${count(look.partitions.length)} partitions with most unfinished records, of ${count(look.partitions_total)}:`) : null);
  };
  live(`/api/live/queues/${name(group)}/${name(topic)}`, {
    look: (look) => {
      last = look;
      curvePoints.push(look.waiting);
      if (curvePoints.length > CURVE_MAX) curvePoints.shift();
      paint();
    },
    dead: (counts) => { dead = counts[0] ?? null; if (last) paint(); },
    failure: ({ error }) => {
      if (last) return false;
      fill(body, h("div", { class: "stack tight" }, fault(new Error(error)), h("div", {}, h("a", { class: "button", href: "/queues" }, "See all queues"))));
      return true;
    },
  }, signal);
}

function whoHolds(holders) {
  const named = holders.slice(0, 2).map((each) => each.client ?? each.member).join(", ");
  return holders.length > 2 ? `${named} and ${holders.length - 2} more` : named;
}

function redriveButton(dead, group, topic) {
  if (state.readOnly || !dead.dead) return null;
  return [" ", h("button", { type: "button", class: "quiet", "data-focus": "redrive", onclick: () => redrive(dead.letters, { group, origin: topic }, () => {}) }, "Redrive …")];
}

function verdict(look, dead) {
  if (!look.members && (look.waiting || look.out)) return h("p", { class: "caution" }, "It has no workers: start one that joins this share group.");
  if (look.not_started && !look.members) return null;
  const { totals } = look;
  if (totals && totals.expired > totals.accepted / 20 && totals.expired > 2) return h("p", { class: "caution" }, `${counted(totals.expired, "lock")} ran out: jobs take longer than share.record.lock.duration.ms, or workers hang. Their records are delivered again. Lengthen the lock, or renew it.`);
  if (look.archiving && !dead) return h("p", { class: "caution" }, `${counted(look.archiving, "record")} cannot be given up: their dead letters are not written.`);
  return null;
}

// What has happened, as far as the partition leaders remember.
function history(look) {
  const { totals } = look;
  if (!totals) return card("Deliveries", h("p", { class: "pad hint" }, look.out === null ? "This cluster does not count deliveries." : "None since its partition leaders started."));
  const rows = [["Delivered", totals.delivered], ["Accepted", totals.accepted], ["Released", totals.released], ["Locks expired", totals.expired], ["Rejected", totals.rejected], ["Dead letters", totals.dead_letters]];
  const most = Math.max(1, ...rows.map(([, number]) => number));
  return card(h("div", { class: "cardhead" }, h("h2", {}, "Deliveries"), h("span", { class: "soft" }, "since its partition leaders started")),
    h("div", { class: "pad bars" }, rows.map(([title, number]) => [h("span", { class: "name" }, title), h("div", { class: "meter", role: "img", "aria-label": `${title}: ${number}` }, h("div", { "width%": (number / most) * 100 })), h("span", { class: "num" }, count(number))])));
}

async function showSettings(path, place, signal) {
  try {
    const settings = await get(`${path}/settings`, signal);
    if (!settings.length) return;
    fill(place, card("Settings of the share group", table([["Setting"], ["Value"], ["", "optional"]], settings.map((each) => h("tr", {},
      h("td", { class: "name mono", title: each.meaning }, each.name), h("td", { class: "mono" }, each.value || NOTHING), h("td", { class: "soft optional" }, each.is_own ? "set for this group" : ""))))));
  } catch (error) {
    if (!signal.aborted) fill(place, fault(error));
  }
}

// The next jobs, read from the log: nobody takes them by that.
async function showJobs(path, place, signal, limit = 25) {
  fill(place, card("Next jobs", h("p", { class: "pad hint" }, "Reading …")));
  place.scrollIntoView({ block: "nearest" });
  let found;
  try {
    found = await get(`${path}/jobs${query({ limit })}`, signal);
  } catch (error) {
    if (!signal.aborted) fill(place, card("Next jobs", h("div", { class: "pad" }, fault(error))));
    return;
  }
  const rows = found.jobs.map(({ record, state: what, deliveries, deliver_at_ms: due, priority }) => h("tr", {},
    h("td", { class: "nowrap" }, `${record.partition}:${record.offset}`), h("td", { class: "nowrap soft optional", title: moment(record.timestamp_ms) }, ago(record.timestamp_ms)),
    h("td", { class: "nowrap" }, h("span", { class: `state ${STATES[what] ?? ""}` }, what), due !== null && what === "delayed" ? h("div", { class: "hint" }, moment(due).slice(0, 19)) : null),
    h("td", { class: "num optional" }, deliveries === null ? NOTHING : count(deliveries)), h("td", { class: "num optional" }, priority ?? NOTHING),
    h("td", { class: "key optional" }, preview(record.key)), h("td", { class: "value" }, preview(record.value))));
  const said = [`${counted(found.jobs.length, "record")}, the oldest first`, found.is_whole ? "" : "; a limit of time or memory was reached", found.not_started ? `; ${counted(found.not_started, "partition")} the group has not read yet` : "", found.jobs.some((each) => each.state === "unknown") ? "; unknown: its leader does not say, so the record may be finished" : ""].join("");
  fill(place, card(h("div", { class: "cardhead" }, h("h2", {}, "Next jobs"), h("button", { onclick: () => showJobs(path, place, signal, limit), "data-focus": "again" }, "Read again")),
    rows.length ? h("div", { class: "scroll" }, h("table", { class: "records" }, h("thead", {}, h("tr", {}, [["Record"], ["Written", "optional"], ["State"], ["Deliveries", "num optional"], ["Priority", "num optional"], ["Key", "optional"], ["Value"]].map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))), h("tbody", {}, rows)))
      : empty("No job is left: all records are finished."),
    h("div", { class: "foot" }, h("span", {}, said), found.jobs.length >= limit && limit < JOBS_MAX ? h("button", { onclick: () => showJobs(path, place, signal, JOBS_MAX), "data-focus": "more" }, "Show more") : null)));
}

function send(topic) {
  const when = choice("when", [["now", "Now"], ["in", "After a delay"], ["at", "At a time"]], "now");
  const delay = field("Seconds", h("input", { name: "delay", type: "number", min: "0", max: "3153600000", step: "any", value: "60" }));
  const time = field("Time", h("input", { name: "time", type: "datetime-local", step: "1" }));
  const adapt = () => { delay.hidden = when.value !== "in"; time.hidden = when.value !== "at"; };
  ask({
    title: `Send a job to ${topic}`, action: "Send",
    body: [h("p", { class: "hint" }, "Every group that reads the topic receives it."),
      h("div", { class: "two" }, field("Key", h("input", { name: "key", autocomplete: "off", autofocus: true, placeholder: "none" })), field("Priority", choice("priority", [["", "4, as without one"], ..."9876543210".split("").map((each) => [each, each])], ""), "For groups with share.priority.enable.")),
      field("Value", h("textarea", { name: "value", rows: "5", spellcheck: "false" })),
      h("div", { class: "two" }, field("Deliver", when), delay, time)],
    act: async (form) => {
      const fields = form.elements;
      const headers = {};
      if (when.value === "in") headers[DELIVER_AT] = String(Math.ceil(Date.now() + (fields.delay.valueAsNumber || 0) * 1000));
      if (when.value === "at") {
        if (!fields.time.value) throw new Error("Give a time.");
        headers[DELIVER_AT] = String(new Date(fields.time.value).getTime());
      }
      if (fields.priority.value) headers[PRIORITY] = fields.priority.value;
      const made = await change("POST", `/api/topics/${name(topic)}/records`, { key: fields.key.value === "" ? null : fields.key.value, value: fields.value.value, headers, encoding: "text", partition: null });
      note(`Sent to partition ${made.partition}, offset ${count(made.offset)}.`);
    },
  });
  when.addEventListener("change", adapt);
  adapt();
}

function purge(path, topic, group) {
  let agreed = null;
  const said = h("div", { class: "stack" });
  const dialog = ask({
    title: `Purge the queue ${topic}`, action: "Count them", danger: true,
    body: [h("p", { class: "hint" }, `${group} skips all records that are not finished, and continues with those that are written after the count. They stay in the topic, for other groups. The group must have no workers.`), said],
    act: async () => {
      if (agreed === null) {
        const plan = await dryRun(`${path}/purge`, {}, said, signal);
        if (!plan.records) throw new Error("The queue is empty.");
        agreed = plan.agreed;
        fill(said, h("p", { class: "caution" }, `${counted(plan.records, "record")} would be skipped.`));
        button(`Skip ${counted(plan.records, "record")}`);
        throw null;
      }
      try {
        const gone = await change("POST", `${path}/purge`, { agreed });
        note(`Skipped ${counted(gone.records, "record")}.`);
      } catch (error) {
        agreed = null;
        fill(said);
        button("Count them");
        throw error;
      }
    },
  });
  const signal = whileOpen(dialog);
  const button = (text) => { dialog.querySelector("button[type=submit]").textContent = text; };
}
