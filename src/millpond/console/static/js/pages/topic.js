// One topic: its partitions drawn as logs, its settings; records have a file of their own.

import { change, get, live, name } from "../api.js";
import { curve } from "../charts.js";
import { ask, card, choice, confirmByName, empty, fault, field, fill, h, head, note, tile } from "../dom.js";
import { NOTHING, ago, bytes, compact, count, counted, rate, span } from "../format.js";
import { go, keep, state } from "../router.js";
import { records } from "./records.js";

const PARTITIONS_SHOWN = 64;
const COLOURS = 6;
const GROWTH_LOOKS = 60;
const HORIZON_MS = 15000;
const DAY_SECONDS = 86400;

export async function draw(main, [topic, view = "partitions"], params, signal) {
  const views = { partitions, records, settings };
  const body = h("div", { class: "stack" });
  const chips = h("div", { class: "tools" });
  const at = `/topics/${name(topic)}`;
  const tab = (key, text) => h("a", { href: key === "partitions" ? at : `${at}/${key}`, "aria-current": view === key ? "page" : null }, text);
  fill(main,
    head(topic, { crumb: h("a", { href: "/topics" }, "Topics"), chips: [chips], actions: state.readOnly ? [] : [
      h("button", { onclick: () => grow(topic) }, "Add partitions"),
      h("button", { class: "danger", onclick: () => remove(topic) }, "Delete …")] }),
    h("div", { class: "tabs" }, tab("partitions", "Partitions"), tab("records", "Records"), tab("settings", "Settings")),
    body);
  if (!Object.hasOwn(views, view)) fill(body, empty("There is no such view.", h("a", { href: at }, "Go to the topic")));
  else await views[view](body, topic, params, signal, chips);
}

// Partitions.

async function partitions(body, topic, params, signal, chips) {
  let before = null;
  let kept = null;
  const sizes = [];
  let page = Number(params.get("page")) || 1;
  let last = null;
  const paint = (look) => {
    last = look;
    const all = look.partitions;
    const groups = Object.keys(look.groups);
    const pages = Math.ceil(all.length / PARTITIONS_SHOWN);
    page = Math.min(Math.max(1, page), pages);
    const shown = all.slice((page - 1) * PARTITIONS_SHOWN, page * PARTITIONS_SHOWN);
    const highest = Math.max(1, ...all.map((each) => Math.max(each.end ?? 0, each.log_end ?? 0)));
    const offsets = all.reduce((sum, each) => sum + ((each.end ?? 0) - (each.start ?? 0)), 0);
    const ends = all.reduce((sum, each) => sum + (each.end ?? 0), 0);
    const seconds = before ? look.at_seconds - before.at : 0;
    const speed = seconds > 0 ? Math.max(0, ends - before.ends) / seconds : before?.speed ?? null;
    if (!before || seconds > 0) before = { at: look.at_seconds, ends, speed };
    const size = all.reduce((sum, each) => sum + (each.size_bytes ?? 0), 0);
    if (!sizes.length || sizes.at(-1).at < look.at_seconds) sizes.push({ at: look.at_seconds, size, speed: speed ?? 0 });
    if (sizes.length > GROWTH_LOOKS) sizes.shift();
    fill(chips, [
      h("span", { class: "chip" }, counted(all.length, "partition")), h("span", { class: "chip", title: "From the start to the end of each partition. Compaction and transaction markers use offsets without a visible record." }, `${compact(offsets)} offsets`),
      look.settings.filter((each) => ["retention.ms", "cleanup.policy", "retention.bytes"].includes(each.name)).map((each) => h("span", { class: "chip" }, keeps(each)))].flat().filter(Boolean));
    const turn = (by) => { page += by; keep({ page: page > 1 ? page : "" }); paint(last); };
    fill(body,
      growth(look, sizes, kept),
      card(h("div", { class: "cardhead" }, h("h2", {}, "Partitions as logs"), legend(look, groups)),
        h("div", { class: "logs" }, shown.map((each) => log(each, look, groups, highest))),
        pages > 1 ? h("div", { class: "foot" }, `Partitions ${shown[0].partition} to ${shown.at(-1).partition} of ${count(all.length)}`, h("span", { class: "tools" },
          h("button", { disabled: page <= 1, onclick: () => turn(-1), "data-focus": "previous" }, "Previous"), h("button", { disabled: page >= pages, onclick: () => turn(1), "data-focus": "next" }, "Next"))) : null),
      groups.length ? null : h("p", { class: "hint" }, "No group has committed an offset here yet. Read with one: ", h("code", {}, "Consumer({\"group.id\": …})")),
      look.groups_left_out ? h("p", { class: "hint" }, `Not shown: ${counted(look.groups_left_out, "group")}.`) : null);
  };
  fill(body, h("p", { class: "hint" }, "Loading the partitions …"));
  const horizon = async () => {
    try {
      kept = await get(`/api/topics/${name(topic)}/retention`, signal);
      if (last) paint(last);
    } catch {
      // The live view reports what is wrong.
    }
    if (!signal.aborted) setTimeout(horizon, HORIZON_MS);
  };
  horizon();
  live(`/api/live/topics/${name(topic)}`, { look: paint, failure: ({ error }) => { if (!last) fill(body, h("div", { class: "stack tight" }, fault(new Error(error)), h("div", {}, h("a", { class: "button", href: "/topics" }, "See all topics")))); return !last; } }, signal);
}

