// The shell: routing, navigation and theme.

import { change, get } from "./api.js";
import { empty, fault, field, fill, h, note } from "./dom.js";
import { go, start, state } from "./router.js";
import { recall, store } from "./store.js";

const PAGES = [
  { path: "", title: "Overview", load: () => import("./pages/overview.js") },
  { path: "topics", title: "Topics", load: () => import("./pages/topics.js") },
  { path: "groups", title: "Groups", load: () => import("./pages/groups.js") },
  { path: "queues", title: "Queues", load: () => import("./pages/queues.js") },
  { path: "letters", title: "Dead letters", load: () => import("./pages/letters.js") },
  { path: "transactions", title: "Transactions", load: () => import("./pages/transactions.js") },
  { path: "cluster", title: "Cluster", load: () => import("./pages/cluster.js") },
  { path: "pipelines", title: "Pipelines", load: () => import("./pages/pipelines.js") },
  { path: "hot", title: "Hot partitions", load: () => import("./pages/hot.js") },
  { path: "plan", title: "Plan", load: () => import("./pages/plan.js") },
  { path: "trace", title: "Trace", load: () => import("./pages/trace.js") },
  { path: "simulator", title: "Simulator", load: () => import("./pages/simulator.js") },
];

const SLOW_MS = 10000;

let leave = new AbortController();
let isAsking = false;

// The parts of the address; none if it is malformed.
function addressed() {
  try {
    return location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return ["%"];
  }
}

// Shown instead of a page that cannot be loaded, with advice.
function failure(error) {
  const isPart = error instanceof TypeError && /module/i.test(error.message);
  return [fault(isPart ? new Error("A part of this page could not be loaded.") : error),
    h("p", { class: "hint" }, "If that does not help, check that the console is running; start it with: ", h("code", {}, "millpond console")),
    // The browser does not retry a failed module before the page is reloaded.
    h("div", {}, h("button", { onclick: () => location.reload() }, "Try again"))];
}

async function show() {
  if (isAsking) return;
  leave.abort();
  leave = new AbortController();
  const signal = leave.signal;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  const words = addressed();
  const page = PAGES.find((each) => each.path === (words[0] ?? ""));
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.path === (words[0] ?? "")) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  const main = document.getElementById("main");
  if (!page) {
    document.title = "Not found · Millpond";
    fill(main, empty("There is no such page.", h("a", { href: "/" }, "Go to the overview")));
    return;
  }
  document.title = `${words.length > 1 ? `${words[1]} · ` : ""}${page.title} · Millpond`;
  const slow = setTimeout(() => { if (!signal.aborted) fill(main, failure(new Error("This page cannot be loaded: the console's server does not answer."))); }, SLOW_MS);
  try {
    const { draw } = await page.load();
    clearTimeout(slow);
    if (!signal.aborted) await draw(main, words.slice(1), new URLSearchParams(location.search), signal);
  } catch (error) {
    if (!signal.aborted) fill(main, failure(error));
  } finally {
    clearTimeout(slow);
  }
}

function navigate(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || link.target) return;
  const address = new URL(link.href);
  if (address.origin !== location.origin || address.pathname.startsWith("/static/")) return;
  if (address.hash && address.pathname === location.pathname) return;
  event.preventDefault();
  go(address.pathname + address.search).then(() => {
    scrollTo(0, 0);
    document.getElementById("main").focus({ preventScroll: true });
  });
}

// Shows which cluster this is; false if a login is required first.
async function introduce() {
  try {
    const about = await get("/api/about");
    state.readOnly = about.is_read_only;
    state.bootstrap = about.bootstrap;
    fill(document.getElementById("where"), about.is_read_only ? "read-only · " : "", about.bootstrap);
    const out = document.getElementById("logout");
    out.hidden = !about.has_login;
    out.onclick = async () => { await change("POST", "/api/logout"); logIn(); };
  } catch (error) {
    if (isAsking) return false;
    note(error.message);
  }
  return true;
}

function logIn() {
  if (isAsking) return;
  isAsking = true;
  leave.abort();
  document.title = "Log in · Millpond";
  document.getElementById("logout").hidden = true;
  const said = h("div");
  const password = h("input", { type: "password", name: "password", required: true, autocomplete: "current-password", autofocus: true });
  const form = h("form", { class: "card pad stack login", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await change("POST", "/api/login", { password: password.value });
      isAsking = false;
      if (await introduce()) await show();
    } catch (error) {
      password.value = "";
      fill(said, h("p", { class: "fault", role: "alert" }, error.message));
    }
  } }, h("h1", {}, "Log in"), field("Password", password, "The password in the console's --password-file; with up --secure it is the admin's."), said, h("div", {}, h("button", { class: "main", type: "submit" }, "Log in")));
  fill(document.getElementById("main"), form);
  password.focus();
}

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  const word = { system: "Auto", light: "Light", dark: "Dark" }[name];
  const label = `Theme: ${word.toLowerCase()}`;
  button.textContent = label;
  button.setAttribute("aria-label", `${label}. Change`);
  button.onclick = () => {
    const next = THEMES[(THEMES.indexOf(name) + 1) % THEMES.length];
    store("theme", next);
    theme(next);
  };
}

theme(THEMES.includes(recall("theme")) ? recall("theme") : "system");
fill(document.getElementById("nav"), PAGES.map((each) => h("a", { href: `/${each.path}`, "data-path": each.path }, each.title)));
document.addEventListener("click", navigate);
document.addEventListener("login", logIn);
// A failed request of a button that does not report it itself: the user must see the failure.
addEventListener("unhandledrejection", ({ reason }) => { if (reason?.name !== "AbortError") note(reason?.message ?? String(reason)); });
start(show);
if (await introduce()) await show();
