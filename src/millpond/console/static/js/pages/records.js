// The records of a topic: a page from anywhere, live tail, search, and producing one.

import { change, get, live, name, query } from "../api.js";
import { asCommand, asFirstCommand, asPythonConsumer, asPythonProducer } from "../code.js";
import { headers, preview, whole } from "../data.js";
import { ask, choice, copyButton, empty, fault, field, fill, h, note } from "../dom.js";
import { count, counted, leftOut, moment } from "../format.js";
import { keep, state } from "../router.js";

const TAIL_MAX = 300;
// The server limits addresses to 8 KiB: with many hundred partitions only a single one can be paged.
const CURSOR_SIGNS_MAX = 4000;

export async function records(body, topic, params, signal) {
  const at = `/api/topics/${name(topic)}/records`;
  let leave = new AbortController();
  signal.addEventListener("abort", () => leave.abort());
  let page = null;
  const partition = choice("partition", [["", "All partitions"]], "", { "aria-label": "Partition" });
  const from = choice("from", [["end", "Latest"], ["beginning", "From the beginning"], ["offset", "From an offset"], ["time", "From a time"]], "end", { "aria-label": "Where to begin" });
  const offset = h("input", { type: "number", min: "0", placeholder: "offset", "aria-label": "Offset", hidden: true });
  const time = h("input", { type: "datetime-local", step: "1", "aria-label": "Time", hidden: true });
  const search = h("input", { type: "search", class: "grow", placeholder: "Search keys, values and headers", "aria-label": "Search keys, values and headers", value: params.get("search") ?? "" });
  const tailButton = h("button", { type: "button", "aria-pressed": "false" }, "Follow live");
  const status = h("div", { class: "pad hint", role: "status" });
  const bar = h("div", { class: "progress", hidden: true }, h("div", { "width%": 0 }));
  const rows = h("tbody");
  const table = h("div", { class: "scroll" }, h("table", { class: "records" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "optional" }, "Partition:"), "Offset"), [["Time", "optional"], ["Key"], ["Value"]].map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))), rows));
  const nothing = h("div");
  const foot = h("div", { class: "foot" });

  const read = () => ({ partition: partition.value, from: from.value === "offset" ? offset.value || "0" : from.value === "time" ? "" : from.value, since_ms: from.value === "time" && time.value ? new Date(time.value).getTime() : "" });
  const remember = (more = {}) => keep({ partition: partition.value, from: from.value === "end" || from.value === "time" ? "" : read().from, since_ms: read().since_ms, search: "", live: "", before: "", after: "", ...more });

  const row = (record) => {
    const id = `${record.partition}:${record.offset}`;
    const open = h("button", { class: "open", type: "button", "aria-expanded": "false", "data-focus": id, "aria-label": `Record ${id}` }, id);
    const line = h("tr", { class: "pick" }, h("td", { class: "nowrap" }, open), h("td", { class: "nowrap optional soft" }, moment(record.timestamp_ms)), h("td", { class: "key" }, preview(record.key)), h("td", { class: "value" }, preview(record.value)));
    let detail = null;
    open.onclick = async () => {
      if (detail) { detail.remove(); detail = null; open.setAttribute("aria-expanded", "false"); return; }
      const cell = h("td", { colspan: "4" }, "Loading …");
      detail = h("tr", { class: "detail" }, cell);
      line.after(detail);
      open.setAttribute("aria-expanded", "true");
      try {
        const full = await get(`${at}/${record.partition}/${record.offset}`);
        fill(cell, h("div", { class: "stack" },
          h("dl", { class: "facts" }, h("dt", {}, "Partition"), h("dd", {}, full.partition), h("dt", {}, "Offset"), h("dd", {}, count(full.offset)), h("dt", {}, "Time"), h("dd", {}, moment(full.timestamp_ms))),
          full.headers.length ? [h("h2", {}, "Headers"), headers(full)] : null,
          h("h2", {}, "Key"), whole(full.key, "key", topic), h("h2", {}, "Value"), whole(full.value, "value", topic), asCode(topic, full)));
      } catch (error) {
        fill(cell, fault(error));
      }
    };
    return line;
  };

  // Partitions are listed even if none can be read; the records then show the error.
  const offer = async () => {
    const known = await get(`/api/topics/${name(topic)}/partitions`, signal).catch(() => []);
    const there = new Set(Array.from(partition.options, (each) => each.value));
    if (known.length > 1) partition.append(...known.filter((each) => !there.has(String(each.partition))).map((each) => h("option", { value: String(each.partition) }, `Partition ${each.partition}${each.leader < 0 ? " (no leader)" : ""}`)));
  };

  const calm = () => {
    leave.abort();
    leave = new AbortController();
    bar.hidden = true;
    tailButton.setAttribute("aria-pressed", "false");
    tailButton.textContent = "Follow live";
    fill(nothing);
    fill(foot);
  };

  // The adjacent pages begin where this one begins and ends in each partition.
  const turns = (isFirst) => {
    const cursor = (edge) => page.partitions.map((each) => `${each.partition}:${each.shown[edge]}`).join(",");
    if (!page.partitions.length || cursor(1).length > CURSOR_SIGNS_MAX) return;
    const alone = page.partitions.length === 1 && page.records.length ? page.partitions[0] : null;
    const button = (label, edge, side, isMore) => h("button", { type: "button", disabled: !page.partitions.some(isMore), onclick: () => load({ [side]: cursor(edge) }), "data-focus": side }, label);
    fill(foot, h("span", {}, alone ? `Offsets ${count(page.records[0].offset)} to ${count(page.records.at(-1).offset)} of ${count(alone.start)} to ${count(alone.end)}` : ""),
      h("span", { class: "tools" }, button("Older", 0, "before", (each) => each.shown[0] > each.start), button("Newer", 1, "after", (each) => each.shown[1] < each.end),
        isFirst ? null : h("button", { type: "button", onclick: () => load(), "data-focus": "first" }, from.value === "end" ? "Newest" : "First page")));
  };

  const load = async (cursor = {}) => {
    const focus = foot.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    calm();
    remember(cursor);
    status.textContent = "Reading …";
    try {
      page = await get(at + query({ ...read(), ...cursor }), leave.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      status.textContent = "";
      fill(rows);
      fill(nothing, h("div", { class: "pad stack tight" }, fault(error), h("div", {}, h("button", { type: "button", onclick: latest }, "Show the latest"))));
      return;
    }
    const newestFirst = from.value === "end";
    const shown = newestFirst ? page.records.toReversed() : page.records;
    fill(rows, shown.map(row));
    const missing = `${page.is_whole ? "" : "; the time limit was reached before every partition was read"}${leftOut(page.leaderless)}`;
    status.textContent = shown.length ? `${counted(shown.length, "record")}${newestFirst ? ", the newest first" : ""}${missing}` : missing.slice(2);
    const isFirst = !cursor.before && !cursor.after;
    if (!shown.length) fill(nothing, none(isFirst));
    turns(isFirst);
    if (focus) foot.querySelector(`[data-focus="${focus}"]:enabled`)?.focus();
  };

  // The text for an empty list.
  const none = (isFirst) => {
    // The rest was not read.
    if (!page.is_whole) return empty("No record was found in the time limit.", h("span", {}, `Continue with ${from.value === "end" ? "Older" : "Newer"}, start elsewhere, or select one partition.`));
    if (page.leaderless.length) return empty("No record can be read now.", h("span", {}, "The Cluster page shows which nodes are missing."));
    if (!page.partitions.some((each) => each.end > each.start)) return empty("There are no records yet.", h("span", {}, "Write one: ", h("code", {}, asFirstCommand(state.bootstrap, topic))));
    if (!isFirst || from.value === "end") return empty("There are no records at these offsets.", h("span", {}, "They were deleted, or are transaction markers. There may be older records."));
    return empty("There are no records from that point on.", h("button", { type: "button", onclick: latest }, "Show the latest"));
  };

  const latest = () => { from.value = "end"; adapt(); load(); };

  const tail = () => {
    if (tailButton.getAttribute("aria-pressed") === "true") return load();
    calm();
    remember({ live: "1" });
    tailButton.setAttribute("aria-pressed", "true");
    tailButton.textContent = "Stop";
    fill(rows);
    status.textContent = "Waiting for new records …";
    let seen = 0;
    let skipped = 0;
    live(`/api/live/topics/${name(topic)}/tail${query({ partition: partition.value })}`, {
      records: (event) => {
        seen += event.records.length;
        skipped += event.skipped;
        rows.prepend(...event.records.toReversed().map(row));
        while (rows.children.length > TAIL_MAX) rows.lastChild.remove();
        const missing = leftOut(event.leaderless);
        if (seen || missing) status.textContent = `${counted(seen, "record")} since this page was opened${skipped ? `; ${count(skipped)} came too fast to be shown` : ""}${missing}`;
      },
      failure: ({ error }) => { status.textContent = error; return true; },
    }, leave.signal);
  };

  const find = () => {
    const text = search.value.trim();
    if (!text) return load();
    calm();
    remember({ search: text });
    fill(rows);
    bar.hidden = false;
    let hits = 0;
    let close = () => {};
    const done = (words) => { bar.hidden = true; fill(foot); close(); status.textContent = words; };
    fill(foot, h("span", {}, ""), h("button", { onclick: () => done(`Stopped; ${counted(hits, "record")} found so far.`), "data-focus": "cancel" }, "Cancel the search"));
    status.textContent = "Searching …";
    close = live(`/api/live/topics/${name(topic)}/search${query({ text, partition: partition.value, from: from.value === "end" ? "beginning" : read().from, since_ms: read().since_ms })}`, {
      found: (event) => {
        hits += event.records.length;
        rows.append(...event.records.map(row));
        bar.firstChild.style.width = `${event.total ? (event.scanned / event.total) * 100 : 100}%`;
        status.textContent = `${counted(hits, "record")} found; ${count(event.scanned)} of ${count(event.total)} read`;
        if (!event.is_done) return;
        done(`${counted(hits, "record")} found among ${count(event.total)}${leftOut(event.leaderless)}.`);
        if (!hits) fill(nothing, empty(`No record has “${text}”.`, h("span", {}, "Case is ignored for ASCII letters only.")));
      },
      limit: (event) => done(`Stopped after ${counted(event.hits, "hit")} and ${event.seconds} s: search from a later point to continue.`),
      failure: ({ error }) => { done(""); fill(nothing, h("div", { class: "pad" }, fault(new Error(error)))); return true; },
    }, leave.signal, { once: true });
  };

  const adapt = () => { offset.hidden = from.value !== "offset"; time.hidden = from.value !== "time"; };
  const wantedPartition = params.get("partition");
  if (wantedPartition) partition.append(h("option", { value: wantedPartition }, `Partition ${wantedPartition}`));
  partition.value = wantedPartition ?? "";
  if (params.get("since_ms")) {
    from.value = "time";
    const local = new Date(Number(params.get("since_ms")) - new Date().getTimezoneOffset() * 60000);
    time.value = local.toISOString().slice(0, 19);
  } else if (params.get("from") === "beginning") from.value = "beginning";
  else if (params.get("from")) { from.value = "offset"; offset.value = params.get("from"); }
  adapt();
  partition.addEventListener("change", () => load());
  from.addEventListener("change", () => { adapt(); if (!["offset", "time"].includes(from.value)) load(); });
  offset.addEventListener("change", () => load());
  time.addEventListener("change", () => load());
  tailButton.onclick = tail;
  fill(body, h("section", { class: "card" },
    h("form", { class: "cardhead tools", onsubmit: (event) => { event.preventDefault(); find(); } },
      partition, from, offset, time, search, h("button", { type: "submit" }, "Search"), tailButton,
      state.readOnly ? null : h("button", { type: "button", class: "main", onclick: () => produce(topic, partition, () => (tailButton.getAttribute("aria-pressed") === "true" ? null : load())) }, "Produce one")),
    bar, status, table, nothing, foot));
  offer();
  if (params.get("live")) { await load(); tail(); } else if (search.value) { const text = search.value; await load(); search.value = text; find(); } else await load({ before: params.get("before"), after: params.get("after") });
}