// Growth, age of the oldest record, and the horizon that retention allows.
function growth(look, sizes, kept) {
  const first = sizes[0];
  const newest = sizes.at(-1);
  const seconds = newest.at - first.at;
  const perSecond = seconds > 1 ? (newest.size - first.size) / seconds : null;
  const oldest = kept ? Math.min(...Object.values(kept.oldest_ms)) : null;
  const reaches = kept && Number.isFinite(oldest) ? Math.max(0, Date.now() - oldest) : null;
  const isDeleted = kept?.policy.includes("delete");
  const leds = look.partitions.filter((each) => each.size_bytes !== null).length || 1;
  // retention.bytes is per partition, the growth is of all partitions.
  const byBytes = isDeleted && kept.keeps_bytes !== null && perSecond > 0 ? ((kept.keeps_bytes * leds) / perSecond) * 1000 : null;
  const byTime = isDeleted ? kept.keeps_ms : null;
  const horizon = [byTime, byBytes].filter((each) => each !== null).sort((one, other) => one - other)[0] ?? null;
  const goes = isDeleted && kept.keeps_ms !== null && Number.isFinite(oldest) ? oldest + kept.keeps_ms - Date.now() : null;
  return h("div", { class: "tiles" },
    tile("Size", bytes(newest.size), perSecond === null ? "measuring its growth …" : perSecond < 0 ? `shrinks by ${bytes(-perSecond)}/s: old segments are deleted` : `grows by ${bytes(perSecond)}/s, ${bytes(perSecond * DAY_SECONDS)} a day`),
    tile("Written", rate(newest.speed), "records a second", { extra: curve(sizes.map((each) => each.speed), "Records written per second since this page was opened") }),
    tile("Reaches back", reaches === null ? NOTHING : span(reaches), reaches === null ? (kept ? "it is empty" : "looking …") : `the oldest record is from ${ago(oldest)}`),
    tile("Retention horizon", !kept ? NOTHING : !isDeleted ? "for ever" : horizon === null ? "for ever" : span(horizon),
      !kept ? "" : !isDeleted ? `cleanup.policy is ${kept.policy}: old values of a key are removed, not old records` : horizon === null ? "neither retention.ms nor retention.bytes limits it" : horizon === byBytes ? "by retention.bytes at this growth" : goes !== null && goes > 0 ? `by retention.ms; the oldest records are deleted in ${span(goes)} or later` : "by retention.ms; a segment is deleted once its last record is older"));
}

function keeps({ name: setting, value }) {
  if (setting === "retention.ms") return value === "-1" ? "kept for ever" : `kept for ${span(Number(value))}`;
  if (setting === "retention.bytes") return value === "-1" ? "of any size" : `kept up to ${bytes(Number(value))}`;
  return value;
}

