// Dead letters: what failed, why, and redriving them.

import { change, get, name, query } from "../api.js";
import { asHex, asText, decode, headers, isCut, isSame, preview, whole } from "../data.js";
import { ask, card, choice, empty, fault, field, fill, h, head, note } from "../dom.js";
import { ago, count, counted, leftOut, moment } from "../format.js";
import { dryRun, follow, whileOpen } from "../jobs.js";
import { local } from "../list.js";
import { outcome, redrive } from "../redrive.js";
import { keep, state } from "../router.js";

const COLOURS = 6;
const ROWS_MAX = 500;
const OTHERS = "(others)";

export async function draw(main, words, params, signal) {
  if (words.length) return one(main, words[0], params, signal);
  const body = h("div", {}, h("p", { class: "hint" }, "Loading dead letters …"));
  const under = h("div", { class: "stack", hidden: true });
  fill(main, head("Dead letters"), under, body);
  watch(under, signal);
  const { topics, left_out } = await get("/api/letters", signal);
  const listed = local({
    label: "topics", params, text: (each) => each.topic,
    none: () => empty("There are no dead letters.", h("span", {}, "When a worker gives up on a record, it writes it to a topic named *.dlq, with the cause in its headers.")),
    columns: [
      ["Topic", (each) => h("a", { href: `/letters/${name(each.topic)}` }, each.topic), "name"],
      ["Letters", (each) => `${each.is_estimate ? "~" : ""}${count(each.records)}`, "num"],
      ["Waiting", (each) => (each.waiting === null ? "not known" : `${each.is_estimate ? "~" : ""}${count(each.waiting)}`), "num"],
      ["Oldest", (each) => ago(each.oldest_ms), "num optional soft"],
      ["Newest", (each) => ago(each.newest_ms), "num soft"],
    ],
  });
  fill(body, card(null, listed.parts), left_out ? h("p", { class: "hint" }, `${counted(left_out, "partition")} of topics with other names were not checked.`) : null,
    topics.filter((each) => each.leaderless).map((each) => h("p", { class: "hint" }, `${each.topic}: ${counted(each.leaderless, "partition")} without a leader, whose letters are not counted.`)));
  listed.set(topics);
}

