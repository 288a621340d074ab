// Dead letters: what failed, why, and the way back.

import { change, get, name, query } from "../api.js";
import { decode, headers, preview, whole } from "../data.js";
import { ask, card, choice, empty, fault, field, fill, h, head, note } from "../dom.js";
import { ago, count, counted, moment } from "../format.js";
import { follow } from "../jobs.js";
import { local } from "../list.js";
import { keep, state } from "../router.js";

const COLOURS = 6;

export async function draw(main, words, params, signal) {
  if (words.length) return one(main, words[0], params, signal);
  const body = h("div", {}, h("p", { class: "hint" }, "Looking for dead letters …"));
  fill(main, head("Dead letters"), body);
  const { topics, left_out } = await get("/api/letters", signal);
  const listed = local({
    label: "topics", params, text: (each) => each.topic,
    none: () => empty("There are no dead letters.", h("span", {}, "A worker puts a record here when it gives up on it: into a topic named *.dlq, with the cause in its headers.")),
    columns: [
      ["Topic", (each) => h("a", { href: `/letters/${name(each.topic)}` }, each.topic), "name"],
      ["Letters", (each) => `${each.is_estimate ? "~" : ""}${count(each.records)}`, "num"],
      ["Waiting", (each) => `${each.is_estimate ? "~" : ""}${count(each.waiting)}`, "num"],
      ["Oldest", (each) => ago(each.oldest_ms), "num optional soft"],
      ["Newest", (each) => ago(each.newest_ms), "num soft"],
    ],
  });
  fill(body, card(null, listed.parts), left_out ? h("p", { class: "hint" }, `${counted(left_out, "partition")} of topics with other names were not looked into.`) : null);
  listed.set(topics);
}

async function one(main, topic, params, signal) {
  const picked = new Set();
  const error = params.get("error") ?? "";
  const key = h("input", { type: "search", placeholder: "Only this key", "aria-label": "Only letters with this key", value: params.get("key") ?? "" });
  const limit = Number(params.get("limit")) || 50;
  const body = h("div", { class: "stack" }, h("p", { class: "hint" }, "Reading the letters …"));
  const again = (fields = {}) => { keep(fields); return one(main, topic, new URLSearchParams(location.search), signal); };
  fill(main, head(topic, { crumb: h("a", { href: "/letters" }, "Dead letters"), actions: state.readOnly ? [] : [h("button", { class: "danger", onclick: () => purge(topic, again) }, "Purge …")] }), body);
  let look;
  try {
    look = await get(`/api/letters/${name(topic)}${query({ error, key: key.value, limit })}`, signal);
  } catch (refusal) {
    if (!signal.aborted) fill(body, fault(refusal), h("a", { class: "button", href: "/letters" }, "See all dead letters"));
    return;
  }
  const kind = choice("error", [["", "Every error"], ...(error ? [[error, error]] : [])], error, { "aria-label": "Only this error" });
  kind.addEventListener("change", () => again({ error: kind.value, limit: "" }));
  key.addEventListener("change", () => again({ key: key.value, limit: "" }));
  const common = h("div", { class: "columns" }, card("By error", h("p", { class: "pad hint" }, "Counting …")), card("Over time", h("p", { class: "pad hint" }, "Counting …")));
  const send = h("button", { class: "main", type: "button" });
  const everything = h("input", { type: "checkbox", "aria-label": "Pick all that are shown" });
  const boxes = [];
  const adapt = () => { send.textContent = picked.size ? `Redrive ${count(picked.size)} …` : error || key.value ? "Redrive these …" : "Redrive all …"; everything.checked = picked.size > 0 && picked.size === boxes.length; };
  send.onclick = () => redrive(topic, picked.size ? { ids: [...picked] } : error || key.value ? { error: error || null, key: key.value || null } : { all: true }, () => again());
  everything.addEventListener("change", () => { for (const [id, box] of boxes) { box.checked = everything.checked; if (box.checked) picked.add(id); else picked.delete(id); } adapt(); });
  const rows = look.letters.flatMap((letter) => {
    const box = h("input", { type: "checkbox", "aria-label": `Pick letter ${letter.id}` });
    boxes.push([letter.id, box]);
    box.addEventListener("change", () => { if (box.checked) picked.add(letter.id); else picked.delete(letter.id); adapt(); });
    const open = h("button", { class: "open", type: "button", "aria-expanded": "false", "aria-label": `Letter ${letter.id}` }, letter.id);
    const line = h("tr", { class: "pick" }, state.readOnly ? null : h("td", {}, box), h("td", { class: "nowrap" }, open), h("td", { class: "nowrap soft optional" }, ago(letter.timestamp_ms)),
      h("td", { class: "value" }, letter.cause ? [h("strong", {}, letter.cause.error_type), letter.cause.error_message ? `: ${letter.cause.error_message}` : ""] : h("span", { class: "soft" }, "no headers of a worker")),
      h("td", { class: "key optional" }, preview(letter.key)), h("td", { class: "nowrap" }, h("span", { class: `state ${letter.is_redriven ? "good" : "warn"}` }, letter.is_redriven ? "redriven" : "waiting")));
    let shown = null;
    open.onclick = () => {
      if (shown) { shown.remove(); shown = null; } else { shown = h("tr", { class: "detail" }, h("td", { colspan: "6" }, detail(topic, letter, () => again()))); line.after(shown); }
      open.setAttribute("aria-expanded", String(Boolean(shown)));
    };
    return [line];
  });
  fill(body, common,
    h("section", { class: "card" }, h("div", { class: "cardhead tools" }, kind, key, h("span", { class: "grow" }), state.readOnly ? null : send),
      look.letters.length ? h("div", { class: "scroll" }, h("table", { class: "records" }, h("thead", {}, h("tr", {}, state.readOnly ? null : h("th", {}, everything), [["Letter"], ["Written", "optional"], ["Cause"], ["Key", "optional"], ["State"]].map(([title, kind_]) => h("th", { scope: "col", class: kind_ }, title)))), h("tbody", {}, rows)))
        : error || key.value ? empty("No letter is like that.", h("button", { onclick: () => again({ error: "", key: "", limit: "" }) }, "Show all")) : empty("This topic is empty."),
      h("div", { class: "foot" }, `The last ${count(look.letters.length)}, the newest first`, look.letters.length >= limit && limit < 500 ? h("button", { onclick: () => again({ limit: Math.min(500, limit + 150) }) }, "Show more") : null)));
  adapt();
  try {
    const counts = await get(`/api/letters/${name(topic)}/counts`, signal);
    fill(common, byError(topic, counts), overTime(counts));
    const known = counts.errors.map(([each, number]) => [each, `${each || "(no headers)"} (${count(number)})`]);
    fill(kind, [["", "Every error"], ...known].map(([value, text]) => h("option", { value, selected: value === error }, text)));
  } catch (refusal) {
    if (!signal.aborted) fill(common, fault(refusal));
  }
}