function legend(look, groups) {
  const key = (kind, text) => h("span", { class: "key" }, h("i", { class: kind }), text);
  return h("div", { class: "legend" }, key("there", "stored records"),
    look.partitions.some((each) => each.start > 0) ? key("past", "deleted") : null,
    look.partitions.some((each) => each.log_end > each.end) ? key("unsafe", "not on all replicas yet") : null,
    look.partitions.some((each) => each.last_stable !== null && each.last_stable < each.end) ? key("held", "held back by an open transaction") : null,
    groups.slice(0, 12).map((group, at) => h("span", { class: "key" }, h("i", { class: `g${at % COLOURS}` }), h("a", { href: `/groups/${name(group)}` }, group))),
    groups.length > 12 ? `and ${groups.length - 12} more groups` : null);
}

function log(each, look, groups, highest) {
  const share = (offset) => (offset / highest) * 100;
  const isLed = each.leader >= 0 && each.end !== null;
  const behind = each.in_sync.length < each.replicas.length;
  const marks = groups.map((group, at) => [group, at, look.groups[group][each.partition]]).filter(([, , offset]) => offset !== undefined);
  const words = isLed ? `Partition ${each.partition}: offsets ${each.start} to ${each.end}. ${marks.map(([group, , offset]) => `${group} has committed ${offset}, ${counted(Math.max(0, each.end - offset), "offset")} before the end`).join(". ")}` : `Partition ${each.partition} has no leader`;
  return h("div", { class: "logrow" },
    h("div", {}, h("strong", {}, `Partition ${each.partition}`), h("div", { class: "hint" }, isLed ? bytes(each.size_bytes) : "")),
    h("div", { class: "track-cell" },
      h("div", { class: "track", role: "img", "aria-label": words, title: words }, h("div", { class: "axis" }), isLed ? [
        each.start > 0 ? h("div", { class: "past", "width%": share(each.start) }) : null,
        h("div", { class: "there", "left%": share(each.start), "width%": share(each.end - each.start) }),
        each.last_stable !== null && each.last_stable < each.end ? h("div", { class: "held", "left%": share(each.last_stable), "width%": share(each.end - each.last_stable) }) : null,
        h("div", { class: "edge", "left%": share(each.end) }),
        each.log_end > each.end ? h("div", { class: "unsafe", "left%": share(each.end), "width%": share(each.log_end - each.end) }) : null,
        marks.map(([group, at, offset]) => h("div", { class: `mark g${at % COLOURS}`, "left%": share(Math.min(offset, highest)), title: `${group}: ${count(offset)}, ${count(Math.max(0, each.end - offset))} unread` }))] : null),
      isLed ? h("div", { class: "ends" }, h("span", {}, `start ${count(each.start)}`), each.last_stable < each.end ? h("span", { class: "warn-text" }, `last stable ${count(each.last_stable)}`) : null, h("span", {}, `high watermark ${count(each.end)}`, each.log_end > each.end ? `, end ${count(each.log_end)}` : each.log_end === each.end ? " = end" : "")) : null),
    h("div", { class: "hint" }, isLed ? h("span", { class: `state ${behind ? "warn" : "good"}` }, `leader ${each.leader}`) : h("span", { class: "state bad" }, "no leader"),
      h("div", {}, `in sync ${each.in_sync.join(", ") || "none"}${behind ? ` of ${each.replicas.join(", ")}` : ""}`)));
}

// Settings.

async function settings(body, topic, params, signal) {
  const all = await get(`/api/topics/${name(topic)}/settings`, signal);
  const filter = h("input", { type: "search", class: "grow", placeholder: "Filter settings", "aria-label": "Filter settings by name or meaning", value: params.get("filter") ?? "" });
  const own = h("input", { type: "checkbox", checked: params.get("own") === "1" });
  const rows = h("div");
  const paint = () => {
    keep({ filter: filter.value, own: own.checked });
    const text = filter.value.toLowerCase();
    const fitting = all.filter((each) => (!own.checked || each.is_own) && `${each.name} ${each.meaning}`.toLowerCase().includes(text));
    fill(rows, fitting.length ? fitting.map((each) => setting(topic, each, (changed) => { Object.assign(each, changed); paint(); }))
      : empty(own.checked && !text ? "This topic uses only defaults." : "No setting matches.", h("button", { onclick: () => { filter.value = ""; own.checked = false; paint(); } }, "Show all")));
  };
  filter.addEventListener("input", paint);
  own.addEventListener("change", paint);
  fill(body, card(h("div", { class: "cardhead tools" }, filter, h("label", { class: "check" }, own, "Only settings of this topic")), rows));
  paint();
}