async function one(main, topic, params, signal, focus = null) {
  const picked = new Set();
  const error = params.get("error") ?? "";
  const key = h("input", { type: "search", placeholder: "Only this key", "aria-label": "Only letters with this key", "data-focus": "key", value: params.get("key") ?? "" });
  const limit = Math.min(ROWS_MAX, Number(params.get("limit")) || 50);
  const before = params.get("before") ?? "";
  const body = h("div", { class: "stack" }, h("p", { class: "hint" }, "Reading the letters …"));
  const under = h("div", { class: "stack", hidden: true });
  // A redrive continues after the user has left this page: do not navigate back then.
  const again = (fields = {}) => {
    if (signal.aborted) return;
    const held = main.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    keep(fields);
    one(main, topic, new URLSearchParams(location.search), signal, held);
  };
  fill(main, head(topic, { crumb: h("a", { href: "/letters" }, "Dead letters"), actions: state.readOnly ? [] : [h("button", { class: "danger", onclick: () => purge(topic, again) }, "Purge …")] }), under, body);
  watch(under, signal, topic);
  let look;
  try {
    look = await get(`/api/letters/${name(topic)}${query({ error, key: key.value, limit, before })}`, signal);
  } catch (refusal) {
    if (!signal.aborted) fill(body, h("div", { class: "stack tight" }, fault(refusal), h("div", {}, h("a", { class: "button", href: "/letters" }, "See all dead letters"))));
    return;
  }
  const kind = choice("error", [["", "Every error"], ...(error ? [[error, error]] : [])], error, { "aria-label": "Only this error", "data-focus": "error" });
  kind.addEventListener("change", () => again({ error: kind.value, limit: "", before: "" }));
  key.addEventListener("change", () => again({ key: key.value, limit: "", before: "" }));
  const common = h("div", { class: "columns" }, card("By error", h("p", { class: "pad hint" }, "Counting …")), card("Over time", h("p", { class: "pad hint" }, "Counting …")));
  // Without letters there is nothing to send.
  const send = h("button", { class: "main", type: "button", disabled: !look.letters.length && !before && look.is_whole && !look.leaderless.length });
  const everything = h("input", { type: "checkbox", "aria-label": "Select all that are shown" });
  const boxes = [];
  const adapt = () => { send.textContent = picked.size ? `Redrive ${count(picked.size)} …` : error || key.value ? "Redrive these …" : "Redrive all …"; everything.checked = picked.size > 0 && picked.size === boxes.length; };
  // A recreated topic has other letters with the same ids.
  send.onclick = () => redrive(topic, picked.size ? { ids: [...picked], topic_id: look.topic_id } : error || key.value ? { error: error || null, key: key.value || null } : { all: true }, () => again());
  everything.addEventListener("change", () => { for (const [id, box] of boxes) { box.checked = everything.checked; if (box.checked) picked.add(id); else picked.delete(id); } adapt(); });
  const rows = look.letters.flatMap((letter) => {
    const box = h("input", { type: "checkbox", "aria-label": `Pick letter ${letter.id}` });
    boxes.push([letter.id, box]);
    box.addEventListener("change", () => { if (box.checked) picked.add(letter.id); else picked.delete(letter.id); adapt(); });
    const open = h("button", { class: "open", type: "button", "aria-expanded": "false", "aria-label": `Letter ${letter.id}` }, letter.id);
    const line = h("tr", { class: "pick" }, state.readOnly ? null : h("td", {}, box), h("td", { class: "nowrap" }, open), h("td", { class: "nowrap soft optional", title: moment(letter.timestamp_ms) }, ago(letter.timestamp_ms)),
      h("td", { class: "value" }, letter.cause ? [h("strong", {}, letter.cause.error_type || "no error given"), letter.cause.error_message ? `: ${letter.cause.error_message}` : ""] : h("span", { class: "soft" }, "no worker headers")),
      h("td", { class: "key optional" }, preview(letter.key)), h("td", { class: "nowrap" }, letter.is_redriven === null ? h("span", { class: "soft", title: "Which letters were redriven could not be read." }, "not known") : h("span", { class: `state ${letter.is_redriven ? "good" : "warn"}` }, letter.is_redriven ? "redriven" : "waiting")));
    let shown = null;
    open.onclick = async () => {
      if (shown) { shown.remove(); shown = null; open.setAttribute("aria-expanded", "false"); return; }
      const cell = h("td", { colspan: "6" }, "Loading …");
      shown = h("tr", { class: "detail" }, cell);
      line.after(shown);
      open.setAttribute("aria-expanded", "true");
      try {
        fill(cell, detail(topic, await get(`/api/letters/${name(topic)}/${letter.partition}/${letter.offset}`), () => again()));
      } catch (error) {
        fill(cell, fault(error));
      }
    };
    return [line];
  });
  const missing = `${look.is_whole ? "" : `; the time limit was reached after the newest ${count(look.looked)} of about ${count(look.total)} letters`}${leftOut(look.leaderless)}`;
  fill(body, common,
    h("section", { class: "card" }, h("div", { class: "cardhead tools" }, kind, key, h("span", { class: "grow" }), state.readOnly ? null : send),
      look.letters.length ? h("div", { class: "scroll" }, h("table", { class: "records" }, h("thead", {}, h("tr", {}, state.readOnly ? null : h("th", {}, everything), [["Letter"], ["Written", "optional"], ["Cause"], ["Key", "optional"], ["State"]].map(([title, kind_]) => h("th", { scope: "col", class: kind_ }, title)))), h("tbody", {}, rows)))
        : none(look, error || key.value || before, () => again({ error: "", key: "", limit: "", before: "" })),
      look.letters.length || missing || before ? h("div", { class: "foot" },
        h("span", {}, look.letters.length ? `${before ? `${count(look.letters.length)} older ones` : `The last ${count(look.letters.length)}`}, the newest first${missing}` : missing.slice(2)),
        h("span", { class: "tools" }, before ? h("button", { onclick: () => again({ before: "" }), "data-focus": "newest" }, "Newest") : null, more(look.letters, limit, again))) : null));
  adapt();
  if (focus) body.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  try {
    const counts = await get(`/api/letters/${name(topic)}/counts`, signal);
    fill(common, byError(topic, counts), overTime(counts));
    const known = counts.errors.filter(([each]) => each !== OTHERS).map(([each, number]) => [each, `${each} (${count(number)})`]);
    fill(kind, [["", "Every error"], ...known].map(([value, text]) => h("option", { value, selected: value === error }, text)));
  } catch (refusal) {
    if (!signal.aborted) fill(common, fault(refusal));
  }
}