function total(errors) {
  return Object.values(errors).reduce((sum, number) => sum + number, 0);
}

function byError(topic, counts) {
  const most = Math.max(1, ...counts.errors.map(([, number]) => number));
  return card(h("div", { class: "cardhead" }, h("h2", {}, "By error"), h("span", { class: "soft" }, `${counted(counts.records, "letter")}, ${count(counts.waiting)} waiting`)),
    counts.errors.length ? h("div", { class: "pad bars" }, counts.errors.slice(0, 10).map(([each, number], rank) => [
      h("span", { class: "name" }, h("i", { class: `dot g${rank % COLOURS}` }), h("a", { href: `/letters/${name(topic)}${query({ error: each })}` }, each || "(no headers)")),
      h("div", { class: "meter", role: "img", "aria-label": counted(number, "letter") }, h("div", { "width%": (number / most) * 100 })), h("span", { class: "num" }, count(number))])) : empty("There are none."));
}

function overTime(counts) {
  const tall = Math.max(1, ...counts.over_time.map(([, errors]) => total(errors)));
  const ranks = Object.fromEntries(counts.errors.map(([each], rank) => [each, rank]));
  const column = ([at, errors]) => h("div", { class: "column", "height%": (total(errors) / tall) * 100, title: `${moment(at).slice(0, 19)}: ${Object.entries(errors).map(([each, number]) => `${each} ${count(number)}`).join(", ") || "none"}` },
    Object.entries(errors).sort(([one], [other]) => ranks[one] - ranks[other]).map(([each, number]) => h("div", { class: `g${(ranks[each] ?? 0) % COLOURS}`, "height%": (number / Math.max(1, total(errors))) * 100 })));
  return card("Over time", h("div", { class: "pad" }, counts.over_time.length ? [
    h("div", { class: "columns-chart", role: "img", "aria-label": `Letters over time by their errors, at most ${tall} in a span` }, counts.over_time.map(column)),
    h("div", { class: "ends" }, h("span", {}, moment(counts.over_time[0][0]).slice(0, 16)), h("span", {}, moment(counts.over_time.at(-1)[0]).slice(0, 16)))] : h("span", { class: "soft" }, "No times are known.")));
}

