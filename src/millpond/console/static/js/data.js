// What is in a record: bytes that may be anything, shown as JSON, text or hex, never as markup.

import { h } from "./dom.js";
import { bytes as size, count } from "./format.js";

export function decode(data) {
  return Uint8Array.from(atob(data.data), (sign) => sign.charCodeAt(0));
}

function asText(raw) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(raw);
  } catch {
    return null;
  }
}

function isCut(data) {
  return data.bytes > (data.data.length / 4) * 3;
}

// One line for a list.
export function preview(data) {
  if (data === null) return h("span", { class: "soft" }, "null");
  if (!data.bytes) return h("span", { class: "soft" }, "empty");
  const raw = decode(data);
  // A sign may have been cut in half at the end.
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

// The whole, with a switch between the ways to read it.
export function whole(data, label) {
  if (data === null) return h("p", { class: "soft" }, "null");
  const raw = decode(data);
  const text = asText(raw);
  let tree;
  try {
    tree = text === null || !/^\s*[[{"]/.test(text) ? undefined : JSON.parse(text);
  } catch {
    tree = undefined;
  }
  const ways = [
    tree === undefined ? null : ["JSON", () => JSON.stringify(tree, null, 2)],
    ["Text", () => text ?? new TextDecoder().decode(raw)],
    ["Hex", () => hexDump(raw)],
  ].filter(Boolean);
  const shown = h("pre", { class: "data", tabindex: "0", "aria-label": label });
  const buttons = ways.map(([way, make]) => h("button", { type: "button", onclick: () => pick(way, make) }, way));
  const pick = (way, make) => {
    shown.textContent = make();
    shown.className = way === "Hex" ? "data hex" : "data";
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === way)));
  };
  pick(...(text === null ? ways.at(-1) : ways[0]));
  return h("div", { class: "stack" },
    h("div", { class: "tools" }, h("div", { class: "switch", role: "group", "aria-label": `How to read the ${label}` }, buttons),
      h("span", { class: "hint" }, size(data.bytes), isCut(data) ? `, of which the first ${size(raw.length)} are shown` : ""),
      navigator.clipboard ? h("button", { type: "button", class: "quiet", onclick: () => navigator.clipboard.writeText(shown.textContent) }, "Copy") : null),
    shown);
}

export function headers(record) {
  if (!record.headers.length) return null;
  return h("dl", { class: "facts mono" }, record.headers.map(([name, value]) => [h("dt", {}, name), h("dd", {}, preview(value))]));
}
