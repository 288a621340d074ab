// Lists with pages and a filter: the server cuts them, the address keeps the position.

import { get, query } from "./api.js";
import { fault, fill, h } from "./dom.js";
import { count } from "./format.js";
import { keep } from "./router.js";

// `columns` are [title, cell of a row, class]; `switches` are [name, label] that the server understands.
export function list({ path, label, columns, none, params, signal, switches = [], key = "filter", row: rowProps }) {
  let page = Number(params.get("page")) || 1;
  let waiting = null;
  const input = h("input", { type: "search", class: "grow", placeholder: `Filter ${label} by name`, "aria-label": `Filter ${label} by name`, value: params.get(key) ?? "" });
  const boxes = switches.map(([name]) => h("input", { type: "checkbox", name, checked: params.get(name) === "1" }));
  const body = h("div", {}, h("p", { class: "pad hint" }, "Loading …"));
  const table = h("section", { class: "card" },
    h("div", { class: "cardhead tools" }, input, switches.map(([, text], at) => h("label", { class: "check" }, boxes[at], text))), body);

  const load = async () => {
    waiting?.abort();
    const mine = waiting = new AbortController();
    const fields = { [key]: input.value.trim(), page: page > 1 ? page : "" };
    switches.forEach(([name], at) => { fields[name] = boxes[at].checked; });
    keep(fields);
    try {
      const result = await get(path + query(fields), mine.signal);
      if (!signal.aborted) draw(result);
    } catch (error) {
      if (error.name !== "AbortError") fill(body, h("div", { class: "pad stack tight" }, fault(error), h("div", {}, h("button", { onclick: load }, "Try again"))));
    }
  };

  const named = (number) => `${count(number)} ${number === 1 ? label.slice(0, -1) : label}`;

  const draw = (result) => {
    if (!result.rows.length) {
      fill(body, result.total ? h("div", { class: "empty" }, h("strong", {}, `Nothing matches “${input.value}”.`),
        h("button", { onclick: () => { input.value = ""; page = 1; load(); input.focus(); } }, "Show all")) : none());
      return;
    }
    const turn = (by) => { page = result.page + by; load(); };
    fill(body,
      h("div", { class: "scroll" }, h("table", {},
        h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title)))),
        h("tbody", {}, result.rows.map((each) => h("tr", { class: "pick", ...rowProps?.(each) }, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(each)))))))),
      h("div", { class: "foot" },
        h("span", {}, result.fitting === result.total ? named(result.total) : `${count(result.fitting)} of ${named(result.total)}`),
        result.pages > 1 ? h("span", { class: "tools" },
          h("button", { disabled: result.page <= 1, onclick: () => turn(-1), "data-focus": "previous" }, "Previous"),
          `Page ${result.page} of ${count(result.pages)}`,
          h("button", { disabled: result.page >= result.pages, onclick: () => turn(1), "data-focus": "next" }, "Next")) : null));
  };

  let typing = null;
  input.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { page = 1; load(); }, 200); });
  boxes.forEach((box) => box.addEventListener("change", () => { page = 1; load(); }));
  signal.addEventListener("abort", () => waiting?.abort());
  load();
  return { table, load };
}

// A list whose rows are all here: `set` gives it new rows and keeps the position. `text` is the text to filter by.
export function local({ label, columns, text, none, size = 50, params = null }) {
  let rows = [];
  let page = 1;
  const input = h("input", { type: "search", class: "grow", placeholder: `Filter ${label}`, "aria-label": `Filter ${label}`, value: params?.get("filter") ?? "" });
  const head = h("div", { class: "cardhead tools", hidden: true }, input);
  const body = h("div");
  const draw = () => {
    const wanted = input.value.trim().toLowerCase();
    const fitting = wanted ? rows.filter((each) => text(each).toLowerCase().includes(wanted)) : rows;
    const pages = Math.max(1, Math.ceil(fitting.length / size));
    page = Math.min(page, pages);
    // Short lists need no filter.
    head.hidden = rows.length <= 8 && !wanted;
    if (!fitting.length) {
      fill(body, rows.length ? h("div", { class: "empty" }, h("strong", {}, `Nothing matches “${input.value}”.`)) : none());
      return;
    }
    const turn = (by) => { page += by; draw(); };
    fill(body,
      h("div", { class: "scroll" }, h("table", {},
        h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title)))),
        h("tbody", {}, fitting.slice((page - 1) * size, page * size).map((each) => h("tr", {}, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(each)))))))),
      pages > 1 ? h("div", { class: "foot" }, h("span", {}, `${count(fitting.length)}${fitting.length === rows.length ? "" : ` of ${count(rows.length)}`} ${label}`), h("span", { class: "tools" },
        h("button", { disabled: page <= 1, onclick: () => turn(-1), "data-focus": `previous ${label}`, "aria-label": `Previous ${label}` }, "Previous"), `Page ${page} of ${count(pages)}`,
        h("button", { disabled: page >= pages, onclick: () => turn(1), "data-focus": `next ${label}`, "aria-label": `Next ${label}` }, "Next"))) : null);
  };
  input.addEventListener("input", () => { page = 1; if (params) keep({ filter: input.value }); draw(); });
  return { parts: [head, body], set: (given) => { rows = given; draw(); } };
}