// The letter and its cause, beside the record where it came from, if that is still there.
function detail(topic, letter, done) {
  const { cause } = letter;
  const origin = h("div", { class: "stack" }, h("h2", {}, "Where it came from"));
  if (cause) {
    const { topic: home, partition, offset } = cause.origin;
    get(`/api/topics/${name(home)}/records/${partition}/${offset}`).then((record) => origin.append(
      h("p", {}, h("a", { href: `/topics/${name(home)}/records?partition=${partition}&from=${offset}` }, `${home}-${partition}, offset ${count(offset)}`), h("span", { class: "hint" }, ` ${moment(record.timestamp_ms)}`)),
      h("p", { class: same(record, letter) ? "good-text" : "warn-text" }, same(record, letter) ? "Key and value are the same as in the letter." : "Key or value differ from the letter."),
      h("h2", {}, "Key"), whole(record.key, "key", home), h("h2", {}, "Value"), whole(record.value, "value", home)))
      .catch((error) => origin.append(h("p", { class: "soft" }, error.message)));
  } else origin.append(h("p", { class: "soft" }, "Nobody says where it came from."));
  return h("div", { class: "stack" },
    state.readOnly ? null : h("div", { class: "tools" }, h("button", { type: "button", class: "main", onclick: () => redrive(topic, { ids: [letter.id] }, done) }, "Redrive it …"), h("button", { type: "button", onclick: () => edit(topic, letter, done) }, "Edit and redrive …")),
    h("div", { class: "columns" }, h("div", { class: "stack" }, h("h2", {}, "The letter"), facts(letter)), origin));
}

function same(record, letter) {
  return ["key", "value"].every((part) => {
    const one = record[part];
    const other = letter[part];
    if (one === null || other === null) return one === other;
    const short = Math.min(one.data.length, other.data.length) & ~3;
    return one.bytes === other.bytes && one.data.slice(0, short - 4) === other.data.slice(0, short - 4);
  });
}

function facts(letter) {
  const { cause } = letter;
  return h("div", { class: "stack" },
    cause ? h("dl", { class: "facts" },
      h("dt", {}, "Came from"), h("dd", {}, h("a", { href: `/topics/${name(cause.origin.topic)}/records?partition=${cause.origin.partition}&from=${cause.origin.offset}` }, `${cause.origin.topic}, partition ${cause.origin.partition}, offset ${count(cause.origin.offset)}`)),
      h("dt", {}, "Failed in"), h("dd", {}, cause.group ? h("a", { href: `/groups/${name(cause.group)}` }, cause.group) : "unknown group"),
      h("dt", {}, "Attempts"), h("dd", {}, `${count(cause.attempts)}${cause.redriven ? `, redriven ${counted(cause.redriven, "time")} before` : ""}`),
      h("dt", {}, "Written"), h("dd", {}, moment(letter.timestamp_ms)),
      h("dt", {}, "Error"), h("dd", {}, `${cause.error_type}: ${cause.error_message}`)) : h("p", { class: "soft" }, "It has no headers of a worker: nobody says where it came from."),
    cause?.error_traceback ? [h("h2", {}, "Traceback"), h("pre", { class: "data", tabindex: "0", "aria-label": "traceback" }, cause.error_traceback)] : null,
    letter.headers.length ? [h("h2", {}, "Headers"), headers(letter)] : null,
    h("h2", {}, "Key"), whole(letter.key, "key"), h("h2", {}, "Value"), whole(letter.value, "value"));
}

// What can be typed is text; anything else is shown and sent as hex.
function typed(data) {
  if (data === null) return ["null", ""];
  const raw = decode(data);
  try {
    return ["text", new TextDecoder("utf-8", { fatal: true }).decode(raw)];
  } catch {
    return ["hex", Array.from(raw, (each) => each.toString(16).padStart(2, "0")).join("")];
  }
}

const ENCODINGS = [["text", "Text or JSON"], ["hex", "Hex"], ["base64", "Base64"], ["null", "Null"]];

function edit(topic, letter, done) {
  const parts = Object.fromEntries(["key", "value"].map((part) => [part, typed(letter[part])]));
  const isCut = ["key", "value"].some((part) => letter[part] && letter[part].bytes > (letter[part].data.length / 4) * 3);
  if (isCut) { note("This letter is too large to be edited here."); return; }
  ask({
    title: `Edit letter ${letter.id}`, action: "Go on",
    body: [h("p", { class: "hint" }, "What you write here is sent instead of the letter; the letter itself stays as it is, marked as redriven. Its headers go with it as they are. A dry run comes first."),
      h("div", { class: "two" }, field("Key", h("input", { name: "key", autocomplete: "off", value: parts.key[1] })), field("The key is", choice("key_encoding", ENCODINGS, parts.key[0]))),
      field("Value", h("textarea", { name: "value", rows: "10", spellcheck: "false", autofocus: true, text: parts.value[1] })), field("The value is", choice("value_encoding", ENCODINGS, parts.value[0]))],
    act: async (form) => {
      const change_ = { id: letter.id, headers: null };
      for (const part of ["key", "value"]) {
        const encoding = form.elements[`${part}_encoding`].value;
        change_[part] = encoding === "null" ? null : form.elements[part].value;
        change_[`${part}_encoding`] = encoding === "null" ? "text" : encoding;
      }
      redrive(topic, { ids: [letter.id], edits: [change_] }, done);
    },
  });
}