function asCode(topic, record) {
  const ways = [["Python that reads it", asPythonConsumer], ["Python that writes it again", asPythonProducer], ["Command", asCommand]];
  const shown = h("pre", { class: "data", tabindex: "0", "aria-label": "code", hidden: true });
  const buttons = ways.map(([label, make]) => h("button", { type: "button", "aria-pressed": "false", onclick: (event) => {
    shown.hidden = false;
    shown.textContent = make(state.bootstrap, topic, record);
    buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === event.target)));
  } }, label));
  return [h("h2", {}, "As code"), h("div", { class: "tools" }, h("div", { class: "switch", role: "group", "aria-label": "Which code" }, record.is_cut ? [buttons[0], buttons[2]] : buttons), copyButton(() => shown.textContent, "Copy the code"),
    record.is_cut ? h("span", { class: "hint" }, "It is too large to be written as code.") : null), shown];
}

function produce(topic, partition, done) {
  const options = Array.from(partition.options, (each) => [each.value, each.value === "" ? "By its key" : each.textContent]);
  ask({
    title: `Produce a record to ${topic}`, action: "Produce",
    body: [
      h("div", { class: "two" }, field("Key", h("input", { name: "key", autocomplete: "off", autofocus: true, placeholder: "none" })), field("Partition", choice("partition", options, ""))),
      field("Value", h("textarea", { name: "value", rows: "5", spellcheck: "false" })),
      h("div", { class: "two" }, field("The value is", choice("encoding", [["text", "Text or JSON"], ["hex", "Hex"], ["base64", "Base64"], ["null", "Null (a tombstone)"]], "text")),
        field("Headers", h("input", { name: "headers", placeholder: "trace=abc, source=console", autocomplete: "off" }), "NAME=VALUE, separated by commas.")),
    ],
    act: async (form) => {
      const fields = form.elements;
      // Without a prototype: a header may be called __proto__.
      const given = Object.create(null);
      for (const part of fields.headers.value.split(",").map((each) => each.trim()).filter(Boolean)) {
        const cut = part.indexOf("=");
        if (cut < 1) throw new Error(`Write headers as NAME=VALUE: ${part}`);
        given[part.slice(0, cut).trim()] = part.slice(cut + 1).trim();
      }
      const isNull = fields.encoding.value === "null";
      const made = await change("POST", `/api/topics/${name(topic)}/records`, {
        key: fields.key.value === "" ? null : fields.key.value, value: isNull ? null : fields.value.value, headers: given,
        encoding: isNull ? "text" : fields.encoding.value, partition: fields.partition.value === "" ? null : Number(fields.partition.value),
      });
      note(`Written to partition ${made.partition} at offset ${count(made.offset)}.`);
      done();
    },
  });
}
