// Navigation: goes to another address, and keeps the query parameters.

export const state = { readOnly: false, bootstrap: "127.0.0.1:9092" };

let show = async () => {};

export function start(draw) {
  show = draw;
  addEventListener("popstate", () => show());
}

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  return show();
}

// Changes the query parameters without redrawing the page.
export function keep(fields) {
  const params = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(fields)) {
    if (value === "" || value === null || value === undefined || value === false) params.delete(key);
    else params.set(key, value === true ? "1" : value);
  }
  const text = params.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
}
