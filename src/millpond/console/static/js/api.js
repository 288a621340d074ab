// Requests to the console's server: reads, changes, and live views that reconnect.

const SLOW_MS = 10000;
// The longest request is a simulator campaign, which the server ends by itself.
const GIVE_UP_MS = 200000;
const AGAIN_MS = 2000;
const SILENT = "The console's server does not answer. Is it still running? Start it with: millpond console";

export async function get(path, signal) {
  return reach(path, { signal });
}

export async function change(method, path, body = {}) {
  return reach(path, {
    method, body: JSON.stringify(body),
    headers: { "content-type": "application/json", "x-millpond-console": "1" },
  });
}

export function query(fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const text = new URLSearchParams(given.map(([key, value]) => [key, value === true ? "1" : value])).toString();
  return text ? `?${text}` : "";
}

export function name(text) {
  return encodeURIComponent(text);
}

async function reach(path, { signal, ...options }) {
  const patience = new AbortController();
  const leave = () => patience.abort();
  signal?.addEventListener("abort", leave);
  if (signal?.aborted) leave();
  let isSlow = false;
  const slow = setTimeout(() => { isSlow = true; lost(true, "The console's server is slow to answer. The page is waiting."); }, SLOW_MS);
  const end = setTimeout(leave, GIVE_UP_MS);
  let response;
  let text;
  try {
    response = await fetch(path, { ...options, signal: patience.signal });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) {
      if (isSlow) lost(false);
      throw error;
    }
    lost(true);
    throw new Error(SILENT);
  } finally {
    clearTimeout(slow);
    clearTimeout(end);
    signal?.removeEventListener("abort", leave);
  }
  lost(false);
  return answer(response, text);
}

function answer(response, text) {
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    // Reported below.
  }
  if (response.status === 401 && !response.url.endsWith("/api/login")) document.dispatchEvent(new Event("login"));
  if (!response.ok) throw new Error(body?.error ?? `The server answered ${response.status}. Reload the page; if that does not help, restart the console.`);
  if (body === undefined) throw new Error("The server's answer cannot be read. Reload the page.");
  return body;
}

let isLost = false;

function lost(now, text = "The connection to the console is lost. The page reconnects automatically; what you see may be outdated.") {
  const banner = document.getElementById("lost");
  if (now) banner.textContent = text;
  if (now !== isLost) banner.hidden = !now;
  isLost = now;
}

// Why a live view does not open: EventSource hides the reason, so a plain request has to find it out.
async function reason(path) {
  const stop = new AbortController();
  const end = setTimeout(() => stop.abort(), SLOW_MS);
  try {
    const response = await fetch(path, { signal: stop.signal });
    if (response.status === 401) document.dispatchEvent(new Event("login"));
    return response.ok ? null : (await response.json()).error;
  } catch {
    return null;
  } finally {
    clearTimeout(end);
    stop.abort();
  }
}

// A live view. `on` has a function for each event. It pauses while the page is hidden: a browser has few connections.
// Its `failure` returns whether it has shown the error. With `once` it does not restart by itself.
export function live(path, on, signal, { once = false } = {}) {
  let source = null;
  let timer = null;
  let isOver = false;
  const open = () => {
    if (source || isOver || document.hidden || signal.aborted) return;
    clearTimeout(timer);
    const mine = source = new EventSource(path);
    let wasOpen = false;
    const failed = async () => {
      if (source !== mine) return;
      close();
      isOver = once;
      if (!once) {
        if (!isLost) lost(true);
        // EventSource gives up for good after some refusals; we retry.
        timer = setTimeout(open, AGAIN_MS);
      }
      // A view with side effects must not start a second time just to find the reason.
      const why = await reason(wasOpen ? "/api/about" : path);
      if (signal.aborted) return;
      if (once) on.failure?.({ error: why ?? "The connection to the console was lost. Is it still running? Try again." });
      else if (why && !source) lost(true, why);
    };
    timer = setTimeout(failed, SLOW_MS);
    source.onopen = () => { wasOpen = true; clearTimeout(timer); };
    source.onerror = failed;
    for (const [event, take] of Object.entries(on)) {
      if (event !== "failure") source.addEventListener(event, (message) => {
        lost(false);
        try {
          take(JSON.parse(message.data));
        } catch (error) {
          lost(true, `This page cannot show the server's response. Reload it. (${error.message})`);
          throw error;
        }
      });
    }
    source.addEventListener("failure", (message) => {
      const failure = JSON.parse(message.data);
      if (!on.failure?.(failure)) lost(true, failure.error);
    });
    source.addEventListener("end", () => { isOver = true; close(); });
  };
  const close = () => { source?.close(); source = null; clearTimeout(timer); };
  const look = () => { if (!document.hidden) open(); else if (!once) close(); };
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", () => { close(); document.removeEventListener("visibilitychange", look); });
  open();
  return () => { isOver = true; close(); };
}