function setting(topic, each, changed) {
  const said = h("div");
  const isFixed = each.is_fixed || state.readOnly || each.value === null;
  const label = `Value of ${each.name}`;
  const input = each.kind === "true or false" ? choice("value", [["true", "true"], ["false", "false"]], each.value, { "aria-label": label, disabled: isFixed })
    : h("input", { value: each.value ?? "(secret)", "aria-label": label, disabled: isFixed, autocomplete: "off", spellcheck: "false" });
  const send = async (body) => {
    try {
      await change("PATCH", `/api/topics/${name(topic)}`, body);
      const fresh = (await get(`/api/topics/${name(topic)}/settings`)).find((other) => other.name === each.name);
      note(`${each.name} is now ${fresh.value}.`);
      changed(fresh);
    } catch (error) {
      fill(said, fault(error));
    }
  };
  const save = h("button", { hidden: true, onclick: () => send({ set: { [each.name]: input.value } }) }, "Save");
  let checks = 0;
  // The cluster validates the value before it is saved.
  const check = async () => {
    const mine = checks += 1;
    if (input.value === each.value) return;
    try {
      await change("PATCH", `/api/topics/${name(topic)}`, { set: { [each.name]: input.value }, dry_run: true });
    } catch (error) {
      if (mine === checks) { fill(said, fault(error)); save.disabled = true; }
    }
  };
  let typing = null;
  const look = () => { checks += 1; save.hidden = input.value === each.value; save.disabled = false; fill(said); clearTimeout(typing); typing = setTimeout(check, 300); };
  input.addEventListener("input", look);
  input.addEventListener("keydown", (event) => { if (event.key === "Enter" && !save.hidden) save.click(); if (event.key === "Escape") { input.value = each.value; look(); } });
  return h("div", { class: "setting" },
    h("div", {}, h("div", { class: "title" }, h("code", {}, each.name), h("span", { class: each.is_own ? "chip accent" : "chip" }, each.is_own ? "set here" : each.source), each.is_fixed ? h("span", { class: "chip" }, "cannot be changed") : null),
      h("p", { class: "hint" }, each.meaning || "The cluster does not document it.")),
    h("div", {}, h("div", { class: "edit" }, input, save, each.is_own && !isFixed ? h("button", { class: "quiet", title: each.otherwise === null ? "Back to the default" : `Back to ${each.otherwise}`, "aria-label": `Set ${each.name} back${each.otherwise === null ? "" : ` to ${each.otherwise}`}`, onclick: () => send({ unset: [each.name] }) }, "Reset") : null), readable(each), said));
}

function readable(each) {
  const number = Number(each.value);
  if (!each.value || !Number.isFinite(number) || number <= 0) return null;
  const text = each.name.endsWith(".ms") && number < 1e15 ? span(number) : each.name.endsWith("bytes") && number < 1e18 ? bytes(number) : null;
  return text ? h("span", { class: "hint" }, text) : null;
}

// Changes.

function grow(topic) {
  ask({
    title: `Add partitions to ${topic}`, action: "Add",
    body: [field("Number of partitions", h("input", { name: "partitions", type: "number", min: "1", max: "100000", required: true, autofocus: true })),
      h("p", { class: "caution" }, "This cannot be undone. Records with a key may go to another partition than before, so the order within a key is not kept across the change.")],
    act: async (form) => {
      await change("PATCH", `/api/topics/${name(topic)}`, { partitions: form.elements.partitions.valueAsNumber });
      note(`${topic} has ${form.elements.partitions.value} partitions now.`);
    },
  });
}

function remove(topic) {
  confirmByName({
    title: `Delete ${topic}?`, action: "Delete for good", label: "Type the topic’s name to confirm",
    warning: "All its records are deleted for every reader. This cannot be undone.",
    act: async (confirm) => {
      await change("DELETE", `/api/topics/${name(topic)}`, { confirm });
      note(`Deleted ${topic}.`);
      go("/topics");
    },
  });
}
