// What this browser keeps for us. One that keeps nothing, because it was told so, is no fault.

export function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function store(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Then it is so until the page is closed.
  }
}
