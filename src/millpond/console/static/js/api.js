// Asking the console's server: questions, changes, and live views that come back by themselves.

export async function get(path, signal) {
  return answer(await reach(path, { signal }));
}

export async function change(method, path, body = {}) {
  return answer(await reach(path, {
    method, body: JSON.stringify(body),
    headers: { "content-type": "application/json", "x-millpond-console": "1" },
  }));
}

export function query(fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const text = new URLSearchParams(given.map(([key, value]) => [key, value === true ? "1" : value])).toString();
  return text ? `?${text}` : "";
}

export function name(text) {
  return encodeURIComponent(text);
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost(true);
    throw new Error("The console's server does not answer. Is it still running? Start it with: millpond console");
  }
}

async function answer(response) {
  lost(false);
  const body = await response.json().catch(() => ({}));
  if (response.status === 401 && !response.url.endsWith("/api/login")) document.dispatchEvent(new Event("login"));
  if (!response.ok) throw new Error(body.error ?? `The server answered ${response.status}.`);
  return body;
}

let isLost = false;

function lost(now, text = "The connection to the console is lost. It comes back by itself; what you see may be old.") {
  const banner = document.getElementById("lost");
  if (now) banner.textContent = text;
  if (now !== isLost) banner.hidden = !now;
  isLost = now;
}

// A live view. `on` has a function for each event; it pauses while nobody looks, because a browser has few connections.
// Its `failure` says whether it has shown what is wrong. What goes on `once` does not begin again by itself.
export function live(path, on, signal, { once = false } = {}) {
  let source = null;
  let timer = null;
  const open = () => {
    if (source || document.hidden || signal.aborted) return;
    source = new EventSource(path);
    for (const [event, take] of Object.entries(on)) {
      if (event !== "failure") source.addEventListener(event, (message) => { lost(false); take(JSON.parse(message.data)); });
    }
    source.addEventListener("failure", (message) => {
      const failure = JSON.parse(message.data);
      if (!on.failure?.(failure)) lost(true, failure.error);
    });
    source.addEventListener("end", close);
    source.onerror = () => {
      close();
      if (once) { on.failure?.({ error: "The connection to the console was lost." }); return; }
      lost(true);
      // EventSource gives up for good after some refusals; we do not. Why it was refused only a question can tell.
      timer = setTimeout(open, 2000);
      fetch("/api/about").then((response) => { if (response.status === 401) document.dispatchEvent(new Event("login")); }).catch(() => {});
    };
  };
  const close = () => { source?.close(); source = null; clearTimeout(timer); };
  const look = () => (once ? null : document.hidden ? close() : open());
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", () => { close(); document.removeEventListener("visibilitychange", look); });
  open();
  return close;
}