function redrive(topic, which, done) {
  let agreed = false;
  const plan = h("div", { class: "stack" });
  const dialog = ask({
    title: `Redrive letters of ${topic}`, action: "Dry run",
    body: [h("p", { class: "hint" }, "They go back to the topic and partition they came from, each of them once, for the group that failed. First a dry run says what would happen."),
      which.edits ? h("p", { class: "caution" }, "One letter goes as you have edited it.") : null,
      h("div", { class: "two" }, field("Into another topic", h("input", { name: "to", placeholder: "where they came from", autocomplete: "off" })),
        field("At most so many a second", h("input", { name: "rate", type: "number", min: "1", max: "1000000", placeholder: "without a limit" }))), plan],
    act: async (form) => {
      const order = { ...which, to: form.elements.to.value.trim() || null, rate: form.elements.rate.valueAsNumber || null };
      if (!agreed) {
        const dry = await change("POST", `/api/letters/${name(topic)}/redrive`, { ...order, dry_run: true });
        fill(plan, Object.entries(dry.targets).map(([target, number]) => h("p", {}, `${counted(number, "letter")} → ${target}`)),
          dry.done ? h("p", { class: "soft" }, `${count(dry.done)} were redriven before and are not sent again.`) : null,
          dry.held ? h("p", { class: "soft" }, `${count(dry.held)} stay: they came back too often.`) : null,
          dry.homeless ? h("p", { class: "soft" }, `${count(dry.homeless)} stay: they do not say where they came from. Name a topic.`) : null,
          dry.records ? null : h("p", { class: "caution" }, "Nothing would be sent."));
        if (dry.records) { agreed = true; button(`Redrive ${counted(dry.records, "letter")}`); }
        throw null;
      }
      const job = await follow(await change("POST", `/api/letters/${name(topic)}/redrive`, order), plan, { unit: "sent", stop: "Undo what is not sent yet" });
      if (job.state === "failed") throw new Error(job.error);
      note(job.state === "stopped" ? `${counted(job.done, "letter")} sent; the other ${count(job.total - job.done)} wait as before.` : `Redrove ${counted(job.done, "letter")}.`);
      done();
    },
  });
  const button = (text) => { dialog.querySelector("button[type=submit]").textContent = text; };
  for (const each of dialog.querySelectorAll("input")) each.addEventListener("input", () => { agreed = false; fill(plan); button("Dry run"); });
}

function purge(topic, done) {
  let agreed = null;
  const said = h("div");
  const mode = choice("mode", [["redriven", "Up to the first that still waits"], ["before", "All written before a time"], ["all", "All that are there now"]], "redriven");
  const time = field("Before", h("input", { name: "before", type: "datetime-local", step: "1" }));
  time.hidden = true;
  const dialog = ask({
    title: `Purge ${topic}`, action: "Count them", danger: true,
    body: [h("p", { class: "hint" }, "Letters are deleted for good, the oldest first. A log is cut from its beginning."), field("Which", mode), time, said],
    act: async (form) => {
      const wanted = { mode: mode.value };
      if (mode.value === "before") {
        if (!form.elements.before.value) throw new Error("Give a time.");
        wanted.before_ms = new Date(form.elements.before.value).getTime();
      }
      if (agreed === null) {
        const plan = await change("POST", `/api/letters/${name(topic)}/purge`, wanted);
        if (!plan.records) throw new Error("Nothing to delete.");
        agreed = plan.records;
        fill(said, h("p", { class: "caution" }, `${counted(plan.records, "letter")} would go${plan.waiting ? `, of which ${count(plan.waiting)} have not been redriven` : ""}.`));
        button(`Delete ${counted(plan.records, "letter")}`);
        throw null;
      }
      await change("POST", `/api/letters/${name(topic)}/purge`, { ...wanted, agreed });
      note(`Deleted ${counted(agreed, "letter")}.`);
      done();
    },
  });
  const button = (text) => { dialog.querySelector("button[type=submit]").textContent = text; };
  const afresh = () => { agreed = null; fill(said); time.hidden = mode.value !== "before"; button("Count them"); };
  mode.addEventListener("change", afresh);
  time.addEventListener("input", afresh);
}
