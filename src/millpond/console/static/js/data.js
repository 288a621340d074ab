// The content of a record: arbitrary bytes, shown as JSON, text or hex, never as markup.

import { readAvro } from "./avro.js";
import { ask, copyButton, field, h } from "./dom.js";
import { bytes as size, count } from "./format.js";
import { recall, store } from "./store.js";

export function decode(data) {
  return Uint8Array.from(atob(data.data), (sign) => sign.charCodeAt(0));
}

// All its characters, including a byte order mark; null if it is not text.
export function asText(raw) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
  } catch {
    return null;
  }
}

export function isCut(data) {
  return decode(data).length < data.bytes;
}

export function isSame(one, other) {
  return one.length === other.length && one.every((each, at) => each === other[at]);
}

export function asHex(raw) {
  return Array.from(raw, (each) => each.toString(16).padStart(2, "0")).join("");
}

const WORDS = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const DEPTH_MAX = 100;

// Indented JSON, otherwise unchanged: numbers keep all their digits, beyond a browser's precision.
// Null if it is not JSON, or nested too deeply.
export function indented(text) {
  const json = text.replace(/^\uFEFF/, "");
  try {
    JSON.parse(json);
  } catch {
    return null;
  }
  const parts = [];
  let depth = 0;
  let before = "";
  const line = () => parts.push("\n", "  ".repeat(depth));
  for (const [word] of json.matchAll(WORDS)) {
    const isAfterOpening = before === "{" || before === "[";
    if (word === "}" || word === "]") {
      depth -= 1;
      if (!isAfterOpening) line();
    } else if (isAfterOpening || before === ",") line();
    parts.push(word === ":" ? ": " : word);
    if (word === "{" || word === "[") depth += 1;
    if (depth > DEPTH_MAX) return null;
    before = word;
  }
  return parts.join("");
}

// One line for a list.
export function preview(data) {
  if (data === null) return h("span", { class: "soft" }, "null");
  if (!data.bytes) return h("span", { class: "soft" }, "empty");
  const raw = decode(data);
  // The last character may be cut in half.
  const text = asText(raw) ?? (isCut(data) ? [1, 2, 3].map((less) => asText(raw.subarray(0, -less))).find((each) => each !== null) : null);
  if (text === null || text === undefined) return h("span", { class: "soft" }, hexLine(raw.subarray(0, 24)), data.bytes > 24 ? " …" : "");
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}

function hexLine(raw) {
  return Array.from(raw, (each) => each.toString(16).padStart(2, "0")).join(" ");
}

function hexDump(raw) {
  const lines = [];
  for (let at = 0; at < Math.min(raw.length, 16384); at += 16) {
    const part = raw.subarray(at, at + 16);
    const signs = Array.from(part, (each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hexLine(part).padEnd(47)}  ${signs}`);
  }
  if (raw.length > 16384) lines.push(`… ${count(raw.length - 16384)} bytes more`);
  return lines.join("\n");
}

// The schema entered for the keys or values of a topic; it stays in this browser.
function schemaOf(topic, label) {
  return recall(`avro ${label} ${topic}`) ?? "";
}

function askForSchema(topic, label, done) {
  ask({
    title: `Avro schema of the ${label}s of ${topic}`, action: "Use it",
    body: [h("p", { class: "hint" }, "As JSON. It is stored only in this browser. The five-byte prefix of a schema registry is skipped."),
      field("Schema", h("textarea", { name: "schema", rows: "10", spellcheck: "false", autofocus: true, text: schemaOf(topic, label) }))],
    act: async (form) => {
      const text = form.elements.schema.value.trim();
      if (text) JSON.parse(text);
      store(`avro ${label} ${topic}`, text);
      if (text) done();
    },
  });
}

function avroText(raw, schema) {
  try {
    const { value, registryId } = readAvro(raw, JSON.parse(schema));
    return `${registryId === null ? "" : `// schema ${registryId} of the registry\n`}${JSON.stringify(value, null, 2)}`;
  } catch (error) {
    return `This is not Avro of that schema: ${error.message}`;
  }
}

// The whole data, with a choice of formats. Avro needs a schema, which is kept for each topic.
export function whole(data, label, topic = null) {
  if (data === null) return h("p", { class: "soft" }, "null");
  const raw = decode(data);
  const text = asText(raw);
  const json = text === null || !/^\s*[[{"]/.test(text) ? null : indented(text);
  const ways = [
    json === null ? null : ["JSON", () => json],
    ["Text", () => text ?? new TextDecoder().decode(raw)],
    ["Hex", () => hexDump(raw)],
    topic === null ? null : ["Avro", () => avroText(raw, schemaOf(topic, label))],
  ].filter(Boolean);
  const shown = h("pre", { class: "data", tabindex: "0", "aria-label": label });
  const buttons = ways.map(([way, make]) => h("button", { type: "button", onclick: () => pick(way, make) }, way));
  const schema = topic === null ? null : h("button", { type: "button", class: "quiet", hidden: true, onclick: () => askForSchema(topic, label, () => pick("Avro", ways.at(-1)[1])) }, "Schema …");
  const pick = (way, make) => {
    if (schema) schema.hidden = way !== "Avro";
    if (way === "Avro" && !schemaOf(topic, label)) { askForSchema(topic, label, () => pick(way, make)); return; }
    shown.textContent = make();
    shown.className = way === "Hex" ? "data hex" : "data";
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === way)));
  };
  const first = topic !== null && schemaOf(topic, label) && text === null ? "Avro" : text === null ? "Hex" : ways[0][0];
  pick(...ways.find(([way]) => way === first));
  return h("div", { class: "stack" },
    h("div", { class: "tools" }, h("div", { class: "switch", role: "group", "aria-label": `Format of the ${label}` }, buttons), schema,
      h("span", { class: "hint" }, size(data.bytes), isCut(data) ? `, of which the first ${size(raw.length)} are shown` : ""),
      copyButton(() => shown.textContent)),
    shown);
}

export function headers(record) {
  if (!record.headers.length) return null;
  const more = record.headers_total - record.headers.length;
  return [h("dl", { class: "facts mono" }, record.headers.map(([name, value]) => [h("dt", {}, name), h("dd", {}, preview(value))])),
    more > 0 ? h("p", { class: "hint" }, `and ${count(more)} more that are not shown`) : null];
}