// The text for an empty list: whether there are no letters is only known if all were read.
function none(look, isNarrow, all) {
  const held = look.is_held_back ? h("span", {}, "An open transaction holds back the records after it: see ", h("a", { href: "/transactions" }, "Transactions"), ".") : null;
  const known = held ? `No ${isNarrow ? "matching " : ""}letter can be read yet.` : isNarrow ? "No letter matches." : look.leaderless.length ? "No letter can be read now." : "This topic is empty.";
  const title = look.is_whole ? known : `No ${isNarrow ? "matching " : ""}letter was found in the time limit.`;
  return empty(title, held, isNarrow ? h("button", { onclick: all }, "Show all") : null);
}

// First longer lists; at the longest, the letters before its last one.
function more(letters, limit, again) {
  if (letters.length < limit) return null;
  if (limit < ROWS_MAX) return h("button", { onclick: () => again({ limit: Math.min(ROWS_MAX, limit + 150) }), "data-focus": "older" }, "Show more");
  const last = letters.at(-1);
  return h("button", { onclick: () => again({ before: `${last.timestamp_ms}:${last.partition}:${last.offset}` }), "data-focus": "older" }, "Older");
}

function total(errors) {
  return Object.values(errors).reduce((sum, number) => sum + number, 0);
}

function byError(topic, counts) {
  const most = Math.max(1, ...counts.errors.map(([, number]) => number));
  return card(h("div", { class: "cardhead" }, h("h2", {}, "By error"), h("span", { class: "soft" }, `${counts.is_whole ? "" : "The newest "}${counted(counts.records, "letter")}${counts.is_whole ? "" : ` of about ${count(counts.total)}: the time limit was reached`}${counts.waiting === null ? "" : `, ${count(counts.waiting)} waiting`}${leftOut(counts.leaderless)}`)),
    counts.errors.length ? h("div", { class: "pad bars" }, counts.errors.slice(0, 10).map(([each, number], rank) => [
      h("span", { class: "name" }, h("i", { class: `dot g${rank % COLOURS}` }), each === OTHERS ? each : h("a", { href: `/letters/${name(topic)}${query({ error: each })}` }, each)),
      h("div", { class: "meter", role: "img", "aria-label": counted(number, "letter") }, h("div", { "width%": (number / most) * 100 })), h("span", { class: "num" }, count(number))])) : empty("There are none."));
}

function overTime(counts) {
  const tall = Math.max(1, ...counts.over_time.map(([, errors]) => total(errors)));
  const ranks = Object.fromEntries(counts.errors.map(([each], rank) => [each, rank]));
  const column = ([at, errors]) => h("div", { class: "column", "height%": (total(errors) / tall) * 100, title: `${moment(at).slice(0, 19)}: ${Object.entries(errors).map(([each, number]) => `${each} ${count(number)}`).join(", ") || "none"}` },
    Object.entries(errors).sort(([one], [other]) => (ranks[one] ?? COLOURS) - (ranks[other] ?? COLOURS)).map(([each, number]) => h("div", { class: `g${(ranks[each] ?? COLOURS - 1) % COLOURS}`, "height%": (number / Math.max(1, total(errors))) * 100 })));
  return card("Over time", h("div", { class: "pad" }, counts.over_time.length ? [
    h("div", { class: "columns-chart", role: "img", "aria-label": `Letters over time by their errors, at most ${tall} in a span` }, counts.over_time.map(column)),
    h("div", { class: "ends" }, h("span", {}, moment(counts.over_time[0][0]).slice(0, 16)), h("span", {}, moment(counts.over_time.at(-1)[0]).slice(0, 16)))] : h("span", { class: "soft" }, "No timestamps.")));
}

// The letter and its cause, beside the original record if that still exists.
function detail(topic, letter, done) {
  const { cause } = letter;
  const origin = h("div", { class: "stack" }, h("h2", {}, "Where it came from"));
  if (cause) {
    const { topic: home, partition, offset } = cause.origin;
    get(`/api/topics/${name(home)}/records/${partition}/${offset}`).then((record) => origin.append(
      h("p", {}, h("a", { href: `/topics/${name(home)}/records?partition=${partition}&from=${offset}` }, `${home}-${partition}, offset ${count(offset)}`), h("span", { class: "hint" }, ` ${moment(record.timestamp_ms)}`)),
      beside(record, letter),
      h("h2", {}, "Key"), whole(record.key, "key", home), h("h2", {}, "Value"), whole(record.value, "value", home)))
      .catch((error) => origin.append(h("p", { class: "soft" }, error.message)));
  } else origin.append(h("p", { class: "soft" }, "Its origin is unknown."));
  return h("div", { class: "stack" },
    state.readOnly ? null : h("div", { class: "tools" }, h("button", { type: "button", class: "main", onclick: () => redrive(topic, { ids: [letter.id], topic_id: letter.topic_id }, done) }, "Redrive it …"), h("button", { type: "button", onclick: () => edit(topic, letter, done) }, "Edit and redrive …")),
    h("div", { class: "columns" }, h("div", { class: "stack" }, h("h2", {}, "The letter"), facts(letter)), origin));
}

