// Elements from names, properties and children. Text always becomes a text node, never markup.

export function h(name, props = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key === "width%") element.style.width = `${value}%`;
    else if (key === "left%") element.style.left = `${value}%`;
    else if (key === "height%") element.style.height = `${value}%`;
    else if (key === "text") element.value = value;
    else if (key in element && typeof value !== "string") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...clean(children));
  return element;
}

export function svg(name, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(props)) element.setAttribute(key, value);
  element.append(...clean(children));
  return element;
}

function clean(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (each instanceof Node ? each : String(each)));
}

export function fill(element, ...children) {
  // The focused element keeps the focus after a redraw, if one with the same name exists.
  const focus = element.contains(document.activeElement) ? document.activeElement.dataset?.focus : null;
  element.replaceChildren(...clean(children));
  if (focus) element.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  return element;
}

export function note(text) {
  const shown = h("div", { class: "note" }, text);
  document.getElementById("notes").append(shown);
  setTimeout(() => shown.remove(), 5000);
}

export function fault(error) {
  return h("p", { class: "fault", role: "alert" }, error.message ?? String(error));
}

export function empty(title, ...more) {
  return h("div", { class: "empty" }, h("strong", {}, title), more);
}

export function head(title, { crumb, chips = [], actions = [] } = {}) {
  return h("div", { class: "head" },
    h("div", { class: "grow" }, crumb ? h("div", { class: "crumb" }, crumb) : null, h("h1", {}, title), chips.length ? h("div", { class: "tools" }, chips) : null),
    actions);
}

export function tile(title, value, more, { level = "", extra = null, href = null, wide = false } = {}) {
  return h(href ? "a" : "div", { class: `card tile${wide ? " wide" : ""}`, href }, h("span", { class: "name" }, title), h("span", { class: `value ${level}` }, value),
    more ? h("span", { class: "more" }, more) : null, extra);
}

export function table(columns, rows) {
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))), h("tbody", {}, rows)));
}

export function copyButton(text, label = "Copy") {
  if (!navigator.clipboard) return null;
  return h("button", { type: "button", class: "quiet", onclick: async () => { await navigator.clipboard.writeText(typeof text === "function" ? text() : text); note("Copied."); } }, label);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title ? (title instanceof Node ? title : h("h2", {}, title)) : null, children);
}

// The longest duration of a double click.
const CALM_MS = 500;

// A dialog with fields. `act` gets the form; an error that it throws is shown inside. Fields are disabled while it
// runs, because the result is shown beside them and must match them.
export function ask({ title, body, action, danger = false, act }) {
  const said = h("div");
  const go = h("button", { class: danger ? "main danger" : "main", type: "submit" }, action);
  const form = h("form", { method: "dialog" }, h("h2", {}, title), body, said,
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
  const dialog = h("dialog", { "aria-label": title }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const focus = form.contains(document.activeElement) ? document.activeElement : null;
    const fields = [...form.elements].filter((each) => each.matches("input, select, textarea") && !each.disabled);
    const meant = go.textContent;
    for (const each of [go, ...fields]) each.disabled = true;
    fill(said);
    try {
      await act(form, { say: (...parts) => fill(said, parts) });
      dialog.close();
    } catch (error) {
      if (error) fill(said, fault(error));
    } finally {
      for (const each of fields) each.disabled = false;
      const back = () => { if (document.activeElement === document.body) focus?.focus(); };
      back();
      // The second click of a double click must not press a button whose meaning has just changed.
      setTimeout(() => { go.disabled = false; back(); }, go.textContent === meant ? 0 : CALM_MS);
    }
  });
  const before = document.activeElement;
  dialog.addEventListener("close", () => { dialog.remove(); before?.focus?.(); });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint ? h("span", { class: "hint" }, hint) : null);
}

export function choice(name, options, value, props = {}) {
  return h("select", { name, ...props }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
}

// A dialog for something that cannot be undone: `act` gets the typed name, which the server checks.
export function confirmByName({ title, action, warning, label, act }) {
  ask({
    title, action, danger: true,
    body: [h("p", { class: "caution" }, warning),
      field(label, h("input", { name: "confirm", required: true, autocomplete: "off", autofocus: true }))],
    act: (form) => act(form.elements.confirm.value),
  });
}