function beside(record, letter) {
  const parts = ["key", "value"].map((part) => [record[part], letter[part]]);
  const isLike = ([one, other]) => {
    if (one === null || other === null) return one === other;
    const [raw, its] = [decode(one), decode(other)];
    const short = Math.min(raw.length, its.length);
    return one.bytes === other.bytes && isSame(raw.subarray(0, short), its.subarray(0, short));
  };
  if (!parts.every(isLike)) return h("p", { class: "warn-text" }, "Key or value differ from the letter.");
  const isShort = parts.flat().some((each) => each && isCut(each));
  return h("p", { class: "good-text" }, `Key and value are the same as in the letter${isShort ? ", as far as they are shown" : ""}.`);
}

function facts(letter) {
  const { cause } = letter;
  return h("div", { class: "stack" },
    cause ? h("dl", { class: "facts" },
      h("dt", {}, "Came from"), h("dd", {}, h("a", { href: `/topics/${name(cause.origin.topic)}/records?partition=${cause.origin.partition}&from=${cause.origin.offset}` }, `${cause.origin.topic}, partition ${cause.origin.partition}, offset ${count(cause.origin.offset)}`)),
      h("dt", {}, "Failed in"), h("dd", {}, cause.group ? h("a", { href: `/groups/${name(cause.group)}` }, cause.group) : "unknown group"),
      h("dt", {}, "Attempts"), h("dd", {}, `${count(cause.attempts)}${cause.redriven ? `, redriven ${counted(cause.redriven, "time")} before` : ""}`),
      h("dt", {}, "Written"), h("dd", {}, moment(letter.timestamp_ms)),
      h("dt", {}, "Error"), h("dd", {}, [cause.error_type || "no error given", cause.error_message].filter(Boolean).join(": "))) : h("p", { class: "soft" }, "It has no worker headers: its origin is unknown."),
    cause?.error_traceback ? [h("h2", {}, "Traceback"), h("pre", { class: "data", tabindex: "0", "aria-label": "traceback" }, cause.error_traceback)] : null,
    letter.headers.length ? [h("h2", {}, "Headers"), headers(letter)] : null,
    // By the schema of its original topic, if one was entered.
    h("h2", {}, "Key"), whole(letter.key, "key", cause?.origin.topic ?? null), h("h2", {}, "Value"), whole(letter.value, "value", cause?.origin.topic ?? null));
}

// How a part of a letter can be entered, and the bytes of the entered text.
const MEANT = { text: (typed) => typed, crlf: (typed) => typed.replaceAll("\n", "\r\n") };
const ENCODINGS = [["text", "Text or JSON"], ["hex", "Hex"], ["base64", "Base64"], ["null", "Null"]];
const ENCODINGS_OF_LINES = [ENCODINGS[0], ["crlf", "Text whose lines end with CR LF"], ...ENCODINGS.slice(1)];

// Puts the part into the field. A field normalises line ends, so text is used only if the field
// returns exactly the same bytes, and hex otherwise.
function put(input, data) {
  if (data === null) return "null";
  const raw = decode(data);
  const text = asText(raw);
  if (text !== null) {
    input.value = text;
    for (const [encoding, meant] of Object.entries(MEANT)) {
      if (isSame(new TextEncoder().encode(meant(input.value)), raw)) return encoding;
    }
  }
  input.value = asHex(raw);
  return "hex";
}

// One part in the editor; `changed` returns what to send, nothing if it was not edited.
function editable(part, label, input, data, encodings) {
  if (data && isCut(data)) return { fields: [h("p", { class: "hint" }, `The ${part} is too large to edit here and is sent unchanged.`)], changed: () => ({}) };
  const first = put(input, data);
  const begun = input.value;
  const kind = choice(`${part}_encoding`, encodings, first);
  // Typing into a field that was null makes it a value.
  input.addEventListener("input", () => { if (kind.value === "null") kind.value = "text"; });
  return {
    fields: [field(label, input), field(`The ${part} is`, kind)],
    changed: () => {
      if (kind.value === first && (input.value === begun || kind.value === "null")) return {};
      if (kind.value === "null") return { [part]: null };
      return { [part]: (MEANT[kind.value] ?? MEANT.text)(input.value), [`${part}_encoding`]: kind.value in MEANT ? "text" : kind.value };
    },
  };
}

function edit(topic, letter, done) {
  const key = editable("key", "Key", h("input", { name: "key", autocomplete: "off" }), letter.key, ENCODINGS);
  const value = editable("value", "Value", h("textarea", { name: "value", rows: "10", spellcheck: "false", autofocus: true }), letter.value, ENCODINGS_OF_LINES);
  ask({
    title: `Edit letter ${letter.id}`, action: "Go on",
    body: [h("p", { class: "hint" }, "Your changes replace the letter's parts; everything else is sent byte for byte, including headers. The letter itself stays and is marked as redriven. A dry run comes first."),
      h("div", { class: "two" }, key.fields), value.fields],
    act: async () => {
      const changed = { ...key.changed(), ...value.changed() };
      if (!Object.keys(changed).length) throw new Error("Nothing was changed. To send it unchanged, use: Redrive it …");
      redrive(topic, { ids: [letter.id], topic_id: letter.topic_id, edits: [{ id: letter.id, ...changed }] }, done);
    },
  });
}

// Running redrives of this console, of one topic or all. Other visitors see them and can stop them.
async function watch(place, signal, topic = null) {
  const jobs = await get("/api/jobs?kind=letters", signal).catch(() => []);
  for (const job of jobs.filter((each) => topic === null || each.what === `Redrive of ${topic}`)) {
    const box = h("div", { class: "pad stack tight" });
    place.append(card(job.what, box));
    place.hidden = false;
    follow(job, box, { signal, unit: "sent", stop: state.readOnly ? null : "Cancel the rest" })
      .then((ended) => { if (!signal.aborted) fill(box, ended.state === "failed" ? fault(new Error(ended.error)) : h("p", {}, outcome(ended))); })
      .catch((error) => { if (!signal.aborted) fill(box, fault(error)); });
  }
}

function purge(topic, done) {
  const path = `/api/letters/${name(topic)}/purge`;
  let agreed = null;
  const said = h("div", { class: "stack" });
  const mode = choice("mode", [["redriven", "Up to the first that is still waiting"], ["before", "All written before a time"], ["all", "All current letters"]], "redriven");
  const time = field("Before", h("input", { name: "before", type: "datetime-local", step: "1" }));
  time.hidden = true;
  const dialog = ask({
    title: `Purge ${topic}`, action: "Count them", danger: true,
    body: [h("p", { class: "hint" }, "Letters are deleted for good, oldest first, because a log is truncated from its start. Letters that arrive after the count stay."), field("Which", mode), time, said],
    act: async (form) => {
      if (agreed === null) {
        const wanted = { mode: mode.value };
        if (mode.value === "before") {
          if (!form.elements.before.value) throw new Error("Give a time.");
          wanted.before_ms = new Date(form.elements.before.value).getTime();
        }
        const plan = await dryRun(path, wanted, said, signal);
        const stays = plan.leaderless.length ? `; what is in ${counted(plan.leaderless.length, "partition")} without a leader stays` : "";
        if (!plan.records) throw new Error(`Nothing to delete${stays}.`);
        agreed = plan.agreed;
        fill(said, h("p", { class: "caution" }, `${counted(plan.records, "letter")} would be deleted${plan.waiting ? `, of which ${count(plan.waiting)} have not been redriven` : ""}${stays}.`));
        button(`Delete ${counted(plan.records, "letter")}`);
        throw null;
      }
      try {
        const gone = await change("POST", path, { agreed });
        note(`Deleted ${counted(gone.records, "letter")}.`);
      } catch (error) {
        afresh();
        throw error;
      }
      done();
    },
  });
  const signal = whileOpen(dialog);
  const button = (text) => { dialog.querySelector("button[type=submit]").textContent = text; };
  const afresh = () => { agreed = null; fill(said); time.hidden = mode.value !== "before"; button("Count them"); };
  mode.addEventListener("change", afresh);
  time.addEventListener("input", afresh);
}
